"""The best layer-wise strategy of a network, and what it competes with."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.graph import Graph
from traincast.parallel.strategy import DIMS, LayerSplit
from traincast.search.strategies import PROVEN, Search
from traincast.simulate.layerwise import Outcome, Setting, Tables, build_tables, evaluate

BASELINES = ("data", "model", "hybrid", "uniform")


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
    """The next best."""
    ranked: bool = True
    """Whether it is proven that no other strategy comes between them."""
    notes: tuple[str, ...] = field(default=())

    @property
    def optimal(self) -> bool:
        """Whether no other strategy can be better."""
        return self.best.step_s - self.bound_s <= PROVEN * self.best.step_s

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
    found = Search(tables, _allowed(tables, fixed), max_memory).run(top)
    best, *others = found.best
    spent = time.perf_counter() - begun
    rivals = baselines(tables)
    notes = []
    for name, rival in rivals.items():
        allowed = not fixed and (max_memory is None or rival.memory_bytes <= max_memory)
        if allowed and rival.step_s < best.step_s * (1 - PROVEN):
            best = rival
            notes.append(f"The search itself found nothing better than {name}.")
    return Plan(
        tables=tables, best=best, baselines=rivals, bound_s=min(found.bound, best.step_s),
        search_s=spent, others=tuple(others), ranked=found.proven, notes=tuple(notes),
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
