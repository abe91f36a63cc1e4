"""Traces at several sizes to one graph, with every size a function of batch and sequence."""

from __future__ import annotations

from collections.abc import Mapping

from traincast.errors import GraphError
from traincast.graph import DIFFERENTIABLE, Attr, Graph, Op, Size, Tensor, name_dims, verify
from traincast.ingest.pytorch.failures import BatchError, LengthError
from traincast.ingest.pytorch.source import Point, Source
from traincast.ingest.pytorch.trace import RawOp, Trace

_FREE = frozenset({"view"})


def prune(trace: Trace, result: str) -> str:
    """Drop views and empty buffers that nothing reads, fold aliases, forget unused tensors.

    Returns the name that the result has afterwards.
    """
    same: dict[str, str] = {}
    folded = []
    for op in trace.ops:
        op.inputs = tuple(same.get(n, n) for n in op.inputs)
        if op.kind == "view" and op.attrs["fn"] == "alias":
            same[op.outputs[0]] = op.inputs[0]
        else:
            folded.append(op)
    result = same.get(result, result)
    used = {result}
    kept: list[RawOp] = []
    for op in reversed(folded):
        empty = op.kind == "fill" and "empty" in str(op.attrs["fn"])
        if (op.kind in _FREE or empty) and not any(n in used for n in op.outputs):
            continue
        used.update(op.inputs)
        used.update(op.outputs)
        kept.append(op)
    trace.ops = kept[::-1]
    trace.tensors = {n: t for n, t in trace.tensors.items() if n in used or t.role == "parameter"}
    return result


def assemble(source: Source, traces: Mapping[Point, Trace], fixed: tuple[str, ...]) -> Graph:
    """Return the graph of traces that ran the same ops, held to the sizes named in `fixed`."""
    first_point, first = next(iter(traces.items()))
    for point, trace in traces.items():
        _same_ops(source, (first_point, first), (point, trace))
    tensors = {
        name: Tensor(
            name=name,
            shape=tuple(_size(source, traces, name, axis) for axis in range(len(raw.shape))),
            dtype=raw.dtype,
            role=raw.role,
            trainable=raw.trainable and raw.dtype in DIFFERENTIABLE,
        )
        for name, raw in first.tensors.items()
    }
    ops = tuple(
        Op(
            name=o.name,
            kind=o.kind,
            inputs=o.inputs,
            outputs=o.outputs,
            attrs=dict[str, Attr](o.attrs),
            layer=o.layer,
        )
        for o in first.ops
    )
    batch = first_point[0] if "batch" in fixed else source.batch
    seq = first_point[1] if fixed else source.seq
    graph = Graph(
        name=source.name,
        ops=ops,
        tensors=tensors,
        batch=batch,
        seq=seq,
        source=source.reference,
        notes=(*source.notes, *first.notes),
        fixed=fixed,
        loss=first.loss,
    )
    try:
        return verify(name_dims(graph))
    except GraphError as error:
        if len(traces) == 1:
            raise
        raise BatchError(str(error)) from error


def _size(source: Source, traces: Mapping[Point, Trace], name: str, axis: int) -> Size:
    lengths = {p: t.tensors[name].shape[axis] for p, t in traces.items()}
    size = Size.fit(lengths)
    if size is not None:
        return size
    # Where it is simple at every length of its own, it is the length that is in the way.
    seqs = {seq for _, seq in lengths}
    alone = [Size.fit({p: n for p, n in lengths.items() if p[1] == seq}) for seq in seqs]
    kind = LengthError if len(seqs) > 1 and None not in alone else BatchError
    raise kind(
        f"{source.reference}: some sizes are no simple function of batch and sequence length; "
        "give the exact sizes as arguments of the builder"
    )


def _same_ops(source: Source, one: tuple[Point, Trace], two: tuple[Point, Trace]) -> None:
    for a, b in zip(one[1].ops, two[1].ops, strict=False):
        if _form(one[1], a) != _form(two[1], b):
            break
    else:
        if len(one[1].ops) == len(two[1].ops):
            return
        longer = max(one[1].ops, two[1].ops, key=len)
        a = longer[min(len(one[1].ops), len(two[1].ops))]
    kind = BatchError if one[0][1] == two[0][1] else LengthError
    raise kind(
        f"{source.reference}: the module runs other ops at (batch, sequence) {two[0]} than at "
        f"{one[0]}, first at {a.name!r}: its control flow depends on the size of its input; "
        "make the branch a constructor argument"
    )


def _form(trace: Trace, op: RawOp) -> tuple[object, ...]:
    """Return what an op must have in common at all sizes."""
    # An adaptive pool's window follows from the sizes around it.
    attrs = {name: value for name, value in op.attrs.items() if name != "kernel"}
    ranks = [len(trace.tensors[name].shape) for name in op.outputs]
    return op.name, op.kind, op.inputs, op.outputs, attrs, ranks
