"""The cheapest choice for every node of a graph with costs on nodes and edges, exactly.

    total(S) = Σ node[i][S_i] + Σ edge[i, j][S_i, S_j]

A node with at most two neighbours is eliminated as published (Jia et al., ICML 2018, Eq. 2 and 3):
its costs and those of its edges are replaced by the minimum over its choices, a table over its
neighbours, and two tables over the same nodes are added up. The same step works for any number of
neighbours, with larger tables (variable elimination: Dechter, Artificial Intelligence 113, 1999),
so every graph is solved exactly. Proof of one step: the total of any S is at least that of the
reduced graph for S without the node, and equal where the node takes its minimum.

Where tables would exceed `cap` entries, what is left is bounded from below by messages that move
costs between nodes and edges without changing any total (Kolmogorov's TRW-S, IEEE PAMI 28, 2006),
and the best choice found is improved node by node.

Choices that no neighbour can make worth while are dropped first (dead-end elimination: Desmet et
al., Nature 356, 1992). Ties go to the lowest index and nodes are taken in a fixed order, so the
answer is always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
CAP = 2**24
"""Entries of the largest table: 128 MiB."""
_SWEEPS = 60


@dataclass(frozen=True, slots=True)
class Solution:
    """A choice for every node."""

    choice: tuple[int, ...]
    cost: float
    """Its total."""
    bound: float
    """No choice has a lower total; equal to `cost` where it is exact."""
    exact: bool
    final: int
    """Nodes that were left when no node had fewer than three neighbours; 2 where none was."""


class Step(NamedTuple):
    """One elimination: which choice of a node is best, given those of its neighbours."""

    node: int
    scope: tuple[int, ...]
    """Its neighbours."""
    best: NDArray[np.intp]
    """Over the neighbours' choices."""
    own: Floats
    """Costs of the node's choices alone."""
    tables: Sequence[tuple[tuple[int, ...], Floats]]
    """Costs together with neighbours, by the nodes they are over; empty unless they are kept."""


def total_cost(
    nodes: Sequence[Floats], edges: Mapping[tuple[int, int], Floats], choice: Sequence[int]
) -> float:
    """Return the total of a choice."""
    alone = sum(float(costs[c]) for costs, c in zip(nodes, choice, strict=True))
    return alone + sum(float(table[choice[i], choice[j]]) for (i, j), table in edges.items())


def solve(
    nodes: Sequence[Floats], edges: Mapping[tuple[int, int], Floats], cap: int = CAP
) -> Solution:
    """Return the cheapest choice; exact unless a table of more than `cap` entries were needed."""
    kept = undominated(nodes, edges)
    work = Elimination(*narrowed(nodes, edges, kept))
    steps = work.reduce()
    left = sorted(work.near)
    final = len(left) or min(2, len(nodes))
    chosen: dict[int, int] = {}
    base = work.constant
    if not left:
        bound, exact = base, True
    else:
        order, largest = work.order()
        exact = largest <= cap
        if exact:
            steps += work.eliminate(order)
            bound = work.constant
        else:
            core = _Core(work.unary, work.pairs(), left)
            chosen, bound = core.solve(_SWEEPS)
            bound += base
    for step in reversed(steps):
        chosen[step.node] = int(step.best[tuple(chosen[n] for n in step.scope)])
    choice = tuple(int(kept[i][chosen[i]]) for i in range(len(nodes)))
    cost = total_cost(nodes, edges, choice)
    if exact:
        bound = cost
    return Solution(choice, cost, min(bound, cost), exact, final)


def narrowed(
    nodes: Sequence[Floats],
    edges: Mapping[tuple[int, int], Floats],
    kept: Sequence[NDArray[np.intp]],
) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
    """Return nodes and edges with some choices of each node alone."""
    return (
        [costs[k] for costs, k in zip(nodes, kept, strict=True)],
        {(i, j): table[np.ix_(kept[i], kept[j])] for (i, j), table in edges.items()},
    )


def undominated(
    nodes: Sequence[Floats], edges: Mapping[tuple[int, int], Floats], slack: float = 0.0
) -> list[NDArray[np.intp]]:
    """Return the choices of each node that can be part of a total within `slack` of the best.

    One whose cost with its edges at their least exceeds that of another with its edges at their
    most is worse whatever the neighbours choose.
    """
    least = [np.array(costs, dtype=np.float64) for costs in nodes]
    most = [costs.copy() for costs in least]
    ends: dict[int, tuple[Floats, ...]] = {}
    for (i, j), table in edges.items():
        if i == j:
            least[i] += np.diagonal(table)
            most[i] += np.diagonal(table)
            continue
        if id(table) not in ends:
            ends[id(table)] = (table.min(1), table.max(1), table.min(0), table.max(0))
        low_i, high_i, low_j, high_j = ends[id(table)]
        least[i] += low_i
        most[i] += high_i
        least[j] += low_j
        most[j] += high_j
    return [
        np.flatnonzero(low <= high.min() * (1 + 1e-12) + slack)
        for low, high in zip(least, most, strict=True)
    ]


class Elimination:
    """Tables over sets of nodes; `near` holds the neighbours of the nodes that are left."""

    def __init__(
        self,
        nodes: Sequence[Floats],
        edges: Mapping[tuple[int, int], Floats],
        keep: bool = False,
    ) -> None:
        self.keep = keep
        self.unary = {i: np.asarray(c, dtype=np.float64) for i, c in enumerate(nodes)}
        self.near: dict[int, set[int]] = {i: set() for i in self.unary}
        self.tables: dict[tuple[int, ...], Floats] = {}
        self.touching: dict[int, set[tuple[int, ...]]] = {i: set() for i in self.unary}
        self.constant = 0.0
        for (i, j), table in edges.items():
            if i == j:
                self.unary[i] = self.unary[i] + np.diagonal(table)
            elif i < j:
                self._add((i, j), np.asarray(table, dtype=np.float64))
            else:
                self._add((j, i), np.asarray(table, dtype=np.float64).T)

    def _add(self, scope: tuple[int, ...], table: Floats) -> None:
        """Enter a table; one over the same nodes is added up (edge elimination)."""
        if not scope:
            self.constant += float(table)
            return
        if len(scope) == 1:
            self.unary[scope[0]] = self.unary[scope[0]] + table
            return
        old = self.tables.get(scope)
        self.tables[scope] = table if old is None else old + table
        for n in scope:
            self.touching[n].add(scope)
            self.near[n].update(m for m in scope if m != n)

    def remove(self, node: int) -> Step:
        """Eliminate a node: the minimum over its choices, as a table over its neighbours."""
        scope = tuple(sorted(self.near[node]))
        mine = [(s, self.tables.pop(s)) for s in sorted(self.touching[node])]
        own = self.unary[node]
        shape = tuple(len(self.unary[n]) for n in scope)
        if len(scope) == 2 and len(mine) == 2 and all(len(s) == 2 for s, _ in mine):
            first, second = (t if s[1] == node else t.T for s, t in mine)
            if mine[0][0] != tuple(sorted((scope[0], node))):
                first, second = second, first
            values, best = _through(first + own, second)
        else:
            whole = np.broadcast_to(own, (*shape, len(own)))
            for s, table in mine:
                whole = whole + _spread(table, s, (*scope, node))
            best = whole.argmin(axis=-1)
            values = np.take_along_axis(whole, best[..., None], -1)[..., 0]
        for s, _ in mine:
            for n in s:
                self.touching[n].discard(s)
        for n in scope:
            self.near[n].discard(node)
        del self.near[node], self.touching[node], self.unary[node]
        self._add(scope, values)
        return Step(node, scope, best, own, mine if self.keep else ())

    def reduce(self) -> list[Step]:
        """Eliminate nodes with at most two neighbours while there are any."""
        steps: list[Step] = []
        ready = [n for n in sorted(self.near) if len(self.near[n]) <= 2]
        while ready:
            again: set[int] = set()
            for node in ready:
                if node in self.near and len(self.near[node]) <= 2:
                    again |= self.near[node]
                    steps.append(self.remove(node))
            ready = sorted(n for n in again if n in self.near and len(self.near[n]) <= 2)
        return steps

    def order(self) -> tuple[list[int], float]:
        """Return an order that adds few neighbours (min-fill), and its largest table."""
        near = {n: set(m) for n, m in self.near.items()}
        sizes = {n: len(self.unary[n]) for n in near}
        order: list[int] = []
        largest = 1.0
        fill = {n: _fill(near, n) for n in near}
        while near:
            node = min(near, key=lambda n: (fill[n], len(near[n]), n))
            around = near.pop(node)
            entries = float(sizes[node])
            for n in around:
                entries *= sizes[n]
            largest = max(largest, entries)
            for n in around:
                near[n].discard(node)
                near[n] |= around - {n}
            for n in around | {m for a in around for m in near[a]}:
                fill[n] = _fill(near, n)
            order.append(node)
        return order, largest

    def eliminate(self, order: Sequence[int]) -> list[Step]:
        """Eliminate all nodes in an order."""
        return [self.remove(node) for node in order]

    def pairs(self) -> dict[tuple[int, int], Floats]:
        """Return the tables, all over two nodes as long as `reduce` alone has run."""
        return {(s[0], s[1]): table for s, table in self.tables.items()}


def _through(first: Floats, second: Floats) -> tuple[Floats, NDArray[np.intp]]:
    """Return min over b of first[a, b] + second[c, b] and where it is, slice by slice."""
    rows, columns = len(first), len(second)
    values = np.empty((rows, columns))
    best = np.empty((rows, columns), dtype=np.intp)
    step = max(1, 2**17 // max(second.size, 1))
    for at in range(0, rows, step):
        whole = first[at : at + step, None, :] + second[None, :, :]
        index = whole.argmin(axis=-1)
        best[at : at + step] = index
        values[at : at + step] = np.take_along_axis(whole, index[..., None], -1)[..., 0]
    return values, best


def _spread(table: Floats, scope: tuple[int, ...], onto: tuple[int, ...]) -> Floats:
    """Return a table with its axes in the order of `onto`, length 1 where it has none."""
    present = [n for n in onto if n in scope]
    moved = table.transpose([scope.index(n) for n in present])
    lengths = iter(moved.shape)
    return moved.reshape([next(lengths) if n in scope else 1 for n in onto])


def _fill(near: Mapping[int, set[int]], node: int) -> int:
    """Return how many pairs of neighbours are not neighbours yet."""
    around = sorted(near[node])
    return sum(1 for i, a in enumerate(around) for b in around[i + 1 :] if b not in near[a])


class _Core:
    """What no exact table fits: bounded by messages, then improved node by node."""

    def __init__(
        self,
        unary: Mapping[int, Floats],
        pairs: Mapping[tuple[int, int], Floats],
        left: Sequence[int],
    ) -> None:
        self.unary, self.left, self.pairs = unary, left, pairs
        self.near: dict[int, list[tuple[int, Floats]]] = {n: [] for n in left}
        for (i, j), table in pairs.items():
            self.near[i].append((j, table))
            self.near[j].append((i, table.T))
        for rows in self.near.values():
            rows.sort(key=lambda entry: entry[0])

    def solve(self, sweeps: int) -> tuple[dict[int, int], float]:
        """Return the best choice found, and a lower bound."""
        own = {n: self.unary[n].copy() for n in self.left}
        moved = {pair: table.copy() for pair, table in self.pairs.items()}
        best, cost = self._improve({n: int(self.unary[n].argmin()) for n in self.left})
        bound, still = -np.inf, 0
        for _ in range(sweeps):
            for order in (self.left, list(reversed(self.left))):
                picked = self._sweep(order, own, moved)
                found, value = self._improve(picked)
                if value < cost:
                    best, cost = found, value
            least = sum(float(costs.min()) for costs in (*own.values(), *moved.values()))
            still = still + 1 if least - bound < 1e-4 * abs(cost) else 0
            bound = max(bound, least)
            if still == 3 or cost - bound < 1e-9 * abs(cost):
                break
        return best, bound

    def _sweep(
        self,
        order: Sequence[int],
        own: dict[int, Floats],
        moved: dict[tuple[int, int], Floats],
    ) -> dict[int, int]:
        """Pull costs from edges into each node and share them out over the edges ahead.

        No total changes; what nodes and edges cost at least, all added up, never falls.
        """
        place = {n: k for k, n in enumerate(order)}
        picked: dict[int, int] = {}
        for n in order:
            mine, decided = own[n], self.unary[n].copy()
            ahead = []
            for j, table in self.near[n]:
                edge = moved[n, j] if n < j else moved[j, n].T
                least = edge.min(axis=1)
                edge -= least[:, None]
                mine += least
                if place[j] > place[n]:
                    ahead.append(edge)
                    decided += least
                else:
                    decided += table[:, picked[j]]
            picked[n] = int(decided.argmin())
            weight = 1.0 / max(len(ahead), len(self.near[n]) - len(ahead), 1)
            for edge in ahead:
                np.add(edge, weight * mine[:, None], out=edge)
            mine *= 1.0 - weight * len(ahead)
        return picked

    def _improve(self, choice: dict[int, int]) -> tuple[dict[int, int], float]:
        """Change one node at a time to its best, until none gets better."""
        changed = True
        while changed:
            changed = False
            for n in self.left:
                costs = self.unary[n].copy()
                for j, table in self.near[n]:
                    costs += table[:, choice[j]]
                best = int(costs.argmin())
                if costs[best] < costs[choice[n]] - 1e-15:
                    choice[n], changed = best, True
        cost = sum(float(self.unary[n][choice[n]]) for n in self.left)
        cost += sum(float(t[choice[i], choice[j]]) for (i, j), t in self.pairs.items())
        return choice, cost
