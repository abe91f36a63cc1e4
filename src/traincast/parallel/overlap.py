"""How much passes between two layers under every pair of their configurations.

A part of the producer holds an interval of every dim, and a part of the consumer needs one, so what
passes from device s to device d is the product over dims of the lengths of two intervals' overlap.
These lengths depend on one dim's degrees alone: computed once for each dim, they are multiplied.

What a device receives is what it needs less what it holds itself; what it sends to all is a product
of sums, one over each dim's parts. So is what passes within a node, wherever the node's parts form
a grid, as they do for powers of two; otherwise its pairs of devices are looked at one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.parallel.access import Reach
from traincast.parallel.configurations import Configurations
from traincast.parallel.layers import Edge, Need

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Traffic(NamedTuple):
    """Elements that pass forward, for each pair of configurations (producer, consumer)."""

    near: Floats
    """In all, between devices of one node."""
    far: Floats
    """In all, between nodes."""
    port: Floats
    """Most that one device receives, or sends, within its node."""
    node: Floats
    """Most that one node receives, or sends."""


class _Pattern(NamedTuple):
    """One dim of one layer: the intervals that occur, and which of them each device has."""

    lo: Ints
    hi: Ints
    rows: Ints
    """(patterns, devices): interval of each device."""
    of: Ints
    """Pattern of each configuration."""


def traffic(
    edge: Edge,
    source: Configurations,
    target: Configurations,
    lengths: tuple[Mapping[str, int], Mapping[str, int]],
    per_node: int,
) -> Traffic:
    """Return what passes along an edge under every pair of configurations."""
    whole = _Overlaps(edge.needs, source, target, lengths)
    devices = source.devices
    needed = whole.needed()  # (target, devices)
    local = whole.pairs(np.arange(devices), np.arange(devices))
    if source.devices <= per_node:
        received = needed[None] - local
        sent = np.maximum(whole.sent() - local, 0)
        near = received.sum(axis=2)
        zero = np.zeros_like(near)
        return Traffic(near, zero, np.maximum(received, sent).max(axis=2), zero)
    sent = whole.sent()
    incoming, outgoing = whole.inside(per_node, local)
    # Of several copies in a node one is enough.
    incoming = np.minimum(incoming, needed[None])
    outgoing = np.maximum(outgoing / whole.replicas[:, None, None], local)
    port = (np.maximum(incoming, outgoing) - local).max(axis=2)
    into = _by_node(needed[None] - incoming, per_node)
    out = _by_node(np.maximum(sent - outgoing, 0), per_node)
    near = (incoming - local).sum(axis=2)
    return Traffic(near, into.sum(axis=2), port, np.maximum(into, out).max(axis=2))


def _by_node(values: Floats, per_node: int) -> Floats:
    """Return sums over the devices of each node."""
    sums: Floats = np.add.reduceat(values, np.arange(0, values.shape[2], per_node), axis=2)
    return sums


class _Overlaps:
    def __init__(
        self,
        needs: tuple[Need, ...],
        source: Configurations,
        target: Configurations,
        lengths: tuple[Mapping[str, int], Mapping[str, int]],
    ) -> None:
        self.source, self.target = source, target
        self.held: list[_Pattern] = []
        self.wanted: list[_Pattern] = []
        named: set[str] = set()
        for need in needs:
            self.held.append(_held(need, source, lengths[0]))
            self.wanted.append(_wanted(need, target, lengths[1]))
            named.add(need.reach.dim)
        self.named = named
        # Parts that differ in other dims alone need the same: each gets its own copy.
        self.copies = np.ones(len(target.degrees))
        for dim in target.dims:
            if dim not in named:
                self.copies = self.copies * target.degree(dim)
        self.replicas = np.ones(len(source.degrees))
        sources = {need.source for need in needs}
        for dim, length in zip(source.dims, source.lengths, strict=True):
            if dim not in sources or length == 0:
                self.replicas = self.replicas * source.degree(dim)

    def needed(self) -> Floats:
        """Return what each device needs: (target, devices)."""
        result = self.target.used.astype(np.float64)
        for held, want in zip(self.held, self.wanted, strict=True):
            lo, hi = held.lo.min(), held.hi.max()
            length = np.maximum(np.minimum(want.hi, hi) - np.maximum(want.lo, lo), 0)
            result = result * length[want.rows][want.of]
        return result

    def inside(self, per_node: int, local: Floats) -> tuple[Floats, Floats]:
        """Return what each device gets from its node and gives to it: (source, target, devices).

        Both count what a device holds and needs itself.
        """
        incoming, outgoing = np.zeros_like(local), np.zeros_like(local)
        good_u, good_v = self.source.grid(per_node), self.target.grid(per_node)
        if good_u.any():
            incoming[good_u] = self._gathered(per_node)[good_u]
        if good_v.any():
            outgoing[:, good_v] = self._scattered(per_node)[:, good_v]
        if good_u.all() and good_v.all():
            return incoming, outgoing
        devices = self.source.devices
        for first in range(0, devices, per_node):
            group = np.arange(first, min(first + per_node, devices))
            n = len(group)
            pairs = np.repeat(group, n), np.tile(group, n)
            rows, columns = np.flatnonzero(~good_u), np.flatnonzero(~good_v)
            block = self.pairs(*pairs, rows=rows).reshape(len(rows), -1, n, n)
            incoming[np.ix_(rows, np.arange(len(good_v)), group)] = block.sum(axis=2)
            block = self.pairs(*pairs, columns=columns).reshape(-1, len(columns), n, n)
            outgoing[np.ix_(np.arange(len(good_u)), columns, group)] = block.sum(axis=3)
        return incoming, outgoing

    def _gathered(self, per_node: int) -> Floats:
        """Return what each device needs of what its node holds."""
        node = np.arange(self.source.devices) // per_node
        busy = _any(self.source.used, per_node)[:, None, node]
        result = (busy & self.target.used[None]).astype(np.float64)
        for held, want in zip(self.held, self.wanted, strict=True):
            sums = _members(held, per_node) @ _lengths(held, want)
            table = sums[:, None, :, :][
                np.arange(len(held.rows))[:, None, None], 0, node, want.rows[None]
            ]
            _multiply(result, table, held.of, want.of)
        return result

    def _scattered(self, per_node: int) -> Floats:
        """Return what each device holds of what the parts in its node need."""
        node = np.arange(self.source.devices) // per_node
        busy = _any(self.target.used, per_node)[None, :, node]
        result = busy * self.source.used[:, None, :] * self._copies_near(per_node)[None, :, node]
        for held, want in zip(self.held, self.wanted, strict=True):
            sums = _members(want, per_node) @ _lengths(held, want).T
            table = sums[np.arange(len(want.rows))[None, :, None], node, held.rows[:, None, :]]
            _multiply(result, table, held.of, want.of)
        return result

    def _copies_near(self, per_node: int) -> Floats:
        """Return how many parts of a node need the same: (target, nodes)."""
        nodes = -(-self.target.devices // per_node)
        result = np.ones((len(self.target.degrees), nodes))
        for d, dim in enumerate(self.target.dims):
            if dim not in self.named:
                result *= self.target.distinct(per_node)[d]
        return result

    def pairs(
        self,
        senders: Ints,
        receivers: Ints,
        *,
        rows: Ints | None = None,
        columns: Ints | None = None,
    ) -> Floats:
        """Return what passes between pairs of devices: (source, target, pairs)."""
        rows = np.arange(len(self.source.degrees)) if rows is None else rows
        columns = np.arange(len(self.target.degrees)) if columns is None else columns
        used = self.source.used[rows][:, None, senders]
        result = (used & self.target.used[columns][None, :, receivers]).astype(np.float64)
        for held, want in zip(self.held, self.wanted, strict=True):
            lengths = _lengths(held, want)
            table = lengths[held.rows[:, None, senders], want.rows[None, :, receivers]]
            _multiply(result, table, held.of[rows], want.of[columns])
        return result

    def sent(self) -> Floats:
        """Return what each device sends, itself included: (source, target, devices)."""
        each = self.copies[None, :] / self.replicas[:, None]
        result = self.source.used[:, None, :] * each[..., None]
        for held, want in zip(self.held, self.wanted, strict=True):
            sums = _lengths(held, want) @ _members(want, self.target.devices)[:, 0].T
            _multiply(result, sums[held.rows].transpose(0, 2, 1), held.of, want.of)
        return result


def _multiply(result: Floats, table: Floats, rows: Ints, columns: Ints) -> None:
    """Multiply by a table over patterns, spread over the configurations that have them."""
    if len(table) == 1:
        result *= table[0][columns][None]
    elif table.shape[1] == 1:
        result *= table[:, 0][rows][:, None]
    else:
        result *= table[rows[:, None], columns[None, :]]


def _any(used: NDArray[np.bool_], per_node: int) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.logical_or.reduceat(
        used, np.arange(0, used.shape[1], per_node), axis=1
    )
    return found


def _members(pattern: _Pattern, per_node: int) -> Floats:
    """Return which intervals occur in each node: (patterns, nodes, intervals)."""
    count, devices = pattern.rows.shape
    node = np.broadcast_to(np.arange(devices) // per_node, (count, devices))
    result = np.zeros((count, -(-devices // per_node), len(pattern.lo)))
    result[np.arange(count)[:, None], node, pattern.rows] = 1.0
    return result


def _lengths(held: _Pattern, want: _Pattern) -> Floats:
    """Return the overlap of every held with every wanted interval."""
    lo = np.maximum(held.lo[:, None], want.lo[None, :])
    hi = np.minimum(held.hi[:, None], want.hi[None, :])
    lengths: Floats = np.maximum(hi - lo, 0).astype(np.float64)
    return lengths


def _held(need: Need, configs: Configurations, lengths: Mapping[str, int]) -> _Pattern:
    whole = need.start + need.reach.size * need.unit
    if need.source not in configs.dims:
        return _constant(need.start, whole, configs)
    reach = Reach(need.source, lengths[need.source])
    return _pattern(need.source, configs, lengths[need.source], reach, 0, 1)


def _wanted(need: Need, configs: Configurations, lengths: Mapping[str, int]) -> _Pattern:
    dim = need.reach.dim
    if dim not in configs.dims or not lengths.get(dim):
        return _constant(need.start, need.start + need.reach.size * need.unit, configs)
    return _pattern(dim, configs, lengths[dim], need.reach, need.start, need.unit)


def _constant(lo: int, hi: int, configs: Configurations) -> _Pattern:
    rows = np.zeros((1, configs.devices), dtype=np.int64)
    return _Pattern(np.array([lo]), np.array([hi]), rows, np.zeros(len(configs.degrees), np.int64))


@lru_cache(maxsize=8192)
def _pattern(
    dim: str, configs: Configurations, length: int, reach: Reach, start: int, unit: int
) -> _Pattern:
    """Return the intervals along a dim under every degree, and who has which."""
    axis = configs.dims.index(dim)
    degree = configs.degrees[:, axis]
    first: dict[int, int] = {}
    lo: list[int] = []
    hi: list[int] = []
    for p in np.unique(degree):
        first[int(p)] = len(lo)
        for i in range(int(p)):
            a, b = reach.span(i * length // int(p), (i + 1) * length // int(p))
            lo.append(start + a * unit)
            hi.append(start + b * unit)
    offset = np.array([first[int(p)] for p in degree])
    state = offset[:, None] + configs.place[axis]
    rows, of = np.unique(state, axis=0, return_inverse=True)
    return _Pattern(np.array(lo), np.array(hi), rows, np.asarray(of).reshape(-1))
