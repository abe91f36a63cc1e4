"""The best strategies of small networks, with limits and without, against enumeration."""

import itertools
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from traincast.errors import PredictionError
from traincast.ingest import resolve
from traincast.search.layerwise import make_plan
from traincast.search.strategies import Found, Search
from traincast.simulate.layerwise import Outcome, Tables, build_tables, evaluate

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from plan_published import setting_of


@cache
def _tables(objective: str) -> Tables:
    """Return the costs of LeNet-5 on two devices, its convolutions by sample or channel alone."""
    return build_tables(resolve("lenet5"), setting_of("1x2xp100", objective))


def _allowed() -> list[np.ndarray]:
    configs = _tables("published").configs
    return [(c.degree("height") == 1) & (c.degree("width") == 1) for c in configs]


@cache
def _all(objective: str) -> list[Outcome]:
    tables = _tables(objective)
    choices = itertools.product(*(np.flatnonzero(good) for good in _allowed()))
    found = [evaluate(tables, tuple(map(int, choice))) for choice in choices]
    return sorted(found, key=lambda o: (o.step_s, o.choice))


def _search(objective: str, limit: float | None = None, top: int = 1) -> Found:
    return Search(_tables(objective), _allowed(), limit).run(top)


@pytest.mark.parametrize("objective", ["published", "overlap"])
def test_the_best_of_all_strategies(objective: str) -> None:
    every, found = _all(objective), _search(objective)
    assert len(every) > 2000
    assert found.bound <= every[0].step_s * (1 + 1e-9)
    assert found.best[0].step_s <= every[0].step_s * (1 + 5e-4)
    if found.proven:
        assert found.best[0].step_s == pytest.approx(every[0].step_s, rel=1e-9)
    assert objective == "overlap" or found.proven


@pytest.mark.parametrize("objective", ["published", "overlap"])
def test_the_next_best_are_the_next_best(objective: str) -> None:
    every, found = _all(objective), _search(objective, top=20)
    assert found.proven
    assert [o.step_s for o in found.best] == pytest.approx([o.step_s for o in every[:20]], rel=1e-9)
    assert len({o.choice for o in found.best}) == 20


@pytest.mark.parametrize("objective", ["published", "overlap"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.5, 0.8])
def test_the_best_of_those_that_fit(objective: str, share: float) -> None:
    every = _all(objective)
    sizes = sorted(o.memory_bytes for o in every)
    limit = sizes[int(share * len(sizes))]
    found = _search(objective, limit)
    best = next(o for o in every if o.memory_bytes <= limit)
    assert found.best[0].memory_bytes <= limit
    assert found.bound <= best.step_s * (1 + 1e-9)
    assert found.proven
    assert found.best[0].step_s == pytest.approx(best.step_s, rel=1e-9)


def test_the_next_best_of_those_that_fit() -> None:
    every = _all("published")
    limit = sorted(o.memory_bytes for o in every)[len(every) // 3]
    fitting = [o for o in every if o.memory_bytes <= limit]
    found = _search("published", limit, top=7)
    assert found.proven
    assert [o.step_s for o in found.best] == pytest.approx([o.step_s for o in fitting[:7]])
    assert all(o.memory_bytes <= limit for o in found.best)


def test_a_limit_that_no_strategy_keeps() -> None:
    least = min(o.memory_bytes for o in _all("published"))
    with pytest.raises(PredictionError, match="does not fit"):
        _search("published", least - 1)
    assert _search("published", least).best[0].memory_bytes == least


def test_fewer_strategies_than_asked_for() -> None:
    layers = build_tables(resolve("lenet5"), setting_of("1x2xp100")).network.layers
    fixed = [(x.name, dict.fromkeys(x.dims, 1)) for x in layers[:-1]]
    plan = make_plan(resolve("lenet5"), setting_of("1x2xp100"), fixed=fixed, top=50)
    last = len(plan.tables.configs[-1].degrees)
    assert len(plan.others) == last - 1
    assert plan.ranked
