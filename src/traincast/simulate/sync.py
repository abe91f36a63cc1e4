"""Synchronising the gradients of a layer whose weights lie on several devices."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.errors import UnknownNameError
from traincast.hardware import Cluster
from traincast.network import algorithms, collective_seconds
from traincast.parallel.access import longest
from traincast.parallel.configurations import Configurations
from traincast.parallel.layers import Layer, Weight

Floats = NDArray[np.float64]
SERVER = "server"


class Synced(NamedTuple):
    """One layer under each of its configurations."""

    seconds: Floats
    moved: Floats
    """Bytes that all devices send."""
    held: Floats
    """Bytes of weights on a device that holds a part."""


class _Spots(NamedTuple):
    """Where the copies of a part of the weights sit, for each configuration."""

    copies: NDArray[np.int64]
    near: Floats
    """Most copies of one part in a node."""
    port: Floats
    """Share of a part that a device sends within its node, at most."""
    node: Floats
    """Shares of parts that a node sends to others, at most."""


def check_scheme(name: str) -> None:
    """Raise for a name that is no way to synchronise."""
    known = (SERVER, "auto", "nccl", "fastest", "hierarchical", *algorithms("all-reduce"))
    if name not in known:
        raise UnknownNameError("scheme", name, known, f"(known: {', '.join(known)})")


class Sync:
    """Costs of synchronisation on a cluster by one scheme.

    `server` is the bytes/s of one parameter server that all devices share; None spreads the
    servers over the devices that have a copy.
    """

    def __init__(self, cluster: Cluster, scheme: str, server: float | None = None) -> None:
        self.cluster, self.scheme, self.server = cluster, scheme, server
        self._spots: dict[tuple[int, frozenset[str]], _Spots] = {}
        self._seconds: dict[tuple[int, int], dict[float, float]] = {}

    def layer(self, layer: Layer, configs: Configurations, each: float) -> Synced:
        """Return what a layer's weights cost under each configuration; `each` bytes a weight."""
        groups: dict[frozenset[str], Floats] = {}
        for weight in layer.parameters.values():
            along = (r.dim for axis in weight.reaches for r in axis)
            split = frozenset(dim for dim in along if dim in configs.dims)
            size = _elements(weight, layer, configs) * (each * weight.share)
            groups[split] = groups.get(split, np.zeros(len(configs.degrees))) + size
        zero = np.zeros(len(configs.degrees))
        result = Synced(zero, zero, zero)
        for split, size in groups.items():
            spots = self._where(configs, split)
            copies, parts = spots.copies, configs.parts / spots.copies
            if self.scheme == SERVER:
                # Published: every device that has a copy sends it and gets it back.
                moved = np.where(copies > 1, 2 * size * copies * parts, 0.0)
                seconds = moved / self.server if self.server else self._server(size, spots)
            else:
                moved = 2 * size * (copies - 1) * parts
                seconds = self._reduced(size, spots)
            result = Synced(result.seconds + seconds, result.moved + moved, result.held + size)
        return result

    def _server(self, size: Floats, spots: _Spots) -> Floats:
        cluster = self.cluster
        port = spots.port / cluster.intra_link.bandwidth
        node = spots.node / (cluster.inter_link.bandwidth * cluster.ports_per_node)
        seconds: Floats = 2 * size * np.maximum(port, node)
        return seconds

    def _reduced(self, size: Floats, spots: _Spots) -> Floats:
        result = np.zeros(len(size))
        for i in np.flatnonzero((spots.copies > 1) & (size > 0)):
            key = (int(spots.copies[i]), int(spots.near[i]))
            known = self._seconds.setdefault(key, {})
            if size[i] not in known:
                known[float(size[i])] = 0.0
        for (copies, near), known in self._seconds.items():
            new = [s for s, t in known.items() if t == 0.0]
            if new:
                found = collective_seconds(
                    "all-reduce", np.array(new), copies, self.cluster,
                    algorithm=self.scheme, per_node=near,
                )  # fmt: skip
                known.update(zip(new, np.asarray(found).tolist(), strict=True))
        for i in np.flatnonzero((spots.copies > 1) & (size > 0)):
            key = (int(spots.copies[i]), int(spots.near[i]))
            result[i] = self._seconds[key][float(size[i])]
        return result

    def _where(self, configs: Configurations, split: frozenset[str]) -> _Spots:
        key = (id(configs), split)
        found = self._spots.get(key)
        if found is None:
            found = self._spots[key] = _spots(configs, split, self.cluster.devices_per_node)
        return found


def _spots(configs: Configurations, split: frozenset[str], per_node: int) -> _Spots:
    count, devices = len(configs.degrees), configs.devices
    parts = np.ones(count, dtype=np.int64)
    part = np.zeros((count, devices), dtype=np.int64)
    for d, dim in enumerate(configs.dims):
        if dim in split:
            degree = configs.degrees[:, d]
            part = part * degree[:, None] + configs.place[d]
            parts = parts * degree
    copies = configs.parts // parts
    nodes = -(-devices // per_node)
    here = np.zeros((count, nodes, int(parts.max())))  # copies of each part in each node
    row = np.broadcast_to(np.arange(count)[:, None], part.shape)
    node = np.broadcast_to(np.arange(devices) // per_node, part.shape)
    np.add.at(here, (row, node, part), configs.used.astype(float))
    r = copies[:, None, None]
    port = np.where(here > 0, (here - 1) / r, 0.0).max(axis=(1, 2))
    out = (here * (r - here) / r).sum(axis=2).max(axis=1)
    return _Spots(copies, here.max(axis=(1, 2)), port, out)


def _elements(weight: Weight, layer: Layer, configs: Configurations) -> Floats:
    """Return the weights of the largest part under each configuration."""
    result = np.ones(len(configs.degrees))
    for axis, whole in zip(weight.reaches, weight.shape, strict=True):
        if not any(r.dim in configs.dims for r in axis):
            result *= whole
            continue
        for reach in axis:
            degrees = configs.degree(reach.dim)
            length = layer.dims.get(reach.dim, 1)
            table = {int(p): longest(reach, length, int(p)) for p in np.unique(degrees)}
            result *= np.array([table[int(p)] for p in degrees])
    return result
