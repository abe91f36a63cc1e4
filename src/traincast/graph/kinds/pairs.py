"""Sums of products of vectors, and distances of all pairs of rows."""

from __future__ import annotations

from traincast.graph.kinds.base import Case, Costs, Kernel, pointwise, total
from traincast.graph.kinds.special import gemm, rule


@rule("mv")
def _mv(c: Case) -> Costs:
    """A matrix times a vector, and what is added; the matrix's gradient is an outer product."""
    a, b = c.ins[:2]
    y = c.outs[0]
    dims = (y.n, b.n, 0, 0)
    forward = Kernel("mv", "reduction", 0, 2 * a.n, total(c.ins), y.size, dims, each=a.each)
    data: tuple[Kernel, ...] = ()
    if a.grad:
        data += (pointwise("mul", y.size + b.size, a.size, a.n, each=a.each),)
    if b.grad:
        across = (b.n, y.n, b.n, 0)
        read = a.size + y.size
        data += (Kernel("mv", "reduction", 0, 2 * a.n, read, b.size, across, each=a.each),)
    saved = ((0,) if b.grad else ()) + ((1,) if a.grad else ())
    return Costs((forward,), data, (), saved)


@rule("_trilinear")
def _trilinear(c: Case) -> Costs:
    """y[n, o] = Σ a[n, i]·W[o, i, j]·b[n, j] as PyTorch evaluates it: output by output.

    Each takes a product over i and, for every sample, one over j. The three gradients are three
    more of these.
    """
    a, w, b = c.ins[:3]
    outs, i, j = w.shape[-3:] if len(w.shape) == 3 else (w.shape[1], w.shape[2], w.shape[3])
    n = a.n / max(i, 1)

    def pair(name: str) -> tuple[Kernel, ...]:
        return (
            gemm(f"{name}.first", (n, j, i, 1), a.each, outs),
            gemm(f"{name}.second", (1, 1, j, n), a.each, outs),
        )

    forward = pair("_trilinear")
    data = tuple(k for x in (a, b) if x.grad for k in pair("_trilinear_backward"))
    weight = pair("_trilinear_backward") if w.grad else ()
    saved = (0, 1, 2) if any(x.grad for x in (a, w, b)) else ()
    return Costs(forward, data, weight, saved)


@rule("_euclidean_dist")
def _euclidean(c: Case) -> Costs:
    """Distances of all pairs of rows by one product, of rows with their squared norms beside them.

    (a², -2a, 1)·(1, b, b²)ᵀ, then a square root. Backward divides by it and takes a product for
    each side.
    """
    a, b, y = c.ins[0], c.ins[1], c.outs[0]
    m, n, k = a.shape[-2], b.shape[-2], a.shape[-1]
    batch = y.n / max(m * n, 1)
    name = "bmm" if len(y.shape) > 2 else "mm"
    forward: list[Kernel] = []
    for x in (a, b):
        dims = (x.n / max(k, 1), k, 0, 0)
        rows = x.size / max(k, 1)
        forward += [
            pointwise("pow", x.size, x.size, x.n, each=x.each),
            Kernel("sum", "reduction", 0, x.n, x.size, rows, dims, each=x.each),
            Kernel("copy_", "copy", 0, 0, x.size + rows, x.size + 2 * rows, each=x.each),
        ]
    forward += [
        gemm(name, (m, n, k + 2, batch), y.each, 1),
        pointwise("clamp_min", y.size, y.size, y.n, each=y.each),
        pointwise("sqrt", y.size, y.size, y.n, 4, y.each),
    ]
    data: list[Kernel] = []
    if a.grad or b.grad:
        data.append(pointwise("div", 2 * y.size, y.size, y.n, 4, y.each))
    for x, rows, inner in ((a, m, n), (b, n, m)):
        if x.grad:
            dims = (x.n / max(k, 1), inner, 0, 0)
            data += [
                Kernel("sum", "reduction", 0, y.n, y.size, x.size / max(k, 1), dims, each=y.each),
                pointwise("mul", x.size, x.size, x.n, each=x.each),
                gemm(name, (rows, k, inner, batch), y.each, 1),
                pointwise("sub", 2 * x.size, x.size, x.n, each=x.each),
            ]
    return Costs(tuple(forward), tuple(data), (), (0, 1, ~0) if data else ())


@rule("_cdist_forward")
def _cdist(c: Case) -> Costs:
    """Distances of all pairs of rows, each pair by itself."""
    a, b, y = c.ins[0], c.ins[1], c.outs[0]
    work = 3 * y.n * a.shape[-1]
    dims = (y.n, a.shape[-1], 0, 0)
    read = a.size + b.size
    forward = Kernel("_cdist_forward", "reduction", 0, work, read, y.size, dims, each=a.each)
    back = tuple(
        Kernel("_cdist_backward", "reduction", 0, 2 * work, read + 2 * y.size, x.size, dims)
        for x in (a, b)
        if x.grad
    )
    return Costs((forward,), back, (), (0, 1, ~0) if back else ())
