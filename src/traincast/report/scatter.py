"""Predicted against measured steps, as a chart with both axes logarithmic."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from traincast.report.svg import COLORS, GREY, _document, _Frame, _heading, _legend, _rule
from traincast.report.svg_axes import si_format
from traincast.simulate.summary import group_of, summarise
from traincast.simulate.validate import ValidatedRow

BAND = 0.2
"""Dashed lines are drawn where predictions are so much too long or too short."""
_SIZE = 620
_OTHERS = "others"


def scatter_chart(rows: Sequence[ValidatedRow], by: str) -> str:
    """Return an SVG document: a point for each step with its interval, coloured by group.

    Groups beyond the number of colours share the last one.
    """
    drawn = [r for r in rows if r.problem is None and "step_ms" in r.measured]
    groups = list(dict.fromkeys(group_of(r, by) for r in drawn))
    if len(groups) > len(COLORS):
        groups = [*groups[: len(COLORS) - 1], _OTHERS]
    colors = dict(zip(groups, COLORS, strict=False))
    summary = summarise(rows).get("step_ms")
    said = f"{len(drawn)} steps"
    if summary is not None and summary.mape is not None:
        said += f", off by {summary.mape:.1%} on average (bias {summary.bias:+.1%})"
    parts, top = _heading("Predicted against measured steps", said)
    legend, top = _legend(
        [(name, color, False) for name, color in colors.items()], _SIZE, top, True
    )
    ends = _ends(drawn)
    seconds = si_format("s")
    frame = _Frame(
        top=top, width=_SIZE, height=_SIZE, x_range=ends, y_range=ends, log_x=True, log_y=True,
        x_format=seconds, y_format=seconds, x_ticks=None, x_label="measured", y_label="predicted",
    )  # fmt: skip
    parts += legend + frame.parts
    for factor, dash in ((1.0, ""), (1 + BAND, "5 4"), (1 - BAND, "5 4")):
        low, high = max(ends[0], ends[0] / factor), min(ends[1], ends[1] / factor)
        more = f' stroke-dasharray="{dash}"' if dash else ""
        x, y = frame.x, frame.y
        parts.append(_rule(x(low), y(low * factor), x(high), y(high * factor), GREY, more))
    for row in drawn:
        label = group_of(row, by)
        parts += _point(row, colors.get(label, colors.get(_OTHERS, COLORS[-1])), frame)
    return _document(_SIZE, _SIZE, "Predicted against measured steps", parts)


def _ends(rows: Sequence[ValidatedRow]) -> tuple[float, float]:
    values = [v["step_ms"] / 1e3 for r in rows for v in (r.measured, r.predicted)]
    return (min(values) / 1.3, max(values) * 1.3) if values else (1e-3, 1.0)


def _point(row: ValidatedRow, color: str, frame: _Frame) -> list[str]:
    measured, predicted = row.measured["step_ms"] / 1e3, row.predicted["step_ms"] / 1e3
    x = frame.x(measured)
    low, high = (min(max(v / 1e3, frame.y.low), frame.y.high) for v in row.interval["step_ms"])
    setting = [row.given.get(n, "") for n in ("batch", "seq", "precision", "layout", "mode")]
    tip = " ".join([row.model, *filter(None, setting)])
    tip += f": measured {measured * 1e3:.4g} ms, predicted {predicted * 1e3:.4g} ms"
    tip += f" ({predicted / measured - 1:+.0%})"
    return [
        _rule(x, frame.y(low), x, frame.y(high), color, ' stroke-opacity="0.25"'),
        f'<circle cx="{x:.1f}" cy="{frame.y(predicted):.1f}" r="3.4" fill="{color}" '
        f'fill-opacity="0.75"><title>{escape(tip)}</title></circle>',
    ]


def scatter_rows(rows: Sequence[ValidatedRow]) -> list[dict[str, Any]]:
    """Return the data of the chart, for a page."""
    shown = ("batch", "seq", "precision", "layout", "mode")
    return [
        {
            "model": row.model,
            **{name: row.given.get(name, "") for name in shown},
            "measured_ms": row.measured["step_ms"],
            "predicted_ms": row.predicted["step_ms"],
            "error": row.predicted["step_ms"] / row.measured["step_ms"] - 1,
        }
        for row in rows
        if row.problem is None and "step_ms" in row.measured
    ]
