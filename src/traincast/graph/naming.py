"""Names for axes, carried from the inputs through the graph by one rule for each kind.

Names: sample, sequence, token (sample × sequence flattened), channel, depth, height, width,
length, head, head_channel, expert, row, column. An axis that no rule can name stays empty.
Splitting the work along a dim is written in terms of these names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from traincast.graph.graph import Graph, Op
from traincast.graph.size import Size

_SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
_SAMPLE, _SEQUENCE, _TOKEN = Size(batch=1), Size(sequence=1), Size(both=1)

Shape = tuple[Size, ...]
Dims = tuple[str, ...]


def name_dims(graph: Graph) -> Graph:
    """Return the graph with `dims` set on every tensor of which some axis can be named."""
    dims: dict[str, Dims] = {}
    for name, tensor in graph.tensors.items():
        if tensor.role == "input":
            dims[name] = tensor.dims or _input(tensor.shape)
        elif tensor.role in ("parameter", "buffer"):
            dims[name] = tensor.dims
    for op in graph.ops:
        rule = _RULES.get(op.kind, _generic)
        shapes = [graph.tensors[n].shape for n in op.inputs]
        known = [dims.get(n, ()) or ("",) * len(s) for n, s in zip(op.inputs, shapes, strict=True)]
        for name in op.outputs:
            shape = graph.tensors[name].shape
            found = rule(op, shapes, known, shape)
            if len(found) != len(shape):
                found = ("",) * len(shape)
            found = tuple(n or _by_size(s) for n, s in zip(found, shape, strict=True))
            dims[name] = _once(found)
        if op.kind in _PARAMETER_DIMS:
            for name, names in zip(op.inputs[1:], _PARAMETER_DIMS[op.kind], strict=False):
                tensor = graph.tensors[name]
                if tensor.role == "parameter" and not dims.get(name):
                    dims[name] = _parameter(op, names, len(tensor.shape))
    tensors = {
        name: replace(t, dims=dims[name] if any(dims.get(name, ())) else ())
        for name, t in graph.tensors.items()
    }
    return replace(graph, tensors=tensors)


_PARAMETER_DIMS: dict[str, tuple[Dims, ...]] = {
    "conv": (("channel", "in_channel"), ("channel",)),
    "linear": (("channel", "in_channel"), ("channel",)),
    "grouped_matmul": (("expert", "in_channel", "channel"),),
    "batch_norm": (("channel",), ("channel",)),
    "layer_norm": (("channel",), ("channel",)),
    "rms_norm": (("channel",),),
    "group_norm": (("channel",), ("channel",)),
}


def _parameter(op: Op, names: Dims, rank: int) -> Dims:
    if op.attrs.get("transposed") and len(names) > 1:
        names = (*names[:-2], names[-1], names[-2])
    if op.kind == "conv" and rank > 2:
        names += tuple(f"kernel_{n}" for n in _SPACE.get(rank - 2, ()))
    return names if len(names) == rank else ()


def _input(shape: Shape) -> Dims:
    names = [_by_size(s) for s in shape]
    if names and names[0] == "sample" and "sequence" not in names:
        rest = len(shape) - 2
        if rest in _SPACE:
            return ("sample", "channel", *_SPACE[rest])
        if rest == 0:
            return ("sample", "channel")
    return tuple(names)


def _by_size(size: Size) -> str:
    return {_SAMPLE: "sample", _SEQUENCE: "sequence", _TOKEN: "token"}.get(size, "")


def _once(names: Dims) -> Dims:
    """Drop the second use of a name: an S × S score matrix has one `sequence` axis to split."""
    seen: set[str] = set()
    result = []
    for name in names:
        result.append("" if name in seen else name)
        seen.add(name)
    return tuple(result)


def _conv(_op: Op, _s: list[Shape], _k: list[Dims], out: Shape) -> Dims:
    return ("sample", "channel", *_SPACE.get(len(out) - 2, ("",) * (len(out) - 2)))


def _linear(_op: Op, _s: list[Shape], known: list[Dims], out: Shape) -> Dims:
    return (*known[0][: len(out) - 1], "channel")


def _same(_op: Op, shapes: list[Shape], known: list[Dims], out: Shape) -> Dims:
    names = [""] * len(out)
    for shape, dims in zip(shapes, known, strict=True):
        for i, (size, name) in enumerate(zip(shape, dims, strict=True), len(out) - len(shape)):
            if 0 <= i < len(out) and size == out[i] and not names[i]:
                names[i] = name
    return tuple(names)


def _generic(op: Op, shapes: list[Shape], known: list[Dims], out: Shape) -> Dims:
    if shapes and len(shapes[0]) == len(out):
        return _same(op, shapes[:1], known[:1], out)
    return ("",) * len(out)


def _attention(_op: Op, _s: list[Shape], _k: list[Dims], out: Shape) -> Dims:
    names = ("sample", "head", "sequence", "head_channel")
    return names if len(out) == 4 else ("",) * len(out)


def _embedding(_op: Op, _s: list[Shape], known: list[Dims], out: Shape) -> Dims:
    index = known[1] if len(known) > 1 else ()
    return (
        (*index, "channel") if len(index) == len(out) - 1 else (*("",) * (len(out) - 1), "channel")
    )


def _grouped(_op: Op, _s: list[Shape], known: list[Dims], out: Shape) -> Dims:
    return (*known[0][: len(out) - 1], "channel")


def _view(op: Op, shapes: list[Shape], known: list[Dims], out: Shape) -> Dims:
    """Carry names over a reshape: axes that keep their size, in order, keep their name.

    A channel axis that is split gives (head, head_channel); merging them gives channel again.
    """
    order = op.attrs.get("order")
    if isinstance(order, tuple) and len(order) == len(known[0]) == len(out):
        return tuple(known[0][int(i)] for i in order)
    sizes, names = list(shapes[0]), list(known[0])
    result: list[str] = []
    position = 0
    for size in out:
        if position < len(sizes) and size == sizes[position]:
            result.append(names[position])
            position += 1
        elif size in sizes[position:]:
            position = sizes.index(size, position)
            result.append(names[position])
            position += 1
        else:
            result.append("")
    if "channel" in names and "channel" not in result and len(out) == len(sizes) + 1:
        at = names.index("channel")
        if result[at : at + 2] == ["", ""]:
            result[at : at + 2] = ["head", "head_channel"]
    if {"head", "head_channel"} <= set(names) and len(out) == len(sizes) - 1 and not result[-1]:
        result[-1] = "channel"
    return tuple(result)


def _matmul(_op: Op, _s: list[Shape], known: list[Dims], out: Shape) -> Dims:
    names = [*known[0][: len(out) - 1], ""]
    if len(known[1]) and known[1][-1] not in names:
        names[-1] = known[1][-1]
    return tuple(names) if len(names) == len(out) else ("",) * len(out)


_RULES: dict[str, Callable[[Op, list[Shape], list[Dims], Shape], Dims]] = {
    "conv": _conv,
    "pool": lambda op, s, k, out: _conv(op, s, k, out) if len(out) > 2 else _generic(op, s, k, out),
    "linear": _linear,
    "grouped_matmul": _grouped,
    "matmul": _matmul,
    "attention": _attention,
    "embedding": _embedding,
    "pointwise": _same,
    "concat": lambda op, s, k, out: k[0] if len(k[0]) == len(out) else ("",) * len(out),
    "interpolate": _conv,
    "rnn": lambda op, s, k, out: (*k[0][: len(out) - 1], "channel"),
    "view": _view,
}
