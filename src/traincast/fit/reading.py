"""What a fitted model says: shares, effects, the serial part, where more workers stop paying."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from traincast.fit.constants import Array
from traincast.fit.factors import Column, Factor, number, scaled_columns
from traincast.fit.generic import GenericForm
from traincast.fit.model import LEVEL, Model, Value
from traincast.fit.roles import is_workers

PAYS = 0.05
"""A doubling that saves less than this no longer helps."""
_FAR = 64
"""How far beyond the training range a best number of workers is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What doubling a factor does to the time, as a fraction: −0.4 saves 40 %."""

    factor: str
    at: float
    """The value that is doubled."""
    value: float
    interval: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependence:
    """The mean time of all runs as one factor is varied, in the unit of the time's column."""

    factor: Factor
    values: tuple[Value, ...]
    times: Array
    low: Array
    high: Array


def shares(model: Model, columns: Mapping[str, Column]) -> dict[str, float]:
    """Return each part's mean share of the time over some points; they sum to 1.

    Parts are the terms, `base`, `constant`, `communication`, and each categorical factor.
    """
    constants = model.form.constants
    split = sum(not c.linear for c in constants)
    bound = model.form.bind(scaled_columns(model.factors, columns))
    design = bound.design(model.x[None, :split])[0]
    parts = design * model.x[split:, None]
    part = (parts / np.maximum(bound.times(model.x[None]), 1e-300)).mean(axis=1)
    found: dict[str, float] = {}
    for c, share in zip(constants[split:], part, strict=True):
        name = c.factor if c.kind == "level" else c.name
        found[name] = found.get(name, 0.0) + float(share)
    if isinstance(model.form, GenericForm) and not found.get("base"):
        found.pop("base", None)
    return found


def typical_point(model: Model) -> dict[str, Value]:
    """Return the medians and most frequent levels."""
    return {f.name: f.typical for f in model.factors}


def at_point(model: Model, **settings: Value) -> float:
    """Return the time at a point; factors not named are typical."""
    return float(model.times(model.columns([settings]))[0])


def double(model: Model, name: str, at: float, point: Mapping[str, Value]) -> Change:
    """Return what doubling a factor does to the time, with its interval."""
    columns = model.columns([{**point, name: at}, {**point, name: 2 * at}])
    times = model.times(columns)
    value = float(times[1] / times[0] - 1)
    interval = (value, value)
    if len(model.draws):
        drawn = model.drawn(columns)
        ends = np.quantile(drawn[:, 1] / drawn[:, 0] - 1, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        interval = (float(ends[0]), float(ends[1]))
    return Change(factor=name, at=at, value=value, interval=interval)


def stops_paying(model: Model, factor: Factor, point: Mapping[str, Value]) -> float | None:
    """Return the least value in training range from where doubling saves under 5 %; else None."""
    grid = np.geomspace(factor.low, factor.high, 200)
    twice = np.concatenate([grid, 2 * grid])
    columns = model.columns([point])
    many = {n: np.repeat(v, len(twice)) for n, v in columns.items()} | {factor.name: twice}
    times = model.times(many)
    saved = 1 - times[200:] / times[:200]
    pays = np.flatnonzero(saved >= PAYS)
    if len(pays) == 0:
        return factor.low
    return None if pays[-1] == 199 else float(grid[pays[-1] + 1])


def best_count(
    model: Model, name: str, point: Mapping[str, Value]
) -> tuple[float, tuple[float, float]] | None:
    """Return the number of workers at which the time is least, with its interval.

    None if more always help, as far as 64 times the most in training.
    """
    factor = model.factor(name)
    most = int(factor.high * _FAR)
    counts = np.unique(np.geomspace(1, most, 1500).round())
    columns = model.columns([point])
    many = {n: np.repeat(v, len(counts)) for n, v in columns.items()} | {name: counts}
    best = int(np.argmin(model.times(many)))
    if best == len(counts) - 1:
        return None
    interval = (float(counts[best]), float(counts[best]))
    if len(model.draws):
        drawn = counts[np.argmin(model.drawn(many), axis=1)]
        ends = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        interval = (float(ends[0]), float(ends[1]))
    return float(counts[best]), interval


def serial_share(model: Model, point: Mapping[str, Value]) -> float | None:
    """Return C over the time at a point: what no number of workers takes away."""
    if not isinstance(model.form, GenericForm):
        return None
    place = next(i for i, c in enumerate(model.form.constants) if c.kind == "constant")
    return float(model.x[place] * model.unit / model.times(model.columns([point]))[0])


def dependence(model: Model, columns: Mapping[str, Column], name: str) -> Dependence:
    """Return the mean time of some runs as one factor takes the values of its range."""
    factor = model.factor(name)
    values: list[Value]
    if factor.categorical:
        values = [*sorted(factor.levels, key=lambda level: (number(level) or 0.0, level))]
    elif factor.low > 0 and factor.high / factor.low > 3:
        values = list(np.geomspace(factor.low, factor.high, 25))
    else:
        values = list(np.linspace(factor.low, factor.high, 25))
    count = len(next(iter(columns.values())))
    at = np.unique(np.linspace(0, count - 1, min(count, 80)).astype(int))
    some = {n: v[at] for n, v in columns.items()}
    many = {n: np.tile(v, len(values)) for n, v in some.items()}
    many[name] = np.repeat(np.array(values), len(at))
    times = model.times(many).reshape(len(values), -1).mean(axis=1)
    low = high = times
    if len(model.draws):
        thin = model.draws[:: max(1, len(model.draws) // 60)]
        bound = model.form.bind(scaled_columns(model.factors, many))
        drawn = np.array([bound.times(d[None])[0].reshape(len(values), -1).mean(axis=1)
                          for d in thin]) * model.unit  # fmt: skip
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return Dependence(factor=factor, values=tuple(values), times=times, low=low, high=high)


def workers_of(model: Model) -> str | None:
    """Return the factor that work is divided among: that of the communication term, or by name."""
    form = model.form
    if isinstance(form, GenericForm) and form.communication:
        return form.communication
    return next((f.name for f in model.factors if is_workers(f.name) and not f.categorical), None)
