"""The configurations of a layer: a degree for each dim, their product at most the device count.

The number of power-of-two tuples with product at most 2^m over d dims is the binomial coefficient
(m + d over d): 15 for four dims on 4 devices, 70 on 16. A degree never exceeds its dim's length, so
no part is empty; parts of a length that does not divide differ by one, and the largest is costed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.parallel.layers import Layer
from traincast.parallel.strategy import DIMS

Ints = NDArray[np.int64]
DEGREES = ("powers", "all")


@dataclass(frozen=True, eq=False)
class Configurations:
    """Every configuration of a layer's dims, in a fixed order: fewest parts first."""

    dims: tuple[str, ...]
    lengths: tuple[int, ...]
    """Length of each dim; 0 for a `sample` that makes copies."""
    degrees: Ints
    """(configurations, dims)."""
    devices: int

    @cached_property
    def parts(self) -> Ints:
        """Number of parts of each configuration."""
        parts: Ints = self.degrees.prod(axis=1)
        return parts

    @cached_property
    def index(self) -> Mapping[tuple[int, ...], int]:
        """Place of each tuple of degrees."""
        return {tuple(map(int, row)): i for i, row in enumerate(self.degrees)}

    @cached_property
    def place(self) -> Ints:
        """(dims, configurations, devices): index of each device's part along each dim."""
        at = np.broadcast_to(np.arange(self.devices), (len(self.degrees), self.devices))
        result = np.zeros((len(self.dims), *at.shape), dtype=np.int64)
        for d in reversed(range(len(self.dims))):
            degree = self.degrees[:, d : d + 1]
            result[d] = at % degree
            at = at // degree
        return result

    @cached_property
    def used(self) -> NDArray[np.bool_]:
        """(configurations, devices): whether a device holds a part."""
        used: NDArray[np.bool_] = np.arange(self.devices) < self.parts[:, None]
        return used

    def distinct(self, per_node: int) -> Ints:
        """Return how many indices along each dim a node's parts have: (dims, configs, nodes)."""
        found = self._distinct.get(per_node)
        if found is None:
            groups = [
                self.place[:, :, first : first + per_node]
                for first in range(0, self.devices, per_node)
            ]
            counts = [1 + (np.diff(np.sort(g, axis=2), axis=2) > 0).sum(axis=2) for g in groups]
            found = self._distinct[per_node] = np.stack(counts, axis=2).astype(np.int64)
        return found

    @cached_property
    def _distinct(self) -> dict[int, Ints]:
        return {}

    def grid(self, per_node: int) -> NDArray[np.bool_]:
        """Return for which configurations the parts of every node form a grid."""
        starts = np.arange(0, self.devices, per_node)
        used = np.add.reduceat(self.used.astype(np.int64), starts, axis=1)
        full = self.distinct(per_node).prod(axis=0)
        result: NDArray[np.bool_] = ((used == 0) | (used == full)).all(axis=1)
        return result

    def degree(self, dim: str) -> Ints:
        """Return the degree of a dim in each configuration, 1 where the layer has no such dim."""
        if dim in self.dims:
            return self.degrees[:, self.dims.index(dim)]
        return np.ones(len(self.degrees), dtype=np.int64)

    def named(self, index: int) -> dict[str, int]:
        """Return a configuration as degrees above 1 by dim."""
        row = self.degrees[index]
        return {dim: int(n) for dim, n in zip(self.dims, row, strict=True) if n > 1}

    def nearest(self, wanted: Mapping[str, int]) -> int:
        """Return the configuration with these degrees, each lowered to the largest that exists."""
        most = np.array([wanted.get(dim, 1) for dim in self.dims])
        fits = (self.degrees <= most).all(axis=1)
        return int(np.where(fits, self.parts, 0).argmax())


def configurations(layer: Layer, devices: int, degrees: str = "powers") -> Configurations:
    """Return the configurations of a layer on a number of devices."""
    if degrees not in DEGREES:
        raise UnknownNameError("choice of degrees", degrees, DEGREES, "(known: powers, all)")
    dims, lengths = _dims(layer, devices)
    return _enumerated(tuple(dims.items()), lengths, devices, degrees)


def configuration(layer: Layer, degrees: Mapping[str, int], devices: int) -> Configurations:
    """Return one configuration of a layer alone, with any degrees that it can have."""
    dims, lengths = _dims(layer, devices)
    for dim, degree in degrees.items():
        most = dims.get(dim, 1)
        if degree > most:
            raise InvalidValueError(
                f"layer {layer.name!r} cannot be split {degree} ways by {dim}, "
                f"{most} at most; its dims are {', '.join(dims)}"
            )
    row = tuple(degrees.get(dim, 1) for dim in dims)
    return _single(tuple(dims), lengths, row, devices)


def _dims(layer: Layer, devices: int) -> tuple[dict[str, int], tuple[int, ...]]:
    """Return the largest degree of each dim of a layer, and the length of each."""
    dims = {dim: layer.most.get(dim, layer.dims[dim]) for dim in DIMS if dim in layer.dims}
    lengths = tuple(layer.dims[dim] for dim in dims)
    if layer.copies:
        return {"sample": devices} | dims, (0, *lengths)
    return dims, lengths


@lru_cache(maxsize=4096)
def _single(
    dims: tuple[str, ...], lengths: tuple[int, ...], row: tuple[int, ...], devices: int
) -> Configurations:
    table = np.array([row], dtype=np.int64).reshape(1, len(dims))
    return Configurations(dims, lengths, table, devices)


@lru_cache(maxsize=4096)
def _enumerated(
    dims: tuple[tuple[str, int], ...], lengths: tuple[int, ...], devices: int, degrees: str
) -> Configurations:
    steps = list(range(1, devices + 1))
    if degrees == "powers":
        steps = [2**k for k in range(devices.bit_length()) if 2**k <= devices]
        if devices not in steps:
            steps.append(devices)  # all of an odd number of devices have to be usable
    rows: list[tuple[int, ...]] = [()]
    for _, most in dims:
        rows = [
            (*row, n)
            for row in rows
            for n in steps
            if n <= most and int(np.prod(row, dtype=np.int64)) * n <= devices
        ]
    rows.sort(key=lambda row: (int(np.prod(row, dtype=np.int64)), tuple(-n for n in row)))
    table = np.array(rows, dtype=np.int64).reshape(len(rows), len(dims))
    return Configurations(tuple(name for name, _ in dims), lengths, table, devices)
