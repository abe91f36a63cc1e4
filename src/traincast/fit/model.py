"""A fitted expression: its constants with intervals, and what it predicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.fit.constants import Array, Form
from traincast.fit.factors import Column, Factor, scaled_columns
from traincast.fit.generic import GenericForm
from traincast.fit.roles import seconds

LEVEL = 0.95
"""Of every interval."""
_Z = 1.959964
Value = float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A constant in the table's units."""

    value: float | None
    """None where it is not defined: the power of a term whose coefficient is 0."""
    interval: tuple[float, float] | None
    """From the bootstrap; None where there was none, or the constant was locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Times of given points, in the unit of the time's column."""

    times: Array
    low: Array
    high: Array
    """Ends of the interval of one new run."""
    outside: tuple[tuple[str, ...], ...]
    """What is beyond the training ranges at each point."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """Everything that a prediction needs."""

    form: Form
    factors: tuple[Factor, ...]
    time: str
    """The column of times."""
    unit: float
    """What times are divided by: their median in training."""
    x: Array
    """The scaled constants (P), in the order of `form.constants`."""
    draws: Array
    """The same of each bootstrap sample (B, P)."""
    locked: NDArray[np.bool_]
    """Constants that were not fitted (P)."""
    spread: tuple[float, float]
    """Logarithm of measured over predicted at the ends of the interval, held out: −, +."""
    reference: Mapping[str, float]
    """What extrinsic factors are divided by in the reported expression; 1 where not named."""

    @property
    def seconds(self) -> float | None:
        """Seconds in the unit of the time's column; None where its name does not say."""
        return seconds(self.time)

    def factor(self, name: str) -> Factor:
        """Return a factor by name."""
        for factor in self.factors:
            if factor.name == name:
                return factor
        names = [f.name for f in self.factors]
        raise UnknownNameError("factor", name, names, f"the model has {', '.join(names)}")

    def columns(self, points: Sequence[Mapping[str, Value]]) -> dict[str, Column]:
        """Return the values of points by factor; what a point lacks is typical."""
        known = {f.name for f in self.factors}
        for point in points:
            for name in point:
                if name not in known:
                    self.factor(name)
        found: dict[str, Column] = {}
        for f in self.factors:
            values = [point.get(f.name, f.typical) for point in points]
            found[f.name] = np.array([_checked(f, v) for v in values])
        return found

    def times(self, columns: Mapping[str, Column]) -> Array:
        """Return the times of many points at once, given by columns of values."""
        bound = self.form.bind(scaled_columns(self.factors, columns))
        return np.asarray(bound.times(self.x[None])[0] * self.unit)

    def drawn(self, columns: Mapping[str, Column]) -> Array:
        """Return the times (B, N) that each bootstrap sample's constants give."""
        bound = self.form.bind(scaled_columns(self.factors, columns))
        many = max(1, 2_000_000 // max(len(next(iter(columns.values()))) * len(self.x), 1))
        parts = [bound.times(self.draws[i : i + many]) for i in range(0, len(self.draws), many)]
        return np.concatenate(parts) * self.unit if parts else np.empty((0, bound_size(columns)))

    def forecast(self, columns: Mapping[str, Column]) -> Forecast:
        """Return times with intervals: constants that might be otherwise, and runs that scatter."""
        times = self.times(columns)
        safe = np.maximum(times, 1e-300)
        width = np.zeros_like(times)
        if len(self.draws):
            width = _Z * np.log(np.maximum(self.drawn(columns), 1e-300)).std(axis=0)
        low, high = (np.sqrt(width**2 + e**2) for e in self.spread)
        return Forecast(times=times, low=safe * np.exp(-low), high=safe * np.exp(high),
                        outside=self.outside(columns))  # fmt: skip

    def outside(self, columns: Mapping[str, Column]) -> tuple[tuple[str, ...], ...]:
        """Say for each point which factors are beyond their training range."""
        said: list[list[str]] = [[] for _ in range(bound_size(columns))]
        for f in self.factors:
            if f.categorical:
                continue
            values = np.asarray(columns[f.name], float)
            edge = 1e-9 * max(abs(f.low), abs(f.high))
            for i in np.flatnonzero((values < f.low - edge) | (values > f.high + edge)):
                said[i].append(f"{f.name} {values[i]:g} is outside {f.low:g} to {f.high:g}")
        return tuple(tuple(s) for s in said)

    @cached_property
    def original(self) -> dict[str, Estimate]:
        """The constants in the table's units, by name; two kinds of a name are told apart by key.

        Keys are `kind:name`, kinds being those of `Constant`.
        """
        values = self.in_units(self.x[None])[0]
        draws = self.in_units(self.draws) if len(self.draws) else None
        found = {}
        for i, c in enumerate(self.form.constants):
            value = None if np.isnan(values[i]) else float(values[i])
            interval = None
            if draws is not None and value is not None and not self.locked[i]:
                mine = draws[:, i][~np.isnan(draws[:, i])]
                if len(mine) > 1:
                    ends = np.quantile(mine, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
                    interval = (float(ends[0]), float(ends[1]))
            found[f"{c.kind}:{c.name}"] = Estimate(value=value, interval=interval)
        return found

    def in_units(self, x: Array) -> Array:
        """Return constants (R, P) in the table's units.

        a·(I/I₀)^p·(E/E₀)^q is a·I₀^−p·E₀^−q times I^p·E^q; a power of a term that is 0 is not
        defined. Multipliers come as such, not as logarithms.
        """
        found = x.copy()
        constants = self.form.constants
        refs = {f.name: f.reference for f in self.factors}
        if not isinstance(self.form, GenericForm):
            found[:, [c.linear for c in constants]] *= self.unit
            return found
        form = self.form
        at = {(c.kind, c.name): i for i, c in enumerate(constants)}
        outer = np.full(len(x), self.unit)
        for name in form.scaling:
            outer *= (refs[name] / self.reference.get(name, 1.0)) ** -x[:, at["scaling", name]]
        for i, c in enumerate(constants):
            if c.kind in ("level", "base"):
                found[:, i] *= outer
            elif c.kind == "constant":
                found[:, i] *= self.unit
            elif c.kind == "multiplier":
                found[:, i] = np.exp(x[:, i])
            elif c.kind == "communication":
                growth = next(k for k, g in enumerate(constants) if g.kind == "growth")
                found[:, i] *= self.unit * refs[c.factor] ** -x[:, growth]
                found[:, growth] = np.where(x[:, i] > 0, x[:, growth], np.nan)
        first = next((i for i, c in enumerate(constants) if c.kind == "coefficient"), 0)
        for k, (term, name, level) in enumerate(form.pairs):
            if not level:
                found[:, first + term] *= refs[name] ** -x[:, k]
            found[:, k] = np.where(x[:, first + term] > 0, found[:, k], np.nan)
        for term in range(len(form.terms)):
            found[:, first + term] *= outer
        return found


def bound_size(columns: Mapping[str, Column]) -> int:
    """Return how many points columns hold."""
    return len(next(iter(columns.values()))) if columns else 0


def _checked(factor: Factor, value: Value) -> Value:
    """Return a value that a factor may have."""
    if factor.categorical:
        if str(value) not in factor.levels:
            raise UnknownNameError(
                f"level of {factor.name}", str(value), factor.levels,
                f"the fit saw {', '.join(factor.levels)}",
            )  # fmt: skip
        return str(value)
    try:
        found = float(value)
    except ValueError:
        found = np.nan
    least = "zero or more" if factor.role == "intrinsic" else "above 0"
    if not (np.isfinite(found) and (found > 0 or (found == 0 and factor.role == "intrinsic"))):
        raise InvalidValueError(f"{factor.name}={value} is not a number {least}")
    return found


def canonical(form: Form, x: Array) -> Array:
    """Return constants (R, P) with the cheapest level of each intrinsic category at 0.

    Adding to all levels of a category is the same as adding to the base, so only differences
    between levels say anything; what they share is the base. Where nothing scales, the base is the
    same as the constant.
    """
    if not isinstance(form, GenericForm):
        return x
    found = x.copy()
    kinds = [c.kind for c in form.constants]
    base, constant = kinds.index("base"), kinds.index("constant")
    for name in form.categories:
        mine = [i for i, c in enumerate(form.constants) if c.kind == "level" and c.factor == name]
        least = found[:, mine].min(axis=1)
        found[:, mine] -= least[:, None]
        found[:, base] += least
    outer = [i for i, kind in enumerate(kinds) if kind in ("scaling", "multiplier")]
    still = (found[:, outer] == 0).all(axis=1)
    found[:, constant] += np.where(still, found[:, base], 0.0)
    found[:, base] = np.where(still, 0.0, found[:, base])
    return found
