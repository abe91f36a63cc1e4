"""Sweeps for people and machines: what is to be run, what came out, and the table of it."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.measure.sweep.design import Factor, Levels, Range
from traincast.measure.sweep.log import Record, latest, table
from traincast.measure.sweep.plan import Plan, Run, Sweep
from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.units import format_seconds

_HEADS = ("framework", "runs", "done", "failed", "to do", "shortest", "median", "longest", "spread")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a sweep stands in one framework."""

    framework: str
    runs: Sequence[Run]
    records: Sequence[Record]
    """The whole log, which may have runs of other sweeps too."""
    path: str
    """The table of its runs."""

    @property
    def known(self) -> list[Record]:
        """What is known of this sweep's runs."""
        found = latest(self.records)
        return [found[run.key] for run in self.runs if run.key in found]

    @property
    def good(self) -> list[Record]:
        """This sweep's successful runs."""
        return [record for record in self.known if record["status"] == "ok"]

    @property
    def failed(self) -> list[Record]:
        """This sweep's failed runs."""
        return [record for record in self.known if record["status"] != "ok"]


def table_text(records: Iterable[Record], factors: Iterable[str]) -> str:
    """Return the table of successful runs as CSV."""
    head, rows = table(records, factors)
    text = io.StringIO(newline="")
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(head)
    lines.writerows([*row[:-1], f"{row[-1]:.6g}"] for row in rows)
    return text.getvalue()


def sweep_dict(plan: Plan, standings: Sequence[Standing]) -> dict[str, Any]:
    """Return where a sweep stands as plain data; seconds."""
    return {
        "runs": len(plan.runs),
        "left_out": dict(plan.left_out),
        "frameworks": [_standing_dict(standing) for standing in standings],
    }


def _standing_dict(standing: Standing) -> dict[str, Any]:
    times = [record["epoch_s"] for record in standing.good]
    return {
        "framework": standing.framework,
        "table": standing.path,
        "runs": len(standing.runs),
        "done": len(standing.good),
        "failed": len(standing.failed),
        "failures": [
            {"run": r["run"], "status": r["status"], "message": r["message"]}
            | {"settings": dict(r["settings"])}
            for r in standing.failed
        ],
        "epoch_s": {
            "least": min(times), "median": statistics.median(times), "most": max(times)
        } if times else None,
        "versions": sorted({str(r.get("version")) for r in standing.good}),
    }  # fmt: skip


def sweep_table(plan: Plan, standings: Sequence[Standing]) -> RenderableType:
    """Return where a sweep stands, one framework a row."""

    def build(without: frozenset[str]) -> Table:
        shown = plain_table(_HEADS, without, left=("framework",))
        for standing in standings:
            add_row(shown, list(zip(_HEADS, _cells(standing), strict=True)))
        return shown

    lines: list[RenderableType] = [Fitted(build, ("spread", "shortest", "longest"))]
    lines += _why(plan.left_out, "left out")
    for standing in standings:
        messages: dict[str, int] = {}
        for record in standing.failed:
            messages[record["message"]] = messages.get(record["message"], 0) + 1
        lines += _why(messages, f"{standing.framework} failed")
    return Group(*lines)


def _cells(standing: Standing) -> tuple[str, ...]:
    good, failed = standing.good, standing.failed
    times = [record["epoch_s"] for record in good]
    spreads = [record["spread"] for record in good if "spread" in record]
    counts = (len(standing.runs), len(good), len(failed))
    return (
        standing.framework,
        *map(str, counts),
        str(counts[0] - counts[1] - counts[2]),
        *(format_seconds(pick(times)) if times else "–" for pick in (min, statistics.median, max)),
        f"±{statistics.median(spreads) / 2:.1%}" if spreads else "–",
    )


def _why(reasons: Mapping[str, int], what: str) -> list[RenderableType]:
    listed = sorted(reasons.items(), key=lambda item: -item[1])
    lines = [Text(f"{count:>5} {what}: {reason}") for reason, count in listed[:5]]
    if len(listed) > 5:
        rest = sum(count for _, count in listed[5:])
        lines.append(Text(f"{rest:>5} {what} for {len(listed) - 5} other reasons"))
    return [Text(""), *lines] if lines else []


def design_table(sweep: Sweep, plan: Plan) -> RenderableType:
    """Return the factors of a sweep, and what its runs take of each."""
    heads = ("factor", "asked for", "taken")
    shown = plain_table(heads, frozenset(), left=heads)
    for name, factor in sweep.factors.items():
        values = [getattr(run.settings, name) for run in plan.runs]
        cells = (name, _asked(factor), _taken(values))
        add_row(shown, list(zip(heads, cells, strict=True)))
    fixed = ", ".join(f"{name} = {value}" for name, value in sweep.fixed.items())
    return Group(shown, *([Text(f"\nfixed: {fixed}")] if fixed else []))


def _asked(factor: Factor) -> str:
    if isinstance(factor, Levels):
        return ", ".join(map(str, factor.values))
    assert isinstance(factor, Range)
    return f"{factor.low:g} to {factor.high:g}, {'log' if factor.log else 'linear'}"


def _taken(values: Sequence[Any]) -> str:
    levels = sorted(set(values))
    if len(levels) > 8:
        return f"{levels[0]:g} to {levels[-1]:g}, {len(levels)} values"
    return ", ".join(f"{level} ({values.count(level)})" for level in levels)
