"""Scaling studies for people and machines: table, JSON, CSV, chart."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.report.svg import COLORS, Line, line_chart
from traincast.simulate.scale import ScaleRow
from traincast.simulate.study import stops_paying
from traincast.units import format_bytes, format_seconds


class Totals:
    """Hours and cost of a whole run for each row; nothing where no run was described."""

    def __init__(self, samples: float | None, price_per_hour: float | None) -> None:
        self.samples = samples
        self.price = price_per_hour

    def hours(self, row: ScaleRow) -> float | None:
        """Return the hours until every sample has been seen."""
        return None if self.samples is None else self.samples / row.samples_per_s / 3600

    def cost(self, row: ScaleRow) -> float | None:
        """Return what that many hours of all devices cost."""
        hours = self.hours(row)
        return None if hours is None or self.price is None else hours * self.price * row.devices


def scale_dict(
    model: str, rows: Sequence[ScaleRow], totals: Totals, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the study as plain data, units in the keys."""
    return {
        "model": model,
        "rows": [row_dict(row, totals) for row in rows],
        "stops_paying": [
            {"strategy": strategy, "scheme": scheme, "devices": devices}
            for (strategy, scheme), devices in stops_paying(rows).items()
        ],
        "notes": list(notes),
    }


def row_dict(row: ScaleRow, totals: Totals) -> dict[str, Any]:
    """Return one row as plain data."""
    return {
        "strategy": row.strategy,
        "devices": row.devices,
        "scheme": row.scheme,
        "batch_per_device": row.batch,
        "compute_ms": row.compute_s * 1e3,
        "communication_ms": row.communication_s * 1e3,
        "step_ms": row.step_s * 1e3,
        "speedup": row.speedup,
        "efficiency": row.efficiency,
        "samples_per_s": row.samples_per_s,
        "traffic_bytes": row.traffic_bytes,
        "peak_bytes": row.peak_bytes,
        "fits": row.fits,
        "hours": totals.hours(row),
        "cost": totals.cost(row),
    }


def scale_csv(rows: Sequence[ScaleRow], totals: Totals) -> str:
    """Return the study as CSV text."""
    text = io.StringIO()
    data = [row_dict(row, totals) for row in rows]
    writer = csv.DictWriter(text, list(data[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(data)
    return text.getvalue()


def scale_table(
    title: str, rows: Sequence[ScaleRow], totals: Totals, notes: Sequence[str] = ()
) -> RenderableType:
    """Return the study as a table, and where more devices stop paying."""
    heads = list(_cells(rows[0], totals))
    if not any(row.peak_bytes for row in rows):
        heads.remove("memory")

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("strategy", "scheme"))
        for row in rows:
            cells = _cells(row, totals)
            style = "red" if row.fits is False else None
            add_row(table, [(head, cells[head]) for head in heads], style)
        return table

    drop = ("batch", "samples/s", "compute", "memory", "efficiency", "communication", "scheme")
    parts: list[RenderableType] = [Text(title, style="bold"), Fitted(build, drop), Text("")]
    if len({row.devices for row in rows}) > 1:
        parts.append(Text(paying_line(rows), style="dim"))
    parts += [Text(note, style="dim") for note in notes]
    return Group(*parts)


def paying_line(rows: Sequence[ScaleRow]) -> str:
    """Return up to how many devices each strategy pays, as a sentence."""
    ends = [
        f"{_name(strategy, scheme)} {devices}"
        for (strategy, scheme), devices in stops_paying(rows).items()
    ]
    return (
        f"Each further device adds at least half of what one does alone up to: {', '.join(ends)}."
    )


def _name(strategy: str, scheme: str) -> str:
    return strategy if scheme in ("", "auto") else f"{strategy} by {scheme}"


def _cells(row: ScaleRow, totals: Totals) -> dict[str, str]:
    cells = {
        "strategy": row.strategy,
        "scheme": row.scheme,
        "devices": str(row.devices),
        "batch": str(row.batch),
        "compute": format_seconds(row.compute_s),
        "communication": format_seconds(row.communication_s) if row.communication_s else "–",
        "step": format_seconds(row.step_s),
        "speed-up": f"{row.speedup:.2f}×",
        "efficiency": f"{row.efficiency:.0%}",
        "samples/s": f"{row.samples_per_s:,.0f}"
        if row.samples_per_s >= 100
        else f"{row.samples_per_s:.3g}",
    }
    hours, cost = totals.hours(row), totals.cost(row)
    if hours is not None:
        cells["whole run"] = format_seconds(hours * 3600)
    if cost is not None:
        cells["cost"] = f"{cost:,.2f}"
    full = " too much" if row.fits is False else ""
    cells["memory"] = "" if row.peak_bytes is None else format_bytes(row.peak_bytes) + full
    return cells


def scale_chart(title: str, rows: Sequence[ScaleRow]) -> str:
    """Return the speed-ups of all strategies on one chart, with the ideal line.

    A line is dashed from where further devices stop paying.
    """
    counts = sorted({row.devices for row in rows})
    grown = [float(count) for count in counts]
    lines = [Line(name="ideal", x=counts, y=grown, marked=False, color="#c3c9d1")]
    one_scheme = len({row.scheme for row in rows}) == 1
    for (key, devices), color in zip(stops_paying(rows).items(), cycle(COLORS), strict=False):
        mine = sorted((r for r in rows if (r.strategy, r.scheme) == key), key=lambda r: r.devices)
        name = key[0] if one_scheme else _name(*key)
        for part, dashed in (
            ([r for r in mine if r.devices <= devices], False),
            ([r for r in mine if r.devices >= devices], True),
        ):
            if len(part) > 1 or not dashed:
                x, y = [r.devices for r in part], [r.speedup for r in part]
                named = "" if dashed else name
                lines.append(Line(name=named, x=x, y=y, dashed=dashed, color=color))
    return line_chart(
        lines,
        x_label="devices",
        y_label="speed-up over one device",
        title=title,
        subtitle="dashed: a further device adds less than half of what one does alone",
        log_x=len(counts) > 3,
        log_y=len(counts) > 3,
        x_ticks=grown,
    )
