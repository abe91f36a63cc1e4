"""A module to a graph: trace it at a few batch and sequence lengths, then fit every size.

Weights are never allocated: the module lives on fake tensors, which have shapes but no data. The
trace runs in bfloat16 where the module allows it, so that casts to float32 written in the model
show up; in float32 training they are between equal types and cost nothing.
"""

from __future__ import annotations

import sysconfig
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_flatten

from traincast.errors import IngestError, UsageError
from traincast.graph import FLOATS, Attr, Graph, Op, Size, Tensor, name_dims, verify
from traincast.ingest.pytorch.recorder import RawOp, Recorder, Trace

Point = tuple[int, int]
Inputs = Callable[[int, int], tuple[tuple[Any, ...], dict[str, Any]]]

_BATCHES = (2, 3, 5)
_SEQS = (64, 96)


class LengthError(IngestError):
    """A module that runs other ops at other sequence lengths."""


class _NoLossError(Exception):
    """A forward pass whose output cannot be differentiated."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A module and how to feed it."""

    name: str
    reference: str
    build: Callable[[], torch.nn.Module]
    inputs: Inputs
    """(batch, seq) to positional and keyword arguments of forward; called on fake tensors."""
    batch: int = 32
    """Batch to assume when none is given."""
    seq: int = 0
    """Sequence length to assume when none is given; 0 for a module without one."""
    notes: tuple[str, ...] = ()
    advice: str = ""
    """What a user should know when forward fails, such as an input that was assumed."""


def trace_source(source: Source, *, fixed: Point | None = None, seq: int | None = None) -> Graph:
    """Trace a module and return its graph, symbolic in batch and sequence.

    `fixed` traces at that batch and sequence length only and holds the graph to them. `seq` is the
    length that is wanted: a module that runs other ops at other lengths, such as a scan over the
    sequence, is traced at that length and held to it.
    """
    if fixed is not None:
        return _trace_at(source, [fixed], ("batch", "seq") if source.seq else ("batch",))
    if not source.seq:
        return _trace_at(source, [(b, 0) for b in _BATCHES], ())
    try:
        return _trace_at(source, [(b, s) for s in _SEQS for b in _BATCHES[:2]], ())
    except LengthError as error:
        if seq is None:
            raise LengthError(
                f"{error}, or give the sequence length (seq) to trace it at that one alone"
            ) from error
    note = f"the sequence length is held at {seq}: other lengths run other ops"
    held = replace(source, notes=(*source.notes, note))
    return _trace_at(held, [(b, seq) for b in _BATCHES], ("seq",))


def _trace_at(source: Source, points: list[Point], held: tuple[str, ...]) -> Graph:
    failure: Exception | None = None
    for dtype in (torch.bfloat16, torch.float32):
        module = _build(source)
        try:
            return _trace_in(source, module, dtype, points, held)
        except LengthError:
            raise  # the ops were traced; another type runs the same ones
        except IngestError as error:
            if failure is None or dtype == torch.float32:
                failure = error
    assert failure is not None
    raise failure


def _build(source: Source) -> torch.nn.Module:
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = source.build()
        except UsageError:
            raise
        except Exception as error:
            # Some builders compute with values (a schedule of drop rates): give them real ones.
            if device == "cpu":
                raise IngestError(explain(source.reference, error, "building it")) from error
            continue
        return module.train()
    raise AssertionError


def _trace_in(
    source: Source,
    module: torch.nn.Module,
    dtype: torch.dtype,
    points: list[Point],
    held: tuple[str, ...],
) -> Graph:
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with unset_fake_temporarily():
                module = module.to("meta").to(dtype)
            _materialise(module)
        except Exception as error:
            doing = "replacing its weights by shapes"
            raise IngestError(explain(source.reference, error, doing)) from error
        return _assemble(source, {p: _run(source, module, dtype, p) for p in points}, held)


def _materialise(module: torch.nn.Module) -> None:
    """Move a module onto fake tensors, keeping tied weights tied."""
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("a ScriptModule hides its parts; return the module that it was made from")
    shared: dict[int, list[tuple[torch.nn.Module, str]]] = {}
    for owner in module.modules():
        for name, parameter in owner._parameters.items():
            if parameter is not None:
                shared.setdefault(id(parameter), []).append((owner, name))
    # As `to_empty` does, which looks at each weight on the way and takes five times as long.
    module._apply(lambda t: torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device="cpu"))
    for places in shared.values():
        first = getattr(*places[0])
        for owner, name in places[1:]:
            setattr(owner, name, first)


def _run(source: Source, module: torch.nn.Module, dtype: torch.dtype, point: Point) -> Trace:
    recorder = Recorder(module, dtype)
    notes: list[str] = []
    try:
        args, kwargs = source.inputs(*point)
        args, kwargs = _as_floats(args, dtype), {k: _as_float(v, dtype) for k, v in kwargs.items()}
        for i, (key, value) in enumerate([*enumerate(args), *kwargs.items()]):
            label = key if isinstance(key, str) else "input" if i == 0 else f"input_{i}"
            for tensor in tree_flatten(value)[0]:
                if isinstance(tensor, torch.Tensor):
                    recorder.declare(tensor, label, "input")
        with recorder.watching():
            loss, note = _loss(recorder, module(*args, **kwargs))
        notes += note
    except UsageError:
        raise
    except _NoLossError:
        raise IngestError(
            f"{source.reference}: forward returns no floating-point tensor to compute a loss on; "
            "return the output, or the loss itself"
        ) from None
    except Exception as error:
        said = explain(source.reference, error, "its forward pass")
        raise IngestError(f"{said}; {source.advice}" if source.advice else said) from error
    trace = recorder.trace
    trace.notes = tuple(notes)
    trace.loss = _prune(trace, recorder.name_of(loss))
    return trace


def _as_float(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.to(dtype)
    return value


def _as_floats(values: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    return tuple(_as_float(v, dtype) for v in values)


def _loss(recorder: Recorder, out: Any) -> tuple[torch.Tensor, list[str]]:
    """Return the scalar to differentiate: the module's own loss, or one assumed on its output."""
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    if isinstance(own, torch.Tensor) and own.dim() == 0:
        return own, []
    floats = [
        t
        for t in tree_flatten(_plain(out))[0]
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]
    if not floats:
        raise _NoLossError
    if floats[0].dim() == 0:
        return floats[0], []
    heads = [getattr(out, f) for f in getattr(out, "_fields", ()) if f.startswith("aux")]
    heads = [h for h in heads if isinstance(h, torch.Tensor)]
    loss, notes = _assumed(recorder, floats[0])
    if heads:
        # The weights of the papers: 0.4 for Inception v3's one head, 0.3 for GoogLeNet's two.
        weight = 0.4 if len(heads) == 1 else 0.3
        for head in heads:
            loss = loss + weight * _assumed(recorder, head)[0]
        notes = [f"loss: cross-entropy on the output plus {weight} of that on each auxiliary head"]
    return loss, notes


def _plain(out: Any) -> Any:
    """Return containers that tree_flatten opens: a dataclass-like output as its fields."""
    if isinstance(out, Mapping):
        return out["out"] if "out" in out else list(out.values())
    if is_dataclass(out):
        return [getattr(out, f.name) for f in fields(out)]
    return out


def _assumed(recorder: Recorder, y: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    shape = tuple(y.shape)
    if y.dim() == 1 or shape[-1] == 1:
        with recorder.whole():
            target = torch.zeros_like(y.detach())
        recorder.declare(target, "target", "input")
        loss = F.binary_cross_entropy_with_logits(y, target)
        return loss, ["loss: binary cross-entropy on the output is assumed"]
    if y.dim() == 3:
        y = y.reshape(-1, shape[-1])
        shape = tuple(y.shape)
    with recorder.whole():
        target = torch.zeros((shape[0], *shape[2:]), dtype=torch.int64)
    recorder.declare(target, "target", "input")
    return F.cross_entropy(y, target), ["loss: cross-entropy on the output is assumed"]


_FREE = frozenset({"view"})


def _prune(trace: Trace, result: str) -> str:
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


def _assemble(source: Source, traces: Mapping[Point, Trace], fixed: tuple[str, ...]) -> Graph:
    first_point, first = next(iter(traces.items()))
    for point, trace in traces.items():
        _same_ops(source, (first_point, first), (point, trace))
    tensors = {}
    unfit = False
    for name, raw in first.tensors.items():
        shape = []
        for axis in range(len(raw.shape)):
            size = Size.fit({p: t.tensors[name].shape[axis] for p, t in traces.items()})
            unfit = unfit or size is None
            shape.append(size or Size(raw.shape[axis]))
        tensors[name] = Tensor(
            name=name,
            shape=tuple(shape),
            dtype=raw.dtype,
            role=raw.role,
            trainable=raw.trainable and raw.dtype in FLOATS,
        )
    if unfit:
        raise (LengthError if source.seq else IngestError)(
            f"{source.reference}: some sizes are no simple function of batch and sequence length; "
            "give the exact sizes as arguments of the builder"
        )
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
    return verify(name_dims(graph))


def _same_ops(source: Source, one: tuple[Point, Trace], two: tuple[Point, Trace]) -> None:
    for a, b in zip(one[1].ops, two[1].ops, strict=False):
        if (a.name, a.kind, a.inputs, a.outputs) != (b.name, b.kind, b.inputs, b.outputs):
            break
    else:
        if len(one[1].ops) == len(two[1].ops):
            return
        longer = max(one[1].ops, two[1].ops, key=len)
        a = longer[min(len(one[1].ops), len(two[1].ops))]
    kind = IngestError if one[0][1] == two[0][1] else LengthError
    raise kind(
        f"{source.reference}: the module runs other ops at (batch, sequence) {two[0]} than at "
        f"{one[0]}, first at {a.name!r}: its control flow depends on the size of its input; "
        "make the branch a constructor argument"
    )


def explain(reference: str, error: BaseException, doing: str) -> str:
    """Return a message that names the line of the model's own code at which it failed."""
    at = _own_line(error)
    kind = type(error).__name__
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException") or (
        kind == "GuardOnDataDependentSymNode"
    ):
        return (
            f"{reference}: {doing} needs the values of a tensor{at}, and there are no values "
            "before training; replace .item(), .tolist(), nonzero or a Python `if` on data by "
            "tensor operations, or by a constructor argument"
        )
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    text = said.strip().rstrip(".").splitlines()
    return f"{reference}: {doing} failed{at}: {kind}: {text[0] if text else 'no message'}"


def _own_line(error: BaseException) -> str:
    """Return ` at FILE:LINE (code)`: in the user's own files where the error went through them."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" at {error.filename}:{error.lineno} ({(error.text or '').strip()})"
    frames = traceback.extract_tb(error.__traceback__)
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parent), "<")
    outside = [f for f in frames if not f.filename.startswith(ours)]
    libraries = ("stdlib", "platstdlib", "purelib", "platlib")
    installed = tuple(sysconfig.get_path(library) for library in libraries)
    own = [f for f in outside if not f.filename.startswith(installed)] or outside
    return f" at {own[-1].filename}:{own[-1].lineno} ({own[-1].line})" if own else ""
