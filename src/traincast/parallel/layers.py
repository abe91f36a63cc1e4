"""A graph as layers for a layer-wise strategy: what each computes, and what passes between them.

Elementwise ops, batch norm, dropout, copies and views follow the layer they read from, as in the
published model (Jia et al., ICML 2018), where an activation is part of its convolution. An op that
reads from several layers, such as the addition of a residual, follows the last of those that give
it a tensor of its output's shape; the others send it what it needs. Values that depend on no weight
and no floating-point input (positions, masks) are made wherever they are used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincast.graph import FLOATS, Graph, Op
from traincast.parallel.access import Access, Reach, Reaches, access_of, identity
from traincast.parallel.axes import Axes, Factor, Held, plain, same_axes, view

FOLLOWS = frozenset(
    {"pointwise", "batch_norm", "group_norm", "dropout", "view", "copy", "fill", "accumulate"}
)
"""Kinds that have no configuration of their own."""


class Work(NamedTuple):
    """An op of a layer, with how far a part of the layer reaches along each axis."""

    op: Op
    ins: tuple[Reaches, ...]
    outs: tuple[Reaches, ...]


class Need(NamedTuple):
    """Which coordinates of a producer's dim a part of the consumer needs."""

    source: str
    """Dim of the producer; empty for an axis that it does not split."""
    reach: Reach
    """From the consumer's dim to positions."""
    start: int = 0
    unit: int = 1
    """Coordinates in one position."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor that one layer makes and another reads."""

    source: int
    target: int
    tensor: str
    needs: tuple[Need, ...]
    grad: bool
    """Whether its gradient flows back."""


class Weight(NamedTuple):
    """A trainable parameter of a layer."""

    shape: tuple[int, ...]
    reaches: Reaches
    """How far a part of the layer reaches along each axis."""
    share: float = 1.0
    """1 / n where n layers share it: each bears that part of its costs."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Ops that share one configuration."""

    name: str
    """Name of the main op."""
    kind: str
    dims: Mapping[str, int]
    """Length of each dim that can be split."""
    most: Mapping[str, int]
    """Largest degree of a dim, where it is not its length."""
    works: list[Work] = field(default_factory=list)
    parameters: dict[str, Weight] = field(default_factory=dict)
    """Trainable parameters that it uses."""
    copies: bool = False
    """Whether its output has no samples: a split by sample then makes copies."""


@dataclass(frozen=True, eq=False)
class Network:
    """Layers in the order of the graph, and what passes between them."""

    graph: Graph
    batch: int
    seq: int
    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    layer_of: Mapping[str, int]
    """Layer of each op that belongs to one."""
    held: Mapping[str, Held]
    """Where each tensor lies that depends on weights or inputs; layer -1 is the input."""


def network_of(graph: Graph, batch: int, seq: int) -> Network:
    """Return the layers of a graph for a batch of all devices together."""
    return _Builder(graph, batch, seq).build()


class _Builder:
    def __init__(self, graph: Graph, batch: int, seq: int) -> None:
        self.graph = graph
        self.batch, self.seq = batch, seq
        sizes: dict[object, int] = {}
        self.shape: dict[str, tuple[int, ...]] = {}
        for name, tensor in graph.tensors.items():
            shape = []
            for size in tensor.shape:
                length = sizes.get(size)
                if length is None:
                    length = sizes[size] = size.at(batch, seq)
                shape.append(length)
            self.shape[name] = tuple(shape)
        self.layers: list[Layer] = []
        self.edges: dict[tuple[int, int, str, tuple[Need, ...]], Edge] = {}
        self.held: dict[str, Held] = {}
        self.waiting: list[Op] = []
        self.layer_of: dict[str, int] = {}

    def build(self) -> Network:
        for name, tensor in self.graph.tensors.items():
            if tensor.role == "input":
                names = tensor.dims or ("",) * len(tensor.shape)
                axes = tuple((Factor(n, s),) for n, s in zip(names, self.shape[name], strict=True))
                self.held[name] = Held(-1, axes)
        for op in self.graph.ops:
            self._add(op)
        users: dict[str, int] = {}
        for layer in self.layers:
            for name in layer.parameters:
                users[name] = users.get(name, 0) + 1
        for layer in self.layers:
            for name, weight in layer.parameters.items():
                layer.parameters[name] = weight._replace(share=1 / users[name])
        return Network(
            self.graph, self.batch, self.seq, tuple(self.layers), tuple(self.edges.values()),
            self.layer_of, self.held,
        )  # fmt: skip

    def _add(self, op: Op) -> None:
        tensors = self.graph.tensors
        if not any(tensors[n].dtype in FLOATS for n in op.outputs):
            return self._index(op)
        weighs = any(tensors[n].role == "parameter" for n in op.inputs)
        lives = [n for n in op.inputs if n in self.held and tensors[n].dtype in FLOATS]
        if not lives and not weighs:
            return None  # a constant
        if self._trivial(op) and lives:
            whole = [n for n in lives if self.shape[n] == self.shape[op.outputs[0]]]
            main = max(whole or lives, key=lambda n: self.held[n].layer)
            if self.held[main].layer < 0:
                self._follow_input(op, main)
            else:
                self._follow(op, main)
            return None
        return self._layer(op)

    def _index(self, op: Op) -> None:
        """Carry the axes of indices and masks, which are made wherever they are used."""
        main = next((n for n in op.inputs if n in self.held), None)
        if main is None or self.held[main].layer >= 0:
            return
        for name, held in zip(op.outputs, self._carried(op, main), strict=True):
            self.held[name] = held

    def _trivial(self, op: Op) -> bool:
        if op.kind == "pool":
            one = all(k == 1 for k in op.attrs["kernel"])  # type: ignore[union-attr]
            return one and self.shape[op.inputs[0]] == self.shape[op.outputs[0]]
        return op.kind in FOLLOWS

    def _carried(self, op: Op, main: str) -> list[Held]:
        """Return where the outputs of an op that follows lie."""
        held, before = self.held[main], self.shape[main]
        outs = [self.shape[n] for n in op.outputs]
        if op.kind == "view":
            return view(str(op.attrs.get("fn")), op.attrs.get("order"), held, before, outs)
        return [held._replace(axes=same_axes(held, before, after)) for after in outs]

    def _follow_input(self, op: Op, main: str) -> None:
        for name, held in zip(op.outputs, self._carried(op, main), strict=True):
            self.held[name] = held
        self.waiting.append(op)

    def _follow(self, op: Op, main: str) -> None:
        index = self.held[main].layer
        layer = self.layers[index]
        self.layer_of[op.name] = index
        for name, held in zip(op.outputs, self._carried(op, main), strict=True):
            self.held[name] = held
        outs = tuple(identity(self.held[n].axes, layer.dims) for n in op.outputs)
        ins = tuple(self._beside(n, index, op, outs[0]) for n in op.inputs)
        for name, reaches in zip(op.inputs, ins, strict=True):
            self._connect(name, index, reaches)
            self._own(name, layer, reaches)
        layer.works.append(Work(op, ins, outs))

    def _beside(self, name: str, index: int, op: Op, out: Reaches) -> Reaches:
        """Return the reach along an input of an op that follows a layer."""
        shape, layer = self.shape[name], self.layers[index]
        held = self.held.get(name)
        if held is not None and held.layer == index:
            return identity(held.axes, layer.dims)
        if self.graph.tensors[name].role in ("parameter", "buffer"):
            axis = 1 if op.kind in ("batch_norm", "group_norm") else -1
            whole = self.shape[op.outputs[0]]
            along = out[axis] if len(shape) == 1 and len(whole) > abs(axis) - (axis < 0) else ()
            fits = len(shape) == 1 and len(along) == 1 and along[0].size == shape[0]
            return (along,) if fits else ((),) * len(shape)
        after, offset = self.shape[op.outputs[0]], len(self.shape[op.outputs[0]]) - len(shape)
        return tuple(
            out[i + offset] if 0 <= i + offset < len(after) and after[i + offset] == s else ()
            for i, s in enumerate(shape)
        )

    def _layer(self, op: Op) -> None:
        index = len(self.layers)
        shapes = [self.shape[n] for n in op.inputs]
        axes = [self._axes(n) for n in op.inputs]
        outs = [self.shape[n] for n in op.outputs]
        access = access_of(op, shapes, axes, outs)
        layer = Layer(op.name, op.kind, dict(access.dims), dict(access.most))
        if "sample" not in layer.dims:
            layer = Layer(op.name, op.kind, dict(access.dims), dict(access.most), copies=True)
        self.layers.append(layer)
        self.layer_of[op.name] = index
        for name, made in zip(op.outputs, _made(access, outs), strict=True):
            self.held[name] = Held(index, made)
        self._wait(index)
        for name, reaches in zip(op.inputs, access.ins, strict=True):
            self._connect(name, index, reaches)
            self._own(name, layer, reaches)
        made_by = tuple(identity(self.held[n].axes, layer.dims) for n in op.outputs)
        layer.works.append(Work(op, access.ins, made_by))

    def _wait(self, index: int) -> None:
        """Give the first layer what is done to the input before it, sample by sample."""
        layer = self.layers[index]
        for op in self.waiting:
            sample = layer.dims.get("sample", 0)

            def along(name: str, sample: int = sample) -> Reaches:
                shape = self.shape[name]
                split = bool(shape) and shape[0] == sample
                return tuple(
                    (Reach("sample", s),) if i == 0 and split else () for i, s in enumerate(shape)
                )

            layer.works.append(
                Work(op, tuple(map(along, op.inputs)), tuple(map(along, op.outputs)))
            )
            self.layer_of[op.name] = index
        self.waiting = []

    def _axes(self, name: str) -> Axes:
        held = self.held.get(name)
        return held.axes if held else tuple(plain(s) for s in self.shape[name])

    def _own(self, name: str, layer: Layer, reaches: Reaches) -> None:
        tensor = self.graph.tensors[name]
        if tensor.role == "parameter" and tensor.trainable:
            layer.parameters.setdefault(name, Weight(self.shape[name], reaches))

    def _connect(self, name: str, target: int, reaches: Reaches) -> None:
        held = self.held.get(name)
        if held is None or held.layer < 0 or held.layer == target:
            return
        needs = needs_of(held, reaches, self.layers[held.layer].dims)
        grad = name in self.graph.needs_grad
        key = (held.layer, target, name, needs)
        self.edges.setdefault(key, Edge(held.layer, target, name, needs, grad))


def _made(access: Access, outs: Sequence[Sequence[int]]) -> list[Axes]:
    made = list(access.outs)
    while len(made) < len(outs):
        made.append(tuple(plain(s) for s in outs[len(made)]))
    return made


def needs_of(held: Held, reaches: Reaches, dims: Mapping[str, int]) -> tuple[Need, ...]:
    """Return what a consumer that reaches so far needs of a tensor, in its producer's dims."""
    needs: list[Need] = []
    seen: set[str] = set()
    for factors, along in zip(held.axes, reaches, strict=True):
        counted = [f for f in factors if f.unit]
        for factor, reach in zip(counted, _aligned(factors, along), strict=True):
            needs.append(Need(factor.dim, reach, factor.start, factor.unit))
            seen.add(factor.dim)
    for dim, first, last in held.pinned:
        if dim not in seen:
            needs.append(Need(dim, Reach("", last - first), first, 1))
            seen.add(dim)
    return tuple(needs)


def _aligned(factors: Sequence[Factor], along: Sequence[Reach]) -> list[Reach]:
    """Return the reach along each factor of an axis that counts."""
    counted = [f for f in factors if f.unit]
    everything = [Reach("", f.size) for f in counted]
    if not along or not counted:
        return everything
    sizes = [f.size for f in factors]
    if [r.size for r in along] == sizes:
        return [r for f, r in zip(factors, along, strict=True) if f.unit]
    first = along[0]
    if not first.dim:
        return everything
    whole = factors[0].size
    total = 1
    for size in sizes:
        total *= size
    rest = 1
    for reach in along[1:]:
        rest *= reach.size
    minor = total // whole
    everything[0] = Reach(
        first.dim, whole, first.num * rest, first.den * minor, first.low * rest, first.high * rest
    )
    return everything
