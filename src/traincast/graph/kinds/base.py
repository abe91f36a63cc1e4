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
    """gemm, conv, attention, rnn, pointwise, reduction, norm, softmax, pool, copy, concat, gather,
    fill, sort, interpolate or unknown: kernels of one family reach the hardware's limits alike."""
    flops: float
    """Multiply-add work, as PyTorch's FlopCounterMode counts it; 0 for all but matrix families."""
    ops: float
    """Other arithmetic, in elementary operations."""
    read: float
    """Bytes read from memory if every operand is read once."""
    write: float
    """Bytes written to memory."""
    dims: tuple[float, float, float, float] = (0, 0, 0, 0)
    """The shape of the work; what the four numbers mean depends on the family.

    gemm: rows, columns, depth, batch of the product that this very kernel computes.
    conv: the same of the implicit product, g groups being its batch. Forward (n·ho·wo, cout/g,
    cin/g·kh·kw, g); data gradient (n·hi·wi, cin/g, cout/g·kh·kw, g); weight gradient (cout/g,
    cin/g·kh·kw, n·ho·wo, g), for a transposed convolution n·hi·wi in place of n·ho·wo.
    interpolate: positions of the result's image, images (samples · channels).
    attention: query length, key length, channels of a head, samples · query heads.
    norm, softmax, reduction: rows, columns, inner, 0: `rows` results, each from `columns` values
    (batch norm: channels and n·h·w), which lie `inner` elements apart, 0 if side by side.
    pool: outputs, values of a window, 0, 0. gather: rows moved, their length, rows of the table.
    concat: tensors that are joined, elements of the largest. fill: values that are set to
    something else.
    """
    launches: float = 1
    """Number of launches that this entry stands for."""
    done: float = 1
    """Share of `flops` that is really executed (causal attention skips about half)."""
    fast: float = 1
    """Share of `flops` that a fast algorithm needs, where one exists (Winograd: 4/9)."""
    each: float = 4
    """Bytes of one element of its main operand: the first input; of a cast, what it reads."""
    window: tuple[int, int] = (1, 1)
    """Height and width of a convolution's or pool's window; one axis counts as width, of three
    axes depth and height are multiplied."""
    stride: float = 1
    """Input positions from one window to the next, along the first axis; 1/stride for a transposed
    convolution, whose windows lie on its output."""
    nhwc: bool = False
    """Whether it works on images that have their channels last."""
    space: float = 0
    """Positions of one sample's image: of a convolution's output, of a norm's or pool's input."""
    axes: int = 2
    """Axes that a convolution's or pool's window moves along: 1 for sequences, 3 for volumes."""
    dilation: int = 1
    """Positions from one value of a convolution's window to the next."""


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


def pointwise(
    name: str, read: float, write: float, elements: float, per: float = 1, each: float = 4
) -> Kernel:
    """Return a kernel that touches each element once, with `per` operations for each."""
    return Kernel(name, "pointwise", 0, per * elements, read, write, each=each)


def summed(grad: Arg, into: Arg) -> Kernel:
    """Return the kernel that adds up a gradient over the axes that were broadcast."""
    same = bool(into.shape) and into.shape[-1] == grad.shape[-1]
    dims = (into.n, grad.n / max(into.n, 1), into.shape[-1] if same else 0, 0)
    write = into.n * grad.each
    return Kernel("sum", "reduction", 0, grad.n, grad.size, write, dims, each=grad.each)


def flat_window(kernel: tuple[int, ...]) -> tuple[int, int]:
    """Return a window as height and width."""
    return prod(kernel[:-1]), kernel[-1] if kernel else 1
