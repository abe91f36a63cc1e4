"""Graphs out of ONNX files: nothing of the file is executed, and no weights are needed.

Every shape is worked out for several batches and sequence lengths, then written as one size that
holds for all. Where that fails, the batch or the sequence is held at the file's value and noted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from traincast.errors import IngestError, InputFileError, MissingExtraError
from traincast.graph import FLOATS, Graph, Size
from traincast.ingest.builder import GraphBuilder
from traincast.ingest.onnx_inputs import BATCH, SEQ, Axes, find_axes
from traincast.ingest.onnx_nodes import prepare, run
from traincast.ingest.onnx_trace import Trace, TracedOp, TracedTensor

OLDEST, NEWEST = 7, 28
"""Versions of ONNX's own operator set that are read."""

_SIZES = (BATCH, SEQ)
_BATCHES, _LENGTHS = (2, 3, 5), (16, 24, 40)
"""Values at which shapes are worked out; sizes are fitted to the first two of each and checked
at the third."""


def load_onnx(path: str | Path, *, axes: Mapping[str, int] | None = None) -> Graph:
    """Turn an ONNX file into a graph; `axes` gives lengths to open axes, such as a height."""
    path = Path(path)
    model = read_model(path)
    found = find_axes(model.graph, axes or {})
    builder = GraphBuilder(path.stem, f"ONNX file {path.name}")
    for note in found.notes:
        builder.note(note)
    traced, held = _trace(model, found, builder)
    _assemble(builder, traced)
    has_sequence = any(s.sequence or s.both for shape in traced.shapes.values() for s in shape)
    seq = found.seq if has_sequence or SEQ in held else 0
    return builder.build(batch=found.batch, seq=seq, fixed=held)


def read_model(path: Path) -> Any:
    """Return the parsed file, without its external weights."""
    try:
        import onnx

        decode_error = import_module("google.protobuf.message").DecodeError
    except ImportError:
        raise MissingExtraError("onnx", "onnx", "reading an ONNX file") from None
    data = _bytes(path)
    again = "export the model again, or check the download"
    try:
        model = onnx.ModelProto.FromString(data)
    except (decode_error, ValueError):
        raise InputFileError(path, _guess(data), again) from None
    if not all(isinstance(name, str) for name in _names(model.graph)):
        raise InputFileError(path, "holds names that are no text: it is damaged", again)
    if not model.graph.node:
        what = "holds no nodes" if model.opset_import else _guess(data)
        raise InputFileError(path, what, again)
    _check_opset(model, path)
    if model.functions:
        import onnx.inliner

        model = onnx.inliner.inline_local_functions(model)
    return model


def _names(graph: Any) -> Iterator[object]:
    """Yield every name of the graph; the parser hands those that are no text on as bytes."""
    for info in (*graph.input, *graph.output):
        yield info.name
        if info.type.HasField("tensor_type"):
            yield from (dim.dim_param for dim in info.type.tensor_type.shape.dim)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _bytes(path: Path) -> bytes:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InputFileError(path, "there is no such file") from None
    except IsADirectoryError:
        raise InputFileError(path, "is a folder, not a file") from None
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    if not data:
        raise InputFileError(path, "is empty", "export the model again, or check the download")
    return data


def _guess(data: bytes) -> str:
    try:
        data[:4096].decode("ascii")
    except UnicodeDecodeError:
        return "is not an ONNX model, or is cut short"
    return "is a text file, not an ONNX model"


def _check_opset(model: Any, path: Path) -> None:
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        raise InputFileError(path, "names no version of ONNX's operator set", "export it again")
    if not OLDEST <= max(versions) <= NEWEST:
        raise InputFileError(
            path,
            f"uses version {max(versions)} of ONNX's operator set; {OLDEST} to {NEWEST} are read",
            "export it with opset_version=17, or convert it with onnx.version_converter",
        )


class _Traced(NamedTuple):
    ops: list[TracedOp]
    tensors: dict[str, TracedTensor]
    shapes: dict[str, tuple[Size, ...]]
    outputs: list[str]


class _NotSymbolicError(Exception):
    """Why one description does not hold for every batch and sequence length."""


def _trace(model: Any, axes: Axes, builder: GraphBuilder) -> tuple[_Traced, list[str]]:
    """Return the graph with as many free sizes as work out, and which are held.

    A size that is held keeps the file's value; the reason is noted.
    """
    base = prepare(model.graph)
    names = [output.name for output in model.graph.output]
    choices = itertools.product(*([True, False] if n in axes.free else [False] for n in _SIZES))
    why = ""
    for batch, seq in choices:
        held = [n for n, free in zip(_SIZES, (batch, seq), strict=True) if not free]
        try:
            traces = {at: run(model, base, axes.shapes(*at)) for at in _points(axes, batch, seq)}
            traced = _merge(traces, names, free_batch=batch)
        except (IngestError, _NotSymbolicError) as error:
            why = why or str(error)
            if not any(name in axes.free and name not in held for name in _SIZES):
                raise
            continue
        return traced, _note_held(builder, axes, held, why)
    raise AssertionError("the last choice holds every size: it returns or raises")


def _points(axes: Axes, batch: bool, seq: bool) -> list[tuple[int, int]]:
    batches = _BATCHES if batch else (axes.batch,)
    lengths = _LENGTHS if seq else (axes.seq,)
    corners = itertools.product(batches[:2], lengths[:2])
    return [*corners, *([(batches[-1], lengths[-1])] if batch or seq else [])]


def _note_held(builder: GraphBuilder, axes: Axes, held: list[str], why: str) -> list[str]:
    """Return the sizes that the graph holds for one value only; a missing sequence is none."""
    kept = [name for name in held if name != SEQ or name in axes.free]
    for name in kept:
        word, value = ("batch", axes.batch) if name == BATCH else ("sequence length", axes.seq)
        reason = f" ({why})" if why and name in axes.free else ""
        builder.note(f"the {word} is held at {value}, as in the file{reason}")
    return kept


def _merge(traces: dict[tuple[int, int], Trace], names: list[str], free_batch: bool) -> _Traced:
    """Return one description that holds at every point that was traced."""
    first = next(iter(traces.values()))
    outputs = [first.values[name].name for name in names if name in first.values]
    outputs = [name for name in outputs if name in first.tensors]
    ops = _needed(first, outputs)
    if any(_needed(other, outputs) != ops for other in traces.values()):
        raise _NotSymbolicError("the ops differ from one batch or sequence length to another")
    named = dict.fromkeys(name for op in ops for name in (*op.inputs, *op.outputs))
    shapes = {
        name: _fitted(name, {at: t.tensors[name] for at, t in traces.items()}) for name in named
    }
    outputs = [name for name in outputs if name in named]
    varies = any(size.batch or size.both for name in outputs for size in shapes[name])
    if free_batch and not varies and not any(shapes[name] == () for name in outputs):
        raise _NotSymbolicError("no output grows with the batch")
    return _Traced(ops, {name: first.tensors[name] for name in named}, shapes, outputs)


def _fitted(name: str, seen: Mapping[tuple[int, int], TracedTensor]) -> tuple[Size, ...]:
    first = next(iter(seen.values()))
    if len({(t.dtype, t.role, len(t.shape)) for t in seen.values()}) > 1:
        raise _NotSymbolicError(f"the tensor {name!r} differs in type or rank")
    found = []
    for axis in range(len(first.shape)):
        size = Size.fit({at: tensor.shape[axis] for at, tensor in seen.items()})
        if size is None:
            raise _NotSymbolicError(f"the tensor {name!r} does not grow evenly")
        found.append(size)
    return tuple(found)


def _needed(trace: Trace, outputs: list[str]) -> list[TracedOp]:
    """Return the ops that lead to an output, without those of which nothing is read."""
    read = set(outputs)
    kept = []
    for op in reversed(trace.ops):
        if read.intersection(op.outputs):
            read.update(op.inputs)
            kept.append(op)
    return kept[::-1]


def _with_bias(traced: _Traced) -> list[TracedOp]:
    """Merge a product with weights and the bias added right after it, as frameworks run them."""
    reads = Counter(name for op in traced.ops for name in op.inputs)
    reads.update(traced.outputs)
    open_products: dict[str, int] = {}
    ops: list[TracedOp] = []
    for op in traced.ops:
        if op.kind == "linear" and len(op.inputs) == 2 and reads[op.outputs[0]] == 1:
            open_products[op.outputs[0]] = len(ops)
        elif op.kind == "pointwise" and op.attrs.get("fn") == "add" and len(op.inputs) == 2:
            at = next((open_products[n] for n in op.inputs if n in open_products), None)
            bias = next((n for n in op.inputs if n not in open_products), "")
            if at is not None and bias and _is_bias(traced, bias, ops[at].outputs[0]):
                product = ops[at]
                ops[at] = product._replace(inputs=(*product.inputs, bias), outputs=op.outputs)
                continue
        ops.append(op)
    return ops


def _is_bias(traced: _Traced, name: str, product: str) -> bool:
    tensor, out = traced.tensors[name], traced.tensors[product]
    return tensor.role == "parameter" and tensor.shape == out.shape[-1:]


def _assemble(builder: GraphBuilder, traced: _Traced) -> None:
    ops = _with_bias(traced)
    if not ops:
        raise IngestError(f"{builder.source} computes nothing; check that it is the right file")
    named = dict.fromkeys(name for op in ops for name in (*op.inputs, *op.outputs))
    for name in named:
        tensor = traced.tensors[name]
        builder.tensor(name, traced.shapes[name], dtype=tensor.dtype, role=tensor.role)
    for op in ops:
        builder.add(op.kind, op.name, op.inputs, op.outputs, attrs=op.attrs, layer=op.layer)
    ends = [n for n in traced.outputs if n in named and traced.tensors[n].role == "activation"]
    floats = [n for n in ends if traced.tensors[n].dtype in FLOATS]
    if not floats:
        builder.note("there is no float output, so no loss is assumed")
        return
    scalars = [n for n in floats if traced.shapes[n] == ()]
    if len(floats) > 1 and not scalars:
        builder.note(f"the loss is taken on the first output, {floats[0]!r}, alone")
    builder.end_in_loss(scalars[:1] or floats[:1])
