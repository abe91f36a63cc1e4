"""Charts as SVG text, with nothing but the standard library: lines, heat maps, bars.

    line_chart([Series("data", nodes, seconds)], x_label="nodes", y_label="step", log_x=True)

Each function returns a whole SVG document that stands alone in a file or inside an HTML page;
`stack` puts several on one sheet. Points carry their values as tooltips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

from traincast.report.svg_axes import Format, Scale, plain_format, ticks, value_range

COLORS = ("#2468b4", "#d9730d", "#2a9461", "#8255b0", "#c2374f", "#0f8a9d", "#8a6d1c")
GREY, INK, FAINT = "#6b7280", "#1f2933", "#e4e7eb"
_FONT = "font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\""
_TINY, _SMALL, _LARGE = 11, 12, 15
# Cream in the middle, the first colour of COLORS at one end and the second at the other.
_LOW, _MIDDLE, _HIGH = (36, 104, 180), (250, 247, 240), (217, 115, 13)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a chart."""

    name: str
    """As the legend has it; a line without a name is not in the legend."""
    x: Sequence[float]
    y: Sequence[float]
    """As many as x; a value that is not finite leaves a gap."""
    dashed: bool = False
    marked: bool = True
    """Whether points are drawn on it."""
    color: str = ""
    """By default one of COLORS, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A value on the x axis worth a line across the chart."""

    x: float
    label: str
    low: float | None = None
    """With `high`: a band around it."""
    high: float | None = None


def text_width(text: str, size: int = _SMALL) -> float:
    """Return about how wide a text is, in pixels."""
    return 0.56 * size * len(text)


def _text(x: float, y: float, text: str, size: int = _SMALL, anchor: str = "start",
          color: str = INK, extra: str = "") -> str:  # fmt: skip
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" '
        f'fill="{color}"{extra}>{escape(text)}</text>'
    )


def _rule(x1: float, y1: float, x2: float, y2: float, color: str, more: str = "") -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"{more}/>'


def _box(x: float, y: float, w: float, h: float, fill: str, more: str = "", tip: str = "") -> str:
    inside = f"<title>{escape(tip)}</title>" if tip else ""
    size = f'width="{w:.1f}" height="{h:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{fill}"{more}>{inside}</rect>'


def _document(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" role="img" {_FONT}>\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _heading(title: str, subtitle: str) -> tuple[list[str], float]:
    parts, y = [], 12.0
    if title:
        y += 14
        parts.append(_text(18, y, title, _LARGE, extra=' font-weight="600"'))
    if subtitle:
        y += 18
        parts.append(_text(18, y, subtitle, _SMALL, color=GREY))
    return parts, y + 10


def _legend(names: Sequence[tuple[str, str, bool]], width: float, top: float, swatch: bool = False
            ) -> tuple[list[str], float]:  # fmt: skip
    parts, x, y = [], 18.0, top + 10
    for name, color, dashed in names:
        need = 34 + text_width(name)
        if x + need > width - 12 and x > 18:
            x, y = 18.0, y + 18
        if swatch:
            parts.append(_box(x + 6, y - 9, 12, 10, color, ' rx="2"'))
        else:
            dash = ' stroke-dasharray="5 4"' if dashed else ""
            parts.append(_rule(x, y - 4, x + 22, y - 4, color, f' stroke-width="2.2"{dash}'))
        parts.append(_text(x + 28, y, name))
        x += need + 14
    return parts, y + 8


class _Frame:
    """The plotting area: where it lies, its scales, grid and labels."""

    def __init__(
        self, *, top: float, width: float, height: float, x_range: tuple[float, float],
        y_range: tuple[float, float], log_x: bool, log_y: bool, x_format: Format,
        y_format: Format, x_ticks: Sequence[float] | None, x_label: str, y_label: str,
    ) -> None:  # fmt: skip
        y_ticks = ticks(*y_range, log_y, max(3, int((height - top) / 48)))
        labels = [y_format(v) for v in y_ticks]
        left = 22 + max((text_width(t, _TINY) for t in labels), default=20) + (20 if y_label else 0)
        self.left, self.right, self.top = left, width - 26, top + 8
        self.bottom = height - (50 if x_label else 32)
        self.x = Scale(*x_range, self.left, self.right, log_x)
        self.y = Scale(*y_range, self.bottom, self.top, log_y)
        wide = max(text_width(x_format(v), _TINY) for v in x_range) + 18
        room = max(2, int((self.right - self.left) / max(wide, 44)))
        at = list(x_ticks) if x_ticks is not None else ticks(*x_range, log_x, room)
        at = at[:: -(-len(at) // max(room, 1))] if at else at
        self.parts: list[str] = []
        for value, label in zip(y_ticks, labels, strict=True):
            y = self.y(value)
            self.parts.append(_rule(self.left, y, self.right, y, FAINT))
            self.parts.append(_text(self.left - 7, y + 4, label, _TINY, "end", GREY))
        for value in at:
            if self.x.holds(value):
                x = self.x(value)
                self.parts.append(_rule(x, self.top, x, self.bottom, FAINT))
                self.parts.append(
                    _text(x, self.bottom + 16, x_format(value), _TINY, "middle", GREY)
                )
        self.parts.append(_rule(self.left, self.bottom, self.right, self.bottom, GREY))
        self.parts += _axis_names(self.left, self.right, self.top, self.bottom, x_label, y_label)


def _axis_names(left: float, right: float, top: float, bottom: float, x_label: str, y_label: str
                ) -> list[str]:  # fmt: skip
    parts = []
    if x_label:
        parts.append(_text((left + right) / 2, bottom + 38, x_label, _SMALL, "middle"))
    if y_label:
        middle = (top + bottom) / 2
        turn = f' transform="rotate(-90 18 {middle:.1f})"'
        parts.append(_text(18, middle, y_label, _SMALL, "middle", extra=turn))
    return parts


def line_chart(
    lines: Sequence[Line], *, x_label: str = "", y_label: str = "", title: str = "",
    subtitle: str = "", log_x: bool = False, log_y: bool = False, x_format: Format = plain_format,
    y_format: Format = plain_format, x_ticks: Sequence[float] | None = None,
    marks: Sequence[Mark] = (), width: int = 720, height: int = 420,
) -> str:  # fmt: skip
    """Return a chart of lines over one x axis; formats turn a tick's value into its label."""
    parts, top = _heading(title, subtitle)
    turn = cycle(COLORS)
    colors = [line.color or next(turn) for line in lines]
    named = [(line.name, c, line.dashed) for line, c in zip(lines, colors, strict=True)]
    legend, top = _legend([entry for entry in named if entry[0]], width, top)
    frame = _Frame(
        top=top, width=width, height=height, log_x=log_x, log_y=log_y, x_format=x_format,
        y_format=y_format, x_ticks=x_ticks, x_label=x_label, y_label=y_label,
        x_range=value_range([v for line in lines for v in line.x], log_x),
        y_range=value_range([v for line in lines for v in line.y], log_y, 0.06),
    )  # fmt: skip
    parts += legend + [_band(mark, frame) for mark in marks] + frame.parts
    for line, color in zip(lines, colors, strict=True):
        parts += _drawn(line, color, frame, x_format, y_format)
    parts += [part for mark in marks for part in _marked(mark, frame)]
    return _document(width, height, title or y_label, parts)


def _drawn(line: Line, color: str, frame: _Frame, x_format: Format, y_format: Format) -> list[str]:
    path, pen, dots = [], "M", []
    for x, y in zip(line.x, line.y, strict=True):
        if not math.isfinite(y) or (frame.y.log and y <= 0) or (frame.x.log and x <= 0):
            pen = "M"
            continue
        at = f"{frame.x(x):.1f} {frame.y(y):.1f}"
        path.append(pen + at)
        pen = "L"
        cx, cy = at.split()
        tip = escape(f"{line.name}: {y_format(y)} at {x_format(x)}")
        dots.append(
            f'<circle cx="{cx}" cy="{cy}" r="3.2" fill="#fff" stroke="{color}" stroke-width="1.8">'
            f"<title>{tip}</title></circle>"
        )
    dash = ' stroke-dasharray="6 4"' if line.dashed else ""
    drawn = (
        f'<path d="{"".join(path)}" fill="none" stroke="{color}" stroke-width="2.2" '
        f'stroke-linejoin="round"{dash}/>'
    )
    return [drawn, *(dots if line.marked else [])]


def _band(mark: Mark, frame: _Frame) -> str:
    if mark.low is None or mark.high is None:
        return ""
    left, right = (min(max(frame.x(v), frame.left), frame.right) for v in (mark.low, mark.high))
    return _box(left, frame.top, right - left, frame.bottom - frame.top, "#f2f4f7")


def _marked(mark: Mark, frame: _Frame) -> list[str]:
    if not frame.x.holds(mark.x):
        return []
    x = frame.x(mark.x)
    side = "end" if x > (frame.left + frame.right) / 2 else "start"
    at = x - 6 if side == "end" else x + 6
    rule = _rule(x, frame.top, x, frame.bottom, INK, ' stroke-dasharray="2 3"')
    halo = ' paint-order="stroke" stroke="#fff" stroke-width="4"'
    return [rule, _text(at, frame.top + 13, mark.label, _TINY, side, extra=halo)]


def bar_chart(
    categories: Sequence[str], bars: Sequence[tuple[str, Sequence[float]]], *, x_label: str = "",
    y_label: str = "", title: str = "", subtitle: str = "", stacked: bool = False,
    y_format: Format = plain_format, width: int = 720, height: int = 420,
) -> str:  # fmt: skip
    """Return bars for each category: one a series side by side, or stacked on each other.

    `bars` holds (name, one value a category) for each series; values are zero or more.
    """
    parts, top = _heading(title, subtitle)
    names = [(name, COLORS[i % len(COLORS)], False) for i, (name, _) in enumerate(bars)]
    legend, top = _legend(names, width, top, swatch=True)
    heights = [
        sum(v[i] for _, v in bars) if stacked else max(v[i] for _, v in bars)
        for i in range(len(categories))
    ]
    frame = _Frame(
        top=top, width=width, height=height, x_range=(0, max(len(categories), 1)),
        y_range=(0, max([*heights, 0]) * 1.06 or 1.0), log_x=False, log_y=False,
        x_format=plain_format, y_format=y_format, x_ticks=(), x_label=x_label, y_label=y_label,
    )  # fmt: skip
    parts += legend + frame.parts
    for i, category in enumerate(categories):
        parts.append(_text(frame.x(i + 0.5), frame.bottom + 16, category, _TINY, "middle", GREY))
        base = 0.0
        for j, (name, values) in enumerate(bars):
            wide = 0.62 if stacked else 0.72 / len(bars)
            left = frame.x(i + 0.5 + (-wide / 2 if stacked else -0.36 + wide * j))
            high, low = frame.y(base + values[i]), frame.y(base)
            tip = f"{category}, {name}: {y_format(values[i])}"
            across = frame.x(i + wide) - frame.x(i)
            parts.append(_box(left, high, across, low - high, names[j][1], ' rx="1.5"', tip))
            base += values[i] if stacked else 0.0
    return _document(width, height, title or y_label, parts)


def heat_map(
    x: Sequence[float], y: Sequence[float], z: Sequence[Sequence[float]], *, x_label: str = "",
    y_label: str = "", title: str = "", subtitle: str = "", low_label: str = "",
    high_label: str = "", x_format: Format = plain_format, y_format: Format = plain_format,
    z_format: Format = plain_format, reach: float | None = None,
    curve: Sequence[tuple[float, float]] = (), width: int = 720, height: int = 460,
) -> str:  # fmt: skip
    """Return cells coloured by z[row of y][column of x], from −reach through 0 to reach.

    Cells are equally wide whatever x and y are. `curve` is drawn through points (x, y), placed
    between cells by the logarithm; `low_label` and `high_label` name the ends of the colours.
    """
    parts, top = _heading(title, subtitle)
    most = reach or max((abs(v) for row in z for v in row if math.isfinite(v)), default=1.0) or 1.0
    labels = [y_format(v) for v in y]
    left = 22 + max(text_width(t, _TINY) for t in labels) + (20 if y_label else 0)
    right, bottom, top = width - 26.0, height - (50.0 if x_label else 32.0), top + 40
    cell_w, cell_h = (right - left) / len(x), (bottom - top) / len(y)
    inked = cell_w >= 34 and cell_h >= 15
    figures: list[str] = []
    for i, row in enumerate(z):
        cy = bottom - (i + 1) * cell_h
        for j, value in enumerate(row):
            cx = left + j * cell_w
            tip = f"{x_format(x[j])}, {labels[i]}: {z_format(value)}"
            parts.append(_box(cx, cy, cell_w + 0.3, cell_h + 0.3, _shade(value / most), tip=tip))
            if inked:
                ink = "#ffffff" if abs(value / most) > 0.62 else INK
                # Over the curve, on a seam of the cell's own colour.
                seam = f' paint-order="stroke" stroke="{_shade(value / most)}" stroke-width="4"'
                figures.append(_text(cx + cell_w / 2, cy + cell_h / 2 + 4, z_format(value), _TINY,
                                     "middle", ink, seam))  # fmt: skip
    parts += _cell_labels(labels, left, bottom, cell_h, 16, across=False)
    parts += _cell_labels([x_format(v) for v in x], left, bottom, cell_w, 58, across=True)
    spots = [(left + (_rank(x, a) + 0.5) * cell_w, bottom - (_rank(y, b) + 0.5) * cell_h)
             for a, b in curve]  # fmt: skip
    if len(spots) > 1:
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in spots)
        for color, thick in (("#ffffff", 4.5), (INK, 1.8)):
            parts.append(
                f'<path d="{path}" fill="none" stroke="{color}" stroke-width="{thick}" '
                'stroke-linecap="round" stroke-linejoin="round"/>'
            )
    parts += figures + _axis_names(left, right, top, bottom, x_label, y_label)
    parts += _colour_bar(left, right, top - 26, most, z_format, low_label, high_label)
    return _document(width, height, title, parts)


def _cell_labels(labels: Sequence[str], left: float, bottom: float, step: float, room: float,
                 *, across: bool) -> list[str]:  # fmt: skip
    every = max(1, math.ceil(room / step))
    parts = []
    for i in range(0, len(labels), every):
        middle = (i + 0.5) * step
        if across:
            parts.append(_text(left + middle, bottom + 16, labels[i], _TINY, "middle", GREY))
        else:
            parts.append(_text(left - 7, bottom - middle + 4, labels[i], _TINY, "end", GREY))
    return parts


def _colour_bar(left: float, right: float, top: float, most: float, z_format: Format, low: str,
                high: str) -> list[str]:  # fmt: skip
    parts, wide, count = [], 180.0, 60
    start = (left + right - wide) / 2
    for i in range(count):
        shade = _shade(2 * i / (count - 1) - 1)
        parts.append(_box(start + i * wide / count, top, wide / count + 0.4, 10, shade))
    parts.append(_text(start - 8, top + 9, f"{low}  {z_format(-most)}".strip(), _TINY, "end"))
    parts.append(_text(start + wide + 8, top + 9, f"{z_format(most)}  {high}".strip(), _TINY))
    return parts


def _shade(share: float) -> str:
    if not math.isfinite(share):
        return "#d5d9de"
    end = _HIGH if share > 0 else _LOW
    part = min(abs(share), 1.0) ** 0.8
    mixed = (round(m + (e - m) * part) for m, e in zip(_MIDDLE, end, strict=True))
    return "#" + "".join(f"{c:02x}" for c in mixed)


def _rank(values: Sequence[float], at: float) -> float:
    """Return where a value lies among rising ones: 0 for the first, 1.5 between two others."""
    if len(values) < 2:
        return 0.0
    i = sum(v <= at for v in values[1:-1])
    low, high = values[i], values[i + 1]
    return i + math.log(at / low) / math.log(high / low)


def stack(charts: Sequence[tuple[str, int, int]], *, columns: int = 1, title: str = "") -> str:
    """Return one sheet with several charts, given as (SVG text, width, height)."""
    wide = max(width for _, width, _ in charts)
    high = max(height for _, _, height in charts)
    rows = -(-len(charts) // columns)
    parts = []
    for i, (text, _, _) in enumerate(charts):
        x, y = wide * (i % columns), high * (i // columns)
        parts.append(text.replace("<svg ", f'<svg x="{x}" y="{y}" ', 1))
    return _document(wide * min(columns, len(charts)), high * rows, title, parts)
