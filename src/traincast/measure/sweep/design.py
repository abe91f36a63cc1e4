"""Which points of the factors' space to run: all of a grid, or a Latin hypercube."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

Point = dict[str, Any]


class Factor(Protocol):
    """A setting that varies."""

    def at(self, place: float) -> Any:
        """Return the value at a place from 0 up to, but not at, 1."""

    def levels(self) -> Sequence[Any]:
        """Return the values that a grid takes."""


@dataclass(frozen=True, slots=True)
class Levels:
    """A factor that takes a few values, each as often as the others, or twice as often if twice."""

    values: tuple[Any, ...]

    def at(self, place: float) -> Any:
        """Return the value at a place from 0 up to, but not at, 1."""
        return self.values[int(place * len(self.values))]

    def levels(self) -> Sequence[Any]:
        """Return the values that a grid takes."""
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A factor between two bounds, evenly spread over its value or over its logarithm."""

    low: float
    high: float
    log: bool = False
    whole: bool = False
    """Whether only whole numbers are taken."""
    count: int | None = None
    """Values in a grid."""

    def at(self, place: float) -> Any:
        """Return the value at a place from 0 up to, but not at, 1."""
        # A whole number stands for the stretch of half a unit around it.
        edge = 0.5 if self.whole else 0.0
        value = self._between(self.low - edge, self.high + edge, place)
        return min(max(round(value), int(self.low)), int(self.high)) if self.whole else value

    def levels(self) -> Sequence[Any]:
        """Return the values that a grid takes; whole numbers without repetition."""
        count = self.count or 2
        values = [self._between(self.low, self.high, i / (count - 1)) for i in range(count)]
        return list(dict.fromkeys(round(v) if self.whole else v for v in values))

    def _between(self, low: float, high: float, place: float) -> float:
        if self.log:
            return math.exp(math.log(low) + place * math.log(high / low))
        return low + place * (high - low)


def grid(factors: Mapping[str, Factor]) -> list[Point]:
    """Return every combination of the factors' levels."""
    levels = [factor.levels() for factor in factors.values()]
    return [dict(zip(factors, values, strict=True)) for values in itertools.product(*levels)]


def latin_hypercube(
    factors: Mapping[str, Factor], runs: int, seed: int, fits: Callable[[Point], bool]
) -> list[Point]:
    """Return points that spread each factor evenly: one in each of `runs` equal slices of it.

    Points that do not fit exchange single values with others until all do, or until nothing helps:
    that leaves what each factor takes as it was.
    """
    import numpy as np

    draw = np.random.default_rng(seed)
    columns = {
        name: [factor.at((slot + draw.random()) / runs) for slot in draw.permutation(runs)]
        for name, factor in factors.items()
    }
    points = [{name: column[i] for name, column in columns.items()} for i in range(runs)]
    bad = {i for i, point in enumerate(points) if not fits(point)}
    names = list(factors)
    for _ in range(400 * len(bad) if runs > 1 else 0):
        if not bad:
            break
        one = sorted(bad)[draw.integers(len(bad))]
        other = int(draw.integers(runs))
        name = names[draw.integers(len(names))]
        before = len({one, other} & bad)
        _swap(points, one, other, name)
        after = {i for i in (one, other) if not fits(points[i])}
        if len(after) <= before:
            bad = (bad - {one, other}) | after
        else:
            _swap(points, one, other, name)
    return points


def _swap(points: list[Point], one: int, other: int, name: str) -> None:
    points[one][name], points[other][name] = points[other][name], points[one][name]
