"""Running sums and extremes, values put to places, and losses that walk over positions."""

from __future__ import annotations

from traincast.graph.kinds.base import Case, Costs, Kernel, pointwise, total
from traincast.graph.kinds.special import rule


def _running_extreme(c: Case) -> Costs:
    """The largest (smallest) value so far and where it was; backward adds gradients there."""
    fn = str(c.attrs["fn"])
    x, index = c.ins[0], c.outs[1]
    forward = Kernel(fn, "copy", 0, x.n, x.size, total(c.outs), each=x.each)
    if not x.grad:
        return Costs((forward,))
    zeros = Kernel("zeros", "fill", 0, 0, 0, x.size, each=x.each)
    dims = (x.n, 1, x.n, 0)
    read = 2 * x.size + index.size
    back = Kernel("scatter_add", "gather", 0, x.n, read, x.size, dims, each=x.each)
    return Costs((forward,), (zeros, back), (), (~1,))


for _name in ("cummax", "cummin"):
    rule(_name)(_running_extreme)


@rule("logcumsumexp")
def _log_running_sum(c: Case) -> Costs:
    """log Σ exp so far. Backward does the same from the end, for both signs of the gradient."""
    x = c.ins[0]
    forward = Kernel("logcumsumexp", "copy", 0, 20 * x.n, x.size, x.size, each=x.each)
    if not x.grad:
        return Costs((forward,))
    scan = (
        Kernel("flip", "copy", 0, 0, x.size, x.size, each=x.each),
        forward,
        Kernel("flip", "copy", 0, 0, x.size, x.size, each=x.each),
    )
    names = ("where", "log", "sub", "add", "exp")
    half = (*(pointwise(n, 2 * x.size, x.size, x.n, 5, x.each) for n in names), *scan)
    last = pointwise("sub", 2 * x.size, x.size, x.n, each=x.each)
    return Costs((forward,), (*half, *half, last), (), (0, ~0))


def _unpool(c: Case) -> Costs:
    """Values put back to where a pool found them, in zeros."""
    fn = str(c.attrs["fn"])
    x, index, y = c.ins[0], c.ins[1], c.outs[0]
    dims = (x.n, 1, y.n, 0)
    read = x.size + index.size
    forward = (
        Kernel("zero_", "fill", 0, 0, 0, y.size, each=y.each),
        Kernel(fn, "gather", 0, x.n, read, x.size, dims, each=x.each),
    )
    if not x.grad:
        return Costs(forward)
    back = Kernel("gather", "gather", 0, x.n, read, x.size, dims, each=x.each)
    return Costs(forward, (back,), (), (1,))


for _name in ("max_unpool2d", "max_unpool3d"):
    rule(_name)(_unpool)


@rule("_ctc_loss")
def _ctc(c: Case) -> Costs:
    """Sums over all alignments, position by position; backward the same from the end.

    One kernel walks over the positions, so that its time has a part that this does not count.
    """
    x = c.ins[0]
    alpha = c.outs[1]
    dims = (c.outs[0].n, x.n / max(c.outs[0].n, 1), 0, 0)
    work = 30 * alpha.n
    forward = Kernel("_ctc_loss", "reduction", 0, work, x.size, total(c.outs), dims, each=x.each)
    if not x.grad:
        return Costs((forward,))
    filled = Kernel("full_like", "fill", 0, 0, 0, x.size, each=x.each)
    beta = forward._replace(name="_ctc_loss_backward.beta", write=alpha.size)
    read = 2 * alpha.size + x.size
    grad = Kernel("_ctc_loss_backward", "reduction", 0, 3 * work, read, x.size, dims, each=x.each)
    return Costs((forward,), (filled, beta, grad), (), (0, ~0, ~1))


@rule("nonzero")
def _nonzero(c: Case) -> Costs:
    """Places of values that are not zero: they are counted, then written, in several launches."""
    x = c.ins[0]
    dims = (1, x.n, 0, 0)
    written = total(c.outs)
    kernel = Kernel("nonzero", "reduction", 0, 2 * x.n, 2 * x.size, 2 * written, dims)
    return Costs((kernel._replace(launches=4, each=x.each),))


@rule("cumprod")
def _running_product(c: Case) -> Costs:
    """Products so far. Backward first looks for zeros, of which it takes account in every case."""
    x = c.ins[0]
    forward = Kernel("cumprod", "copy", 0, x.n, x.size, x.size, each=x.each)
    if not x.grad:
        return Costs((forward,))
    scan = forward._replace(name="cumsum")
    turned = (
        pointwise("mul", 2 * x.size, x.size, x.n, each=x.each),
        Kernel("flip", "copy", 0, 0, x.size, x.size, each=x.each),
        scan,
        Kernel("flip", "copy", 0, 0, x.size, x.size, each=x.each),
    )
    masks = ("eq", "eq", "bitwise_not", "masked_fill", "div", "where")
    rest = (pointwise(name, 2 * x.size, x.size, x.n, each=x.each) for name in masks)
    return Costs((forward,), (*turned, scan, *rest), (), (0, ~0))


@rule("scatter_reduce")
def _scatter_reduce(c: Case) -> Costs:
    """Values by index into a table: their mean, largest or smallest in each place, or product.

    Backward reads at the same places. For a mean it counts the values of a place; for an extreme
    it finds those that are equal to the result and counts them, as several share the gradient.
    """
    into, source, y = c.ins[0], c.ins[-1], c.outs[0]
    how = str(c.attrs.get("reduce", "sum"))
    index = c.ins[1].size
    dims = (source.n, 1, y.n, 0)
    e = y.each

    def moves(name: str) -> Kernel:
        read = 2 * source.size + index
        return Kernel(name, "gather", 0, source.n, read, source.size, dims, each=e)

    def over(name: str, values: float) -> Kernel:
        return pointwise(name, 2 * values * e, values * e, values, each=e)

    def cast(values: float) -> Kernel:
        return Kernel("_to_copy", "copy", 0, 0, values, values * e, each=1)

    forward = [moves("scatter_reduce")]
    if how == "mean":
        forward += [moves("scatter_add"), over("eq", y.n), over("masked_fill_", y.n)]
        forward += [over("div", y.n)]
    if not any(a.grad for a in c.ins):
        return Costs(tuple(forward))
    counted = (moves("scatter_add"), over("eq", y.n), over("masked_fill_", y.n), over("div", y.n))
    shared = (
        moves("gather"), over("eq", source.n), over("eq", y.n), cast(source.n), cast(y.n),
        moves("scatter_add"), over("div", y.n), moves("gather"), over("mul", source.n),
    )  # fmt: skip
    back = {"mean": (*counted, moves("gather")), "sum": (moves("gather"),)}.get(how, shared)
    cleared = (moves("scatter"),) if into.grad else ()
    kept = (1,) if how == "sum" else (1, 2, ~0)
    return Costs(tuple(forward), (*back, *cleared), (), kept)
