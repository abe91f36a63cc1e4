"""The best strategies by tables of costs: exact where nothing overlaps, bounded where it does.

Under the published objective the cost of a strategy is a sum over layers and edges, and elimination
finds its minimum. Under ours, gradients are synchronised while backward goes on, and the step is no
such sum. There, with c compute and update, x transfers, b the part of both that is backward, and s
synchronisation,

    step ≥ c + x + max(0, s − b) ≥ c + x + λ (s − b)        for every λ from 0 to 1

is a sum again: its minimum bounds every step from below, and the strategies that attain it for some
λ are candidates, of which the simulated step decides. A limit on memory is added likewise: device 0
holds a part of every layer, so its memory m is a sum over layers, and for every price p ≥ 0

    step ≥ step + p (m − limit)        for every strategy that fits

(Lagrange). The best price is where the line through the best strategy that fits and the best that
does not finds nothing below it. What is left between the bound and the best strategy found is
closed by ranking: strategies are taken in the order of their bound and simulated, until the bound
reaches the best (Handler and Zang, Networks 10, 1980). The next best are found the same way.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.errors import PredictionError
from traincast.search.elimination import solve
from traincast.search.ranking import ranked
from traincast.simulate.layerwise import Outcome, Tables, evaluate
from traincast.units import format_bytes

Floats = NDArray[np.float64]
PROVEN = 1e-9
"""Share of a step below which two are the same."""
_CLOSE = 5e-4
"""Share of a step below which no other weights are tried."""
_NEVER = 1e9
"""Seconds that rule a configuration out."""
_PRICES = 12
_RANKED = (100, 1000)
_VISITS = 100_000
"""Strategies that are simulated to close a gap, fewest and most; and their layers in all."""


class _Weights(NamedTuple):
    """Factors of a sum over layers and edges that bounds the step from below."""

    sync: float = 1.0
    hidden: float = 0.0
    """Of what backward can hide."""
    price: float = 0.0
    """Seconds a byte."""


class _Lower(NamedTuple):
    """The best strategy found under some weights, and the bound that they prove."""

    best: Outcome
    bound: float
    weights: _Weights


@dataclass(frozen=True, slots=True)
class Found:
    """The best strategies of a search."""

    best: tuple[Outcome, ...]
    """Best first."""
    bound: float
    """No strategy makes a shorter step, seconds."""
    proven: bool
    """Whether no other strategy belongs among them; as far as `bound` says for the first alone."""


class Search:
    """A search over all strategies of some tables, for those that are allowed and fit."""

    def __init__(
        self, tables: Tables, allowed: Sequence[NDArray[np.bool_]], limit: float | None = None
    ) -> None:
        self.tables, self.limit = tables, limit
        self.barred = [np.where(good, 0.0, _NEVER) for good in allowed]
        if limit is not None:
            for barred, memory in zip(self.barred, tables.memory, strict=True):
                barred[memory > limit] = _NEVER
                if barred.min() >= _NEVER:
                    raise PredictionError(_no_room(tables, limit))

    def run(self, top: int = 1) -> Found:
        """Return the `top` best strategies, and a lower bound of every step."""
        lower = self._weighed(0.0)
        if not self._fits(lower.best):
            lower = self._within(lower)
        if top == 1 and lower.bound >= lower.best.step_s * (1 - PROVEN):
            return Found((lower.best,), lower.bound, proven=True)
        return self._ranked(lower, top)

    def _fits(self, outcome: Outcome) -> bool:
        return self.limit is None or outcome.memory_bytes <= self.limit

    def _weighed(self, price: float) -> _Lower:
        """Return the best at a price on bytes, and the bound that it proves."""
        if self.tables.published:
            weights = _Weights(price=price)
            choice, least = self._solve(weights)
            return _Lower(evaluate(self.tables, choice), least + self._shift(weights), weights)
        low, high = 0.0, 1.0
        found: list[_Lower] = []
        for weight in (0.0, 1.0, 0.5, -1.0, -1.0):
            at = weight if weight >= 0 else (low + high) / 2
            weights = _Weights(at, at, price)
            choice, least = self._solve(weights)
            outcome = evaluate(self.tables, choice)
            found.append(_Lower(outcome, least + self._shift(weights), weights))
            best = min((f.best for f in found), key=lambda o: o.step_s + price * o.memory_bytes)
            bound = max(found, key=lambda f: f.bound)
            if best.step_s <= bound.bound * (1 + _CLOSE):
                break
            if 0 < at < 1:
                hidden = self._backward(choice)
                low, high = (at, high) if outcome.sync_s > hidden else (low, at)
        return bound._replace(best=best)

    def _shift(self, weights: _Weights) -> float:
        """Return what the bound has besides the sum over layers and edges."""
        return self.tables.shards.elsewhere - weights.price * (self.limit or 0.0)

    def _backward(self, choice: Sequence[int]) -> float:
        tables = self.tables
        total = sum(float(t[c]) for t, c in zip(tables.shards.backward, choice, strict=True))
        for (u, v), passing in tables.edges.items():
            total += float(passing.seconds[choice[u], choice[v]]) * passing.back
        return total

    def _costs(self, weights: _Weights) -> tuple[list[Floats], dict[tuple[int, int], Floats]]:
        """Return compute, update and transfers + sync · s − hidden · b + price · bytes."""
        t, (sync, hidden, price) = self.tables, weights
        nodes = [
            forward + back * (1 - hidden) + sync * synced + update + price * memory + barred
            for forward, back, synced, update, memory, barred in zip(
                t.shards.forward, t.shards.backward, t.sync, t.update, t.memory, self.barred,
                strict=True,
            )
        ]  # fmt: skip
        edges = {
            pair: p.seconds * (1 - hidden * p.back) if hidden else p.seconds
            for pair, p in t.edges.items()
        }
        return nodes, edges

    def _solve(self, weights: _Weights) -> tuple[tuple[int, ...], float]:
        found = solve(*self._costs(weights))
        return found.choice, found.bound

    def _within(self, over: _Lower) -> _Lower:
        """Return the best that fits along the line of best prices; `over` does not fit."""
        assert self.limit is not None
        least = [
            int((memory + barred).argmin())
            for memory, barred in zip(self.tables.memory, self.barred, strict=True)
        ]
        under = evaluate(self.tables, least)
        if not self._fits(under):
            raise PredictionError(_no_room(self.tables, self.limit))
        best, strongest, above = under, over, over.best
        for _ in range(_PRICES):
            price = (under.step_s - above.step_s) / (above.memory_bytes - under.memory_bytes)
            found = self._weighed(max(price, 0.0))
            if found.bound > strongest.bound:
                strongest = found
            at = found.best
            if self._fits(at):
                best = min(best, at, key=lambda o: (o.step_s, o.choice))
            if at.choice in (under.choice, above.choice):
                break
            if self._fits(at):
                under = at
            else:
                above = at
        return strongest._replace(best=best)

    def _ranked(self, lower: _Lower, top: int) -> Found:
        """Simulate strategies in the order of their bound until no other can be among the best."""
        nodes, edges = self._costs(lower.weights)
        shift = self._shift(lower.weights)
        pool = {o.choice: o for o in (lower.best, *self._changed(lower, top))}
        steps = sorted(o.step_s for o in pool.values())
        most = top + min(max(_VISITS // len(nodes), _RANKED[0]), _RANKED[1])
        bound = lower.bound

        def worst() -> float:
            return steps[top - 1] if len(steps) >= top else _NEVER / 2

        order = ranked(nodes, edges, most, worst() - lower.bound)
        proven = order is not None
        for taken, (total, choice) in enumerate(order or (), 1):
            bound = max(bound, min(total + shift, steps[0]))
            if total + shift >= worst() * (1 - 1e-12):
                break
            proven = taken < most
            if choice in pool:
                continue
            outcome = evaluate(self.tables, choice)
            if self._fits(outcome):
                pool[choice] = outcome
                insort(steps, outcome.step_s)
        best = sorted(pool.values(), key=lambda o: (o.step_s, o.choice))[:top]
        return Found(tuple(best), best[0].step_s if proven else bound, proven)

    def _changed(self, lower: _Lower, top: int) -> list[Outcome]:
        """Return the most promising strategies that differ from the best in one layer."""
        if top == 1:
            return []
        nodes, edges = self._costs(lower.weights)
        here = lower.best.choice
        costs = [n.copy() for n in nodes]
        for (u, v), table in edges.items():
            costs[u] += table[:, here[v]]
            costs[v] += table[here[u], :]
        found = sorted(
            (float(c - own[here[i]]), i, k)
            for i, own in enumerate(costs)
            for k, c in enumerate(own)
            if k != here[i] and self.barred[i][k] == 0
        )[: 4 * top]
        outcomes = [evaluate(self.tables, (*here[:i], k, *here[i + 1 :])) for _, i, k in found]
        return [o for o in outcomes if self._fits(o)]


def _no_room(tables: Tables, limit: float) -> str:
    least = sum(float(m.min()) for m in tables.memory)
    return (
        f"{tables.network.graph.name} does not fit: every strategy needs at least "
        f"{format_bytes(least)} on a device, and there are {format_bytes(limit)}; "
        "take a smaller batch or more devices"
    )
