"""The best layer-wise strategy of a network, and what it competes with.

Under the published objective the cost of a strategy is a sum over layers and edges, and elimination
finds its minimum. Under ours, gradients are synchronised while backward goes on, and the step is no
such sum. There, with c compute and update, x transfers, b the part of both that is backward, and s
synchronisation,

    step ≥ c + x + max(0, s − b) ≥ c + x + λ (s − b)        for every λ from 0 to 1

is a sum again: its minimum bounds every step from below, and the strategies that attain it for some
λ are candidates, of which the simulated step decides. A limit on memory is added likewise: device 0
holds a part of every layer, so its memory is a sum over layers, and the price of a byte is raised
until the strategy fits. Where the best step found equals the bound, it is proven best.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, PredictionError, UnknownNameError
from traincast.graph import Graph
from traincast.parallel.strategy import DIMS, LayerSplit
from traincast.search.elimination import solve
from traincast.simulate.layerwise import Outcome, Setting, Tables, build_tables, evaluate
from traincast.units import format_bytes

Floats = NDArray[np.float64]
BASELINES = ("data", "model", "hybrid", "uniform")
_NEVER = 1e9
"""Seconds that rule a configuration out."""
_PROVEN = 1e-9
_CLOSE = 5e-4
"""Share of a step below which a better strategy is not worth another search."""
_PRICES = 12


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """The strategy that a search found, and how sure it is."""

    tables: Tables
    best: Outcome
    baselines: Mapping[str, Outcome]
    bound_s: float
    """No strategy makes a shorter step."""
    search_s: float
    """Seconds that tables and search took."""
    others: tuple[Outcome, ...] = ()
    """Next best, each one change of a layer away from a better one."""
    notes: tuple[str, ...] = field(default=())

    @property
    def optimal(self) -> bool:
        """Whether no other strategy can be better."""
        return self.best.step_s - self.bound_s <= _PROVEN * self.best.step_s

    @property
    def layers(self) -> tuple[LayerSplit, ...]:
        """The configuration of every layer."""
        return splits(self.tables, self.best.choice)


def splits(tables: Tables, choice: Sequence[int]) -> tuple[LayerSplit, ...]:
    """Return a choice as configurations of named layers."""
    return tuple(
        LayerSplit(layer.name, layer.kind, configs.named(c))
        for layer, configs, c in zip(tables.network.layers, tables.configs, choice, strict=True)
    )


def make_plan(
    graph: Graph,
    setting: Setting,
    *,
    fixed: Sequence[tuple[str, Mapping[str, int]]] = (),
    max_memory: float | None = None,
    top: int = 1,
) -> Plan:
    """Search the best strategy. `fixed` holds layers at given degrees, `max_memory` is in bytes."""
    begun = time.perf_counter()
    tables = build_tables(graph, setting)
    search = _Search(tables, _allowed(tables, fixed), max_memory)
    best, bound = search.run()
    spent = time.perf_counter() - begun
    rivals = baselines(tables)
    notes = []
    if max_memory is None or best.memory_bytes <= max_memory:
        for name, rival in rivals.items():
            free = not fixed and (max_memory is None or rival.memory_bytes <= max_memory)
            if free and rival.step_s < best.step_s:
                best = rival
                notes.append(f"The search itself found nothing better than {name}.")
    others = _others(search, best, top - 1) if top > 1 else ()
    return Plan(
        tables=tables, best=best, baselines=rivals, bound_s=min(bound, best.step_s),
        search_s=spent, others=others, notes=tuple(notes),
    )  # fmt: skip


def _allowed(
    tables: Tables, fixed: Sequence[tuple[str, Mapping[str, int]]]
) -> list[NDArray[np.bool_]]:
    names = {layer.name: i for i, layer in enumerate(tables.network.layers)}
    allowed = [np.ones(len(c.degrees), dtype=bool) for c in tables.configs]
    for name, degrees in fixed:
        matches = [i for n, i in names.items() if n == name] or [
            i for n, i in names.items() if n.split(".")[-1] == name or n.endswith(name)
        ]
        if not matches:
            raise UnknownNameError("layer", name, names, "; --json lists the layers of a plan")
        if len(matches) > 1:
            raise InvalidValueError(
                f"layer {name!r} could be any of {len(matches)}; write its whole name, such as "
                f"{tables.network.layers[matches[0]].name}"
            )
        configs = tables.configs[matches[0]]
        good = allowed[matches[0]].copy()
        for dim, degree in degrees.items():
            if dim not in DIMS:
                raise UnknownNameError("dim", dim, DIMS, f"(known: {', '.join(DIMS)})")
            good &= configs.degree(dim) == degree
        if not good.any():
            have = {d: sorted(set(configs.degree(d).tolist())) for d in configs.dims}
            raise InvalidValueError(
                f"--fix {name}: no configuration has "
                f"{', '.join(f'{k}={v}' for k, v in degrees.items())}; degrees are "
                + ", ".join(f"{d} {'/'.join(map(str, v))}" for d, v in have.items())
            )
        allowed[matches[0]] = good
    return allowed


class _Search:
    def __init__(
        self, tables: Tables, allowed: Sequence[NDArray[np.bool_]], limit: float | None
    ) -> None:
        self.tables, self.limit = tables, limit
        self.barred = [np.where(good, 0.0, _NEVER) for good in allowed]
        if limit is not None:
            for barred, memory in zip(self.barred, tables.memory, strict=True):
                barred[memory > limit] = _NEVER
                if barred.min() >= _NEVER:
                    raise PredictionError(_no_room(tables, limit))

    def run(self) -> tuple[Outcome, float]:
        """Return the best strategy found, and a lower bound of every step."""
        best, bound = self._weighed(0.0)
        if self.limit is None or best.memory_bytes <= self.limit:
            return best, bound
        return self._within(best, bound)

    def _weighed(self, price: float) -> tuple[Outcome, float]:
        """Return the best at a price on bytes, and the bound that it proves."""
        if self.tables.published:
            choice, least = self._solve(1.0, 0.0, price)
            return evaluate(self.tables, choice), self._bound(least, price)
        low, high = 0.0, 1.0
        found: list[Outcome] = []
        bound = 0.0
        for weight in (0.0, 1.0, 0.5, -1.0, -1.0):
            at = weight if weight >= 0 else (low + high) / 2
            choice, least = self._solve(at, at, price)
            outcome = evaluate(self.tables, choice)
            found.append(outcome)
            bound = max(bound, self._bound(least, price))
            best = min(found, key=lambda o: o.step_s + price * o.memory_bytes)
            if best.step_s <= bound * (1 + _CLOSE):
                break
            if 0 < at < 1:
                hidden = self._backward(choice)
                low, high = (at, high) if outcome.sync_s > hidden else (low, at)
        return min(found, key=lambda o: o.step_s + price * o.memory_bytes), bound

    def _bound(self, least: float, price: float) -> float:
        return least - price * (self.limit or 0.0) + self.tables.shards.elsewhere

    def _backward(self, choice: Sequence[int]) -> float:
        tables = self.tables
        total = sum(float(t[c]) for t, c in zip(tables.shards.backward, choice, strict=True))
        for (u, v), passing in tables.edges.items():
            total += float(passing.seconds[choice[u], choice[v]]) * passing.back
        return total

    def _solve(self, sync: float, hidden: float, price: float) -> tuple[tuple[int, ...], float]:
        """Minimise compute, update and transfers + sync · s − hidden · b + price · bytes."""
        t = self.tables
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
        found = solve(nodes, edges)
        return found.choice, found.bound

    def _within(self, best: Outcome, bound: float) -> tuple[Outcome, float]:
        """Raise the price of memory until the strategy fits; keep the best bound on the way."""
        assert self.limit is not None
        low, high = 0.0, 4 * best.step_s / max(best.memory_bytes - self.limit, 1.0)
        fitting: Outcome | None = None
        for step in range(_PRICES):
            price = high if fitting is None else (low + high) / 2
            outcome, proven = self._weighed(price)
            bound = max(bound, proven)
            if outcome.memory_bytes <= self.limit:
                if fitting is None or outcome.step_s < fitting.step_s:
                    fitting = outcome
                high = price
            elif fitting is None:
                low, high = high, high * 16
            else:
                low = price
            if fitting is not None and step > 6:
                break
        if fitting is None:
            raise PredictionError(_no_room(self.tables, self.limit))
        return fitting, bound


def _no_room(tables: Tables, limit: float) -> str:
    least = sum(float(m.min()) for m in tables.memory)
    return (
        f"{tables.network.graph.name} does not fit: every strategy needs at least "
        f"{format_bytes(least)} on a device, and there are {format_bytes(limit)}; "
        "take a smaller batch or more devices"
    )


def baselines(tables: Tables) -> dict[str, Outcome]:
    """Return data, model and hybrid parallelism and the best uniform split, priced alike."""
    devices = tables.setting.cluster.devices
    every = [{"sample": devices} for _ in tables.configs]
    model, hybrid = [], []
    for layer, configs in zip(tables.network.layers, tables.configs, strict=True):
        inner = next((d for d in ("channel", "head", "expert") if d in configs.dims), "sample")
        model.append({inner: devices})
        hybrid.append({"channel" if layer.kind == "linear" else "sample": devices})
    result = {
        name: evaluate(tables, _nearest(tables, wanted))
        for name, wanted in (("data", every), ("model", model), ("hybrid", hybrid))
    }
    result["uniform"] = _uniform(tables)
    return result


def _nearest(tables: Tables, wanted: Sequence[Mapping[str, int]]) -> tuple[int, ...]:
    known: dict[tuple[int, tuple[tuple[str, int], ...]], int] = {}
    choice = []
    for configs, degrees in zip(tables.configs, wanted, strict=True):
        key = (id(configs), tuple(degrees.items()))
        if key not in known:
            known[key] = configs.nearest(degrees)
        choice.append(known[key])
    return tuple(choice)


def _uniform(tables: Tables) -> Outcome:
    """Return the best strategy that gives every layer the same degrees, as far as it has them."""
    tried: dict[tuple[tuple[str, int], ...], None] = {}
    for configs in {id(c): c for c in tables.configs}.values():
        for i in range(len(configs.degrees)):
            tried.setdefault(tuple(configs.named(i).items()))
    choices = {_nearest(tables, [dict(d)] * len(tables.configs)) for d in tried}
    return min((evaluate(tables, c) for c in sorted(choices)), key=lambda o: o.step_s)


def _others(search: _Search, best: Outcome, count: int) -> tuple[Outcome, ...]:
    """Return the next best strategies that are one change of a layer away from a better one."""
    tables = search.tables
    seen = {best.choice}
    found: list[Outcome] = []
    border = [best]
    for _ in range(count):
        if not border:
            break
        here = border.pop(0)
        for layer, configs in enumerate(tables.configs):
            for c in range(len(configs.degrees)):
                choice = (*here.choice[:layer], c, *here.choice[layer + 1 :])
                if choice in seen or search.barred[layer][c] > 0:
                    continue
                seen.add(choice)
                outcome = evaluate(tables, choice)
                if search.limit is None or outcome.memory_bytes <= search.limit:
                    border.append(outcome)
                    found.append(outcome)
        border.sort(key=lambda o: (o.step_s, o.choice))
        border = border[:count]
    return tuple(sorted(found, key=lambda o: (o.step_s, o.choice))[:count])
