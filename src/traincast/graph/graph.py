"""The intermediate representation: typed forward ops over named tensors, frozen.

A graph holds the forward pass with its loss. What runs backward follows from the forward ops by
rule (`kinds`), so it is never stored. Sizes are symbolic in batch and sequence (`size`), and the
element type `float` stands for "whatever precision the network is trained in".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from traincast.graph.size import Size

Attr = bool | int | float | str | tuple[int, ...] | tuple[str, ...]

DTYPE_BYTES: Mapping[str, float] = MappingProxyType(
    {
        "float64": 8,
        "float32": 4,
        "bfloat16": 2,
        "float16": 2,
        "float8": 1,
        "int64": 8,
        "int32": 4,
        "int16": 2,
        "int8": 1,
        "uint8": 1,
        "bool": 1,
        "complex64": 8,
    }
)
"""Bytes of one element. `float`, the type that follows the precision, is resolved before use."""

FLOATS = frozenset({"float", "float64", "float32", "bfloat16", "float16", "float8"})
DIFFERENTIABLE = FLOATS | {"complex64"}
ROLES = ("input", "parameter", "buffer", "activation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A value that ops read and write."""

    name: str
    """Unique in the graph; a parameter keeps its path in the model."""
    shape: tuple[Size, ...]
    """Length of each axis."""
    dtype: str = "float"
    """`float` follows the precision; any other name of DTYPE_BYTES is fixed."""
    role: str = "activation"
    """input, parameter, buffer (state without gradient) or activation."""
    dims: tuple[str, ...] = ()
    """What each axis is: sample, sequence, channel, height, width, …; empty where unknown."""
    trainable: bool = True
    """For a parameter: whether it gets a gradient and an update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One forward operation of a known kind."""

    name: str
    """Unique in the graph: the module's path and, where needed, the function and a number."""
    kind: str
    """A name in the registry of kinds."""
    inputs: tuple[str, ...]
    """Tensors read, in the order that the kind defines."""
    outputs: tuple[str, ...]
    """Tensors written."""
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    """What the kind needs beyond the shapes: stride, causal, …"""
    layer: str = ""
    """Path of the module that ran it; groups ops into layers."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A network's forward pass and loss, for any batch and sequence length."""

    name: str
    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]
    batch: int = 1
    """Batch to assume when none is given; samples."""
    seq: int = 0
    """Sequence length to assume when none is given; 0 where the network has none."""
    source: str = ""
    """What the graph was made from."""
    notes: tuple[str, ...] = ()
    """What a reader of a prediction should know, such as an assumed loss."""
    fixed: tuple[str, ...] = ()
    """Of `batch`, `seq`: those the graph holds for one value only."""
    loss: str = ""
    """Tensor that training differentiates; empty for the last op's first output."""

    @property
    def of_transformers(self) -> bool:
        """Whether it is a model of the library Transformers, which has habits of its own."""
        return self.source.startswith(("hf:", "transformers:"))

    @cached_property
    def parameters(self) -> tuple[Tensor, ...]:
        """Every parameter tensor, tied weights once."""
        return tuple(t for t in self.tensors.values() if t.role == "parameter")

    @cached_property
    def parameter_count(self) -> int:
        """Number of parameters, trainable or not."""
        return sum(elements(t.shape, 1, 1) for t in self.parameters)

    @cached_property
    def needs_grad(self) -> frozenset[str]:
        """Names of tensors that a gradient flows into during the backward pass.

        Those that depend on a trainable parameter and that the loss depends on.
        """
        from traincast.graph.kinds import KINDS

        passes = [op for op in self.ops if KINDS[op.kind].differentiable(op)]
        found = {t.name for t in self.parameters if t.trainable}
        for op in passes:
            if any(name in found for name in op.inputs):
                found.update(n for n in op.outputs if self.tensors[n].dtype in DIFFERENTIABLE)
        used = {self.loss or self.ops[-1].outputs[0]}
        for op in reversed(passes):
            # An index that the loss depends on has no gradient to pass on.
            if any(n in used and self.tensors[n].dtype in DIFFERENTIABLE for n in op.outputs):
                used.update(op.inputs)
        return frozenset(found & used)

    @cached_property
    def has_sequence(self) -> bool:
        """Whether any size depends on the sequence length."""
        return any(s.sequence or s.both for t in self.tensors.values() for s in t.shape)

    def __repr__(self) -> str:
        seq = f", seq={self.seq}" if self.seq else ""
        return (
            f"Graph({self.name!r}, {len(self.ops)} ops, "
            f"{self.parameter_count:,} parameters, batch={self.batch}{seq})"
        )


def elements(shape: Iterable[Size], batch: int, seq: int) -> int:
    """Return the number of elements of a shape for a batch and a sequence length."""
    count = 1
    for size in shape:
        count *= size.at(batch, seq)
    return count
