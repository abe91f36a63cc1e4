"""The cheapest choices of a graph in order, by going back through its elimination.

Eliminating node v leaves the least of its costs over its neighbours' choices. Whatever a choice S
takes for v instead costs an excess over that least, and the total of S is the least total plus the
excess at every node, none of them negative. Going backwards, the neighbours' choices are settled
when it is v's turn; so a partial choice's excess so far is that of its best completion, and taking
the lowest first gives all choices in the order of their totals.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from traincast.search.elimination import (
    CAP,
    Elimination,
    Step,
    narrowed,
    total_cost,
    undominated,
)

Floats = NDArray[np.float64]


def ranked(
    nodes: Sequence[Floats],
    edges: Mapping[tuple[int, int], Floats],
    most: int,
    slack: float = np.inf,
    cap: int = CAP,
) -> Iterator[tuple[float, tuple[int, ...]]] | None:
    """Return totals and choices in order: at most so many, none more than `slack` above the least.

    None where a table of more than `cap` entries were needed.
    """
    kept = undominated(nodes, edges, slack)
    work = Elimination(*narrowed(nodes, edges, kept), keep=True)
    steps = work.reduce()
    order, largest = work.order()
    if largest > cap:
        return None
    steps += work.eliminate(order)
    return _walk(nodes, edges, kept, steps[::-1], most, slack)


def _walk(
    nodes: Sequence[Floats],
    edges: Mapping[tuple[int, int], Floats],
    kept: Sequence[NDArray[np.intp]],
    steps: Sequence[Step],
    most: int,
    slack: float,
) -> Iterator[tuple[float, tuple[int, ...]]]:
    place = {step.node: depth for depth, step in enumerate(steps)}
    limit = slack + 1e-12 * abs(slack) if np.isfinite(slack) else np.inf
    # Excess, a number for ties, and a choice that differs from an earlier one from a depth on.
    heap: list[tuple[float, int, tuple[int, ...], int, int]] = []
    chosen: list[int] = []
    excess, least, pushed = 0.0, np.nan, 0
    for left in range(most, 0, -1):
        beside: list[tuple[float, int, int]] = []
        for depth in range(len(chosen), len(steps)):
            above = _excess(steps[depth], chosen, place)
            best = int(above.argmin())
            near = np.flatnonzero(above <= limit - excess).tolist()
            beside += [(excess + float(above[c]), depth, c) for c in near if c != best]
            chosen.append(best)
        whole = tuple(chosen)
        for value, depth, c in heapq.nsmallest(left, beside):
            pushed += 1
            heapq.heappush(heap, (value, pushed, whole, depth, c))
        if len(heap) >= left:
            heap = heapq.nsmallest(left, heap)  # sorted, and so a heap
            limit = min(limit, heap[-1][0])
        choice = tuple(int(kept[n][whole[place[n]]]) for n in range(len(nodes)))
        if np.isnan(least):
            least = total_cost(nodes, edges, choice)
        yield least + excess, choice
        if not heap:
            return
        excess, _, whole, depth, c = heapq.heappop(heap)
        chosen = [*whole[:depth], c]


def _excess(step: Step, chosen: Sequence[int], place: Mapping[int, int]) -> Floats:
    """Return by how much each choice of a node is above its least, given its neighbours'."""
    costs = step.own.copy()
    for scope, table in step.tables:
        costs += table[tuple(slice(None) if n == step.node else chosen[place[n]] for n in scope)]
    result: Floats = costs - costs.min()
    return result
