"""Predicted against measured, for people and machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.simulate.validate import ValidatedRow, fit_verdicts, summarise


def validation_dict(rows: Sequence[ValidatedRow]) -> dict[str, Any]:
    """Return rows and summary as plain data; errors and coverage are fractions."""
    summary: dict[str, Any] = {name: asdict(s) for name, s in summarise(rows).items()}
    judged, right = fit_verdicts(rows)
    summary["fits"] = {"rows": judged, "right": right}
    return {
        "rows": [
            {
                **row.given,
                "model": row.model,
                "measured": dict(row.measured),
                "predicted": dict(row.predicted),
                "interval": {name: list(bounds) for name, bounds in row.interval.items()},
                "fits": row.fits,
                "problem": row.problem,
            }
            for row in rows
        ],
        "summary": summary,
    }


def validation_table(rows: Sequence[ValidatedRow], worst: int) -> RenderableType:
    """Return the summary by column, the largest errors, and what could not be predicted."""
    parts: list[RenderableType] = [_summary(rows)]
    judged, right = fit_verdicts(rows)
    if any(row.out_of_memory for row in rows):
        parts.append(Text(f"\nWhether it fits was right for {right} of {judged} runs."))
    timed = [r for r in rows if r.problem is None and "step_ms" in r.measured]
    if timed and worst > 0:
        timed.sort(key=lambda r: -abs(r.predicted["step_ms"] / r.measured["step_ms"] - 1))
        parts += [Text("\nLargest errors of the step", style="bold"), _rows(timed[:worst])]
    failed = [r for r in rows if r.problem is not None]
    if failed:
        parts.append(Text(f"\n{len(failed)} rows could not be predicted", style="bold red"))
        parts += [Text(f"  {r.model}: {r.problem}") for r in failed[: max(worst, 10)]]
    return Group(*parts)


def _summary(rows: Sequence[ValidatedRow]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("column")
    for head in ("rows", "failed", "MAPE", "median", "p90", "bias", "in interval"):
        table.add_column(head, justify="right")
    for name, s in summarise(rows).items():
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
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", overflow="fold")
    for head in ("batch", "seq", "precision", "layout"):
        table.add_column(head)
    for head in ("measured ms", "predicted ms", "error"):
        table.add_column(head, justify="right")
    for row in rows:
        measured, predicted = row.measured["step_ms"], row.predicted["step_ms"]
        table.add_row(
            Text(row.model),
            *(Text(row.given.get(name, "")) for name in ("batch", "seq", "precision", "layout")),
            f"{measured:.2f}",
            f"{predicted:.2f}",
            f"{predicted / measured - 1:+.0%}",
        )
    return table
