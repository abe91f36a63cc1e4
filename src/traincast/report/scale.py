"""Scaling studies for people and machines: table, JSON, CSV, chart."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.report.svg import Line, Mark, line_chart
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


def scale_dict(model: str, rows: Sequence[ScaleRow], totals: Totals) -> dict[str, Any]:
    """Return the study as plain data, units in the keys."""
    return {
        "model": model,
        "rows": [row_dict(row, totals) for row in rows],
        "stops_paying": [
            {"strategy": strategy, "scheme": scheme, "devices": devices}
            for (strategy, scheme), devices in stops_paying(rows).items()
        ],
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


def scale_table(title: str, rows: Sequence[ScaleRow], totals: Totals) -> RenderableType:
    """Return the study as a table, and where more devices stop paying."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    heads = ["strategy", "scheme", "devices", "batch", "compute", "communication", "step",
             "speed-up", "efficiency", "samples/s"]  # fmt: skip
    if totals.samples is not None:
        heads.append("whole run")
    if totals.price is not None:
        heads.append("cost")
    if any(row.peak_bytes is not None for row in rows):
        heads.append("memory")
    for head in heads:
        table.add_column(head, justify="left" if head in ("strategy", "scheme") else "right")
    for row in rows:
        table.add_row(*_cells(row, totals, heads))
    parts: list[RenderableType] = [Text(title, style="bold"), table]
    ends = [
        f"{strategy}{f' by {scheme}' if scheme else ''}: {devices}"
        for (strategy, scheme), devices in stops_paying(rows).items()
    ]
    if len({row.devices for row in rows}) > 1:
        note = "\nDevices up to which each further one adds at least half of what one does alone: "
        parts.append(Text(note + "; ".join(ends) + ".", style="dim"))
    return Group(*parts)


def _cells(row: ScaleRow, totals: Totals, heads: Sequence[str]) -> list[str]:
    cells = [
        row.strategy,
        row.scheme,
        str(row.devices),
        str(row.batch),
        format_seconds(row.compute_s),
        format_seconds(row.communication_s) if row.communication_s else "–",
        format_seconds(row.step_s),
        f"{row.speedup:.2f}×",
        f"{row.efficiency:.0%}",
        f"{row.samples_per_s:,.0f}",
    ]
    hours, cost = totals.hours(row), totals.cost(row)
    if hours is not None:
        cells.append(format_seconds(hours * 3600))
    if "cost" in heads:
        cells.append("" if cost is None else f"{cost:,.2f}")
    if "memory" in heads:
        full = "" if row.fits in (None, True) else " too much"
        cells.append("" if row.peak_bytes is None else format_bytes(row.peak_bytes) + full)
    return cells


def scale_chart(title: str, rows: Sequence[ScaleRow]) -> str:
    """Return the speed-ups of all strategies on one chart, with the ideal line."""
    counts = sorted({row.devices for row in rows})
    lines = [
        Line(name="ideal", x=counts, y=[float(c) for c in counts], dashed=True, marked=False,
             color="#9aa2ad")
    ]  # fmt: skip
    marks = []
    for (strategy, scheme), devices in stops_paying(rows).items():
        mine = [row for row in rows if (row.strategy, row.scheme) == (strategy, scheme)]
        name = strategy if scheme in ("", "auto") else f"{strategy}, {scheme}"
        x, y = [row.devices for row in mine], [row.speedup for row in mine]
        lines.append(Line(name=name, x=x, y=y))
        if devices < counts[-1]:
            marks.append(Mark(x=devices, label=f"{name} stops paying"))
    return line_chart(
        lines,
        x_label="devices",
        y_label="speed-up over one device",
        title=title,
        log_x=len(counts) > 3,
        log_y=len(counts) > 3,
        marks=marks[:3],
    )
