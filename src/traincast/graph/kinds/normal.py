"""Normalisation, softmax, losses, pooling and reductions."""

from __future__ import annotations

from collections.abc import Callable

from traincast.graph.graph import Op
from traincast.graph.kinds.base import (
    Arg,
    Case,
    Costs,
    Kernel,
    Kind,
    flat_window,
    pointwise,
    prod,
    register,
    total,
)

_SPATIAL = frozenset({"depth", "height", "width", "length"})


def _norm(name: str, statistics: int) -> Callable[[Case], Costs]:
    """Return the costs of a normalisation with `statistics` saved values a group (fp32).

    Forward reads the input twice (statistics, then values) unless it stays in cache, and writes
    once; backward reads input and gradient twice and writes the input's gradient.
    """

    def costs(c: Case) -> Costs:
        x, y = c.ins[0], c.outs[0]
        affine = c.ins[1:]
        groups = _groups(c)
        dims = (groups, x.n / max(groups, 1), 0, 0)

        space = 0 if "axes" in c.attrs else prod(x.shape[2:])

        def kernel(called: str, ops: float, read: float, write: float) -> Kernel:
            return Kernel(
                called,
                "norm",
                0,
                ops * x.n,
                read,
                write,
                dims,
                each=x.each,
                space=space,
            )

        forward = kernel(name, 8, 2 * x.size + total(affine), y.size)
        if not any(a.grad for a in c.ins):
            return Costs((forward,))
        back = kernel(f"{name}_backward", 12, 2 * (x.size + y.size), x.size + total(affine))
        saved = (0, 1) if len(c.ins) > 1 else (0,)
        return Costs((forward,), (back,), (), saved, 4 * statistics * groups)

    def _groups(c: Case) -> float:
        x = c.ins[0]
        if "groups" in c.attrs:
            return x.shape[0] * c.number("groups")
        if "axes" in c.attrs:
            size = 1
            for length in x.shape[len(x.shape) - int(c.number("axes")) :]:
                size *= length
            return x.n / max(size, 1)
        return x.shape[1]

    return costs


for _name, _aten, _count, _attrs, _parallel, _text in (
    ("batch_norm", "native_batch_norm", 2, {}, {"channel"}, "over batch and space, a channel"),
    ("layer_norm", "native_layer_norm", 2, {"axes": int}, {"sample", "sequence", "token"},
     "over the last axes"),
    ("group_norm", "native_group_norm", 2, {"groups": int}, {"sample", "channel"},
     "over groups of channels, a sample"),
    ("rms_norm", "_fused_rms_norm", 1, {"axes": int}, {"sample", "sequence", "token"},
     "by the root mean square of the last axes"),
):  # fmt: skip
    register(
        Kind(
            name=_name,
            summary=f"normalisation {_text}",
            inputs=(1, 5),
            attrs=_attrs,
            costs=_norm(_aten, _count),
            shapes=lambda c: (c.ins[0].shape,),
            parallel=frozenset(_parallel),
        )
    )


def _softmax(c: Case) -> Costs:
    x, y = c.ins[0], c.outs[0]
    name = "_log_softmax" if c.attrs.get("log") else "_softmax"
    axis = int(c.number("axis")) % max(len(x.shape), 1)
    columns = x.shape[axis] if x.shape else 1
    inner = prod(x.shape[axis + 1 :])
    dims = (x.n / max(columns, 1), columns, inner if inner > 1 else 0, 0)
    forward = Kernel(name, "softmax", 0, 14 * x.n, x.size, y.size, dims, each=x.each)
    if not x.grad:
        return Costs((forward,))
    name += "_backward_data"
    back = Kernel(name, "softmax", 0, 5 * x.n, 2 * y.size, x.size, dims, each=x.each)
    return Costs((forward,), (back,), (), (~0,))


register(
    Kind(
        name="softmax",
        summary="softmax or log-softmax along one axis",
        inputs=(1, 1),
        attrs={"axis": int},
        costs=_softmax,
        shapes=lambda c: (c.ins[0].shape,),
        parallel=frozenset({"sample", "sequence", "token", "head", "row"}),
    )
)


def _cross_entropy(c: Case) -> Costs:
    """Log-softmax of the logits, then the negative log-likelihood of the target.

    The log-probabilities are kept; backward first writes a gradient that is zero but at the
    targets, then turns it into the logits' gradient. Under autocast the loss is float32 and the
    log-softmax is not: the log-probabilities are cast, and kept in both types.
    """
    x, target, y = c.ins[0], c.ins[1], c.outs[0]
    loss = "nll_loss2d" if len(x.shape) > 2 else "nll_loss"
    inner = prod(x.shape[2:])
    dims = (target.n, x.n / max(target.n, 1), inner if inner > 1 else 0, 0)
    e, wide = x.each, x.n * y.each

    def rows(name: str, ops: float, read: float) -> Kernel:
        return Kernel(name, "softmax", 0, ops * x.n, read, x.size, dims, each=e)

    def cast(read: float, write: float) -> tuple[Kernel, ...]:
        each = read / max(x.n, 1)
        return (Kernel("_to_copy", "copy", 0, 0, read, write, each=each),) if read != write else ()

    picks, spreads = _picked(loss, target, y.each, wide, y.size)
    forward = (rows("_log_softmax", 14, x.size), *cast(x.size, wide), picks)
    if not x.grad:
        return Costs(forward)
    data = (spreads, *cast(wide, x.size), rows("_log_softmax_backward_data", 5, 2 * x.size))
    kept = x.size if wide == x.size else x.size + wide
    return Costs(forward, data, (), (1,), kept, x.size)


def _picked(
    loss: str, target: Arg, each: float, wide: float, written: float
) -> tuple[Kernel, Kernel]:
    """Return the kernel of a negative log-likelihood, and of its gradient.

    It reads one of a row's `wide` bytes in all, and its gradient is zero but there.
    """
    n = target.n
    forward = Kernel(
        f"{loss}_forward", "reduction", 0, n, target.size + n * each, written, (1, n, 0, 0),
        each=each,
    )  # fmt: skip
    backward = Kernel(f"{loss}_backward", "fill", 0, n, target.size, wide, (n, 0, 0, 0), each=each)
    return forward, backward


register(
    Kind(
        name="cross_entropy",
        summary="log-softmax and negative log-likelihood of integer targets",
        inputs=(2, 2),
        attrs={},
        costs=_cross_entropy,
        parallel=frozenset({"sample", "sequence", "token"}),
    )
)


def _pool(c: Case) -> Costs:
    """Max or average over windows. Max keeps input and argmax (int64), average its input."""
    x, y = c.ins[0], c.outs[0]
    kernel = c.shape_attr("kernel")
    window = prod(kernel)
    stride = x.shape[-len(kernel)] / max(y.shape[-len(kernel)], 1)
    is_max = c.attrs["op"] == "max"
    name = str(c.attrs.get("aten", "max_pool2d_with_indices" if is_max else "avg_pool2d"))

    def pool(called: str, read: float, write: float) -> Kernel:
        return Kernel(
            called, "pool", 0, window * y.n, read, write, (y.n, window, 0, 0),
            each=x.each, window=flat_window(kernel), stride=stride,
        )  # fmt: skip

    forward = pool(name, x.size, total(c.outs))
    if not x.grad:
        return Costs((forward,))
    index = c.outs[1].size if len(c.outs) > 1 else 0
    back = pool(f"{name}_backward", y.size + index, x.size * (2 if is_max else 1))
    return Costs((forward,), (back,), (), (0, ~1) if is_max and len(c.outs) > 1 else (0,))


register(
    Kind(
        name="pool",
        summary="max or average pooling over windows, fixed or adaptive",
        inputs=(1, 1),
        attrs={"op": str, "kernel": tuple},
        costs=_pool,
        parallel=frozenset({"sample", "channel"}) | _SPATIAL,
    )
)

_REDUCE_BACKWARD: dict[str, tuple[tuple[str, ...], str]] = {
    "sum": ((), "-"),
    "mean": (("div",), "-"),
    "amax": (("eq", "sum", "div", "mul"), "io"),
    "amin": (("eq", "sum", "div", "mul"), "io"),
    "max": (("scatter",), "-"),
    "min": (("scatter",), "-"),
    "var": (("mean", "sub", "mul", "mul"), "i"),
    "std": (("div", "mean", "sub", "mul", "mul"), "io"),
    "var_mean": (("mean", "sub", "mul", "mul"), "i"),
    "norm": (("div", "eq", "masked_fill_", "mul"), "io"),
    "prod": (("mul", "div"), "io"),
    "logsumexp": (("sub", "exp", "mul"), "io"),
    "binary_cross_entropy_with_logits": (("sigmoid", "sub", "mul", "div_"), "i"),
    "dot": (("mul",), "i"),
}
_SMALL_BACKWARD = {"norm": 3}
"""Kernels at the start of the gradient that work on the results alone."""
_ELEMENTWISE_FIRST = {
    "mse_loss": ("mse_loss",),
    "smooth_l1_loss": ("smooth_l1_loss",),
    "huber_loss": ("huber_loss",),
    "binary_cross_entropy": ("binary_cross_entropy",),
    "binary_cross_entropy_with_logits": ("rsub", "mul_", "log_sigmoid_forward", "sub_"),
}
"""Losses that are computed element by element, and averaged by a kernel of its own."""
_STOPS = frozenset({"argmax", "argmin", "any", "all", "histc", "bincount", "nonzero", "unique"})


def _reduce(c: Case) -> Costs:
    fn = str(c.attrs["fn"])
    x, y = c.ins[0], c.outs[0]
    if fn.startswith("nll_loss"):
        picks, spreads = _picked(fn.removesuffix("_forward"), c.ins[1], x.each, x.size, y.size)
        return Costs((picks,), (spreads,), (), (0, 1)) if x.grad else Costs((picks,))
    inner = x.shape[-1] if x.shape and y.shape and x.shape[-1] == y.shape[-1] else 0
    dims = (y.n, x.n / max(y.n, 1), inner, 0)
    first = _ELEMENTWISE_FIRST.get(fn, ())
    called = "mean" if first else fn
    read = total(c.ins) if fn == "dot" else x.size
    end = Kernel(called, "reduction", 0, x.n, read, total(c.outs), dims, each=x.each)
    forward = (*(pointwise(name, 2 * x.size, x.size, x.n, each=x.each) for name in first), end)
    if fn in _STOPS or not any(a.grad for a in c.ins):
        return Costs(forward)
    names, keeps = _REDUCE_BACKWARD.get(fn, ((f"{fn}_backward",), "i"))
    # A sum's gradient is a broadcast view; only what comes after it is computed, on the view's
    # small base where the aten op allows (mean divides the expanded gradient: full size).
    small = _SMALL_BACKWARD.get(fn, 0)
    data = tuple(
        pointwise(name, 2 * y.size, y.size, y.n, each=y.each)
        if i < small
        else _of_gradient(name, x, y, dims)
        for i, name in enumerate(names)
    )
    # A loss has a gradient for its target too, where that is computed from parameters.
    pair = bool(first) or fn == "dot"
    data *= max(sum(a.grad for a in c.ins), 1) if pair else 1
    inputs = tuple(range(len(c.ins))) if pair else (0,)
    saved = (inputs if "i" in keeps else ()) + ((~0,) if "o" in keeps else ())
    return Costs(forward, data, (), saved)


def _of_gradient(name: str, x: Arg, y: Arg, dims: tuple[float, float, float, float]) -> Kernel:
    """Return a kernel of a reduction's gradient, in the family that its name belongs to."""
    if name in ("mean", "sum"):
        return Kernel(name, "reduction", 0, x.n, x.size, y.size, dims, each=x.each)
    if name == "scatter":
        places = (y.n, 1, x.n, 0)
        return Kernel(name, "gather", 0, y.n, 2 * y.size, x.size, places, each=x.each)
    return pointwise(name, y.size, x.size, x.n, each=x.each)


def _reduce_has_gradient(op: Op) -> bool:
    return op.attrs.get("fn") not in _STOPS


register(
    Kind(
        name="reduce",
        summary="sum, mean, max, variance … along some axes",
        inputs=(1, 2),
        attrs={"fn": str},
        costs=_reduce,
        differentiable=_reduce_has_gradient,
        parallel=frozenset({"*"}),
    )
)
