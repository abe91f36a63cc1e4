"""What a kind of op is: the kernels it runs in each phase, and what it saves for backward.

A cost is a pure function of a `Case`: one op with concrete shapes and element sizes. It returns
the kernels that eager PyTorch runs for it, named after the aten op that runs, so that the list
can be compared with a real trace. A multiply-add counts 2 FLOPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from traincast.graph.graph import Attr, Op

FORWARD, DATA, WEIGHT = "forward", "backward_data", "backward_weight"
PHASES = (FORWARD, DATA, WEIGHT)


class Kernel(NamedTuple):
    """One launch (or `launches` alike) on the device."""

    name: str
    """aten op that runs it; a suffix after a dot tells parts of one aten op apart."""
    family: str
    """gemm, conv, attention, rnn, pointwise, reduction, norm, softmax, pool, copy, gather, fill,
    sort, interpolate or unknown: kernels of one family reach the hardware's limits alike."""
    flops: float
    """Multiply-add work, as PyTorch's FlopCounterMode counts it; 0 for all but matrix families."""
    ops: float
    """Other arithmetic, in elementary operations."""
    read: float
    """Bytes read from memory if every operand is read once."""
    write: float
    """Bytes written to memory."""
    dims: tuple[float, float, float, float] = (0, 0, 0, 0)
    """For matrix families: rows, columns, depth and batch of the equivalent matrix product."""
    launches: float = 1
    """Number of launches that this entry stands for."""
    done: float = 1
    """Share of `flops` that is really executed (causal attention skips about half)."""
    fast: float = 1
    """Share of `flops` that a fast algorithm needs, where one exists (Winograd: 4/9)."""


class Arg(NamedTuple):
    """One tensor of a case."""

    shape: tuple[int, ...]
    n: int
    """Elements."""
    each: float
    """Bytes of one element."""
    grad: bool
    """Whether a gradient flows into it."""
    role: str
    """As in Tensor.role."""

    @property
    def size(self) -> float:
        """Bytes."""
        return self.n * self.each


class Case(NamedTuple):
    """An op with concrete shapes."""

    attrs: Mapping[str, Attr]
    ins: tuple[Arg, ...]
    outs: tuple[Arg, ...]

    def shape_attr(self, name: str) -> tuple[int, ...]:
        """Return an attribute that holds one number for each spatial axis."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(int(v) for v in value)

    def number(self, name: str, default: float = 0) -> float:
        """Return a numeric attribute."""
        value = self.attrs.get(name, default)
        assert isinstance(value, int | float)
        return value


class MisfitError(Exception):
    """Inputs and attributes of an op that cannot go together; says why."""


class Costs(NamedTuple):
    """What one case runs and keeps."""

    forward: tuple[Kernel, ...]
    data: tuple[Kernel, ...] = ()
    weight: tuple[Kernel, ...] = ()
    saved: tuple[int, ...] = ()
    """Tensors kept until backward: i for input i, ~j for output j."""
    extra: float = 0
    """Bytes kept until backward that are no tensor of the graph (statistics, masks)."""
    workspace: float = 0
    """Bytes of scratch needed while it runs."""


def _always(_: Op) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A type of op."""

    name: str
    summary: str
    """One line for people."""
    inputs: tuple[int, int | None]
    """Least and most inputs; None for any number."""
    attrs: Mapping[str, type | tuple[type, ...]]
    """Required attributes and their types."""
    costs: Callable[[Case], Costs]
    shapes: Callable[[Case], tuple[tuple[int, ...] | None, ...]] | None = None
    """Output shapes that follow from inputs and attributes; None where they are data."""
    differentiable: Callable[[Op], bool] = _always
    """Whether a gradient can pass through."""
    alias: Callable[[Op], bool] = lambda _: False
    """Whether the outputs share the storage of the first input."""
    parallel: frozenset[str] = frozenset()
    """Dims of the output along which the work can be split without a sum at the end."""
    reduced: frozenset[str] = frozenset()
    """Dims along which splitting leaves partial sums to be added up."""


KINDS: dict[str, Kind] = {}


def register(kind: Kind) -> Kind:
    """Add a kind to the registry; a name may be taken once."""
    if kind.name in KINDS:
        raise AssertionError(f"kind {kind.name!r} is registered twice")
    KINDS[kind.name] = kind
    return kind


def total(args: tuple[Arg, ...]) -> float:
    """Return the bytes of several tensors."""
    return sum(a.n * a.each for a in args)


def prod(values: tuple[int, ...]) -> int:
    """Return the product of integers, 1 for none."""
    result = 1
    for value in values:
        result *= value
    return result


def pointwise(name: str, read: float, write: float, elements: float, per: float = 1) -> Kernel:
    """Return a kernel that touches each element once, with `per` operations for each."""
    return Kernel(name, "pointwise", 0, per * elements, read, write)


def summed(grad: Arg, into: Arg) -> Kernel:
    """Return the kernel that adds up a gradient over the axes that were broadcast."""
    return Kernel("sum", "reduction", 0, grad.n, grad.n * into.each, into.size)
