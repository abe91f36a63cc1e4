"""Seconds and memory of every layer under every configuration, each on its largest part.

The kernels of an op are those that its kind lists for the part's true shape: its share of the
output, and of the input all that it needs, halo included. Equal ops with equal parts are priced
once, all of them in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError
from traincast.estimate.lowering import launched
from traincast.estimate.program import Floats, OpClass, Program, kernel_table
from traincast.estimate.roofline import Estimator, KernelEstimator
from traincast.graph import DTYPE_BYTES, KINDS
from traincast.graph.kinds import Arg, Case, Kernel
from traincast.hardware import Device
from traincast.parallel.access import Reach, Reaches, identity, longest
from traincast.parallel.configurations import Configurations
from traincast.parallel.layers import Network

Ints = NDArray[np.int64]
_GROUPED = frozenset({"conv", "group_norm"})


@dataclass(frozen=True, eq=False)
class Shards:
    """For each layer, an array over its configurations."""

    forward: list[Floats]
    """Seconds of the forward pass."""
    backward: list[Floats]
    kept: list[Floats]
    """Bytes kept for backward on each device that holds a part."""
    elsewhere: float
    """Seconds of what belongs to no layer, such as positions and masks: on every device."""

    def paced(self, factor: float) -> Shards:
        """Return the same with all seconds multiplied."""
        return Shards(
            [t * factor for t in self.forward],
            [t * factor for t in self.backward],
            self.kept,
            self.elsewhere * factor,
        )


def price_shards(
    network: Network,
    configs: Sequence[Configurations],
    program: Program,
    device: Device,
    estimator: Estimator,
    layout: str,
) -> Shards:
    """Return what each layer's largest part takes on a device."""
    if not isinstance(estimator, KernelEstimator):
        raise InvalidValueError(
            f"{estimator.name} prices whole layers and cannot split them; "
            "take the estimator auto or roofline"
        )
    pricer = _Pricer(network, configs, program)
    pricer.collect()
    return pricer.priced(device, estimator, layout)


class _Pricer:
    def __init__(
        self, network: Network, configs: Sequence[Configurations], program: Program
    ) -> None:
        self.network, self.configs, self.program = network, configs, program
        self.works = {w.op.name: (i, w) for i, x in enumerate(network.layers) for w in x.works}
        self.cases: dict[tuple[int, tuple[int, ...]], int] = {}
        self.rows: list[tuple[int, int, Kernel]] = []
        self.extra: list[float] = []
        self.known: dict[tuple[object, ...], Ints] = {}
        self.lengths: dict[tuple[Reach, int], Ints] = {}
        self.members: list[tuple[int, Ints]] = []
        self.kept: list[Floats] = [np.zeros(len(c.degrees)) for c in configs]
        self.outs: dict[int, tuple[int, tuple[Reaches, ...]]] = {}
        self.elsewhere: list[int] = []

    def collect(self) -> None:
        """Find the distinct parts of all ops, and what each layer keeps for backward."""
        for i, name in enumerate(self.program.names):
            c = int(self.program.op_class[i])
            found = self._reaches(name, self.program.classes[c])
            if found is None:
                shapes = self.program.classes[c]
                full = [
                    s.at(self.network.batch, self.network.seq)
                    for spec in (*shapes.ins, *shapes.outs)
                    for s in spec.shape
                ]
                self.elsewhere.append(self._case(c, (1, *full)))
                continue
            layer, ins, outs = found
            self.outs[i] = (layer, outs)
            self.members.append((layer, self._member(c, layer, ins, outs)))
        for value in self.program.values:
            if value.kept < 0 or value.made not in self.outs:
                continue
            layer, outs = self.outs[value.made]
            specs = self.program.classes[int(self.program.op_class[value.made])].outs
            at = next((k for k, spec in enumerate(specs) if spec is value.spec), 0)
            columns = self._columns(layer, [(outs[at], self._shape(value.spec.shape))])
            self.kept[layer] += columns.prod(axis=1) * DTYPE_BYTES[value.spec.dtype]

    def _shape(self, sizes: Sequence[object]) -> tuple[int, ...]:
        return tuple(s.at(self.network.batch, self.network.seq) for s in sizes)  # type: ignore[attr-defined]

    def _reaches(
        self, name: str, op_class: OpClass
    ) -> tuple[int, tuple[Reaches, ...], tuple[Reaches, ...]] | None:
        """Return the layer of an op of the program, and how its parts use each tensor."""
        if name in self.works:
            layer, work = self.works[name]
            return layer, work.ins, work.outs
        tensors = self.network.graph.tensors
        if name.endswith(".autocast") and name[:-9] in self.works:
            layer, work = self.works[name[:-9]]
            wanted = op_class.ins[0].shape
            for tensor, reaches in zip(work.op.inputs, work.ins, strict=True):
                if tensors[tensor].shape == wanted:
                    return layer, (reaches,), (reaches,)
        tensor = name.removesuffix(".grad")
        held = self.network.held.get(tensor)
        if held is not None and held.layer >= 0:
            return held.layer, (identity(held.axes, self.network.layers[held.layer].dims),), ()
        for layer, entry in enumerate(self.network.layers):
            if tensor in entry.parameters:
                return layer, (entry.parameters[tensor].reaches,), ()
        return None

    def _member(
        self, c: int, layer: int, ins: tuple[Reaches, ...], outs: tuple[Reaches, ...]
    ) -> Ints:
        """Return the case of an op under each configuration of its layer."""
        configs = self.configs[layer]
        key = (c, id(configs), ins, outs)
        if key in self.known:
            return self.known[key]
        op_class = self.program.classes[c]
        specs = (*op_class.ins, *op_class.outs)
        reaches = (*ins, *outs)
        columns = self._columns(
            layer, [(r, self._shape(s.shape)) for r, s in zip(reaches, specs, strict=False)]
        )
        dealt = configs.degree("channel") if op_class.kind in _GROUPED else None
        first = np.ones(len(columns), dtype=np.int64) if dealt is None else dealt
        rows = np.column_stack([first, columns]).tolist()
        cases = np.array([self._case(c, tuple(row)) for row in rows], dtype=np.int64)
        self.known[key] = cases
        return cases

    def _columns(self, layer: int, tensors: Sequence[tuple[Reaches, tuple[int, ...]]]) -> Ints:
        """Return the length of every axis under every configuration: (configurations, axes)."""
        configs = self.configs[layer]
        columns = []
        for reaches, shape in tensors:
            for along, size in zip(reaches, shape, strict=True):
                column = np.full(len(configs.degrees), size, dtype=np.int64)
                if any(r.dim in configs.dims for r in along):
                    column = np.ones_like(column)
                    for reach in along:
                        column = column * self._longest(reach, layer, configs)
                columns.append(column)
        if not columns:
            return np.ones((len(configs.degrees), 0), dtype=np.int64)
        return np.stack(columns, axis=1)

    def _longest(self, reach: Reach, layer: int, configs: Configurations) -> Ints:
        key = (reach, id(configs))
        found = self.lengths.get(key)
        if found is None:
            degrees = configs.degree(reach.dim)
            length = self.network.layers[layer].dims.get(reach.dim, 1)
            table = {int(p): longest(reach, length, int(p)) for p in np.unique(degrees)}
            found = np.array([table[int(p)] for p in degrees], dtype=np.int64)
            self.lengths[key] = found
        return found

    def _case(self, c: int, row: tuple[int, ...]) -> int:
        key = (c, row)
        found = self.cases.get(key)
        if found is not None:
            return found
        index = self.cases[key] = len(self.cases)
        op_class = self.program.classes[c]
        attrs = dict(op_class.attrs)
        if row[0] > 1 and isinstance(groups := attrs.get("groups"), int):
            attrs["groups"] = -(-groups // row[0])
        at = 1
        args: list[Arg] = []
        for spec in (*op_class.ins, *op_class.outs):
            shape = row[at : at + len(spec.shape)]
            at += len(spec.shape)
            n = 1
            for length in shape:
                n *= length
            args.append(Arg(shape, n, DTYPE_BYTES[spec.dtype], spec.grad, spec.role))
        count = len(op_class.ins)
        case = Case(attrs, tuple(args[:count]), tuple(args[count:]))
        costs = KINDS[op_class.kind].costs(case)
        if op_class.moves is not None:
            costs = launched(case, costs, op_class.moves)
        for phase, kernels in enumerate((costs.forward, costs.data, costs.weight)):
            self.rows += [(index, phase, k) for k in kernels]
        self.extra.append(costs.extra)
        return index

    def priced(self, device: Device, estimator: KernelEstimator, layout: str) -> Shards:
        """Price all distinct parts at once, and add them up for each layer."""
        kernels = kernel_table(self.rows)
        seconds = estimator.price(kernels, device, self.program.precision, layout, True).seconds
        cell = kernels.op_class * 2 + np.minimum(kernels.phase, 1)
        table = np.bincount(cell, seconds, 2 * len(self.cases)).reshape(-1, 2)
        extra = np.array(self.extra)
        forward = [np.zeros(len(c.degrees)) for c in self.configs]
        backward = [np.zeros(len(c.degrees)) for c in self.configs]
        for layer, cases in self.members:
            forward[layer] += table[cases, 0]
            backward[layer] += table[cases, 1]
            self.kept[layer] += extra[cases]
        elsewhere = float(table[self.elsewhere].sum()) if self.elsewhere else 0.0
        return Shards(forward, backward, self.kept, elsewhere)
