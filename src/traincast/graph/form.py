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
    sizes: dict[tuple[type, int | str], Size] = {}
    tensors = {}
    for name, entry in raw_tensors.items():
        try:
            tensors[name] = _tensor_from_dict(name, entry, sizes)
        except (InvalidValueError, KeyError, TypeError) as error:
            problems.append(f"tensor {name!r}: {_reason(error)}")
    ops = []
    for index, entry in enumerate(raw_ops):
        try:
            ops.append(_op_from_dict(entry))
        except (InvalidValueError, KeyError, TypeError) as error:
            problems.append(f"op number {index}: {_reason(error)}")
    try:
        graph = Graph(
            name=_text(data, "name", where),
            ops=tuple(ops),
            tensors=tensors,
            batch=_whole(data, "batch", 1),
            seq=_whole(data, "seq", 0),
            source=_text(data, "source", ""),
            notes=_texts(data, "notes", ()),
            fixed=_texts(data, "fixed", ()),
            loss=_text(data, "loss", ""),
        )
    except InvalidValueError as error:
        problems.append(str(error))
    if problems:
        raise InputFileError(where, problems)
    return graph if trusted else verify(graph)


def _whole(data: Mapping[str, Any], key: str, default: int) -> int:
    value = data.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < default:
        raise InvalidValueError(
            f'"{key}" is {value!r}; it must be an integer of at least {default}'
        )
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"lacks {error.args[0]!r}"
    if isinstance(error, InvalidValueError):
        return str(error)
    return "is not an object of the expected form"


def _text(entry: Mapping[str, Any], key: str, default: str | None = None) -> str:
    value = entry[key] if default is None else entry.get(key, default)
    if not isinstance(value, str):
        raise InvalidValueError(f'"{key}" is {value!r}, which is not text')
    return value


def _texts(
    entry: Mapping[str, Any], key: str, default: tuple[str, ...] | None = None
) -> tuple[str, ...]:
    values = entry[key] if default is None else entry.get(key, default)
    if not isinstance(values, list | tuple) or not all(isinstance(v, str) for v in values):
        raise InvalidValueError(f'"{key}" is {values!r}, which is not a list of texts')
    return tuple(values)


def _object(entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise TypeError
    return entry


def _tensor_from_dict(name: str, raw: object, sizes: dict[tuple[type, int | str], Size]) -> Tensor:
    entry = _object(raw)
    shape = []
    if not isinstance(entry["shape"], list | tuple):
        raise InvalidValueError(f'"shape" is {entry["shape"]!r}, which is not a list of sizes')
    for value in entry["shape"]:
        # True and 1.0 equal 1 as keys, but are no sizes.
        size = sizes.get((type(value), value))
        if size is None:
            size = sizes[type(value), value] = Size.parse(value)
        shape.append(size)
    trainable = entry.get("trainable", True)
    if not isinstance(trainable, bool):
        raise InvalidValueError(f'"trainable" is {trainable!r}, which is neither true nor false')
    return Tensor(
        name=name,
        shape=tuple(shape),
        dtype=_text(entry, "dtype", "float"),
        role=_text(entry, "role", "activation"),
        dims=_texts(entry, "dims", ()),
        trainable=trainable,
    )


def _attr(key: str, value: object) -> Attr:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        if all(isinstance(v, int) for v in value):
            return tuple(value)
        if all(isinstance(v, str) for v in value):
            return tuple(value)
    raise InvalidValueError(
        f"attribute {key!r} is {value!r}; use a number, text, true, false or a list of either "
        "integers or texts"
    )


def _op_from_dict(raw: object) -> Op:
    entry = _object(raw)
    return Op(
        name=_text(entry, "name"),
        kind=_text(entry, "kind"),
        inputs=_texts(entry, "inputs"),
        outputs=_texts(entry, "outputs"),
        attrs={key: _attr(key, value) for key, value in _object(entry.get("attrs", {})).items()},
        layer=_text(entry, "layer", ""),
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
    except RecursionError:
        raise InputFileError(where, "is nested too deeply to be a graph") from None
    except json.JSONDecodeError as error:
        raise InputFileError(
            where, f"is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    if not isinstance(data, dict):
        raise InputFileError(where, "is not a JSON object")
    return graph_from_dict(data, where=where, trusted=trusted)
