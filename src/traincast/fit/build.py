"""From what the user asks to an expression over the factors that a table has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from traincast.errors import InvalidValueError
from traincast.fit.constants import Form
from traincast.fit.expression import ExpressionForm, check_expression, names_in, parse
from traincast.fit.factors import Runs
from traincast.fit.generic import GenericForm
from traincast.fit.prepare import Wish, prepare
from traincast.fit.roles import is_workers
from traincast.fit.table import Table, read_table


@dataclass(frozen=True, slots=True, kw_only=True)
class FormWish:
    """What the user says of the expression."""

    expression: str | None = None
    extended: bool = False
    communication: str | None = None
    """The factor that communication grows with; guessed for an extended form."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)


def load(path: Path, wish: Wish, form: FormWish) -> tuple[Runs, Form]:
    """Return the runs of a table and the expression to fit to them."""
    return build(read_table(path), wish, form)


def build(table: Table, wish: Wish, asked: FormWish) -> tuple[Runs, Form]:
    """Return the runs of a table and the expression to fit to them."""
    if asked.expression is not None:
        names = tuple(n for n in names_in(parse(asked.expression)) if n in table.columns)
        form = ExpressionForm(source=asked.expression, factors=tuple(table.columns),
                              bounds=dict(asked.bounds))  # fmt: skip
        check_expression(form)
        runs = prepare(table, replace(wish, needed=names))
        lost = [n for n in names if n not in {f.name for f in runs.factors}]
        if lost:
            why = "; ".join(f"{n} {runs.left_out.get(n, 'cannot be used')}" for n in lost)
            raise InvalidValueError(f"--expr names a column that says nothing: {why}")
        texts = [f.name for f in runs.factors if f.categorical]
        if texts:
            raise InvalidValueError(
                f"--expr names {', '.join(texts)}, which holds text; only numbers can be in it"
            )
        # Its constants are in the table's units, so nothing is divided.
        plain = tuple(replace(f, reference=1.0) for f in runs.factors)
        _check_bounds(asked.bounds, {c.name for c in form.constants})
        return replace(runs, factors=plain), replace(form, factors=names)
    runs = prepare(table, wish)
    return runs, generic_form(runs, wish, asked)


def generic_form(runs: Runs, wish: Wish, asked: FormWish) -> GenericForm:
    """Return the generic expression over the factors of some runs."""
    _check_bounds(asked.bounds, {f.name for f in runs.factors} | set(runs.left_out))
    numbers = [f for f in runs.factors if not f.categorical]
    levels = [f for f in runs.factors if f.categorical]
    inner = [f.name for f in numbers if f.role == "intrinsic"]
    texts = {f.name: f.levels for f in levels if f.role == "intrinsic"}
    terms: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for product in wish.terms():
        kept = tuple(dict.fromkeys(n for n in product if n in inner or n in texts))
        if len(kept) == 1 and kept[0] in texts:
            continue  # alone it has coefficients
        taken |= set(kept)
        terms += [kept] if kept else []
    alone = set(wish.intrinsic or ())
    terms += [(n,) for n in inner if n not in taken or n in alone]
    return GenericForm(
        terms=tuple(terms),
        levelled={n: v for n, v in texts.items() if n in taken},
        categories={n: v for n, v in texts.items() if n not in taken or n in alone},
        scaling=tuple(f.name for f in numbers if f.role == "extrinsic"),
        multipliers={f.name: f.levels for f in levels if f.role == "extrinsic"},
        base=wish.base,
        communication=_communication(runs, asked),
        bounds=dict(asked.bounds),
        fixed=frozenset(f.name for f in numbers if _one_value(runs, f.name)),
    )


def _one_value(runs: Runs, name: str) -> bool:
    values = np.unique(np.asarray(runs.columns[name], float))
    return len(values[values > 0]) == 1


def _communication(runs: Runs, asked: FormWish) -> str | None:
    numbers = [f.name for f in runs.factors if not f.categorical]
    if asked.communication is not None:
        if asked.communication not in numbers:
            why = runs.left_out.get(asked.communication, "is no numeric factor of the fit")
            raise InvalidValueError(
                f"--communication {asked.communication}: {asked.communication} {why}; "
                f"name one of {', '.join(numbers)}"
            )
        low = runs.factor(asked.communication).low
        if low <= 0:
            raise InvalidValueError(
                f"--communication {asked.communication} has zeros; workers are 1 or more"
            )
        return asked.communication
    if not asked.extended:
        return None
    found = [n for n in numbers if is_workers(n) and runs.factor(n).low > 0]
    if not found:
        raise InvalidValueError(
            "no factor looks like a number of workers; name it with --communication: "
            + ", ".join(numbers)
        )
    return found[0]


def _check_bounds(bounds: Mapping[str, tuple[float, float]], names: set[str]) -> None:
    for name in bounds:
        if name not in names:
            shown = ", ".join(sorted(names))
            raise InvalidValueError(f"--bounds {name}: nothing is called so; there are {shown}")
