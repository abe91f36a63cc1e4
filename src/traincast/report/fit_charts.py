"""Charts of a fit: how the time depends on each factor, errors by λ, a factor's scaling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from traincast.fit.fitting import Fit
from traincast.fit.model import Forecast, Model
from traincast.fit.reading import Dependence, dependence
from traincast.report.svg import COLORS, GREY, Line, bar_chart, line_chart, stack
from traincast.report.svg_axes import plain_format

_WIDTH, _HEIGHT = 480, 330


def dependence_chart(found: Dependence, time: str, width: int = _WIDTH) -> str:
    """Return the mean time over one factor, with its interval."""
    name = found.factor.name
    title = f"{time} over {name}"
    if found.factor.categorical:
        bars = [("mean of the runs", list(found.times))]
        return bar_chart([str(v) for v in found.values], bars, title=title, y_label=time,
                         width=width, height=_HEIGHT)  # fmt: skip
    x = [float(v) for v in found.values]
    log = min(x) > 0 and max(x) / min(x) > 3
    lines = [
        Line(name="mean of the runs", x=x, y=list(found.times), marked=False, color=COLORS[0]),
        Line(name="95 % interval", x=x, y=list(found.low), dashed=True, marked=False, color=GREY),
        Line(name="", x=x, y=list(found.high), dashed=True, marked=False, color=GREY),
    ]
    return line_chart(lines, x_label=name, y_label=time, title=title, log_x=log, width=width,
                      height=_HEIGHT)  # fmt: skip


def dependence_sheet(fit: Fit) -> tuple[str, list[dict[str, Any]]]:
    """Return one sheet with a chart a factor, and its data."""
    charts, rows = [], []
    for f in fit.model.factors:
        found = dependence(fit.model, fit.runs.columns, f.name)
        charts.append((dependence_chart(found, fit.runs.time), _WIDTH, _HEIGHT))
        rows += [
            {"factor": f.name, "value": v if isinstance(v, str) else float(v), "time": float(t),
             "low": float(lo), "high": float(hi)}
            for v, t, lo, hi in zip(found.values, found.times, found.low, found.high, strict=True)
        ]  # fmt: skip
    columns = 1 if len(charts) == 1 else 2
    return stack(charts, columns=columns, title="How the time depends on each factor"), rows


def curve_chart(fit: Fit) -> str | None:
    """Return the held-out loss by λ; None where λ was not chosen."""
    grid, mean = np.array(fit.curve.grid), fit.curve.mean()
    if len(grid) < 2:
        return None
    # 0 has no place on a logarithmic axis: it is drawn left of the least.
    x = np.where(grid > 0, grid, grid[grid > 0].min() / np.sqrt(10))

    def label(value: float) -> str:
        return "0" if value <= x[0] * 1.01 else f"{value:g}"

    line = Line(name="held-out loss", x=list(x), y=[float(v) for v in mean])
    return line_chart([line], x_label="λ", y_label="held-out loss", log_x=True, x_format=label,
                      title=f"Strength of the regulariser: {fit.strength:.3g} chosen",
                      x_ticks=list(x))  # fmt: skip


def scatter_rows(fit: Fit) -> list[dict[str, Any]]:
    """Return each run with what fits that did not see it say."""
    return [
        {"row": int(row), "measured": float(t), "predicted": float(p), "error": float(p / t - 1)}
        for row, t, p in zip(fit.runs.rows, fit.runs.times, fit.held_out(), strict=True)
    ]


def scaling_chart(
    model: Model, name: str, values: Sequence[float], found: Forecast, title: str
) -> str:
    """Return the time over one factor, with the interval of one new run."""
    x = [float(v) for v in values]
    lines = [
        Line(name="predicted", x=x, y=list(found.times), color=COLORS[0]),
        Line(name="95 % interval", x=x, y=list(found.low), dashed=True, marked=False, color=GREY),
        Line(name="", x=x, y=list(found.high), dashed=True, marked=False, color=GREY),
    ]
    log = min(x) > 0 and max(x) / min(x) > 3
    return line_chart(lines, x_label=name, y_label=model.time, title=title, log_x=log,
                      x_format=plain_format, x_ticks=x if len(x) <= 12 else None)  # fmt: skip
