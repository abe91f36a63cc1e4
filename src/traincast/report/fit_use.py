"""What a saved model predicts, for people and machines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.errors import InvalidValueError
from traincast.fit.model import Forecast, Model, Value
from traincast.fit.roles import is_workers
from traincast.report.fit_text import expression_text
from traincast.report.fit_words import short

_MOST_POINTS = 100_000


def point_dict(model: Model, point: Mapping[str, Value]) -> dict[str, Any]:
    """Return a prediction as plain data; `value` is in the unit of the time's column."""
    found = model.forecast(model.columns([point]))
    value, low, high = (float(v[0]) for v in (found.times, found.low, found.high))
    data: dict[str, Any] = {"time": model.time, "value": value, "interval": [low, high]}
    unit = model.seconds
    if unit is not None:
        data |= {"time_s": value * unit, "interval_s": [low * unit, high * unit]}
    return data | {
        "set": dict(point),
        "typical": {f.name: f.typical for f in model.factors if f.name not in point},
        "outside": list(found.outside[0]),
    }


def point_panel(model: Model, point: Mapping[str, Value]) -> RenderableType:
    """Return a prediction with what was set, what was taken as typical, and cautions."""
    found = model.forecast(model.columns([point]))
    value, low, high = (float(v[0]) for v in (found.times, found.low, found.high))
    given = ", ".join(f"{n}={_said(v)}" for n, v in point.items())
    taken = ", ".join(f"{f.name}={_said(f.typical)}" for f in model.factors if f.name not in point)
    lines = [
        Text(f"{model.time}  {short(value, 4)}  (95 % of runs: {short(low)} to {short(high)})",
             style="bold"),
        Text(f"t = {expression_text(model)}"),
    ]  # fmt: skip
    lines += [Text(f"Set      {given}")] if given else []
    lines += (
        [Text(f"Typical  {taken} (not set: the median or most frequent of the runs)")]
        if (taken)
        else []
    )
    lines += [Text(f"Note: {text}: extrapolated", style="yellow") for text in found.outside[0]]
    return Group(*lines)


def _said(value: Value) -> str:
    return value if isinstance(value, str) else f"{value:g}"


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """One factor over its values, all others set or typical."""

    model: Model
    factor: str
    values: Sequence[float]
    point: Mapping[str, Value]

    @cached_property
    def forecast(self) -> Forecast:
        """The predictions."""
        points = [{**self.point, self.factor: v} for v in self.values]
        return self.model.forecast(self.model.columns(points))

    @property
    def title(self) -> str:
        """As a chart has it."""
        return f"{self.model.time} over {self.factor}"


def sweep_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the rows; speedup and efficiency are against the first value."""
    found = sweep.forecast
    first, start = float(found.times[0]), float(sweep.values[0])
    return [
        {
            sweep.factor: float(v),
            "value": float(t),
            "interval": [float(low), float(high)],
            "speedup": first / float(t),
            "efficiency": first / float(t) / (float(v) / start)
            if is_workers(sweep.factor)
            else None,
            "outside": list(out),
        }
        for v, t, low, high, out in zip(
            sweep.values, found.times, found.low, found.high, found.outside, strict=True
        )
    ]


def sweep_dict(sweep: Sweep) -> dict[str, Any]:
    """Return the sweep as plain data."""
    typical = {f.name: f.typical for f in sweep.model.factors
               if f.name not in sweep.point and f.name != sweep.factor}  # fmt: skip
    return {"time": sweep.model.time, "over": sweep.factor, "set": dict(sweep.point),
            "typical": typical, "rows": sweep_rows(sweep)}  # fmt: skip


def sweep_table(sweep: Sweep) -> RenderableType:
    """Return the sweep as a table."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    shared = is_workers(sweep.factor)
    heads = (sweep.factor, sweep.model.time, "95 % of runs", "speed-up")
    for head in (*heads, *(["efficiency"] if shared else []), ""):
        table.add_column(head, justify="right")
    rows = sweep_rows(sweep)
    for row in rows:
        low, high = row["interval"]
        share = row["efficiency"]
        table.add_row(
            f"{row[sweep.factor]:g}", short(row["value"], 4), f"{short(low)} to {short(high)}",
            f"{row['speedup']:.2f}×",
            *(["" if share is None else f"{share:.0%}"] if shared else []),
            "extrapolated" if row["outside"] else "",
        )  # fmt: skip
    data = sweep_dict(sweep)
    fixed = {**data["set"], **data["typical"]}
    said = ", ".join(f"{n}={_said(v)}" for n, v in fixed.items())
    return Group(*([Text(f"With {said}.\n")] if said else []), table)


def values_between(low: float, high: float, step: float | None) -> list[float]:
    """Return values from low to high: doubling, or in steps."""
    wrong = not low < high or (step is None and low <= 0) or (step is not None and step <= 0)
    if wrong or (step is not None and (high - low) / step > _MOST_POINTS):
        raise InvalidValueError(
            "--over: write LOW..HIGH above 0 (doubling) or LOW..HIGH:STEP, such as 1..16 or 1..16:1"
        )
    if step is not None:
        return [low + i * step for i in range(math.floor((high - low) / step + 1e-9) + 1)]
    values = [low * 2**i for i in range(math.floor(math.log2(high / low) + 1e-9) + 1)]
    return values if abs(values[-1] / high - 1) < 1e-9 else [*values, high]
