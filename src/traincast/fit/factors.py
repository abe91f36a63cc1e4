"""The factors of a table: numbers and levels, checked, with what is left out and why."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InputFileError
from traincast.fit.table import Table, missing, say_rows

Role = Literal["intrinsic", "extrinsic"]
MOST_LEVELS = 24
FEWEST_ROWS = 8
_SAME = 1 - 1e-9
Column = NDArray[np.generic]


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A column that the time may depend on."""

    name: str
    role: Role
    reference: float = 1.0
    """What its values are divided by: the median of those above 0."""
    low: float = 0.0
    high: float = 0.0
    """Range of a number in training."""
    levels: tuple[str, ...] = ()
    """Levels of a category, the most frequent first; empty for a number."""

    @property
    def categorical(self) -> bool:
        """Whether it has levels instead of numbers."""
        return bool(self.levels)

    @property
    def typical(self) -> float | str:
        """The median, or the most frequent level."""
        return self.levels[0] if self.levels else self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """What a fit is made on."""

    path: str
    time: str
    """The column of times."""
    times: NDArray[np.float64]
    factors: tuple[Factor, ...]
    columns: Mapping[str, Column]
    """Values of each factor: numbers as they stand in the table, or levels."""
    rows: NDArray[np.int64]
    """Where each run stands in the file."""
    groups: NDArray[np.generic] | None
    """What is held out together."""
    warnings: tuple[str, ...]
    left_out: Mapping[str, str]
    """Columns that get no constant, and why."""
    total: int = 0
    """Runs in the file."""

    def scaled(self, at: Sequence[int] | NDArray[np.int64] | None = None) -> dict[str, Column]:
        """Return factors over their references, of all runs or of some."""
        return scaled_columns(self.factors, self.columns, at)

    def factor(self, name: str) -> Factor:
        """Return a factor by name."""
        return next(f for f in self.factors if f.name == name)


def scaled_columns(
    factors: Sequence[Factor],
    columns: Mapping[str, Column],
    at: Sequence[int] | NDArray[np.int64] | None = None,
) -> dict[str, Column]:
    """Return numbers over their references, and levels as they are."""
    found: dict[str, Column] = {}
    for f in factors:
        values = columns[f.name] if at is None else columns[f.name][at]
        found[f.name] = values if f.categorical else np.asarray(values, float) / f.reference
    return found


def is_numeric(cells: Sequence[str]) -> bool:
    """Tell whether a column holds numbers: at least half of what it says are."""
    said = [cell for cell in cells if not missing(cell)]
    numbers = sum(number(cell) is not None for cell in said)
    return bool(said) and 2 * numbers >= len(said)


def number(cell: str) -> float | None:
    """Return the number in a cell; None where it is none."""
    try:
        return float(cell)
    except ValueError:
        return None


def read_numbers(table: Table, name: str, keep: Sequence[int], fix: str) -> list[float]:
    """Return the numbers of a column at the rows kept; raise naming rows that hold none."""
    cells = table.column(name)
    values, bad = [], []
    for i in keep:
        value = number(cells[i])
        if value is None or not math.isfinite(value):
            bad.append(i)
            value = math.nan
        values.append(value)
    if bad:
        what = ", ".join(dict.fromkeys(repr(cells[i]) for i in bad[:3]))
        where = say_rows([table.rows[i] for i in bad])
        raise InputFileError(
            table.path, f"column {name}: {what} in {where} (the header is row 1) is no number", fix
        )
    return values


def complete_rows(table: Table, names: Sequence[str], time: str) -> tuple[list[int], list[str]]:
    """Return the rows that say something in every column, and a warning for each gap."""
    keep = list(range(len(table.rows)))
    said = []
    for name in [time, *names]:
        cells = table.column(name)
        empty = [i for i in keep if missing(cells[i])]
        if len(empty) == len(keep) and empty:
            fix = "name another with --time" if name == time else "leave it out of the factors"
            raise InputFileError(table.path, f"column {name} is empty in every row", fix)
        if empty:
            where = say_rows([table.rows[i] for i in empty])
            said.append(f"{name} is missing in {where}: left out of the fit")
            gone = set(empty)
            keep = [i for i in keep if i not in gone]
    return keep, said


def check_times(table: Table, name: str, keep: Sequence[int]) -> NDArray[np.float64]:
    """Return the times; all have to be above 0."""
    times = np.array(read_numbers(table, name, keep, "times are numbers above 0"))
    wrong = [keep[int(i)] for i in np.flatnonzero(times <= 0)]
    if wrong:
        where = say_rows([table.rows[i] for i in wrong])
        problem = f"column {name} is zero or negative in {where} (the header is row 1)"
        raise InputFileError(table.path, problem, "a time is above 0: correct or remove them")
    if len(times) < FEWEST_ROWS:
        problem = f"has {len(times)} usable runs in column {name}"
        raise InputFileError(table.path, problem, f"a fit needs at least {FEWEST_ROWS}")
    return times


def middle(values: NDArray[np.float64]) -> float:
    """Return the median of values above 0, the lower of two: one that a run had."""
    above = values[values > 0]
    return float(np.quantile(above, 0.5, method="lower")) if len(above) else 1.0


def number_factor(table: Table, name: str, role: Role, keep: Sequence[int]
                  ) -> tuple[Factor | None, NDArray[np.float64], str]:  # fmt: skip
    """Return a numeric factor, its values, and why it gets no constant (empty if it does)."""
    fix = f"correct it, or take the column as levels with --categorical {name}"
    values = np.array(read_numbers(table, name, keep, fix))
    least = np.flatnonzero(values < 0) if role == "intrinsic" else np.flatnonzero(values <= 0)
    if len(least):
        what = "negative" if role == "intrinsic" else "zero or negative"
        where = say_rows([table.rows[keep[int(i)]] for i in least])
        other = (
            "leave it out or shift it" if role == "intrinsic" else f"give it as --intrinsic {name}"
        )
        raise InputFileError(
            table.path, f"column {name} is {what} in {where}: its powers are not defined", other
        )
    if len(np.unique(values)) == 1:
        return None, values, f"is {values[0]:g} in every run"
    reference = middle(values)
    return (
        Factor(name=name, role=role, reference=reference, low=float(values.min()),
               high=float(values.max())),
        values,
        "",
    )  # fmt: skip


def level_factor(
    name: str, role: Role, cells: Sequence[str]
) -> tuple[Factor | None, list[str], str]:
    """Return a categorical factor, the levels with one run, and why it gets no constant."""
    counts = Counter(cells)
    if len(counts) == 1:
        return None, [], f"is {cells[0]!r} in every run"
    if len(counts) > min(MOST_LEVELS, max(len(cells) // 3, 2)):
        return None, [], f"has {len(counts)} different texts in {len(cells)} runs"
    alone = [level for level, count in counts.items() if count == 1]
    levels = tuple(level for level, count in counts.most_common() if count > 1)
    return Factor(name=name, role=role, levels=levels), alone, ""


def moves_with(a: Column, b: Column) -> bool:
    """Tell whether two factors always change together.

    Either one is a power of the other, or their values stand for each other one to one while both
    repeat (a design of few values).
    """
    numbers = a.dtype.kind == "f" and b.dtype.kind == "f"
    if numbers and np.all(np.asarray(a, float) > 0) and np.all(np.asarray(b, float) > 0):
        la, lb = np.log(np.asarray(a, float)), np.log(np.asarray(b, float))
        if abs(np.corrcoef(la, lb)[0, 1]) > _SAME:
            return True
    ca, cb = np.unique(a, return_inverse=True)[1], np.unique(b, return_inverse=True)[1]
    pairs = len(np.unique(np.stack([ca, cb]), axis=1).T)
    most = max(ca.max(), cb.max()) + 1
    return bool(ca.max() == cb.max() and pairs == most and most <= len(a) / 3)


def combination(logs: NDArray[np.float64], names: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return columns of logarithms that are sums of multiples of earlier ones, with those."""
    found = []
    kept: list[int] = []
    centred = logs - logs.mean(axis=1, keepdims=True)
    for i, name in enumerate(names):
        size = float(np.linalg.norm(centred[i]))
        if kept:
            share, *_ = np.linalg.lstsq(centred[kept].T, centred[i], rcond=None)
            rest = centred[i] - share @ centred[kept]
            if np.linalg.norm(rest) < 1e-6 * size:
                part = [names[k] for k, s in zip(kept, share, strict=True) if abs(s) > 1e-6]
                found.append((name, part))
                continue
        kept.append(i)
    return found
