"""Runs over the nodes of an ONNX graph: folds what is constant, looks up the rest in tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from traincast.errors import IngestError
from traincast.ingest import onnx_einsum, onnx_moves, onnx_ops, onnx_pointwise, onnx_sequence
from traincast.ingest.onnx_fold import fold
from traincast.ingest.onnx_trace import (
    DTYPES,
    LIMIT,
    Lengths,
    Node,
    ShapeError,
    Trace,
    Value,
    is_weight_name,
)

HANDLERS: dict[str, onnx_ops.Handler] = {
    **onnx_moves.HANDLERS,
    **onnx_pointwise.HANDLERS,
    **onnx_ops.HANDLERS,
    **onnx_sequence.HANDLERS,
    **onnx_einsum.HANDLERS,
}
_FROM_MICROSOFT = frozenset(
    {"SimplifiedLayerNormalization", "Gelu", "FastGelu", "QuickGelu", "BiasGelu"}
)
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})
_REARRANGE = frozenset(
    {"Slice", "Split", "Concat", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Gather"}
)
_ELEMENT_TYPES = {"float": 1, "bool": 9, "int64": 7, "int32": 6, "uint8": 2, "int8": 3, "int16": 5}
_EXTERNAL = 1
_SMALL = 1024
"""Elements up to which the content of a float array is looked at: factors, scales, bounds."""


def prepare(graph: Any) -> dict[str, Value]:
    """Return the initialisers, with their content where it may decide a shape."""
    found: dict[str, Value] = {}
    for tensor in graph.initializer:
        found[tensor.name] = _stored(tensor.name, tensor)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        dtype = DTYPES.get(sparse.values.data_type, "float")
        found[name] = Value(name, tuple(sparse.dims), dtype, "weight")
    return found


def _stored(name: str, tensor: Any) -> Value:
    from onnx import numpy_helper

    shape = tuple(int(n) for n in tensor.dims)
    dtype = DTYPES.get(tensor.data_type)
    if dtype is None or any(n < 0 for n in shape):
        raise IngestError(f"the initialiser {name!r} holds no numbers or has a negative length")
    weight = dtype == "float" and bool(shape) and is_weight_name(name)
    content = None
    if tensor.data_location != _EXTERNAL and math.prod(shape) <= (_SMALL if weight else LIMIT):
        try:
            content = numpy_helper.to_array(tensor)
        except (ValueError, TypeError) as error:
            raise IngestError(
                f"the initialiser {name!r} of shape {shape} cannot be read ({error}); "
                "export the model again"
            ) from None
    return Value(name, shape, dtype, "weight" if weight else "constant", content)


def run(
    model: Any, stored: Mapping[str, Value], inputs: Mapping[str, tuple[str, Lengths]]
) -> Trace:
    """Trace the graph for inputs of the given types and shapes."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    trace = Trace(max(versions), dict(stored))
    for name, (dtype, shape) in inputs.items():
        trace.values[name] = Value(name, shape, dtype, "input")
    for index, proto in enumerate(model.graph.node):
        node = Node(trace, proto, index)
        for name, value in zip(node.outputs, _outputs(node, model), strict=False):
            if name in trace.values:
                raise _failed(node, f"it writes {name!r}, which is there already")
            if name:
                trace.values[name] = value
    return trace


def _outputs(node: Node, model: Any) -> list[Value]:
    """Return what a node makes; whatever is wrong with it is reported under its name."""
    try:
        found = fold(node)
        if found is None:
            made = _handler(node, model)(node)
            found = made if isinstance(made, list) else [made]
    except ShapeError as error:
        raise _failed(node, str(error)) from None
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        shapes = ", ".join(str(v.shape) for v in node.given()) or "none"
        raise _failed(node, f"its attributes do not fit its inputs ({shapes})") from None
    if node.op in _REARRANGE and _reads_weights_only(node):
        found = [replace(value, rearranged=True) for value in found]
    return found


def _reads_weights_only(node: Node) -> bool:
    given = node.given()
    weights = [v for v in given if v.role == "weight" or v.rearranged]
    return bool(weights) and all(v in weights or v.role == "constant" for v in given)


def _failed(node: Node, reason: str) -> IngestError:
    return IngestError(f"node {node.name!r} ({node.op}): {reason}")


def _handler(node: Node, model: Any) -> onnx_ops.Handler:
    if node.op in _CONTROL_FLOW or any(a.type in (5, 10) for a in node.proto.attribute):
        raise ShapeError(
            "control flow has no fixed amount of work; export the model without it, by tracing "
            "it with example inputs or by fixing the condition"
        )
    ours = node.domain in ("", "ai.onnx") or node.op in _FROM_MICROSOFT
    if ours and node.op in HANDLERS:
        return HANDLERS[node.op]
    return lambda n: _unknown(n, model)


def _unknown(node: Node, model: Any) -> list[Value]:
    """Keep an op without a formula, under its name; its shapes come from ONNX's own rules."""
    outs = [
        node.out(shape, i, dtype=dtype) for i, (dtype, shape) in enumerate(_inferred(node, model))
    ]
    ins = [v for v in node.given() if not v.is_scalar]
    domain = f"{node.domain}." if node.domain else ""
    node.emit("unknown", ins, outs, fn=f"onnx.{domain}{node.op}")
    return outs


def _inferred(node: Node, model: Any) -> list[tuple[str, Lengths]]:
    import onnx
    from onnx import helper, numpy_helper

    infos, constants = [], []
    for name, value in zip(node.proto.input, node.ins, strict=True):
        if value is None:
            continue
        if value.const is not None:
            constants.append(numpy_helper.from_array(value.const, name))
        kind = _ELEMENT_TYPES.get(value.dtype, 1)
        infos.append(helper.make_tensor_value_info(name, kind, list(value.shape)))
    outs = [onnx.ValueInfoProto(name=name) for name in node.outputs if name]
    graph = helper.make_graph([node.proto], "one", infos, outs, constants)
    single = helper.make_model(graph, opset_imports=list(model.opset_import))
    problem = (
        "traincast has no formula for this op and cannot find its output shapes; "
        "replace it with standard ops, or export the model without it"
    )
    try:
        done = onnx.shape_inference.infer_shapes(single, data_prop=True)
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        raise ShapeError(problem) from None
    shapes = []
    for info in done.graph.output:
        tensor = info.type.tensor_type
        lengths = tuple(d.dim_value for d in tensor.shape.dim if d.HasField("dim_value"))
        if tensor.elem_type not in DTYPES or not tensor.HasField("shape"):
            raise ShapeError(problem)
        if len(lengths) != len(tensor.shape.dim):
            raise ShapeError(problem)
        shapes.append((DTYPES[tensor.elem_type], lengths))
    return shapes
