"""A five-axes study for people and machines: tables, JSON, CSV, charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from traincast.report.charts import Section, page
from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.report.svg import Line, Mark, heat_map, line_chart, stack
from traincast.report.svg_axes import plain_format, powers_of_two, si_format
from traincast.search.explore import AXES, SPREAD, Axis, Crossing, Exploration, Sweep
from traincast.units import format_seconds, format_si

_KEYS = {
    "batch": "batch",
    "nodes": "nodes",
    "flops": "flops_per_s",
    "memory-bandwidth": "memory_bytes_per_s",
    "link-bandwidth": "link_bytes_per_s",
}
_UNITS = {"FLOP/s": "FLOP/s", "bytes/s": "B/s"}
_NAMES = {"data": "data parallelism", "model": "model parallelism"}
_STYLES = {"data": "blue", "model": "yellow"}
_SHOWN = 12
_REACH = 4.0
"""Factor, as a power of two, beyond which a map's colours do not differ."""


def shown(axis: Axis, value: float) -> str:
    """Return a value of an axis with its unit."""
    if axis.whole:
        return f"{value:,.0f}" if value == round(value) else f"{value:,.1f}"
    return format_si(value, _UNITS[axis.unit])


def to_dict(found: Exploration) -> dict[str, Any]:
    """Return the whole study with SI units in the key names."""
    base, network = found.study.base, found.study.network
    return {
        "model": found.model,
        "device": found.device.name,
        "network": found.link.name,
        "precision": found.precision,
        "estimator": "castello",
        "basis": "datasheet",
        "base": {
            **{_KEYS[a.name]: getattr(base, a.key) for a in AXES.values()},
            "latency_s": base.latency_s,
        },
        "parameters": network.parameters,
        "overlap": found.study.overlap,
        "collectives": found.study.rules.collectives,
        "sweeps": [_sweep_dict(sweep) for sweep in found.sweeps],
        "free_ops": {} if found.study.rules.charge_others else dict(network.free),
        "assumed": list(network.assumed),
    }


def _sweep_dict(sweep: Sweep) -> dict[str, Any]:
    return {
        "axes": [axis.name for axis in sweep.axes],
        "rows": rows(sweep),
        "crossings": [
            {
                "axis": c.axis,
                "value": c.value,
                "between": list(c.between),
                "interval": list(c.interval),
                "faster_below": c.below,
                "faster_above": c.above,
                "at": {_KEYS[name]: value for name, value in c.at},
            }
            for c in sweep.crossings
        ],
    }


def rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return one row for each point: the axes, both steps, what they send, which is faster."""
    found = []
    for index in np.ndindex(*sweep.data.step.shape):
        row: dict[str, Any] = {}
        for axis, values, i in zip(sweep.axes, sweep.values, index, strict=True):
            row[_KEYS[axis.name]] = int(values[i]) if axis.whole else float(values[i])
        for name, step in (("data", sweep.data), ("model", sweep.model)):
            row[f"{name}_ms"] = float(step.step[index]) * 1e3
            row[f"{name}_compute_ms"] = float(step.compute[index]) * 1e3
            row[f"{name}_communication_ms"] = float(step.communication[index]) * 1e3
        row["faster"] = sweep.faster(index)
        row["data_over_model"] = float(sweep.ratio[index])
        found.append(row)
    return found


def to_csv(found: Exploration) -> str:
    """Return every point as a row with all five axes, those that stay at the base too."""
    base = {_KEYS[axis.name]: getattr(found.study.base, axis.key) for axis in AXES.values()}
    table = [
        {"swept": "+".join(axis.name for axis in sweep.axes), **base, **row}
        for sweep in found.sweeps
        for row in rows(sweep)
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(table[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return text.getvalue()


def tables(found: Exploration) -> RenderableType:
    """Return everything for the terminal."""
    parts: list[RenderableType] = [_facts(found)]
    for sweep in found.sweeps:
        if len(sweep.axes) == 2:
            parts.append(_grid_table(sweep))
        else:
            parts += [_line_table(sweep), Text("\n".join(crossing_lines(sweep)))]
    parts.append(Text("\n".join(notes(found)), style="dim"))
    return Group(*(p if i == 0 else Padding(p, (1, 0, 0, 0)) for i, p in enumerate(parts)))


def _facts(found: Exploration) -> RenderableType:
    base = found.study.base
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("Model", f"{found.model}, {found.study.network.parameters:,} parameters")
    node = f"{format_si(base.flops, 'FLOP/s')}, {format_si(base.memory_bandwidth, 'B/s')} memory"
    table.add_row("Node", f"{found.device.title}, {found.precision}: {node}")
    link = f"{format_si(base.link_bandwidth, 'B/s')}, {format_seconds(base.latency_s)}"
    table.add_row("Link", f"{found.link.title}: {link}")
    table.add_row("Base", f"batch {base.batch:,} in all on {base.nodes:,} nodes")
    return table


def _line_table(sweep: Sweep) -> RenderableType:
    axis = sweep.axes[0]
    heads = [axis.title, "data", "sends", "model", "sends ", "faster"]

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("faster",))
        for i, value in enumerate(sweep.values[0]):
            cells = [shown(axis, float(value))]
            for step in (sweep.data, sweep.model):
                sent = step.communication[i] / (step.communication[i] + step.compute[i])
                cells += [format_seconds(float(step.step[i])), f"{sent:.0%}"]
            cells.append(_verdict(sweep, (i,)))
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    return Fitted(build, ("sends", "sends "))


def _verdict(sweep: Sweep, index: tuple[int, ...]) -> str:
    """Return the faster strategy and by how much."""
    winner, ratio = sweep.faster(index), float(sweep.ratio[index])
    return "equal" if winner == "equal" else f"{winner} {_times(max(ratio, 1 / ratio))}"


def _times(factor: float) -> str:
    return f"{factor:.2f}×" if factor < 9.95 else f"{factor:,.0f}×"


def _grid_table(sweep: Sweep) -> RenderableType:
    """Return which is faster in every cell, and for each row where the two are equal."""
    across, down = sweep.axes

    def build(without: frozenset[str]) -> Table:
        table = Table(box=None, header_style="bold", pad_edge=False)
        table.add_column(down.name, justify="right", no_wrap=True)
        picked = _spread(len(sweep.values[0]), 9 - len(without))
        for i in picked:
            head = shown(across, float(sweep.values[0][i]))
            table.add_column(head, justify="right", no_wrap=True)
        table.add_column("equal at (uncertain)", no_wrap=True)
        for j in _spread(len(sweep.values[1]), 24):
            value = float(sweep.values[1][j])
            equal = [c for c in sweep.crossings if c.at[0][1] == value]
            spots = ", ".join(f"{shown(across, c.value)} ({_ends(across, c)})" for c in equal)
            cells = [_coloured(sweep, (i, j)) for i in picked]
            table.add_row(shown(down, value), *cells, Text(spots or "–"))
        return table

    head = f"Across {across.title}, down {down.title}; D data is faster, M model."
    return Group(Text(head), Text(""), Fitted(build, tuple("1234567")))


def _ends(axis: Axis, c: Crossing) -> str:
    low, high = ("" if v is None else shown(axis, v) for v in c.interval)
    return f"{low} – {high}".strip()


def _spread(count: int, most: int) -> list[int]:
    """Return at most so many places from the first to the last, evenly."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def _coloured(sweep: Sweep, index: tuple[int, ...]) -> Text:
    winner, ratio = sweep.faster(index), float(sweep.ratio[index])
    if winner == "equal":
        return Text("=", style="dim")
    shape = "D" if winner == "data" else "M"
    return Text(f"{shape} {_times(max(ratio, 1 / ratio))}", style=_STYLES[winner])


def crossing_lines(sweep: Sweep) -> list[str]:
    """Return a sentence for each crossing, or one that says that there is none."""
    axis = sweep.axes[0]
    low, high = (shown(axis, float(sweep.values[0][i])) for i in (0, -1))
    if not sweep.crossings:
        first = sweep.faster((0,) * len(sweep.axes))
        if first == "equal":
            first = sweep.faster((-1,) * len(sweep.axes))
        if first == "equal":
            return [f"The two take equally long from {low} to {high}."]
        return [f"No crossing: {_NAMES[first]} is faster from {low} to {high}."]
    lines = [_sentence(axis, c) for c in sweep.crossings[:_SHOWN]]
    more = len(sweep.crossings) - _SHOWN
    return lines + ([f"… and {more} more crossings (--json lists all)."] if more > 0 else [])


def _sentence(axis: Axis, c: Crossing) -> str:
    name, below, above = axis.title.partition(",")[0], _NAMES[c.below], _NAMES[c.above]
    if axis.whole:
        low, high = (shown(axis, v) for v in c.between)
        text = f"{below} is faster up to {name} {low}, {above} from {high}"
    else:
        text = f"{below} is faster below {name} {shown(axis, c.value)}, {above} above"
    where = "".join(f"{AXES[n].title} {shown(AXES[n], v)}: " for n, v in c.at)
    return f"{(where + text)[0].upper()}{(where + text)[1:]}; uncertain {_range(axis, c)}."


def _range(axis: Axis, c: Crossing) -> str:
    low, high = (shown(axis, v) if v is not None else "" for v in c.interval)
    if low and high:
        return f"between {low} and {high}"
    if low or high:
        return f"above {low}" if low else f"below {high}"
    return "in the whole range"


def notes(found: Exploration) -> list[str]:
    """Return what a reader of the figures has to know."""
    study = found.study
    lines = [
        "Estimator castello, resting on datasheet peaks: a step is rather a lower bound, and no "
        "measured step has judged it.",
        f"Uncertain: the two are within {SPREAD - 1:.0%}, the spread of measured communication.",
    ]
    if study.overlap:
        lines.append("Data parallelism overlaps its all-reduces with the backward pass.")
    if study.rules.compat:
        lines.append("Counted as the published code does, with its slips.")
    if study.network.free and not study.rules.charge_others:
        free = ", ".join(f"{kind} ×{count}" for kind, count in study.network.free)
        lines.append(
            f"Free, as the authors have it: {free} (--charge-others counts their traffic)."
        )
    return lines + [f"Assumed: {text}." for text in study.network.assumed]


def to_svg(found: Exploration) -> str:
    """Return one chart a sweep, on one sheet."""
    charts = [_chart(found, sweep) for sweep in found.sweeps]
    if len(charts) == 1:
        return charts[0][0]
    return stack(charts, columns=2, title=f"{found.model}: data against model parallelism")


def _format(axis: Axis) -> Callable[[float], str]:
    return plain_format if axis.whole else si_format(_UNITS[axis.unit])


def _subtitle(found: Exploration, sweep: Sweep) -> str:
    base, swept = found.study.base, {axis.name for axis in sweep.axes}
    parts = [found.device.title]
    parts += [] if "batch" in swept else [f"batch {base.batch:,}"]
    parts += [] if "nodes" in swept else [f"{base.nodes:,} nodes"]
    parts += [] if "link-bandwidth" in swept else [format_si(base.link_bandwidth, "B/s links")]
    return " · ".join([*parts, found.precision])


def _chart(found: Exploration, sweep: Sweep) -> tuple[str, int, int]:
    if len(sweep.axes) == 2:
        return _map(found, sweep), 720, 460
    axis, x = sweep.axes[0], [float(v) for v in sweep.values[0]]
    overlapped = " (overlapped)" if found.study.overlap else ""
    data, model = sweep.data, sweep.model
    lines = [
        Line(name=f"data parallel{overlapped}", x=x, y=_list(data.step), color="#2468b4"),
        Line(name="model parallel", x=x, y=_list(model.step), color="#d9730d"),
        Line(name="its compute", x=x, y=_list(data.compute), color="#2468b4", dashed=True,
             marked=False),
        Line(name="its compute", x=x, y=_list(model.compute), color="#d9730d", dashed=True,
             marked=False),
    ]  # fmt: skip
    lines = [lines[0], lines[2], lines[1], lines[3]]
    marks = [
        Mark(x=c.value, label=f"equal at {shown(axis, c.value)}", low=c.interval[0] or x[0],
             high=c.interval[1] or x[-1])
        for c in sweep.crossings
    ]  # fmt: skip
    text = line_chart(
        lines, x_label=axis.title, y_label="step", log_x=len(x) > 1, log_y=True,
        title=f"{found.model}: step over {axis.title.partition(',')[0]}",
        subtitle=_subtitle(found, sweep), x_format=_format(axis), y_format=si_format("s"),
        x_ticks=powers_of_two(x[0], x[-1]) if axis.whole else None, marks=marks,
    )  # fmt: skip
    return text, 720, 420


def _list(values: Any) -> list[float]:
    return [float(v) for v in values]


def _map(found: Exploration, sweep: Sweep) -> str:
    across, down = sweep.axes
    z = np.log2(sweep.ratio).T
    most = float(np.abs(z).max())
    capped = most > _REACH
    reach = _REACH if capped else max(most, 0.1)
    single = [c for c in sweep.crossings if c.at]
    values = [at[0][1] for at in (c.at for c in single)]
    once = len(values) == len(set(values))  # a curve that bends back is no line by rows
    return heat_map(
        _list(sweep.values[0]), _list(sweep.values[1]), [_list(row) for row in z],
        x_label=across.title, y_label=down.title,
        title=f"{found.model}: which is faster, and by how much",
        subtitle=_subtitle(found, sweep), x_format=_format(across), y_format=_format(down),
        z_format=lambda v: _times(2.0 ** abs(v)), reach=reach,
        low_label="data parallel, over" if capped else "data parallel",
        high_label="and more, model parallel" if capped else "model parallel",
        curve=[(c.value, c.at[0][1]) for c in single] if once else (),
    )  # fmt: skip


def to_html(found: Exploration) -> str:
    """Return one page with the charts, the crossings and every point; it needs nothing else."""
    sections = [
        Section(chart=_chart(found, sweep)[0], lines=crossing_lines(sweep), rows=rows(sweep))
        for sweep in found.sweeps
    ]
    return page(f"{found.model}: data against model parallelism", sections, notes(found))
