"""ONNX ops that work elementwise, reduce or select."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traincast.ingest.onnx_trace import (
    DTYPES,
    Node,
    ShapeError,
    Value,
    as_constant,
    broadcast,
)

Handler = Callable[[Node], Value | list[Value]]

POINTWISE = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "Sqrt": "sqrt",
    "Exp": "exp", "Log": "log", "Neg": "neg", "Abs": "abs", "Min": "minimum", "Max": "maximum",
    "Sum": "add", "Reciprocal": "reciprocal", "Erf": "erf", "Sin": "sin", "Cos": "cos",
    "Tan": "tan", "Sinh": "sinh", "Cosh": "cosh", "Asin": "asin", "Acos": "acos", "Atan": "atan",
    "Relu": "relu", "LeakyRelu": "leaky_relu", "PRelu": "prelu", "Elu": "elu", "Selu": "elu",
    "Celu": "elu", "Sigmoid": "sigmoid", "HardSigmoid": "hardsigmoid", "HardSwish": "hardswish",
    "Tanh": "tanh", "Gelu": "gelu", "FastGelu": "gelu", "QuickGelu": "gelu", "Swish": "silu",
    "Softplus": "softplus", "Softsign": "softsign", "Mish": "mish", "ThresholdedRelu": "threshold",
    "Clip": "clamp", "Where": "where", "Floor": "floor", "Ceil": "ceil", "Round": "round",
    "Sign": "sign", "Mod": "remainder", "BitShift": "shift", "BitwiseAnd": "bitwise_and",
    "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor", "BitwiseNot": "bitwise_not",
}  # fmt: skip
LOGICAL = {
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
    "Not": "logical_not", "And": "logical_and", "Or": "logical_or", "Xor": "logical_xor",
    "IsNaN": "isnan", "IsInf": "isinf",
}  # fmt: skip
_ARGUMENTS = {"Clip": 1, "BiasGelu": 2}
"""Inputs beyond this number are arguments of the kernel, not tensors it reads."""
_NO_WEIGHTS = frozenset({"Pow", "Where", "Min", "Max", *LOGICAL})
"""Ops of which no input is a weight: a float array in the file is a mask or a bound."""
_REDUCE = {
    "ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "amax", "ReduceMin": "amin",
    "ReduceProd": "prod", "ReduceL1": "norm", "ReduceL2": "norm", "ReduceSumSquare": "norm",
    "ReduceLogSum": "logsumexp", "ReduceLogSumExp": "logsumexp",
}  # fmt: skip


def _pointwise(node: Node) -> Value:
    fn = POINTWISE.get(node.op) or LOGICAL[node.op]
    ins = node.given()[: _ARGUMENTS.get(node.op)]
    if node.op in _NO_WEIGHTS:
        ins = [as_constant(value) for value in ins]
    dtype = "bool" if node.op in LOGICAL else ins[-1 if node.op == "Where" else 0].dtype
    shape = broadcast(*(value.shape for value in ins))
    if len(ins) > 2 and node.op != "Where":
        for i, value in enumerate(ins[1:-1], 1):
            lengths = broadcast(ins[0].shape, value.shape)
            part = node.part(f"{node.name}.{i}", lengths, dtype=dtype)
            ins[0] = node.emit("pointwise", [ins[0], value], [part], fn=fn)
        ins = [ins[0], ins[-1]]
    read = [value for value in ins if not value.is_scalar]
    if len(ins) == 2 and len(read) == 1 and read[0].shape == shape:
        fn = _with_number(fn, ins[1] if read[0] is ins[0] else ins[0], first=read[0] is ins[1])
        ins = read
    elif read and broadcast(*(value.shape for value in read)) == shape:
        ins = read
    return node.emit("pointwise", ins, [node.out(shape, dtype=dtype)], fn=fn)


def _with_number(fn: str, number: Value, *, first: bool) -> str:
    """Return the function that is left when one of two operands is a plain number."""
    if first:
        return {"sub": "rsub", "div": "reciprocal", "mul": "mul_scalar"}.get(fn, fn)
    if fn == "pow" and number.const is not None:
        power = float(number.const.reshape(-1)[0])
        return {2.0: "square", 0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(power, fn)
    return {"mul": "mul_scalar", "div": "div_scalar"}.get(fn, fn)


def _mean(node: Node) -> Value:
    total = _sum_of(node, node.given())
    return node.emit("pointwise", [total], [node.out(total.shape)], fn="div_scalar")


def _sum_of(node: Node, values: Sequence[Value]) -> Value:
    total = values[0]
    for i, value in enumerate(values[1:]):
        part = node.part(f"{node.name}.sum{i}", broadcast(total.shape, value.shape))
        total = node.emit("pointwise", [total, value], [part], fn="add")
    return total


def _bias_gelu(node: Node) -> Value:
    total = _sum_of(node, node.given())
    return node.emit("pointwise", [total], [node.out(total.shape)], fn="gelu")


def _cast(node: Node) -> Value:
    x = node.value()
    dtype = DTYPES.get(node.number("to", 1), "")
    if node.op == "CastLike":
        dtype = node.value(1).dtype
    if not dtype:
        raise ShapeError("it casts to a type that is no number")
    if dtype == x.dtype:
        return x
    return node.emit("copy", [x], [node.out(x.shape, dtype=dtype)], fn="cast")


def _dropout(node: Node) -> list[Value]:
    x = node.value()
    p = float(node.attrs.get("ratio", 0.5))
    if node.has(1):
        p = float(node.content(1).reshape(-1)[0])
    y = node.emit("dropout", [x], [node.out(x.shape)], p=p) if p else x
    return [y, node.out(x.shape, 1, dtype="bool", role="constant")][: len(node.outputs)]


def _reduce(node: Node) -> Value:
    x = node.value()
    axes = node.numbers("axes", 1)
    if not axes and node.number("noop_with_empty_axes", 0):
        return x
    return _reduced(node, _REDUCE[node.op], node.axes(axes or None, len(x.shape)), x.dtype)


def _reduced(node: Node, fn: str, axes: Sequence[int], dtype: str) -> Value:
    x = node.value()
    keep = node.number("keepdims", 1)
    shape = [1 if i in axes else n for i, n in enumerate(x.shape) if keep or i not in axes]
    return node.emit("reduce", [x], [node.out(shape, dtype=dtype)], fn=fn)


def _arg(node: Node) -> Value:
    axis = node.axis(node.number("axis", 0), len(node.value().shape))
    return _reduced(node, node.op.lower(), [axis], "int64")


def _top_k(node: Node) -> list[Value]:
    x = node.value()
    axis = node.axis(node.number("axis", -1), len(x.shape))
    count = node.numbers("k", 1)
    if not count:
        raise ShapeError("it lacks k")
    shape = [count[0] if i == axis else n for i, n in enumerate(x.shape)]
    outs = [node.out(shape), node.out(shape, 1, dtype="int64")]
    node.emit("sort", [x], outs, fn="topk")
    return outs


HANDLERS: dict[str, Handler] = {
    **dict.fromkeys((*POINTWISE, *LOGICAL), _pointwise),
    "Mean": _mean,
    "BiasGelu": _bias_gelu,
    "Cast": _cast,
    "CastLike": _cast,
    "Dropout": _dropout,
    **dict.fromkeys(_REDUCE, _reduce),
    "ArgMax": _arg,
    "ArgMin": _arg,
    "TopK": _top_k,
    "Identity": lambda node: node.value(),
}
