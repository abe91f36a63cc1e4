"""Ops that no kind stands for, by name: a rule for each, or else a bound by its traffic.

A rule is a pure function of a case, found by the attribute `fn`: gated units, recurrent cells and
Fourier transforms here, others in `pairs` and `scans`. What is kept for backward follows PyTorch's
derivatives.yaml.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from traincast.graph.kinds.base import (
    Arg,
    Case,
    Costs,
    Kernel,
    Kind,
    pointwise,
    register,
    total,
)

Rule = Callable[[Case], Costs]
SPECIAL: dict[str, Rule] = {}
STOPS = frozenset({"nonzero"})
"""Those without a gradient."""


def rule(name: str) -> Callable[[Rule], Rule]:
    """Enter a function as the rule of an op; a name may be taken once."""

    def enter(function: Rule) -> Rule:
        assert name not in SPECIAL, name
        SPECIAL[name] = function
        return function

    return enter


def gemm(name: str, dims: tuple[float, float, float, float], each: float, times: float) -> Kernel:
    """Return `times` products of these dims, each of which reads and writes its operands once."""
    m, n, k, b = dims
    read, write = (m * k + k * n) * b * each, m * n * b * each
    flops = 2 * m * n * k * b
    parts = (flops * times, 0.0, read * times, write * times)
    return Kernel(name, "gemm", *parts, dims, launches=times, each=each)


def _over_samples(grad: Arg, into: float) -> Kernel:
    """Return the sum of a gradient over its samples: a bias's gradient."""
    dims = (into, grad.n / max(into, 1), into, 0)
    return Kernel("sum", "reduction", 0, grad.n, grad.size, into * grad.each, dims, each=grad.each)


@rule("glu")
def _glu(c: Case) -> Costs:
    """a · sigmoid(b), a and b being halves of the input."""
    x, y = c.ins[0], c.outs[0]
    forward = pointwise("glu", x.size, y.size, y.n, 13, x.each)
    if not x.grad:
        return Costs((forward,))
    back = pointwise("glu_backward", x.size + y.size, x.size, x.n, 13, x.each)
    return Costs((forward,), (back,), (), (0,))


@rule("lstm_cell")
def _lstm_cell(c: Case) -> Costs:
    """Gates of an LSTM's cell from both products, the old state and the biases, in one kernel.

    CUDA keeps the activated gates (4 a unit) besides its inputs and the new state. Backward is one
    kernel, whose gradient of the gates is summed over the samples once for both biases.
    """
    gates, state = c.ins[0], c.ins[2]
    name = "_thnn_fused_lstm_cell"
    write = total(c.outs) + gates.size
    forward = pointwise(name, total(c.ins), write, state.n, 60, state.each)
    if not any(a.grad for a in c.ins):
        return Costs((forward,))
    read = gates.size + 4 * state.size
    back = pointwise(f"{name}_backward", read, gates.size + state.size, state.n, 30, state.each)
    sums = (_over_samples(gates, gates.shape[-1]),) if any(a.grad for a in c.ins[3:]) else ()
    return Costs((forward,), (back,), sums, (0, 1, 2, ~1), gates.size)


@rule("gru_cell")
def _gru_cell(c: Case) -> Costs:
    """As for an LSTM, with 5 values a unit kept; the two biases have gradients of their own."""
    gates, state = c.ins[0], c.ins[2]
    name = "_thnn_fused_gru_cell"
    kept = 5 * state.size
    forward = pointwise(name, total(c.ins), total(c.outs) + kept, state.n, 45, state.each)
    if not any(a.grad for a in c.ins):
        return Costs((forward,))
    write = 2 * gates.size + state.size
    back = pointwise(f"{name}_backward", kept + state.size, write, state.n, 25, state.each)
    sums = tuple(_over_samples(gates, gates.shape[-1]) for a in c.ins[3:] if a.grad)
    return Costs((forward,), (back,), sums, (0, 1, 2), kept)


def _fft(c: Case) -> Costs:
    """Discrete Fourier transforms over `points` values: 5·n·log₂n operations for n complex ones.

    Cooley & Tukey 1965. Real input halves that. Memory is read and written once an axis. A
    transform back to real values first copies its input, which it destroys. A transform of real
    values has a gradient of full length: half of it is zeros, which have to be written.
    """
    fn = str(c.attrs["fn"])
    x, y = c.ins[0], c.outs[0]
    axes, points = c.number("axes", 1), max(c.number("points", 1), 2)
    scaled = bool(c.attrs.get("scaled"))

    def transform(name: str, a: Arg, b: Arg, work: float) -> tuple[Kernel, ...]:
        large = max(a.size, b.size)
        read, write = a.size + (axes - 1) * large, b.size + (axes - 1) * large
        arithmetic = 5 * work * math.log2(points)
        kernel = pointwise(name, read, write, arithmetic, each=a.each)._replace(launches=axes)
        scale = pointwise("mul", b.size, b.size, b.n, each=b.each)
        return (kernel, scale) if scaled else (kernel,)

    def copy(a: Arg, name: str = "clone") -> Kernel:
        return Kernel(name, "copy", 0, 0, a.size, a.size, each=a.each)

    work = {"_fft_r2c": x.n / 2, "_fft_c2r": y.n / 2}.get(fn, x.n)
    forward = transform(fn, x, y, work)
    if fn == "_fft_c2r":
        forward = (copy(x), *forward)
    if not x.grad:
        return Costs(forward)
    if fn == "_fft_c2c":
        return Costs(forward, transform(fn, y, x, x.n))
    if fn == "_fft_c2r":
        doubled = pointwise("mul", x.size, x.size, x.n, each=x.each)
        return Costs(forward, (*transform("_fft_r2c", y, x, work), doubled))
    full = Arg(x.shape, x.n, y.each, True, x.role)
    filled = Kernel("new_zeros", "fill", 0, 0, 0, full.size, each=y.each)
    real = Kernel("copy_", "copy", 0, 0, x.size, x.size, each=x.each)
    return Costs(forward, (filled, copy(y, "copy_"), *transform("_fft_c2c", full, full, x.n), real))


for _name in ("_fft_r2c", "_fft_c2r", "_fft_c2c"):
    rule(_name)(_fft)


@rule("affine_grid_generator")
def _affine_grid(c: Case) -> Costs:
    """A grid of (x, y, 1) in some kernels, times each sample's matrix."""
    theta, y = c.ins[0], c.outs[0]
    rank = theta.shape[-1]
    sites = y.n / max(theta.shape[0] * (rank - 1), 1)
    grid = Kernel(
        "affine_grid_generator", "fill", 0, 0, 0, rank * sites * y.each, launches=2 * rank,
        each=y.each,
    )  # fmt: skip
    n = theta.shape[0]
    forward = (grid, gemm("bmm", (sites, rank - 1, rank, n), y.each, 1))
    if not theta.grad:
        return Costs(forward)
    return Costs(forward, (grid, gemm("bmm", (rank, rank - 1, sites, n), y.each, 1)))


@rule("_pack_padded_sequence")
def _packed(c: Case) -> Costs:
    """What is left of each position without its padding, joined; backward, put back into zeros."""
    x, y, positions = c.ins[0], c.outs[0], max(c.outs[1].n, 1)
    dims = (positions, y.n / positions, 0, 0)
    forward = Kernel("cat", "concat", 0, 0, y.size, y.size, dims, each=y.each)
    if not x.grad:
        return Costs((forward,))
    zeros = Kernel("zeros", "fill", 0, 0, 0, x.size, each=x.each)
    back = Kernel("copy_", "copy", 0, 0, y.size, y.size, launches=positions, each=y.each)
    return Costs((forward,), (zeros, back))


@rule("_weight_norm_interface")
def _weight_norm(c: Case) -> Costs:
    """v · g / ‖v‖, the norm over all but one axis, in one kernel each way."""
    v = c.ins[0]
    outs = total(c.outs)
    norms = c.ins[1].n
    dims = (norms, v.n / max(norms, 1), 0, 0)
    name = "_weight_norm_interface"
    forward = Kernel(name, "norm", 0, 4 * v.n, 2 * v.size, outs, dims, each=v.each)
    if not any(a.grad for a in c.ins):
        return Costs((forward,))
    name += "_backward"
    back = Kernel(name, "norm", 0, 6 * v.n, 4 * v.size, total(c.ins), dims, each=v.each)
    return Costs((forward,), (), (back,), (0, 1, ~1) if len(c.outs) > 1 else (0, 1))


@rule("convolution_backward")
def _conv_gradient(c: Case) -> Costs:
    """A convolution's gradients within a forward pass, as a gradient penalty takes them.

    Each costs as much as the convolution, and so does each of their own gradients: that of the
    data is a convolution of the output's gradient with the weight, and has both as factors.
    """
    grad, x, w = c.ins[:3]
    groups = int(c.number("groups", 1))
    dense = x if c.attrs.get("transposed") else grad
    sites = dense.n / max(dense.shape[1], 1)
    window = math.prod(w.shape[2:])
    inputs, outputs = x.shape[1] / groups, grad.shape[1] / groups
    flops = 2 * sites * window * inputs * outputs * groups

    def conv(name: str, rows: float, read: float, write: float) -> Kernel:
        dims = (rows, inputs, outputs * window, groups)
        return Kernel(name, "conv", flops, 0, read, write, dims, each=x.each)

    data, weight = c.shape_attr("wanted")[:2]
    places = x.n / max(x.shape[1], 1)
    both = (".data", ".weight")
    forward: list[Kernel] = []
    if data:
        forward += [conv(f"convolution_backward{both[0]}", places, grad.size + w.size, x.size)]
    if weight:
        forward += [conv(f"convolution_backward{both[1]}", places, grad.size + x.size, w.size)]
    back = [k._replace(name=f"convolution_backward{both[1]}") for k in forward if w.grad]
    again = [k._replace(name="convolution") for k in forward if grad.grad]
    saved = (0, 2) if back or again else ()
    return Costs(tuple(forward), tuple(again), tuple(back), saved)


def _by_name(c: Case) -> Costs:
    """Follow the op's rule. Without one it is bounded by reading and writing everything once.

    Its backward is then taken as the same traffic for data, and it is reported by name.
    """
    name = str(c.attrs["fn"])
    if name in SPECIAL:
        return SPECIAL[name](c)
    forward = Kernel(name, "unknown", 0, 0, total(c.ins), total(c.outs))
    if not any(a.grad for a in c.ins):
        return Costs((forward,))
    back = Kernel(f"{name}_backward", "unknown", 0, 0, total(c.outs) + total(c.ins), total(c.ins))
    return Costs((forward,), (back,), (), tuple(range(len(c.ins))))


register(
    Kind(
        name="unknown",
        summary="an op known by name alone: by a rule of its own, or else bounded by its traffic",
        inputs=(0, None),
        attrs={"fn": str},
        costs=_by_name,
        differentiable=lambda op: op.attrs.get("fn") not in STOPS,
    )
)
