"""One pass over the nodes of an ONNX graph at one batch and one sequence length.

A value is a concrete shape and, where it follows from constants and shapes alone, its content.
What computes becomes an op; shape arithmetic is folded away. Nothing of the file is executed: every
node is looked up in our own tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from traincast.errors import IngestError
from traincast.graph import FLOATS, Attr

Array = npt.NDArray[Any]
Lengths = tuple[int, ...]

LIMIT = 1 << 22
"""Elements up to which a constant is computed; a larger one is an op like any other."""

DTYPES = {
    1: "float", 2: "uint8", 3: "int8", 4: "int16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 10: "float", 11: "float", 12: "int32", 13: "int64", 14: "complex64",
    16: "float", 17: "float8", 18: "float8", 19: "float8", 20: "float8", 21: "int8", 22: "int8",
}  # fmt: skip
"""Element types by their number in the format. Every usual float follows the precision."""

_NO_WEIGHT = re.compile(
    r"(inv_freq|running_mean|running_var|num_batches_tracked|(attn|causal)_mask|position_ids"
    r"|relative_position_index|(cos|sin)_cached?)$"
)
"""Names that frameworks give to state without a gradient."""


class ShapeError(Exception):
    """What does not fit in one node; the node's name is added where it is caught."""


@dataclass(frozen=True, slots=True)
class Value:
    """What a name of the file stands for."""

    name: str
    """Its tensor in the graph."""
    shape: Lengths
    dtype: str
    role: str = "activation"
    """input, weight (a float initialiser), constant or activation."""
    const: Array | None = None
    """Its content, where known."""
    turned: Value | None = None
    """The matrix of weights of which this is the transpose; no op until something needs one."""
    permuted: bool = False
    """Whether its axes lie in another order in memory, so that merging them takes a copy."""

    parts: tuple[Value, ...] = ()
    """For a sequence of values: its members."""
    rearranged: bool = False
    """Whether it is weights of the file in another order, which frameworks store so at once."""

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def is_scalar(self) -> bool:
        """Whether it is a single known number, which kernels take as an argument."""
        return self.role == "constant" and self.size == 1


class TracedOp(NamedTuple):
    """An op with the names of its tensors."""

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr]
    layer: str


class TracedTensor(NamedTuple):
    """A tensor that some op names."""

    shape: Lengths
    dtype: str
    role: str


@dataclass(slots=True)
class Trace:
    """What one pass found."""

    opset: int
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[TracedOp] = field(default_factory=list)
    tensors: dict[str, TracedTensor] = field(default_factory=dict)

    def use(self, value: Value) -> str:
        """Return the name of a value's tensor, which is declared now if it was not yet."""
        if value.parts:
            raise ShapeError("it reads a sequence of tensors as if it were one")
        known = self.tensors.get(value.name)
        if known is None or known.role == "buffer":
            role = {"weight": "parameter", "constant": "buffer"}.get(value.role, value.role)
            self.tensors[value.name] = TracedTensor(value.shape, value.dtype, role)
            if value.turned is not None:
                attrs: dict[str, Attr] = {"fn": "permute", "order": (1, 0)}
                ins = (self.use(value.turned),)
                self.ops.append(
                    TracedOp("view", f"{value.name}.turned", ins, (value.name,), attrs, "")
                )
        return value.name


class Node:
    """One node of the file, with its inputs resolved; what handlers of ops work with."""

    def __init__(self, trace: Trace, proto: Any, index: int) -> None:
        self.trace = trace
        self.op: str = proto.op_type
        self.domain: str = proto.domain
        self.name: str = proto.name or f"{proto.op_type}_{index}"
        self.layer: str = self.name.rpartition("/")[0].strip("/") or self.name
        self.opset = trace.opset
        self.proto = proto
        self.outputs: list[str] = list(proto.output)
        self.ins: list[Value | None] = list(self._resolve(proto.input))
        self.attrs: dict[str, Any] = {a.name: _attribute(a) for a in proto.attribute}
        self._ops = 0

    def _resolve(self, names: Sequence[str]) -> Iterator[Value | None]:
        for name in names:
            if name and name not in self.trace.values:
                raise IngestError(
                    f"node {self.name!r} ({self.op}) reads {name!r}, which no input, initialiser "
                    "or earlier node makes; export the model again with its nodes in order"
                )
            yield self.trace.values[name] if name else None

    def __len__(self) -> int:
        return len(self.ins)

    def has(self, index: int) -> bool:
        """Tell whether an optional input is given."""
        return index < len(self.ins) and self.ins[index] is not None

    def value(self, index: int = 0) -> Value:
        """Return an input that must be there."""
        value = self.ins[index] if index < len(self.ins) else None
        if value is None:
            raise ShapeError(f"its input number {index + 1} is missing")
        return value

    def given(self) -> list[Value]:
        """Return the inputs that are there, in order."""
        return [value for value in self.ins if value is not None]

    def number(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        return int(self.attrs.get(name, default))

    def text(self, name: str, default: str = "") -> str:
        """Return a text attribute."""
        value = self.attrs.get(name, default)
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def numbers(self, name: str, index: int | None = None) -> list[int] | None:
        """Return integers from an attribute or, as newer opsets have it, from an input."""
        if index is not None and self.has(index):
            return [int(v) for v in self.content(index).reshape(-1)]
        found = self.attrs.get(name)
        return None if found is None else [int(v) for v in np.atleast_1d(np.asarray(found))]

    def content(self, index: int) -> Array:
        """Return what an input holds; it must follow from constants and shapes."""
        value = self.value(index)
        if value.const is None:
            raise ShapeError(
                f"its input {self.proto.input[index]!r} decides a shape but depends on data; "
                "export the model with this value constant"
            )
        return value.const

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front."""
        if not -rank <= axis < rank:
            raise ShapeError(f"axis {axis} is not one of the {rank} axes of its input")
        return axis % rank

    def axes(self, found: Sequence[int] | None, rank: int) -> list[int]:
        """Return axes counted from the front, all where none are given."""
        return [self.axis(a, rank) for a in (range(rank) if found is None else found)]

    def out(self, shape: Sequence[int], index: int = 0, *, dtype: str = "", **more: Any) -> Value:
        """Return a new value for an output of the node; its type is that of the first input."""
        name = self.outputs[index] if index < len(self.outputs) else ""
        return self.part(name or f"{self.name}.{index}", shape, dtype=dtype, **more)

    def part(self, name: str, shape: Sequence[int], *, dtype: str = "", **more: Any) -> Value:
        """Return a new value that is no output of the node."""
        lengths = tuple(int(n) for n in shape)
        if any(n < 0 for n in lengths):
            raise ShapeError(f"its output would have the shape {lengths}")
        return Value(name, lengths, dtype or (self.value().dtype if self.ins else "float"), **more)

    def emit(self, kind: str, ins: Sequence[Value], outs: Sequence[Value], **attrs: Attr) -> Value:
        """Append an op; return its first output."""
        self._ops += 1
        name = self.name if self._ops == 1 else f"{self.name}.{kind}{self._ops}"
        inputs = tuple(self.trace.use(value) for value in ins)
        outputs = tuple(self.trace.use(value) for value in outs)
        self.trace.ops.append(TracedOp(kind, name, inputs, outputs, attrs, self.layer))
        return outs[0]

    def view(self, x: Value, out: Value, fn: str = "reshape", **attrs: Attr) -> Value:
        """Append a view, or nothing where the shape stays."""
        if fn == "reshape" and x.shape == out.shape:
            return x
        return self.emit("view", [x], [out], fn=fn, **attrs)

    def permute(self, x: Value, order: Sequence[int], out: Value) -> Value:
        """Append a permutation of axes."""
        moved = [axis for axis in order if x.shape[axis] != 1]
        out = replace(out, permuted=x.permuted or moved != sorted(moved))
        return self.view(x, out, "permute", order=tuple(order))


def _attribute(attribute: Any) -> Any:
    from onnx import helper

    if attribute.type in (5, 10):  # a graph, or several: control flow
        return attribute
    return helper.get_attribute_value(attribute)


def is_weight_name(name: str) -> bool:
    """Tell whether a float initialiser of this name is taken as a weight."""
    return not _NO_WEIGHT.search(name)


def as_weight(value: Value) -> Value:
    """Return a constant as the weight that its use shows it to be."""
    if value.role == "constant" and value.dtype in FLOATS and value.shape:
        return replace(value, role="weight")
    return value


def as_constant(value: Value) -> Value:
    """Return a float initialiser as the constant that its use shows it to be."""
    if value.role == "weight":
        return replace(value, role="constant")
    return value


def broadcast(*shapes: Lengths) -> Lengths:
    """Return the shape that several shapes broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(map(str, shapes))
        raise ShapeError(f"its inputs of shapes {listed} do not broadcast") from None
