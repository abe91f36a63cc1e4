"""A comparison of estimators for people and machines."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.simulate.compare import Comparison
from traincast.units import format_seconds


def comparison_dict(found: Comparison, top: int) -> dict[str, Any]:
    """Return the comparison as plain data."""
    return {
        "model": found.graph.name,
        "device": found.device.name,
        "batch": found.batch,
        "seq": found.seq or None,
        "precision": found.precision,
        "estimators": {
            o.estimator: {
                "forward_ms": None if o.problem else o.forward_s * 1e3,
                "backward_ms": None if o.problem else o.backward_s * 1e3,
                "optimizer_ms": None if o.problem else o.optimizer_s * 1e3,
                "step_ms": None if o.problem else o.step_s * 1e3,
                "notes": list(o.notes),
                "problem": o.problem,
            }
            for o in found.opinions
        },
        "layers": [
            {"layer": d.layer, "ms": {name: s * 1e3 for name, s in d.seconds.items()}}
            for d in found.disagreements[:top]
        ],
    }


def comparison_table(found: Comparison, top: int) -> RenderableType:
    """Return the estimators side by side, then the layers over which they differ most."""
    seq = f", seq {found.seq}" if found.seq else ""
    title = f"{found.graph.name} on {found.device.title}, batch {found.batch}{seq}, "
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("estimator")
    for head in ("forward", "backward", "update", "step"):
        table.add_column(head, justify="right")
    for o in found.opinions:
        if o.problem:
            table.add_row(o.estimator, "–", "–", "–", "–")
            continue
        times = (o.forward_s, o.backward_s, o.optimizer_s, o.step_s)
        table.add_row(o.estimator, *(format_seconds(t) if t else "–" for t in times))
    parts: list[RenderableType] = [Text(title + found.precision, style="bold"), table]
    rows = found.disagreements[: max(top, 0)]
    if rows:
        names = list(rows[0].seconds)
        layers = Table(box=None, header_style="bold", pad_edge=False)
        layers.add_column("layer", overflow="fold")
        for name in names:
            layers.add_column(name, justify="right")
        for row in rows:
            shown = (format_seconds(row.seconds[n]) if row.seconds[n] else "–" for n in names)
            layers.add_row(Text(row.layer), *shown)
        parts += [Text("\nWhere they differ most, forward and backward on the device"), layers]
    said = [
        f"{o.estimator}: {note}"
        for o in found.opinions
        for note in ((o.problem,) if o.problem else o.notes)
    ]
    if said:
        parts += [Text(""), *(Text(line, style="dim") for line in said)]
    return Group(*parts)
