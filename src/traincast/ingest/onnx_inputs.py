"""Which axes of an ONNX file's inputs are the batch and the sequence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from traincast.errors import IngestError, InvalidValueError
from traincast.ingest.onnx_trace import DTYPES, Lengths

BATCH, SEQ = "batch", "seq"
DEFAULT_SEQ = 128
"""Positions to assume where the file leaves the sequence open."""

_SEQUENCE = re.compile(r"seq|len|time|token|posit|frame|step", re.IGNORECASE)
_TOKENS = re.compile(r"ids|mask|token|seq|text|posit", re.IGNORECASE)
_INTEGERS = ("int64", "int32")


class Input(NamedTuple):
    """An input of the file; each axis is a length, `batch` or `seq`."""

    name: str
    dtype: str
    axes: tuple[int | str, ...]


class Axes(NamedTuple):
    """What the axes of all inputs are."""

    inputs: tuple[Input, ...]
    batch: int
    """Samples to assume where none are given."""
    seq: int
    """Positions to assume where none are given; 0 where there is no sequence."""
    free: tuple[str, ...]
    """Of `batch` and `seq`: those that the file leaves open or that may turn out to vary."""
    notes: list[str]

    def shapes(self, batch: int, seq: int) -> dict[str, tuple[str, Lengths]]:
        """Return element type and shape of each input for a batch and a sequence length."""
        at = {BATCH: batch, SEQ: seq}
        return {
            i.name: (i.dtype, tuple(at[a] if isinstance(a, str) else a for a in i.axes))
            for i in self.inputs
        }


def find_axes(graph: Any, given: Mapping[str, int]) -> Axes:
    """Return what each input axis is; `given` fixes the lengths of named axes."""
    for name, length in given.items():
        if length < 0:
            raise InvalidValueError(f"axis {name!r} is given the length {length}; it must be ≥ 0")
    stored = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    raw = [_declared(i) for i in graph.input if i.name not in stored]
    notes: list[str] = []
    inputs = _by_name(raw, given, notes)
    batch, seq = 1, DEFAULT_SEQ
    if not _uses(inputs, BATCH):
        inputs, batch = _by_first_axis(inputs)
    if not _uses(inputs, SEQ):
        inputs, seq = _by_second_axis(inputs)
    free = tuple(name for name in (BATCH, SEQ) if _uses(inputs, name))
    return Axes(tuple(inputs), batch, seq, free, notes)


def _declared(proto: Any) -> Input:
    """Return an input with its axes as declared: a length, a name, or empty where unknown."""
    if not proto.type.HasField("tensor_type"):
        raise IngestError(f"input {proto.name!r} is no tensor; only tensors can be inputs")
    tensor = proto.type.tensor_type
    if tensor.elem_type not in DTYPES:
        raise IngestError(f"input {proto.name!r} holds no numbers; leave it out of the export")
    if not tensor.HasField("shape"):
        raise IngestError(
            f"input {proto.name!r} has no shape; export the model with the shapes of its inputs"
        )
    axes = tuple(
        int(d.dim_value) if d.HasField("dim_value") and d.dim_value >= 0 else str(d.dim_param)
        for d in tensor.shape.dim
    )
    return Input(proto.name, DTYPES[tensor.elem_type], axes)


def _by_name(raw: list[Input], given: Mapping[str, int], notes: list[str]) -> list[Input]:
    first = next((i.axes[0] for i in raw if i.axes and _is_batch(i.axes[0])), None)
    named = {a for i in raw for a in i.axes if isinstance(a, str) and "batch" in a.lower()}
    found: list[Input] = []
    problems: list[str] = []
    for declared in raw:
        axes: list[int | str] = []
        for index, axis in enumerate(declared.axes):
            if isinstance(axis, int):
                axes.append(axis)
            elif axis in given:
                axes.append(given[axis])
            elif axis in named or (axis and axis == first) or (index == 0 and _is_batch(axis)):
                axes.append(BATCH)
            elif "past" in axis.lower() and "+" not in axis and "total" not in axis.lower():
                axes.append(0)
                note = f"the axis {axis!r} is taken as 0: training starts without a past"
                notes += [note] if note not in notes else []
            elif _SEQUENCE.search(axis) or (index == 1 and declared.dtype in _INTEGERS):
                axes.append(SEQ)
            else:
                label = repr(axis) if axis else "unnamed"
                problems.append(f"axis {index} ({label}) of the input {declared.name!r}")
        found.append(declared._replace(axes=tuple(axes)))
    if problems:
        raise IngestError(
            f"the file leaves the length of {' and of '.join(problems)} open; export it with a "
            "fixed length there, or name the axis and call load_onnx(path, axes={name: length})"
        )
    return found


def _is_batch(axis: int | str) -> bool:
    """Tell whether an open first axis is the batch; a named sequence may come first too."""
    if isinstance(axis, int):
        return False
    return "batch" in axis.lower() or not _SEQUENCE.search(axis)


def _uses(inputs: list[Input], name: str) -> bool:
    return any(name in i.axes for i in inputs)


def _by_first_axis(inputs: list[Input]) -> tuple[list[Input], int]:
    """Take a first axis that all inputs share as the batch, fixed though it is in the file."""
    firsts = {i.axes[0] for i in inputs if i.axes}
    if len(firsts) != 1:
        leading = next((a for i in inputs for a in i.axes[:1] if isinstance(a, int)), 1)
        return inputs, leading
    length = firsts.pop()
    if not isinstance(length, int) or length < 1:
        return inputs, 1
    return [i._replace(axes=(BATCH, *i.axes[1:])) if i.axes else i for i in inputs], length


def _by_second_axis(inputs: list[Input]) -> tuple[list[Input], int]:
    """Take a second axis that all matrices of tokens share as the sequence."""
    matrices = [
        i for i in inputs
        if i.dtype in _INTEGERS and len(i.axes) == 2 and _TOKENS.search(i.name)
    ]  # fmt: skip
    seconds = {i.axes[1] for i in matrices}
    length = seconds.pop() if len(seconds) == 1 else 0
    if not isinstance(length, int) or length < 2:
        return inputs, 0
    return [i._replace(axes=(i.axes[0], SEQ)) if i in matrices else i for i in inputs], length
