"""Elementwise kinds: what each function saves for backward and which kernels its gradient runs."""

from __future__ import annotations

from typing import NamedTuple

from traincast.graph.graph import Op
from traincast.graph.kinds.base import Case, Costs, Kernel, Kind, pointwise, register, summed, total


class Rule(NamedTuple):
    """How one elementwise function behaves."""

    ops: float
    """Elementary operations for each output element; transcendental functions count about 10."""
    saved: str
    """What backward needs: i the inputs, o the output, c the first input only,
    m the second only, - nothing."""
    backward: tuple[str, ...]
    """aten ops that the gradient of each input runs."""


_NONE = Rule(1, "-", ())

RULES: dict[str, Rule] = {
    "add": _NONE,
    "sub": _NONE,
    "rsub": Rule(1, "-", ("neg",)),
    "neg": Rule(1, "-", ("neg",)),
    "mul": Rule(1, "i", ("mul",)),
    "mul_scalar": Rule(1, "-", ("mul",)),
    "div": Rule(4, "i", ("div",)),
    "div_scalar": Rule(1, "-", ("div",)),
    "reciprocal": Rule(4, "o", ("mul", "mul", "neg")),
    "pow": Rule(10, "i", ("pow", "mul", "mul")),
    "square": Rule(1, "i", ("pow", "mul", "mul")),
    "sqrt": Rule(4, "o", ("mul", "div")),
    "rsqrt": Rule(4, "o", ("mul", "pow", "mul")),
    "exp": Rule(10, "o", ("mul",)),
    "log": Rule(10, "i", ("div",)),
    "log1p": Rule(10, "i", ("add", "div")),
    "abs": Rule(1, "i", ("sgn", "mul")),
    "sin": Rule(10, "i", ("cos", "mul")),
    "cos": Rule(10, "i", ("sin", "neg", "mul")),
    "erf": Rule(10, "i", ("pow", "neg", "exp", "mul", "mul")),
    "relu": Rule(1, "o", ("threshold_backward",)),
    "threshold": Rule(1, "i", ("threshold_backward",)),
    "sigmoid": Rule(12, "o", ("sigmoid_backward",)),
    "tanh": Rule(12, "o", ("tanh_backward",)),
    "gelu": Rule(16, "i", ("gelu_backward",)),
    "silu": Rule(13, "i", ("silu_backward",)),
    "mish": Rule(25, "i", ("mish_backward",)),
    "hardswish": Rule(4, "i", ("hardswish_backward",)),
    "hardsigmoid": Rule(3, "i", ("hardsigmoid_backward",)),
    "hardtanh": Rule(2, "i", ("hardtanh_backward",)),
    "leaky_relu": Rule(2, "i", ("leaky_relu_backward",)),
    "elu": Rule(12, "i", ("elu_backward",)),
    "softplus": Rule(20, "i", ("softplus_backward",)),
    "log_sigmoid": Rule(20, "i", ("log_sigmoid_backward",)),
    "prelu": Rule(2, "i", ("_prelu_kernel_backward",)),
    "clamp": Rule(2, "i", ("where",)),
    "maximum": Rule(1, "i", ("masked_fill",)),
    "minimum": Rule(1, "i", ("masked_fill",)),
    "where": Rule(1, "c", ("where",)),
    "masked_fill": Rule(1, "m", ("masked_fill",)),
    "lerp": Rule(3, "i", ("mul",)),
    "addcmul": Rule(2, "i", ("mul",)),
    "addcdiv": Rule(5, "i", ("div",)),
    "hardshrink": Rule(1, "i", ("hardshrink_backward",)),
    "softshrink": Rule(1, "i", ("softshrink_backward",)),
    "rrelu_with_noise": Rule(10, "i", ("rrelu_with_noise_backward",)),
    "linalg_cross": Rule(5, "i", ("linalg_cross",)),
    "triu": Rule(1, "-", ("triu",)),
    "tril": Rule(1, "-", ("tril",)),
}
"""Differentiable functions. Those of NOT_DIFFERENTIABLE stop the gradient."""

NOT_DIFFERENTIABLE = frozenset(
    {
        "eq", "ne", "lt", "le", "gt", "ge", "bitwise_and", "bitwise_or", "bitwise_not",
        "bitwise_xor", "logical_and", "logical_or", "logical_not", "logical_xor", "isnan",
        "isinf", "isfinite", "floor", "ceil", "round", "trunc", "sign", "sgn", "floor_divide",
        "remainder", "fmod", "bucketize", "searchsorted", "shift", "isin", "bernoulli",
    }
)  # fmt: skip


_FUSED: dict[str, tuple[tuple[str, ...], ...]] = {
    "addcmul": ((), ("mul", "mul"), ("mul", "mul")),
    "addcdiv": ((), ("reciprocal", "mul"), ("mul", "mul", "div", "neg", "mul")),
    "lerp": (("rsub", "mul"), ("mul",), ("sub", "mul")),
}
"""aten ops of the gradient of each input of a + v·b·c, of a + v·b/c and of a + c·(b - a).

A factor v is multiplied by even if it is 1."""


def _rule(fn: str) -> Rule:
    return RULES.get(fn, Rule(1, "-", ()) if fn in NOT_DIFFERENTIABLE else Rule(4, "i", (fn,)))


def keeps_nothing(fn: str) -> bool:
    """Tell whether a function's gradient is computed from the result's gradient alone."""
    return _rule(fn).saved == "-"


def backward_of(fn: str, index: int) -> tuple[str, ...]:
    """Return the aten ops of the gradient with respect to input `index`."""
    if fn == "sub" and index == 1:
        return ("neg",)
    if fn == "div" and index == 1:
        # d(a/b)/db = -(a/b)/b, as autograd evaluates it.
        return ("neg", "div", "div", "mul")
    if fn in ("where", "masked_fill") and index == (0 if fn == "where" else 1):
        return ()
    if fn in _FUSED:
        return _FUSED[fn][index]
    if fn == "prelu" and index == 1:
        return ()  # both gradients come out of one kernel
    if fn == "pow" and index == 1:
        return ("pow", "log", "mul", "mul")
    return _rule(fn).backward


def _pointwise(c: Case) -> Costs:
    fn = str(c.attrs["fn"])
    y = c.outs[0]
    rule = _rule(fn)
    each = c.ins[0].each if c.ins else y.each
    forms = c.attrs.get("forms", ())
    assert isinstance(forms, tuple)
    forward = pointwise(_formed(fn, forms, 0), total(c.ins), total(c.outs), y.n, rule.ops, each)
    data: list[Kernel] = []
    for index, x in enumerate(c.ins):
        if not x.grad:
            continue
        names = [_formed(name, forms, index + 1) for name in backward_of(fn, index)]
        # A chain works on one tensor at a time; its last kernel multiplies by the gradient.
        data += [pointwise(name, y.size, y.size, y.n, rule.ops, y.each) for name in names[:-1]]
        if names:
            read = y.size + (y.size if len(names) > 1 else _operands(c, fn, index, rule))
            write = 2 * y.size if fn == "prelu" and c.ins[1].grad else y.size
            data.append(pointwise(names[-1], read, write, y.n, rule.ops, y.each))
        if x.n < y.n:
            data.append(summed(y, x))
        if x.each != y.each:
            # Where types were mixed, the gradient is cast to the input's.
            data.append(Kernel("_to_copy", "copy", 0, 0, x.n * y.each, x.size, each=y.each))
    # What was computed in place has a gradient of its own all the same.
    beside = y.size if c.attrs.get("inplace") and any(k.family == "pointwise" for k in data) else 0
    return Costs((forward,), tuple(data), (), _saved(c, fn, rule), workspace=beside)


def _formed(name: str, forms: tuple[int, ...] | tuple[str, ...], index: int) -> str:
    """Return a kernel's name with its form, of the forward pass (0) or an input's gradient."""
    form = forms[index] if index < len(forms) else ""
    return f"{name}.{form}" if form else name


def _operands(c: Case, fn: str, index: int, rule: Rule) -> float:
    """Return the bytes that the gradient of input `index` reads beside the output's gradient."""
    if rule.saved == "-":
        return 0
    if rule.saved == "o":
        return c.outs[0].size
    if rule.saved in "cm":
        return c.ins["cm".index(rule.saved)].size
    if len(c.ins) == 2 and (fn == "mul" or (fn == "div" and index == 0)):
        # The gradient of a factor needs the other one only.
        return c.ins[1 - index].size
    return total(c.ins)


def _saved(c: Case, fn: str, rule: Rule) -> tuple[int, ...]:
    grads = [a.grad for a in c.ins]
    if rule.saved == "-" or not any(grads):
        return ()
    if rule.saved == "o":
        return (~0,)
    if rule.saved == "c":
        return (0,)
    if rule.saved == "m":
        return (1,)
    if fn == "mul" and len(grads) == 2:
        # The gradient of each factor needs the other one.
        return ((0,) if grads[1] else ()) + ((1,) if grads[0] else ())
    if fn == "div":
        return (0, 1) if grads[1] else (1,)
    if fn == "lerp":
        weighed = len(grads) > 2
        ends = (0, 1) if weighed and grads[2] else ()
        return (*ends, 2) if weighed and any(grads[:2]) else ends
    if fn == "addcmul":
        return ((1,) if grads[2] else ()) + ((2,) if grads[1] else ())
    if fn == "addcdiv":
        return ((1,) if grads[2] else ()) + ((2,) if any(grads[1:]) else ())
    return tuple(range(len(c.ins)))


def _broadcast(c: Case) -> tuple[tuple[int, ...] | None, ...]:
    rank = max((len(a.shape) for a in c.ins), default=0)
    shape = [1] * rank
    for a in c.ins:
        for i, size in enumerate(a.shape, rank - len(a.shape)):
            if shape[i] == 1:
                shape[i] = size
            elif size not in (1, shape[i]):
                return (None,) * len(c.outs)
    return (tuple(shape),) * len(c.outs)


def _has_gradient(op: Op) -> bool:
    return op.attrs.get("fn") not in NOT_DIFFERENTIABLE


register(
    Kind(
        name="pointwise",
        summary="an elementwise function of its inputs, broadcast: activation, sum, product, mask",
        inputs=(1, None),
        attrs={"fn": str},
        costs=_pointwise,
        shapes=_broadcast,
        differentiable=_has_gradient,
        alias=lambda op: bool(op.attrs.get("inplace")),
        parallel=frozenset({"*"}),
    )
)


def _dropout(c: Case) -> Costs:
    """One pass forward, which also writes a mask of one byte an element; one pass back."""
    x, y = c.ins[0], c.outs[0]
    forward = pointwise("native_dropout", x.size, y.size + y.n, y.n, 12, x.each)
    if not x.grad:
        return Costs((forward,))
    back = pointwise("native_dropout_backward", y.size + y.n, x.size, y.n, 2, x.each)
    return Costs((forward,), (back,), (), (), y.n)


register(
    Kind(
        name="dropout",
        summary="random zeroing, with its mask kept for backward",
        inputs=(1, 1),
        attrs={"p": (int, float)},
        costs=_dropout,
        shapes=lambda c: (c.ins[0].shape,),
        parallel=frozenset({"*"}),
    )
)
