"""A plan drawn: the network from top to bottom with its splits, and bars against its rivals."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from traincast.parallel.strategy import DIMS
from traincast.report.plan import Block, blocks, outcomes
from traincast.report.svg import COLORS, FAINT, GREY, INK, bar_chart
from traincast.search.layerwise import Plan

_ROW, _WIDTH, _LEFT, _CELL = 30, 720, 330, 230
_FONT = "font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif\""
_COLOR = {dim: COLORS[i % len(COLORS)] for i, dim in enumerate(DIMS)}
_MOST_ROWS = 80
_BARS = 360


def plan_chart(title: str, plan: Plan) -> str:
    """Return one sheet with the network and the comparison."""
    top, height = network_drawing(title, plan)
    below = rival_chart(plan).replace("<svg ", f'<svg y="{height}" ', 1)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height + _BARS}" '
        f'width="{_WIDTH}" height="{height + _BARS}" role="img"><title>{escape(title)}</title>\n'
        f"{top}{below}</svg>\n"
    )


def rival_chart(plan: Plan) -> str:
    """Return bars of where the time of a step goes, for the plan and its rivals."""
    found = outcomes(plan)
    parts = {
        "compute": [o.compute_s for o in found.values()],
        "transfers": [o.transfer_s for o in found.values()],
        "gradients not hidden": [o.exposed_s for o in found.values()],
        "update": [o.update_s for o in found.values()],
    }
    return bar_chart(
        list(found),
        [(name, [s * 1e3 for s in values]) for name, values in parts.items() if any(values)],
        y_label="ms a step",
        title="A step under each strategy",
        stacked=True,
        width=_WIDTH,
        height=_BARS,
    )


def network_drawing(title: str, plan: Plan) -> tuple[str, int]:
    """Return the network as rows of layers that are split alike, and the drawing's height."""
    rows = blocks(plan.layers)
    devices = plan.tables.setting.cluster.devices
    shown = rows[:_MOST_ROWS]
    used = [dim for dim in DIMS if any(dim in r.layers[0].degrees for r in shown)]
    parts = [_text(16, 26, title, 15, INK, "bold")]
    parts += _legend(used)
    top = 66
    for i, row in enumerate(shown):
        parts += _row(row, top + i * _ROW, devices, last=i == len(shown) - 1)
    height = top + len(shown) * _ROW + 16
    if len(rows) > len(shown):
        parts.append(_text(16, height, f"… and {len(rows) - len(shown)} more rows", 12, GREY))
        height += 20
    body = "\n".join(parts)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" role="img"><title>{escape(title)}</title>'
        f'<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )
    return svg, height


def _row(row: Block, y: float, devices: int, *, last: bool) -> list[str]:
    split = row.layers[0]
    name = row.name if len(row.name) < 46 else row.name[:44] + "…"
    parts = [
        f'<circle cx="22" cy="{y + 12}" r="4" fill="{GREY}"/>',
        _text(36, y + 11, name, 12, INK),
        _text(36, y + 24, row.ops, 10, GREY),
    ]
    if not last:
        parts.append(f'<path d="M22 {y + 16}V{y + _ROW + 8}" stroke="{FAINT}" stroke-width="2"/>')
    cell = _CELL / devices
    for k in range(devices):
        place = split.place(k) if k < split.parts else {}
        major = next(iter(place), "")
        fill = _COLOR[major] if major else (GREY if k < split.parts else FAINT)
        shade = 0.45 + 0.55 * (1 - place[major] / split.degree(major)) if major else 1.0
        where = ", ".join(f"{d} {i + 1} of {split.degree(d)}" for d, i in place.items())
        tip = f"device {k}: {where or ('all of it' if k < split.parts else 'nothing')}"
        x, width = _LEFT + k * cell, max(cell - 2, 1)
        parts.append(
            f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="20" rx="2" '
            f'fill="{fill}" fill-opacity="{shade:.2f}"><title>{escape(tip)}</title></rect>'
        )
        for depth, dim in enumerate(list(place)[1:], 1):
            # Further dims as stripes at the foot of the cell, one for each.
            deep = 0.45 + 0.55 * (1 - place[dim] / split.degree(dim))
            parts.append(
                f'<rect x="{x:.1f}" y="{y + 23 - 6 * depth}" width="{width:.1f}" height="6" '
                f'fill="#fff"/><rect x="{x:.1f}" y="{y + 24 - 6 * depth}" width="{width:.1f}" '
                f'height="5" fill="{_COLOR[dim]}" fill-opacity="{deep:.2f}"/>'
            )
    parts.append(_text(_LEFT + _CELL + 12, y + 17, str(split), 12, INK))
    return parts


def _legend(dims: Sequence[str]) -> list[str]:
    parts, x = [], 16.0
    for dim in dims:
        parts.append(f'<rect x="{x:.0f}" y="40" width="12" height="12" fill="{_COLOR[dim]}"/>')
        parts.append(_text(x + 17, 50, dim, 12, GREY))
        x += 40 + 7 * len(dim)
    parts.append(_text(_LEFT, 50, "what each device holds", 11, GREY))
    return parts


def _text(x: float, y: float, text: str, size: int, color: str, weight: str = "normal") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" {_FONT} font-size="{size}" font-weight="{weight}" '
        f'fill="{color}">{escape(text)}</text>'
    )
