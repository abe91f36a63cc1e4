"""The five-axes study: data against model parallelism as batch and machine vary.

One axis (batch, node speed, memory bandwidth, link bandwidth, nodes) or two together are swept
around a base point, with the model of Castelló et al. A crossing is where the two strategies take
equally long. It comes with two ranges: what the search leaves open (next to nothing, or the two
whole numbers around it), and where the order of the two is not certain, because their ratio is
within `SPREAD`: how far measured communication lies from the model's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.castello import (
    Machine,
    Network,
    Rules,
    Step,
    authors_network,
    data_parallel,
    model_parallel,
    network_of,
)
from traincast.estimate.castello.networks import NAMES
from traincast.graph import Graph
from traincast.graph.precision import Precision, precision_named
from traincast.hardware import Device, Link, load_device, load_link
from traincast.ingest import resolve
from traincast.simulate.fit import default_precision

Floats = NDArray[np.float64]
SPREAD = 1.26
"""√(3.0/1.9): the forward communication of 144 measured layers fits the model's formula with a
bandwidth between 1.9 and 3.0 GB/s (docs/models/castello.md). The compute part is unjudged."""
_EVERY = 4096
"""Whole numbers that are tried one by one; longer ranges are scanned."""
_SCAN = 257
_ROUND = 33


class Axis(NamedTuple):
    """Something that a study varies."""

    name: str
    """As users write it."""
    key: str
    """Field of `Base`."""
    unit: str
    """As `units` knows it; empty for a count."""
    title: str
    reach: float
    """By default it is swept from the base over this to the base times this."""

    @property
    def whole(self) -> bool:
        """Whether it takes whole numbers only."""
        return not self.unit


AXES: Mapping[str, Axis] = {
    axis.name: axis
    for axis in (
        Axis("batch", "batch", "", "batch, samples in all", 16),
        Axis("flops", "flops", "FLOP/s", "node speed", 16),
        Axis("memory-bandwidth", "memory_bandwidth", "bytes/s", "memory bandwidth", 16),
        Axis("link-bandwidth", "link_bandwidth", "bytes/s", "link bandwidth", 16),
        Axis("nodes", "nodes", "", "nodes", 16),
    )
}


def axis_named(name: str) -> Axis:
    """Return the axis of a name; `_` and `-` are alike."""
    found = AXES.get(name.strip().lower().replace("_", "-"))
    if found is None:
        raise UnknownNameError("axis", name, AXES, f"(known: {', '.join(AXES)})")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Base:
    """The point around which axes are varied, in SI units."""

    batch: int
    """Samples on all nodes together, >= 1."""
    nodes: int
    """Nodes, >= 1; each is one device with a link of its own."""
    flops: float
    """Peak FLOP/s of a node."""
    memory_bandwidth: float
    """Bytes/s of a node's memory."""
    link_bandwidth: float
    """Bytes/s of a node's link, in one direction."""
    latency_s: float
    """Seconds of an empty message."""
    element_bytes: float = 4.0
    """Bytes of a value."""
    gradient_bytes: float = 4.0
    """Bytes of a weight's gradient."""

    def with_value(self, axis: Axis, value: float) -> Base:
        """Return this point with another value of one axis."""
        changed: dict[str, Any] = {axis.key: int(value) if axis.whole else value}
        return replace(self, **changed)

    def default_values(self, axis: Axis) -> Floats:
        """Return the base over and times powers of two, up to the axis's reach."""
        steps = int(np.log2(axis.reach))
        powers = np.arange(-steps, steps + 1, dtype=np.float64)
        values: Floats = float(getattr(self, axis.key)) * np.exp2(powers)
        if axis.whole:
            values = np.unique(np.maximum(np.rint(values), 1.0))
        return values


def base_of(device: Device, link: Link, precision: Precision, *, batch: int, nodes: int) -> Base:
    """Return the base point of a device, a link and a precision, by their datasheets."""
    each = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
    return Base(
        batch=batch,
        nodes=nodes,
        flops=device.peak(precision.peak),
        memory_bandwidth=device.memory_bandwidth,
        link_bandwidth=link.bandwidth,
        latency_s=link.latency_s,
        element_bytes=each[precision.compute],
        gradient_bytes=each[precision.parameters],
    )


class Crossing(NamedTuple):
    """Where the two strategies take equally long."""

    axis: str
    value: float
    """Where they are equal; between two whole numbers, interpolated."""
    between: tuple[float, float]
    """What the search leaves open."""
    interval: tuple[float | None, float | None]
    """Where their ratio is within SPREAD: None where that goes beyond the range."""
    below: str
    """Strategy that is faster below: data or model."""
    above: str
    at: tuple[tuple[str, float], ...] = ()
    """Value of the other axis, where two are swept."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Sweep:
    """Both strategies along one axis, or over the grid of two."""

    axes: tuple[Axis, ...]
    values: tuple[Floats, ...]
    """Values of each axis, rising."""
    data: Step
    """Arrays with one dimension for each axis."""
    model: Step
    crossings: tuple[Crossing, ...]
    """Along the first axis, for every value of the second."""

    @cached_property
    def ratio(self) -> Floats:
        """Data parallel step over model parallel step: above 1 where model is faster."""
        return self.data.step / self.model.step

    def faster(self, index: tuple[int, ...]) -> str:
        """Return `data`, `model` or `equal` at a point."""
        return _faster(float(np.log(self.ratio[index])))


@dataclass(frozen=True, eq=False, kw_only=True)
class Study:
    """A network around a base point."""

    network: Network
    base: Base
    rules: Rules
    overlap: bool = False
    """Whether data parallelism overlaps its all-reduces with the backward pass."""

    def at(self, **values: Floats) -> tuple[Step, Step]:
        """Return data and model parallel steps with some fields of the base replaced by arrays."""
        point: dict[str, object] = {
            name: values.get(name, getattr(self.base, name)) for name in _MACHINE
        }
        machine = Machine(**point)  # type: ignore[arg-type]
        size = {name: values.get(name, getattr(self.base, name)) for name in ("batch", "nodes")}
        data = data_parallel(self.network, machine, **size, overlap=self.overlap, rules=self.rules)
        return data, model_parallel(self.network, machine, **size, rules=self.rules)

    def sweep(self, axes: Sequence[tuple[Axis, Floats]]) -> Sweep:
        """Sweep one axis, or two together, and find where the strategies cross."""
        named = tuple(axis for axis, _ in axes)
        if not 1 <= len(axes) <= 2 or len({axis.name for axis in named}) < len(axes):
            raise InvalidValueError("sweep one axis, or two different ones together")
        values = tuple(_sorted(axis, given) for axis, given in axes)
        grid = np.meshgrid(*values, indexing="ij")
        data, model = self.at(**{axis.key: g for axis, g in zip(named, grid, strict=True)})
        crossings: list[Crossing] = []
        if len(axes) == 1:
            crossings += self.crossings(named[0], values[0][0], values[0][-1])
        else:
            other = named[1]
            for value in values[1]:
                fixed = replace(self, base=self.base.with_value(other, float(value)))
                found = fixed.crossings(named[0], values[0][0], values[0][-1])
                crossings += [c._replace(at=((other.name, float(value)),)) for c in found]
        return Sweep(axes=named, values=values, data=data, model=model, crossings=tuple(crossings))

    def crossings(self, axis: Axis, low: float, high: float) -> list[Crossing]:
        """Return every crossing between two values of an axis, in rising order.

        Every whole number is tried where there are few enough; otherwise two crossings between
        neighbours of a scan of 257 values (4096 whole ones) are missed together.
        """
        points = _scan(axis, low, high)
        log = self._log_ratio(axis, points)
        known = np.flatnonzero(np.abs(log) > _EQUAL)
        found = []
        for i, j in pairwise(known):
            if log[i] * log[j] < 0:
                between = self._narrow(axis, float(points[i]), float(points[j]), 0.0)
                interval = (
                    self._edge(axis, points[: i + 1][::-1], log[: i + 1][::-1]),
                    self._edge(axis, points[j:], log[j:]),
                )
                found.append(
                    Crossing(
                        axis=axis.name,
                        value=self._between(axis, *between),
                        between=between,
                        interval=interval,
                        below=_faster(log[i]),
                        above=_faster(log[j]),
                    )
                )
        return found

    def _log_ratio(self, axis: Axis, points: Floats) -> Floats:
        data, model = self.at(**{axis.key: points})
        log: Floats = np.log(data.step / model.step)
        return log

    def _narrow(self, axis: Axis, low: float, high: float, level: float) -> tuple[float, float]:
        """Return the ends of the smallest part in which log(data/model) passes a level."""
        while high - low > (1.0 if axis.whole else 1e-9 * high):
            points = np.geomspace(low, high, _ROUND)
            if axis.whole:
                points = np.unique(np.concatenate([[low], np.rint(points[1:-1]), [high]]))
            above = self._log_ratio(axis, points) > level
            first = int(np.flatnonzero(above != above[0])[0])
            low, high = float(points[first - 1]), float(points[first])
        return low, high

    def _between(self, axis: Axis, low: float, high: float) -> float:
        """Return where a line through both ends is zero."""
        start, end = (float(x) for x in self._log_ratio(axis, np.array([low, high])))
        return low + (high - low) * start / (start - end)

    def _edge(self, axis: Axis, points: Floats, log: Floats) -> float | None:
        """Return the first point from a crossing outwards where the order is certain."""
        certain = np.flatnonzero(np.abs(log) >= np.log(SPREAD))
        if not len(certain):
            return None
        j = int(certain[0])
        if j == 0:
            return float(points[0])
        level = float(np.copysign(np.log(SPREAD), log[j]))
        low, high = sorted((float(points[j - 1]), float(points[j])))
        low, high = self._narrow(axis, low, high, level)
        return high if points[j] > points[j - 1] else low


@dataclass(frozen=True, eq=False, kw_only=True)
class Exploration:
    """What a study found."""

    model: str
    device: Device
    link: Link
    precision: str
    study: Study
    sweeps: tuple[Sweep, ...]


AUTHORS = "castello:"
"""What the names of the authors' own networks begin with."""
NODES = 16
"""Nodes of the base point unless said."""


def prepare(
    model: str | Graph | Network,
    device: str | Device = "h200",
    network: str | Link | None = None,
    *,
    batch: int | None = None,
    nodes: int = NODES,
    seq: int | None = None,
    precision: str | None = None,
    overlap: bool = False,
    rules: Rules | None = None,
) -> Exploration:
    """Return a study that has swept nothing yet.

    `model` is a model reference, `castello:alexnet` or `castello:vgg16`; `network` a link that each
    device has one of, by default the device's usual one between nodes. `batch` counts samples on
    all nodes; by default each has the model's usual number. `rules` follow the device unless
    given: CPUs write unfolded inputs of convolutions, others do not.
    """
    unit = load_device(device)
    link = load_link(network if network is not None else unit.network)
    how = precision_named(precision) if precision else default_precision(unit)
    layers, usual = _network(model, seq)
    base = base_of(unit, link, how, batch=batch or usual * nodes, nodes=nodes)
    counted = rules or Rules(unfold=unit.tier in ("cpu", "manycore"))
    study = Study(network=layers, base=base, rules=counted, overlap=overlap)
    return Exploration(
        model=layers.name, device=unit, link=link, precision=how.name, study=study, sweeps=()
    )


def explore(
    found: Exploration, axes: Sequence[tuple[Axis, Floats]], *, together: bool = False
) -> Exploration:
    """Return the study with each axis swept on its own, or two of them together."""
    groups = [list(axes)] if together else [[axis] for axis in axes]
    return replace(found, sweeps=tuple(found.study.sweep(group) for group in groups))


def _network(model: str | Graph | Network, seq: int | None) -> tuple[Network, int]:
    """Return the layers of a model and how many samples a device usually takes."""
    if isinstance(model, str) and model.startswith(AUTHORS):
        if seq is not None:
            raise InvalidValueError(f"{model} has no sequence axis; leave out seq")
        name = model.removeprefix(AUTHORS)
        if name not in NAMES:
            known = [AUTHORS + n for n in NAMES]
            raise UnknownNameError("model", model, known, f"(known: {', '.join(known)})")
        return authors_network(name), 32
    if isinstance(model, Network):
        return model, 32
    graph = model if isinstance(model, Graph) else resolve(model, seq=seq)
    return network_of(graph, seq), graph.batch


_EQUAL = 1e-12
_MACHINE = (
    "flops",
    "memory_bandwidth",
    "link_bandwidth",
    "latency_s",
    "element_bytes",
    "gradient_bytes",
)


def _faster(log_ratio: float) -> str:
    if abs(log_ratio) <= _EQUAL:
        return "equal"
    return "model" if log_ratio > 0 else "data"


def _sorted(axis: Axis, values: Floats) -> Floats:
    kept = np.unique(np.asarray(values, dtype=np.float64))
    least = 1.0 if axis.whole else 0.0
    if not len(kept) or not np.isfinite(kept).all() or kept[0] < least or kept[0] <= 0:
        raise InvalidValueError(f"axis {axis.name}: values have to be finite and above zero")
    return kept


def _scan(axis: Axis, low: float, high: float) -> Floats:
    if not axis.whole:
        return np.geomspace(low, high, _SCAN) if high > low else np.array([low])
    if high - low < _EVERY:
        return np.arange(low, high + 1)
    return np.unique(np.rint(np.geomspace(low, high, _EVERY)))
