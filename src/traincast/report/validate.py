"""Predicted against measured, for people and machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.simulate.summary import Summary, fit_verdicts, grouped, summarise
from traincast.simulate.validate import EFFICIENCY, ValidatedRow

_GIVEN = ("batch", "seq", "precision", "devices", "scheme", "layout", "mode")
"""What is shown of a row's own columns, most important first."""


def validation_dict(rows: Sequence[ValidatedRow], by: str | None = None) -> dict[str, Any]:
    """Return rows and summary as plain data; errors and coverage are fractions.

    `by` adds `groups`: the errors of the step of each group.
    """
    summary: dict[str, Any] = {name: asdict(s) for name, s in summarise(rows).items()}
    judged, right = fit_verdicts(rows)
    summary["fits"] = {"rows": judged, "right": right}
    groups = {} if by is None else {name: asdict(s) for name, s in grouped(rows, by).items()}
    return {
        "rows": [
            {
                **row.given,
                "model": row.model,
                "measured": dict(row.measured),
                "predicted": dict(row.predicted),
                "interval": {name: list(bounds) for name, bounds in row.interval.items()},
                "fits": row.fits,
                "bound_by": row.bound_by,
                "problem": row.problem,
            }
            for row in rows
        ],
        "summary": summary,
        **({} if by is None else {"by": by, "groups": groups}),
    }


def validation_table(
    rows: Sequence[ValidatedRow], worst: int | None, by: str | None = None
) -> RenderableType:
    """Return the summary by column, the largest errors, and what could not be predicted.

    `worst` is how many of the largest errors are listed; None lists every row in its order. `by`
    adds the errors of the step by group.
    """
    parts: list[RenderableType] = [_summary("column", summarise(rows))]
    if by is not None:
        parts += [Text(f"\nThe step by {by}", style="bold"), _summary(by, grouped(rows, by))]
    judged, right = fit_verdicts(rows)
    if any(row.out_of_memory for row in rows):
        parts.append(Text(f"\nWhether it fits was right for {right} of {judged} runs."))
    timed = [r for r in rows if r.problem is None and "step_ms" in r.measured]
    if timed and worst is None:
        parts += [Text("\nEvery row", style="bold"), _rows(timed)]
    elif timed and worst:
        timed.sort(key=lambda r: -abs(r.predicted["step_ms"] / r.measured["step_ms"] - 1))
        parts += [Text("\nLargest errors of the step", style="bold"), _rows(timed[:worst])]
    failed = [r for r in rows if r.problem is not None]
    if failed:
        said = "row" if len(failed) == 1 else "rows"
        parts.append(Text(f"\n{len(failed)} {said} could not be predicted", style="bold red"))
        shown = failed if worst is None else failed[: max(worst, 10)]
        parts += [Text(f"  {r.model}: {r.problem}") for r in shown]
        if len(shown) < len(failed):
            parts.append(Text(f"  … and {len(failed) - len(shown)} more (--all lists them)"))
    return Group(*parts)


def _summary(head: str, errors: Mapping[str, Summary]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(head)
    for name in ("rows", "failed", "MAPE", "median", "p90", "bias", "in interval"):
        table.add_column(name, justify="right")
    for name, s in errors.items():
        values = [s.mape, s.median, s.p90]
        table.add_row(
            name,
            str(s.rows),
            str(s.failed),
            *("–" if v is None else f"{v:.1%}" for v in values),
            "–" if s.bias is None else f"{s.bias:+.1%}",
            "–" if s.coverage is None else f"{s.coverage:.0%}",
        )
    return table


def _rows(rows: Sequence[ValidatedRow]) -> RenderableType:
    given = [n for n in _GIVEN if any(r.given.get(n) for r in rows)]
    scaled = any(EFFICIENCY in r.measured for r in rows)
    heads = ["model", *given, "measured ms", "predicted ms", "error"]
    heads += ["efficiency", "predicted"] if scaled else []

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("model", *given))
        for row in rows:
            measured, predicted = row.measured["step_ms"], row.predicted["step_ms"]
            cells = {name: row.given.get(name, "") for name in given} | {
                "model": row.model,
                "measured ms": f"{measured:.2f}",
                "predicted ms": f"{predicted:.2f}",
                "error": f"{predicted / measured - 1:+.0%}",
                "efficiency": _share(row.measured.get(EFFICIENCY)),
                "predicted": _share(row.predicted.get(EFFICIENCY)),
            }
            add_row(table, [(head, cells[head]) for head in heads])
        return table

    return Fitted(build, tuple(reversed(given)))


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"
