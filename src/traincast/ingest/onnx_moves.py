"""ONNX ops that move data or make new values."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from traincast.graph import Attr
from traincast.ingest.onnx_fold import slices, split_lengths, squeezed, target_shape
from traincast.ingest.onnx_trace import (
    DTYPES,
    Lengths,
    Node,
    ShapeError,
    Value,
    as_weight,
    broadcast,
)

Handler = Callable[[Node], Value | list[Value]]


def _reshaped(node: Node, shape: Sequence[int]) -> Value:
    """A reshape of axes that lie in another order in memory takes a copy first."""
    x = node.value()
    if [n for n in shape if n != 1] == [n for n in x.shape if n != 1]:
        return node.view(x, node.out(shape, permuted=x.permuted))
    if x.permuted:
        x = node.emit("copy", [x], [node.part(f"{node.name}.clone", x.shape)], fn="clone")
    return node.view(x, node.out(shape))


def _flatten(node: Node) -> Value:
    shape = node.value().shape
    at = node.number("axis", 1)
    at = at + len(shape) if at < 0 else at
    return _reshaped(node, (math.prod(shape[:at]), math.prod(shape[at:])))


def _transpose(node: Node) -> Value:
    x = node.value()
    order = node.axes(node.numbers("perm") or range(len(x.shape))[::-1], len(x.shape))
    if sorted(order) != list(range(len(x.shape))):
        raise ShapeError(f"perm {order} does not fit {len(x.shape)} axes")
    out = node.out([x.shape[i] for i in order])
    weight = as_weight(x)
    if weight.role == "weight" and order == [1, 0]:
        return replace(out, turned=weight)
    return node.permute(x, order, out)


def _expand(node: Node) -> Value:
    x = node.value()
    shape = broadcast(x.shape, tuple(node.numbers("shape", 1) or ()))
    return x if shape == x.shape else node.view(x, node.out(shape), "expand")


def _slice(node: Node) -> Value:
    x = node.value()
    taken = slices(node, x.shape)
    shape = [len(range(*s.indices(n))) for s, n in zip(taken, x.shape, strict=True)]
    if any((s.step or 1) < 0 for s in taken):
        return node.emit("copy", [x], [node.out(shape)], fn="flip")
    if tuple(shape) == x.shape:
        return x
    return node.view(x, node.out(shape, permuted=x.permuted), "slice")


def _split(node: Node) -> list[Value]:
    x = node.value()
    axis = node.axis(node.number("axis", 0), len(x.shape))
    parts = split_lengths(node, x.shape[axis])
    outs = [
        node.out([part if i == axis else n for i, n in enumerate(x.shape)], k, permuted=x.permuted)
        for k, part in enumerate(parts)
    ]
    node.emit("view", [x], outs, fn="split")
    return outs


def _split_to_sequence(node: Node) -> Value:
    x = node.value()
    axis = node.axis(node.number("axis", 0), len(x.shape))
    found = [int(n) for n in node.content(1).reshape(-1)] if node.has(1) else [1]
    if not node.has(1) or not node.value(1).shape:
        count, rest = divmod(x.shape[axis], found[0])
        found = [found[0]] * count + [rest] * bool(rest)
    parts = [
        node.part(f"{node.name}.{k}", (*x.shape[:axis], part, *x.shape[axis + 1 :]))
        for k, part in enumerate(found)
    ]
    node.emit("view", [x], parts, fn="split")
    if node.has(1) or node.number("keepdims", 1):
        return node.out((), parts=tuple(parts))
    raise ShapeError("keepdims 0 is not supported; export with keepdims 1")


def _sequence_at(node: Node) -> Value:
    return node.value().parts[int(node.content(1).reshape(-1)[0])]


def _concat_sequence(node: Node) -> Value:
    if node.number("new_axis", 0):
        raise ShapeError("new_axis is not supported; export a Concat of unsqueezed values")
    return _joined(node, list(node.value().parts))


def _concat(node: Node) -> Value:
    return _joined(node, node.given())


def _joined(node: Node, ins: list[Value]) -> Value:
    axis = node.axis(node.number("axis", 0), len(ins[0].shape))
    if len({(*v.shape[:axis], *v.shape[axis + 1 :]) for v in ins}) > 1:
        listed = " and ".join(str(v.shape) for v in ins)
        raise ShapeError(f"its inputs {listed} differ outside axis {axis}")
    shape = list(ins[0].shape)
    shape[axis] = sum(v.shape[axis] for v in ins)
    return node.emit("concat", ins, [node.out(shape)], axis=axis)


def _gather(node: Node) -> Value:
    """Rows of a table of weights are an embedding, one fixed index is a view."""
    x, index = node.value(0), node.value(1)
    axis = node.axis(node.number("axis", 0), len(x.shape))
    shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
    table = as_weight(x)
    if index.is_scalar and not index.shape:
        return node.view(x, node.out(shape, permuted=x.permuted), "select")
    if table.role == "weight" and axis == 0 and len(table.shape) == 2:
        return node.emit("embedding", [table, index], [node.out(shape)])
    return node.emit("gather", [x, index], [node.out(shape)], fn="index_select")


def _gather_nd(node: Node) -> Value:
    x, index = node.value(0), node.value(1)
    lead, depth = node.number("batch_dims", 0), index.shape[-1]
    shape = (*index.shape[:-1], *x.shape[lead + depth :])
    return node.emit("gather", [x, index], [node.out(shape)], fn="index")


def _scatter(node: Node) -> Value:
    adds = node.text("reduction", "none") != "none"
    fn = "index_put" if node.op == "ScatterND" else "scatter_add" if adds else "scatter"
    return node.emit("gather", node.given(), [node.out(node.value().shape)], fn=fn)


def _pad(node: Node) -> Value:
    x = node.value()
    rank = len(x.shape)
    pads = node.numbers("pads", 1)
    axes = node.axes(node.numbers("axes", 3), rank)
    if pads is None or len(pads) != 2 * len(axes):
        raise ShapeError(f"pads {pads} do not fit {len(axes)} axes")
    shape = list(x.shape)
    for i, axis in enumerate(axes):
        shape[axis] += pads[i] + pads[len(axes) + i]
    if tuple(shape) == x.shape and not any(pads):
        return x
    modes = {"reflect": f"reflection_pad{rank - 2}d", "edge": f"replication_pad{rank - 2}d"}
    fn = modes.get(node.text("mode", "constant"), "pad")
    return node.emit("copy", [x], [node.out(shape)], fn=fn)


def _tile(node: Node) -> Value:
    x = node.value()
    times = node.numbers("repeats", 1) or []
    shape = [n * t for n, t in zip(x.shape, times, strict=True)]
    return node.emit("copy", [x], [node.out(shape)], fn="repeat")


def _resize(node: Node) -> Value:
    x = node.value()
    rank = len(x.shape)
    axes = node.axes(node.numbers("axes"), rank)
    at = 2 if node.op == "Resize" and node.opset >= 11 else 1
    shape = list(x.shape)
    if node.op == "Resize" and node.has(3):
        lengths = node.numbers("sizes", 3) or []
    else:
        scales = node.content(at).reshape(-1) if node.has(at) else node.attrs.get("scales", ())
        lengths = [math.floor(x.shape[a] * float(s)) for a, s in zip(axes, scales, strict=False)]
    if len(lengths) != len(axes):
        raise ShapeError("its sizes or scales do not fit the axes of its input")
    for axis, length in zip(axes, lengths, strict=True):
        shape[axis] = length
    space = rank - 2
    if space < 1:
        raise ShapeError(f"it resizes images, not a shape of {x.shape}")
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}.get(space, "linear")
    mode = {"linear": linear, "cubic": "bicubic"}.get(node.text("mode", "nearest"), "nearest")
    return node.emit("interpolate", [x], [node.out(shape)], fn=f"upsample_{mode}{space}d")


def _blocks(node: Node) -> Value:
    x = node.value()
    size = node.number("blocksize", 1)
    if len(x.shape) != 4 or size < 1:
        raise ShapeError(f"it takes [N, C, H, W], not {x.shape}")
    n, c, h, w = x.shape
    area = size * size
    if node.op == "DepthToSpace":
        shape, fn = (n, c // area, h * size, w * size), "pixel_shuffle"
    else:
        shape, fn = (n, c * area, h // size, w // size), "pixel_unshuffle"
    return node.emit("copy", [x], [node.out(shape)], fn=fn)


def _one_hot(node: Node) -> Value:
    x = node.value()
    depth = int(node.content(1).reshape(-1)[0])
    axis = node.axis(node.number("axis", -1), len(x.shape) + 1)
    shape = (*x.shape[:axis], depth, *x.shape[axis:])
    return node.emit("gather", [x], [node.out(shape, dtype=node.value(2).dtype)], fn="scatter")


def _fill(node: Node) -> Value:
    """New values: random ones, or constants too large to be computed here."""
    dtype = "float"
    if node.op == "Range":
        start, limit, delta = (float(node.content(i).reshape(-1)[0]) for i in range(3))
        shape: Lengths = (max(math.ceil((limit - start) / delta), 0),)
        dtype = node.value().dtype
    elif node.op == "ConstantOfShape":
        shape = tuple(node.numbers("", 0) or ())
        value = node.attrs.get("value")
        dtype = "float" if value is None else DTYPES.get(value.data_type, "float")
    elif node.ins:
        shape = node.value().shape
    else:
        shape = tuple(node.numbers("shape") or ())
    names = {"ConstantOfShape": "full", "Range": "arange", "EyeLike": "eye"}
    fn = names.get(node.op, "randn" if "Normal" in node.op else "rand")
    return node.emit("fill", [], [node.out(shape, dtype=dtype)], fn=fn)


def _same_shape(kind: str, fn: Callable[[Node], str]) -> Handler:
    def convert(node: Node) -> Value:
        x = node.value()
        attrs: dict[str, Attr] = {"fn": fn(node)}
        return node.emit(kind, [x], [node.out(x.shape)], **attrs)

    return convert


def _data_dependent(node: Node) -> Value:
    raise ShapeError(
        "the size of its output depends on data, so its work cannot be known beforehand; "
        "export the part of the model before it"
    )


def _gather_elements(node: Node) -> Value:
    x, index = node.value(0), node.value(1)
    return node.emit("gather", [x, index], [node.out(index.shape)], fn="gather")


HANDLERS: dict[str, Handler] = {
    "Reshape": lambda node: _reshaped(node, target_shape(node, node.value().shape)),
    "Flatten": _flatten,
    "Squeeze": lambda node: _reshaped(node, squeezed(node, node.value().shape)),
    "Unsqueeze": lambda node: _reshaped(node, squeezed(node, node.value().shape)),
    "Transpose": _transpose,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concat,
    "SplitToSequence": _split_to_sequence,
    "SequenceAt": _sequence_at,
    "SequenceConstruct": lambda node: node.out((), parts=(node.value(), *node.given()[1:])),
    "ConcatFromSequence": _concat_sequence,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _scatter),
    "Pad": _pad,
    "Tile": _tile,
    "Resize": _resize,
    "Upsample": _resize,
    "DepthToSpace": _blocks,
    "SpaceToDepth": _blocks,
    "OneHot": _one_hot,
    "CumSum": _same_shape("copy", lambda _: "cumsum"),
    "CumProd": _same_shape("copy", lambda _: "cumsum"),
    "Trilu": _same_shape("pointwise", lambda n: "triu" if n.number("upper", 1) else "tril"),
    **dict.fromkeys(
        ("ConstantOfShape", "Range", "EyeLike", "RandomNormal", "RandomUniform",
         "RandomNormalLike", "RandomUniformLike", "Bernoulli"),
        _fill,
    ),
    **dict.fromkeys(("NonZero", "NonMaxSuppression", "Unique", "Compress"), _data_dependent),
}  # fmt: skip
