"""Normalisation, softmax, losses, pooling and reductions."""

from __future__ import annotations

from collections.abc import Callable

from traincast.graph.graph import Op
from traincast.graph.kinds.base import Case, Costs, Kernel, Kind, pointwise, register, total

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
        forward = Kernel(name, "norm", 0, 8 * x.n, 2 * x.size + total(affine), y.size)
        if not any(a.grad for a in c.ins):
            return Costs((forward,))
        back = Kernel(
            f"{name}_backward", "norm", 0, 12 * x.n, 2 * (x.size + y.size), x.size + total(affine)
        )
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
    forward = Kernel(name, "softmax", 0, 14 * x.n, x.size, y.size)
    if not x.grad:
        return Costs((forward,))
    back = Kernel(f"{name}_backward_data", "softmax", 0, 5 * x.n, 2 * y.size, x.size)
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
    targets, then turns it into the logits' gradient.
    """
    x, target = c.ins[0], c.ins[1]
    loss = "nll_loss2d" if len(x.shape) > 2 else "nll_loss"
    forward = (
        Kernel("_log_softmax", "softmax", 0, 14 * x.n, x.size, x.size),
        Kernel(f"{loss}_forward", "reduction", 0, target.n, 2 * target.size, c.outs[0].size),
    )
    if not x.grad:
        return Costs(forward)
    data = (
        Kernel(f"{loss}_backward", "fill", 0, target.n, target.size, x.size),
        Kernel("_log_softmax_backward_data", "softmax", 0, 5 * x.n, 2 * x.size, x.size),
    )
    return Costs(forward, data, (), (1,), x.size, x.size)


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
    window = 1.0
    for size in c.shape_attr("kernel"):
        window *= size
    is_max = c.attrs["op"] == "max"
    name = str(c.attrs.get("aten", "max_pool2d_with_indices" if is_max else "avg_pool2d"))
    forward = Kernel(name, "pool", 0, window * y.n, x.size, total(c.outs))
    if not x.grad:
        return Costs((forward,))
    index = c.outs[1].size if len(c.outs) > 1 else 0
    back = Kernel(
        f"{name}_backward", "pool", 0, window * y.n, y.size + index, x.size * (2 if is_max else 1)
    )
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
    "norm": (("div", "mul"), "io"),
    "prod": (("mul", "div"), "io"),
    "logsumexp": (("sub", "exp", "mul"), "io"),
}
_STOPS = frozenset({"argmax", "argmin", "any", "all", "histc", "bincount", "nonzero", "unique"})


def _reduce(c: Case) -> Costs:
    fn = str(c.attrs["fn"])
    x, y = c.ins[0], c.outs[0]
    forward = Kernel(fn, "reduction", 0, x.n, x.size, total(c.outs))
    if not x.grad or fn in _STOPS:
        return Costs((forward,))
    names, keeps = _REDUCE_BACKWARD.get(fn, ((f"{fn}_backward",), "i"))
    # A sum's gradient is a broadcast view; only what comes after it is computed, on the view's
    # small base where the aten op allows (mean divides the expanded gradient: full size).
    data = tuple(pointwise(name, y.size, x.size, x.n) for name in names)
    saved = ((0,) if "i" in keeps else ()) + ((~0,) if "o" in keeps else ())
    return Costs((forward,), data, (), saved)


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
