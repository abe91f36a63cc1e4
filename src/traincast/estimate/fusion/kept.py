"""What a compiled step keeps for backward, and what backward computes again instead.

AOTAutograd cuts the joint graph where the fewest bytes cross from forward to backward
(`torch._functorch.partitioners.min_cut_rematerialization_partition`): pointwise chains are cheap
enough to run again inside a backward kernel. It never runs again what a library made, a reduction,
a random number, what a library reads in backward, nor a value on a long-lived path: one that also
has a reader beyond the next library call, such as a residual sum. The cut is found here value by
value: one is computed again if what that needs, and is not kept anyway, is no larger.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

from traincast.estimate.fusion.nests import CALL, Joint, Nest, Read, probe
from traincast.graph import DTYPE_BYTES

_UNWRITTEN = 2.0
"""What keeping costs, in sizes, where forward would not have written the value otherwise."""


class Kept(NamedTuple):
    """The cut."""

    values: frozenset[int]
    """Forward values that are kept, without parameters and inputs."""
    again: dict[int, tuple[tuple[Read, ...], float]]
    """For each value that backward computes again: what it is computed from, and operations."""


def kept_values(joint: Joint) -> Kept:
    """Return what is kept and what is computed again."""
    maker: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for i, nest in enumerate(joint.forward):
        maker.update((value, i) for value in nest.writes)
        for value in {read.value for read in nest.reads}:
            readers.setdefault(value, []).append(i)
    needed: dict[int, bool] = {}
    for nest in joint.backward:
        for read in nest.reads:
            if read.value in maker:
                needed[read.value] = needed.get(read.value, False) or nest.pattern == CALL
    fixed = {v for v, i in maker.items() if not joint.forward[i].again}
    fixed |= {v for v, read_by_call in needed.items() if read_by_call}
    for i in _far_apart(joint.forward, maker, readers):
        fixed.update(joint.forward[i].writes)
    kept = {v for v in needed if v in fixed}
    again: dict[int, tuple[tuple[Read, ...], float]] = {}
    for value in sorted(set(needed) - fixed, key=lambda v: maker[v]):
        reads, ops = _recipe(joint, maker, fixed | kept, value)
        more = {r.value for r in reads if r.value in maker} - kept
        written = any(joint.forward[i].pattern == CALL for i in readers.get(value, ()))
        worth = _bytes(joint, value) * (1.0 if written else _UNWRITTEN)
        if sum(_bytes(joint, v) for v in more) <= worth:
            kept |= more
            again[value] = (reads, ops)
        else:
            kept.add(value)
    return Kept(frozenset(kept), again)


def _bytes(joint: Joint, value: int) -> float:
    spec = joint.specs[value]
    return probe(spec) * DTYPE_BYTES[spec.dtype]


def _recipe(
    joint: Joint, maker: dict[int, int], fixed: set[int], value: int
) -> tuple[tuple[Read, ...], float]:
    """Return the values that a chain of pointwise nests starts from, and its operations."""
    found: dict[tuple[int, str], Read] = {}
    seen: set[int] = set()
    ops, todo = 0.0, [value]
    while todo:
        i = maker[todo.pop()]
        if i in seen:
            continue
        seen.add(i)
        ops += joint.forward[i].ops
        for read in joint.forward[i].reads:
            if read.value in maker and read.value not in fixed:
                todo.append(read.value)
            else:
                found[read.value, read.name] = read
    return tuple(found.values()), ops


def _far_apart(
    nests: list[Nest], maker: dict[int, int], readers: dict[int, list[int]]
) -> list[int]:
    """Return readers of a value that lie beyond the first library call after another reader.

    As `ban_if_used_far_apart` of the partitioner.
    """
    found: list[int] = []
    for users in readers.values():
        if len(users) < 2:
            continue
        first = _first_call(nests, maker, readers, users, max(users))
        found += [i for i in users if i > first and nests[i].again]
    return found


def _first_call(
    nests: list[Nest],
    maker: dict[int, int],
    readers: dict[int, list[int]],
    start: list[int],
    last: int,
) -> int:
    todo = list(start)
    heapq.heapify(todo)
    seen = set(todo)
    while todo:
        i = heapq.heappop(todo)
        if nests[i].pattern == CALL:
            return i
        for value in nests[i].writes:
            for user in readers.get(value, ()):
                if user <= last and user not in seen:
                    seen.add(user)
                    heapq.heappush(todo, user)
    return last
