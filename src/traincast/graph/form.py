"""The JSON form of a graph. Defaults are left out; sizes are numbers or text such as `B*S`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from traincast.errors import InputFileError, InvalidValueError
from traincast.graph.graph import Attr, Graph, Op, Tensor
from traincast.graph.size import Size
from traincast.graph.spec import verify

FORMAT = "traincast-graph"
VERSION = 1


def graph_to_dict(graph: Graph) -> dict[str, Any]:
    """Return plain data that `graph_from_dict` reads back into an equal graph."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "source": graph.source,
        "batch": graph.batch,
        "seq": graph.seq,
        "notes": list(graph.notes),
        "fixed": list(graph.fixed),
        "loss": graph.loss,
        "tensors": {name: _tensor_to_dict(t) for name, t in graph.tensors.items()},
        "ops": [_op_to_dict(op) for op in graph.ops],
    }


def _tensor_to_dict(tensor: Tensor) -> dict[str, Any]:
    data: dict[str, Any] = {"shape": [size.to_json() for size in tensor.shape]}
    if tensor.dtype != "float":
        data["dtype"] = tensor.dtype
    if tensor.role != "activation":
        data["role"] = tensor.role
    if tensor.dims:
        data["dims"] = list(tensor.dims)
    if not tensor.trainable:
        data["trainable"] = False
    return data


def _op_to_dict(op: Op) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": op.name,
        "kind": op.kind,
        "inputs": list(op.inputs),
        "outputs": list(op.outputs),
    }
    if op.attrs:
        data["attrs"] = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in op.attrs.items()
        }
    if op.layer:
        data["layer"] = op.layer
    return data


def graph_from_dict(
    data: Mapping[str, Any], *, where: str = "graph", trusted: bool = False
) -> Graph:
    """Read what `graph_to_dict` writes; all malformed entries are reported at once.

    `trusted` skips the specification, for graphs that were verified when they were written.
    """
    problems: list[str] = []
    if data.get("format") != FORMAT:
        raise InputFileError(
            where, f'is no graph: "format" is {data.get("format")!r}, not "{FORMAT}"'
        )
    if data.get("version") != VERSION:
        raise InputFileError(
            where,
            f"has the graph version {data.get('version')!r}; this traincast reads {VERSION}",
            "write it again with this version",
        )
    raw_tensors, raw_ops = data.get("tensors"), data.get("ops")
    if not isinstance(raw_tensors, dict) or not isinstance(raw_ops, list):
        raise InputFileError(where, '"tensors" must be an object and "ops" a list')
    sizes: dict[int | str, Size] = {}
    tensors = {}
    for name, entry in raw_tensors.items():
        try:
            tensors[name] = _tensor_from_dict(name, entry, sizes)
        except (InvalidValueError, KeyError, TypeError, AttributeError) as error:
            problems.append(f"tensor {name!r}: {_reason(error)}")
    ops = []
    for index, entry in enumerate(raw_ops):
        try:
            ops.append(_op_from_dict(entry))
        except (KeyError, TypeError, AttributeError) as error:
            problems.append(f"op number {index}: {_reason(error)}")
    if problems:
        raise InputFileError(where, problems)
    graph = Graph(
        name=str(data.get("name", where)),
        ops=tuple(ops),
        tensors=tensors,
        batch=_whole(data, "batch", 1, where),
        seq=_whole(data, "seq", 0, where),
        source=str(data.get("source", "")),
        notes=tuple(map(str, data.get("notes", ()))),
        fixed=tuple(map(str, data.get("fixed", ()))),
        loss=str(data.get("loss", "")),
    )
    return graph if trusted else verify(graph)


def _whole(data: Mapping[str, Any], key: str, default: int, where: str) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < default:
        raise InputFileError(
            where, f'"{key}" is {value!r}; it must be an integer of at least {default}'
        )
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"lacks {error.args[0]!r}"
    if isinstance(error, InvalidValueError):
        return str(error)
    return "is not an object of the expected form"


def _tensor_from_dict(name: str, entry: Mapping[str, Any], sizes: dict[int | str, Size]) -> Tensor:
    shape = []
    for value in entry["shape"]:
        size = sizes.get(value)
        if size is None:
            size = sizes[value] = Size.parse(value)
        shape.append(size)
    return Tensor(
        name=name,
        shape=tuple(shape),
        dtype=entry.get("dtype", "float"),
        role=entry.get("role", "activation"),
        dims=tuple(entry.get("dims", ())),
        trainable=bool(entry.get("trainable", True)),
    )


def _op_from_dict(entry: Mapping[str, Any]) -> Op:
    attrs: dict[str, Attr] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in entry.get("attrs", {}).items()
    }
    return Op(
        name=entry["name"],
        kind=entry["kind"],
        inputs=tuple(entry["inputs"]),
        outputs=tuple(entry["outputs"]),
        attrs=attrs,
        layer=entry.get("layer", ""),
    )


def graph_to_json(graph: Graph) -> str:
    """Return the JSON text of a graph, one tensor and one op a line."""
    data = graph_to_dict(graph)
    tensors, ops = data.pop("tensors"), data.pop("ops")
    dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
    head = ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in data.items())
    body = ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in tensors.items())
    tail = ",\n".join(dump(op) for op in ops)
    return f'{{{head},\n"tensors":{{\n{body}\n}},\n"ops":[\n{tail}\n]}}\n'


def graph_from_json(text: str, *, where: str = "graph", trusted: bool = False) -> Graph:
    """Read the JSON text of a graph."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputFileError(
            where, f"is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    if not isinstance(data, dict):
        raise InputFileError(where, "is not a JSON object")
    return graph_from_dict(data, where=where, trusted=trusted)
