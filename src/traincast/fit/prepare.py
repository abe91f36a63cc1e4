"""From a table to what a fit is made on: roles given or guessed, factors checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InputFileError, InvalidValueError
from traincast.fit.factors import (
    FEWEST_ROWS,
    Column,
    Factor,
    Role,
    Runs,
    check_times,
    combination,
    complete_rows,
    is_numeric,
    level_factor,
    moves_with,
    number_factor,
)
from traincast.fit.roles import guess_time, is_extrinsic, is_workers, not_a_factor
from traincast.fit.table import Table, missing, say_rows

_GAPS = 0.2
"""A column with a larger share of empty cells is no factor unless asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the user says of the columns."""

    time: str | None = None
    intrinsic: tuple[str, ...] | None = None
    """Names, or products of names such as filters*kernel; `1` is the base."""
    extrinsic: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    group: str | None = None
    needed: tuple[str, ...] = ()
    """Factors that an expression of the user names."""

    def terms(self) -> tuple[tuple[str, ...], ...]:
        """Return the products of factors that the user wrote."""
        return tuple(
            tuple(part.strip() for part in term.split("*"))
            for term in self.intrinsic or ()
            if "*" in term
        )

    @property
    def base(self) -> bool:
        """Whether the user asked for a term without a factor."""
        return "1" in (self.intrinsic or ())


@dataclass(slots=True)
class _Found:
    factors: dict[str, Factor] = field(default_factory=dict)
    columns: dict[str, Column] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def prepare(table: Table, wish: Wish) -> Runs:
    """Return the runs with their factors; raise where the table cannot be fitted."""
    time = wish.time or guess_time(list(table.columns), table.path)
    table.column(time)
    found = _Found()
    if table.repeated:
        names = ", ".join(table.repeated)
        found.warnings.append(f"several columns are called {names}: the first is used")
    roles = _roles(table, time, wish, found)
    if not table.rows:
        raise InputFileError(table.path, "has no rows", f"a fit needs at least {FEWEST_ROWS}")
    extra = [wish.group] if wish.group and wish.group not in roles else []
    keep, said = complete_rows(table, [*roles, *extra], time)
    found.warnings += said
    check_times(table, time, keep)
    keep = _levels(table, roles, wish, keep, found)
    times = check_times(table, time, keep)
    _numbers(table, roles, keep, found)
    _together(found, wish.needed)
    if not found.factors:
        why = "; ".join(f"{name} {text}" for name, text in found.left_out.items())
        fix = "name columns with --intrinsic and --extrinsic"
        raise InputFileError(table.path, f"has no factor that varies ({why})", fix)
    if table.total > len(table.rows):
        found.warnings.append(
            f"{table.path} has {table.total:,} runs: an even sample of {len(table.rows):,} is used"
        )
    groups = None
    if wish.group:
        groups = np.array([table.column(wish.group)[i] for i in keep])
        if len(np.unique(groups)) < 2:
            problem = f"column {wish.group} is the same in every run"
            raise InputFileError(table.path, problem, "--group needs at least 2 groups")
    order = [name for name in roles if name in found.factors]
    return Runs(
        path=table.path, time=time, times=times, rows=np.array([table.rows[i] for i in keep]),
        factors=tuple(found.factors[name] for name in order), columns=found.columns,
        groups=groups, warnings=tuple(found.warnings), left_out=found.left_out, total=table.total,
    )  # fmt: skip


def _roles(table: Table, time: str, wish: Wish, found: _Found) -> dict[str, Role]:
    """Return the role of each factor, in the order of the expression: intrinsic ones first."""
    for name in (*wish.categorical, *filter(None, [wish.group]), *wish.needed):
        table.column(name)
    if wish.needed:
        return dict.fromkeys(wish.needed, "intrinsic")
    given = [
        part.strip() for term in wish.intrinsic or () if term != "1" for part in term.split("*")
    ]
    for name in (*given, *(wish.extrinsic or ())):
        table.column(name)
        if name == time:
            raise InvalidValueError(f"{name} is the time and cannot be a factor of it")
    both = set(given) & set(wish.extrinsic or ())
    if both:
        names = ", ".join(sorted(both))
        raise InvalidValueError(f"{names}: give a factor as intrinsic or as extrinsic, not both")
    inner, outer = list(dict.fromkeys(given)), list(dict.fromkeys(wish.extrinsic or ()))
    if wish.intrinsic is not None and wish.extrinsic is not None:
        return {**dict.fromkeys(inner, "intrinsic"), **dict.fromkeys(outer, "extrinsic")}
    for name in table.columns:
        if name in (time, wish.group, *inner, *outer):
            continue
        why = not_a_factor(name)
        if why:
            found.left_out[name] = why
        elif wish.extrinsic is None and is_extrinsic(name) and _positive(table.columns[name]):
            outer.append(name)
        elif wish.intrinsic is None:
            inner.append(name)
    if wish.extrinsic is None:
        # Of factors that change together the first is kept: better workers than what they imply.
        outer.sort(key=lambda name: not is_workers(name))
    guessed = _guessable(table, inner, set(given), wish.categorical, found)
    return {**dict.fromkeys(guessed, "intrinsic"), **dict.fromkeys(outer, "extrinsic")}


def _positive(cells: Sequence[str]) -> bool:
    """Tell whether a column's numbers are all above 0, as a product's factor has to be."""
    try:
        return all(float(cell) > 0 for cell in cells if cell)
    except ValueError:
        return True


def _guessable(
    table: Table, names: Sequence[str], given: set[str], categorical: Sequence[str], found: _Found
) -> list[str]:
    """Return the names less those that no expression can use, which nobody asked for."""
    kept = []
    for name in names:
        cells = table.columns[name]
        why = ""
        gaps = sum(map(missing, cells))
        if gaps > _GAPS * len(cells):
            why = "is empty" if gaps == len(cells) else f"is empty in {gaps} of {len(cells)} rows"
        elif not is_numeric(cells) and name not in categorical:
            _, _, why = level_factor(name, "intrinsic", cells)
        if why and name not in given:
            found.left_out[name] = why
        else:
            kept.append(name)
    return kept


def _levels(
    table: Table, roles: Mapping[str, Role], wish: Wish, keep: list[int], found: _Found
) -> list[int]:
    """Read the categorical factors; return the rows less those of levels with a single run."""
    names = [
        n for n in roles
        if n in wish.categorical or not is_numeric([table.columns[n][i] for i in keep])
    ]  # fmt: skip
    kept = {}
    for name in names:
        cells = [table.columns[name][i] for i in keep]
        factor, alone, why = level_factor(name, roles[name], cells)
        if factor is None:
            _leave_out(found, name, why)
            continue
        for level in alone:
            row = table.rows[keep[cells.index(level)]]
            found.warnings.append(
                f"{name}={level} has one run ({say_rows([row])}): it gets no coefficient, and its "
                "run is left out"
            )
        keep = [i for i in keep if table.columns[name][i] not in alone]
        kept[name] = factor
    for name, factor in kept.items():
        cells = [table.columns[name][i] for i in keep]
        again, _, why = level_factor(name, factor.role, cells)
        if again is None:
            _leave_out(found, name, why)
        else:
            found.factors[name] = again
            found.columns[name] = np.array(cells)
    return keep


def _numbers(table: Table, roles: Mapping[str, Role], keep: Sequence[int], found: _Found) -> None:
    for name, role in roles.items():
        if name in found.factors or name in found.left_out:
            continue
        factor, values, why = number_factor(table, name, role, keep)
        if factor is None:
            _leave_out(found, name, why)
        else:
            found.factors[name] = factor
            found.columns[name] = values


def _together(found: _Found, needed: Sequence[str]) -> None:
    """Leave out factors that always change together with others."""
    names = list(found.factors)
    for i, name in enumerate(names):
        for other in names[:i]:
            if other in found.factors and moves_with(found.columns[other], found.columns[name]):
                if needed:
                    found.warnings.append(f"{name} and {other} always change together")
                    continue
                why = f"always changes together with {other}: one constant stands for both"
                _leave_out(found, name, why)
                del found.factors[name]
                break
    outer = [n for n, f in found.factors.items() if f.role == "extrinsic" and not f.categorical]
    if len(outer) > 2:
        logs: NDArray[np.float64] = np.array(
            [np.log(np.asarray(found.columns[n], float)) for n in outer]
        )
        for name, others in combination(logs, outer):
            _leave_out(found, name, f"is a product of powers of {', '.join(others)}")
            del found.factors[name]


def _leave_out(found: _Found, name: str, why: str) -> None:
    found.left_out[name] = why
    found.warnings.append(f"{name} {why}: it gets no constant")
