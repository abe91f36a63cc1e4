"""Constant folding: the arithmetic on shapes and indices that ONNX files spell out in nodes.

Each function gets the node and the contents of its inputs, and returns the content of its output.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from traincast.ingest.onnx_trace import (
    DTYPES,
    LIMIT,
    Array,
    Node,
    ShapeError,
    Value,
    broadcast,
)

_NUMPY = {
    1: np.float32, 2: np.uint8, 3: np.int8, 4: np.uint16, 5: np.int16, 6: np.int32, 7: np.int64,
    9: np.bool_, 10: np.float16, 11: np.float64, 12: np.uint32, 13: np.uint64, 16: np.float32,
}  # fmt: skip


def fold(node: Node) -> list[Value] | None:
    """Return the outputs of a node that reads constants only, or None where it is an op."""
    if node.op == "Constant":
        return [_constant(node)]
    if node.op in ("Shape", "Size"):
        return [_known(node, _about_shape(node))]
    rule = FOLDS.get(node.op)
    known = [v.const for v in node.given() if v.role == "constant" and v.const is not None]
    if rule is None or len(known) != len(node.given()) or node.domain not in ("", "ai.onnx"):
        return None
    with np.errstate(all="ignore"):
        content = rule(node, known)
    if content is None:
        return None
    parts = content if isinstance(content, list) else [content]
    return [_known(node, np.asarray(part), i) for i, part in enumerate(parts)]


def _known(node: Node, content: Array, index: int = 0, dtype: str = "") -> Value:
    kind = dtype or ("float" if content.dtype.kind == "f" else str(content.dtype))
    kind = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}.get(kind, kind)
    return node.out(content.shape, index, dtype=kind, role="constant", const=content)


def _constant(node: Node) -> Value:
    from onnx import numpy_helper

    for name, kind in (("value_int", np.int64), ("value_ints", np.int64)):
        if name in node.attrs:
            return _known(node, np.asarray(node.attrs[name], dtype=kind))
    for name in ("value_float", "value_floats"):
        if name in node.attrs:
            return _known(node, np.asarray(node.attrs[name], dtype=np.float32))
    tensor = node.attrs.get("value")
    if tensor is None or tensor.data_type not in DTYPES:
        raise ShapeError("it holds no dense number or array; only those are supported")
    shape = tuple(tensor.dims)
    if math.prod(shape) > LIMIT:
        return node.out(shape, dtype=DTYPES[tensor.data_type], role="constant")
    return _known(node, numpy_helper.to_array(tensor), dtype=DTYPES[tensor.data_type])


def _about_shape(node: Node) -> Array:
    shape = node.value().shape
    if node.op == "Size":
        return np.asarray(node.value().size, dtype=np.int64)
    start, end = node.number("start", 0), node.number("end", len(shape))
    return np.asarray(shape[start:end], dtype=np.int64)


def _small(count: float) -> bool:
    return count <= LIMIT


def _divide(_: Node, a: list[Array]) -> Array:
    """ONNX divides integers towards zero, as C does."""
    if a[0].dtype.kind == "f":
        return np.asarray(a[0] / a[1])
    if not np.all(a[1]):
        raise ShapeError("it divides by zero")
    return np.asarray(np.trunc(np.divide(a[0], a[1])).astype(a[0].dtype))


def _gather(node: Node, a: list[Array]) -> Array | None:
    axis = node.axis(node.number("axis", 0), a[0].ndim)
    if not _small(a[0].size / max(a[0].shape[axis], 1) * a[1].size):
        return None
    return np.take(a[0], a[1].astype(np.int64), axis=axis)


def _slice(node: Node, a: list[Array]) -> Array:
    return a[0][slices(node, a[0].shape)]


def slices(node: Node, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """Return the slice of each axis that a Slice node takes."""
    starts, ends = node.numbers("starts", 1), node.numbers("ends", 2)
    if starts is None or ends is None:
        raise ShapeError("it lacks starts or ends")
    axes = node.axes(node.numbers("axes", 3) or range(len(starts)), len(shape))
    steps = node.numbers("steps", 4) or [1] * len(starts)
    taken = [slice(None)] * len(shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if step == 0:
            raise ShapeError("its step is 0")
        if step < 0 and end < -shape[axis]:
            taken[axis] = slice(start, None, step)
        else:
            taken[axis] = slice(start, end, step)
    return tuple(taken)


def _reshape(node: Node, a: list[Array]) -> Array:
    return a[0].reshape(target_shape(node, a[0].shape))


def target_shape(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that a Reshape node gives; 0 copies an axis, -1 takes what is left."""
    wanted = node.numbers("shape", 1) or []
    result = list(wanted)
    if not node.number("allowzero", 0):
        for i, n in enumerate(wanted):
            if n == 0:
                if i >= len(shape):
                    raise ShapeError(f"{wanted} copies axis {i} of {shape}, which is not there")
                result[i] = shape[i]
    total = math.prod(shape)
    if result.count(-1) == 1:
        rest = math.prod(n for n in result if n != -1)
        result[result.index(-1)] = total // rest if rest else 0
    if any(n < 0 for n in result) or math.prod(result) != total:
        raise ShapeError(f"{shape} cannot be reshaped to {wanted}")
    return tuple(result)


def _squeeze(node: Node, a: list[Array]) -> Array:
    return a[0].reshape(squeezed(node, a[0].shape))


def squeezed(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape after a Squeeze or Unsqueeze node."""
    axes = node.numbers("axes", 1)
    if node.op == "Squeeze":
        drop = (
            [i for i, n in enumerate(shape) if n == 1]
            if axes is None
            else node.axes(axes, len(shape))
        )
        if any(shape[i] != 1 for i in drop):
            raise ShapeError(f"it drops axes {drop} of {shape}, of which some are longer than 1")
        return tuple(n for i, n in enumerate(shape) if i not in drop)
    rank = len(shape) + len(axes or ())
    new = set(node.axes(axes or (), rank))
    if len(new) != rank - len(shape):
        raise ShapeError(f"it adds the axes {axes}, of which some are the same")
    rest = iter(shape)
    return tuple(1 if i in new else next(rest) for i in range(rank))


def _filled(node: Node, a: list[Array]) -> Array | None:
    from onnx import numpy_helper

    shape = tuple(int(n) for n in a[0])
    if not _small(math.prod(shape)):
        return None
    value = node.attrs.get("value")
    fill = np.zeros(1, np.float32) if value is None else numpy_helper.to_array(value).reshape(-1)
    return np.full(shape, fill[0], dtype=fill.dtype)


def _range(_: Node, a: list[Array]) -> Array | None:
    start, limit, delta = (x.reshape(-1)[0] for x in a)
    if delta == 0:
        raise ShapeError("its step is 0")
    if not _small((float(limit) - float(start)) / float(delta)):
        return None
    return np.arange(start, limit, delta, dtype=a[0].dtype)


def _expand(_: Node, a: list[Array]) -> Array | None:
    shape = np.broadcast_shapes(a[0].shape, tuple(int(n) for n in a[1]))
    return np.broadcast_to(a[0], shape) if _small(math.prod(shape)) else None


def _tile(_: Node, a: list[Array]) -> Array | None:
    return np.tile(a[0], tuple(a[1])) if _small(a[0].size * math.prod(map(int, a[1]))) else None


def _cast(node: Node, a: list[Array]) -> Array | None:
    kind = _NUMPY.get(node.number("to", 1))
    return None if kind is None else a[0].astype(kind)


def _trilu(node: Node, a: list[Array]) -> Array:
    k = int(a[1].reshape(-1)[0]) if len(a) > 1 else 0
    return np.triu(a[0], k) if node.number("upper", 1) else np.tril(a[0], k)


def _split(node: Node, a: list[Array]) -> list[Array]:
    axis = node.axis(node.number("axis", 0), a[0].ndim)
    ends = np.cumsum(split_lengths(node, a[0].shape[axis]))
    return list(np.split(a[0], ends[:-1], axis=axis))


def split_lengths(node: Node, length: int) -> list[int]:
    """Return the length of each part that a Split node makes of an axis."""
    parts = node.numbers("split", 1)
    if parts is None:
        count = node.number("num_outputs", len(node.outputs))
        each = -(-length // count)
        parts = [min(each, length - i * each) for i in range(count)]
    if sum(parts) != length or min(parts) < 0 or len(parts) != len(node.outputs):
        raise ShapeError(f"it splits an axis of {length} into {parts}")
    return parts


def _reduced(fn: Callable[..., Any]) -> Callable[[Node, list[Array]], Array]:
    def rule(node: Node, a: list[Array]) -> Array:
        axes = node.numbers("axes", 1)
        at = tuple(node.axes(axes, a[0].ndim)) if axes else None
        return np.asarray(fn(a[0], axis=at, keepdims=bool(node.number("keepdims", 1))))

    return rule


def _cumsum(node: Node, a: list[Array]) -> Array | None:
    if node.number("exclusive", 0) or node.number("reverse", 0):
        return None
    return np.cumsum(a[0], axis=int(a[1].reshape(-1)[0]), dtype=a[0].dtype)


def _plain(fn: Callable[..., Any], keep: bool = False) -> Callable[[Node, list[Array]], Any]:
    """Return the rule of an elementwise function; `keep` gives the result the inputs' type."""

    def rule(_: Node, a: list[Array]) -> Array | None:
        if not _small(math.prod(broadcast(*(x.shape for x in a)))):
            return None
        result = np.asarray(fn(*a))
        return result.astype(a[0].dtype) if keep else result

    return rule


_ARITHMETIC: dict[str, Callable[..., Any]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Mod": np.mod, "Pow": np.power,
    "Neg": np.negative, "Abs": np.abs, "Floor": np.floor, "Ceil": np.ceil, "Round": np.round,
    "Sqrt": np.sqrt, "Exp": np.exp, "Log": np.log, "Sin": np.sin, "Cos": np.cos,
    "Sign": np.sign, "Reciprocal": np.reciprocal,
    "Min": lambda *a: np.min(np.broadcast_arrays(*a), axis=0),
    "Max": lambda *a: np.max(np.broadcast_arrays(*a), axis=0),
}  # fmt: skip
_TESTS: dict[str, Callable[..., Any]] = {
    "Identity": np.asarray, "Equal": np.equal, "Less": np.less, "Greater": np.greater,
    "LessOrEqual": np.less_equal, "GreaterOrEqual": np.greater_equal, "Not": np.logical_not,
    "And": np.logical_and, "Or": np.logical_or, "Xor": np.logical_xor, "IsNaN": np.isnan,
}  # fmt: skip

FOLDS: dict[str, Callable[[Node, list[Array]], Array | list[Array] | None]] = {
    "Gather": _gather,
    "Concat": lambda node, a: np.concatenate(a, axis=node.number("axis", 0)),
    "Unsqueeze": _squeeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Reshape": _reshape,
    "Transpose": lambda node, a: np.transpose(a[0], node.numbers("perm")),
    "Expand": _expand,
    "Tile": _tile,
    "Cast": _cast,
    "CastLike": lambda _, a: a[0].astype(a[1].dtype),
    "ConstantOfShape": _filled,
    "Range": _range,
    "Trilu": _trilu,
    "Split": _split,
    "Div": _divide,
    "Where": _plain(np.where),
    "NonZero": lambda _, a: np.asarray(np.nonzero(a[0]), dtype=np.int64),
    "ReduceProd": _reduced(np.prod),
    "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max),
    "ReduceMin": _reduced(np.min),
    "CumSum": _cumsum,
    **{name: _plain(fn, keep=True) for name, fn in _ARITHMETIC.items()},
    **{name: _plain(fn) for name, fn in _TESTS.items()},
}
