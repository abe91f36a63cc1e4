"""A module to a graph: trace it at a few batch and sequence lengths, then fit every size.

The trace runs in bfloat16 where the module allows it, so that casts to float32 written in the model
show up; in float32 training they are between equal types and cost nothing.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from traincast.errors import IngestError
from traincast.graph import Graph
from traincast.ingest.pytorch.failures import LengthError, SizesError, ValuesError, explain
from traincast.ingest.pytorch.passes import on_fakes, on_values
from traincast.ingest.pytorch.source import Inputs, Point, Source

__all__ = ["Inputs", "Source", "explain", "trace_source"]

_BATCHES = (2, 3, 5)
_SEQS = (64, 96)
_SCANNED = 512
"""Longest sequence that is run position by position unless a longer one is asked for."""
_TYPES = (torch.bfloat16, torch.float32)


def trace_source(
    source: Source,
    *,
    fixed: Point | None = None,
    batch: int | None = None,
    seq: int | None = None,
) -> Graph:
    """Trace a module and return its graph, symbolic in batch and sequence.

    `fixed` traces at that batch and sequence length only and holds the graph to them. `batch` and
    `seq` are the sizes that are wanted: a module that runs other ops at other lengths, such as a
    scan over the sequence, is traced at that length and held to it, and one that does so at other
    batches is held to both.
    """
    both = ("batch", "seq") if source.seq else ("batch",)
    if fixed is not None:
        return _trace_at(source, [fixed], both)
    try:
        return _for_any_batch(source, seq)
    except SizesError as error:
        at = (batch or source.batch, seq or min(source.seq, _SCANNED))
        lengths = f" and the sequence length at {at[1]}" if source.seq else ""
        note = f"the batch is held at {at[0]}{lengths}: other sizes run other ops"
        held = replace(source, notes=(*source.notes, note))
        try:
            return _trace_at(held, [at], both)
        except IngestError as again:
            raise again from error


def _for_any_batch(source: Source, seq: int | None) -> Graph:
    if not source.seq:
        return _trace_at(source, [(b, 0) for b in _BATCHES], ())
    try:
        return _trace_at(source, [(b, s) for s in _SEQS for b in _BATCHES[:2]], ())
    except LengthError:
        length = seq or min(source.seq, _SCANNED)
    note = f"the sequence length is held at {length}: other lengths run other ops"
    held = replace(source, notes=(*source.notes, note))
    return _trace_at(held, [(b, length) for b in _BATCHES], ("seq",))


def _trace_at(source: Source, points: list[Point], held: tuple[str, ...]) -> Graph:
    failure: IngestError | None = None
    for dtype in _TYPES:
        try:
            return on_fakes(source, dtype, points, held)
        except SizesError:
            raise  # the ops were traced; another type runs the same ones
        except ValuesError as error:
            failure = error
            break
        except IngestError as error:
            failure = error
    if isinstance(failure, ValuesError):
        return _with_values(source, points, held, failure)
    assert failure is not None
    raise failure


def _with_values(
    source: Source, points: list[Point], held: tuple[str, ...], failure: ValuesError
) -> Graph:
    said = ""
    for dtype in _TYPES:
        try:
            return on_values(source, dtype, points, held)
        except SizesError:
            raise
        except IngestError as error:
            said = str(error).removeprefix(f"{source.reference}: ")
    raise IngestError(f"{failure}; with random values: {said}") from failure
