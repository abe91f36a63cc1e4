"""How much passes between two layers under every pair of their configurations.

A part of the producer holds an interval of every dim, and a part of the consumer needs one, so what
passes from device s to device d is the product over dims of the lengths of two intervals' overlap.
These lengths depend on one dim's degrees alone: computed once for each dim, they are multiplied.

What a device receives is what it needs less what it holds itself; what it sends to all is a product
of sums, one over each dim's parts. Only pairs of devices of one node have to be looked at singly.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    near = np.zeros(local.shape[:2])
    port, node, far = np.zeros_like(near), np.zeros_like(near), np.zeros_like(near)
    for first in range(0, devices, per_node):
        group = np.arange(first, min(first + per_node, devices))
        n = len(group)
        inside = whole.pairs(np.repeat(group, n), np.tile(group, n))
        inside = inside.reshape(*near.shape, n, n)
        here = local[:, :, group]
        # Of several copies in a node one is enough.
        incoming = np.minimum(inside.sum(axis=2), needed[None, :, group])
        outgoing = np.maximum(inside.sum(axis=3) / whole.replicas[:, None, None], here)
        near += (incoming - here).sum(axis=2)
        busiest = np.maximum(incoming, outgoing) - here
        np.maximum(port, busiest.max(axis=2), out=port)
        into = (needed[None, :, group] - incoming).sum(axis=2)
        out = np.maximum(sent[:, :, group] - outgoing, 0).sum(axis=2)
        far += into
        np.maximum(node, np.maximum(into, out), out=node)
    return Traffic(near, far, port, node)


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
        named = set()
        for need in needs:
            self.held.append(_held(need, source, lengths[0]))
            self.wanted.append(_wanted(need, target, lengths[1]))
            named.add(need.reach.dim)
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

    def pairs(self, senders: Ints, receivers: Ints) -> Floats:
        """Return what passes between pairs of devices: (source, target, pairs)."""
        used = self.source.used[:, None, senders] & self.target.used[None, :, receivers]
        result = used.astype(np.float64)
        for held, want in zip(self.held, self.wanted, strict=True):
            lengths = _lengths(held, want)
            if len(want.rows) == 1 and len(want.lo) == 1:
                result *= lengths[:, 0][held.rows[:, senders]][held.of][:, None, :]
            elif len(held.rows) == 1 and len(held.lo) == 1:
                result *= lengths[0][want.rows[:, receivers]][want.of][None]
            else:
                table = lengths[held.rows[:, None, senders], want.rows[None, :, receivers]]
                result *= table[held.of[:, None], want.of[None, :]]
        return result

    def sent(self) -> Floats:
        """Return what each device sends, itself included: (source, target, devices)."""
        result = (
            self.source.used[:, None, :]
            * (self.copies[None, :] / self.replicas[:, None])[..., None]
        )
        for held, want in zip(self.held, self.wanted, strict=True):
            lengths = _lengths(held, want)
            # Each of the parts along the dim once: the first devices of a pattern repeat them.
            sums = np.stack(
                [lengths[:, np.unique(row)].sum(axis=1) for row in want.rows], axis=1
            )  # (held intervals, patterns of the target)
            by = sums[held.rows]  # (held patterns, devices, target patterns)
            result = result * by[held.of][:, :, want.of].transpose(0, 2, 1)
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
