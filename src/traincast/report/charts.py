"""Writing a chart: .svg as it is, .html with its data beside it, .png where cairosvg is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from traincast.errors import InvalidValueError
from traincast.report.files import write_text
from traincast.report.png import check_png, write_png

PLOTS = (".svg", ".html", ".png")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#1f2933;max-width:780px;margin:2em auto;"
    "padding:0 1em}h1{font-size:1.4em}figure{margin:1.5em 0 .5em}svg{max-width:100%;height:auto}"
    "table{border-collapse:collapse;font-size:12px;font-variant-numeric:tabular-nums}"
    "td,th{padding:.15em .6em;text-align:right;border-bottom:1px solid #e4e7eb}"
    "details{overflow-x:auto}.note{color:#6b7280;margin:.2em 0}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One chart of a page."""

    chart: str
    """An SVG document."""
    lines: Sequence[str] = ()
    """Sentences below it."""
    rows: Sequence[Mapping[str, Any]] = ()
    """Its data, folded away; all with the keys of the first."""


def check_plot(path: Path | None) -> None:
    """Raise where a chart of that name could not be drawn; before any work is done."""
    if path is None:
        return
    if path.suffix.lower() not in PLOTS:
        raise InvalidValueError(f"--plot {path} is of no known form; end it in {', '.join(PLOTS)}")
    if path.suffix.lower() == ".png":
        check_png()


def write_chart(
    path: Path,
    svg: str,
    *,
    title: str,
    rows: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write a chart in the form that the file's ending names."""
    kind = path.suffix.lower()
    if kind == ".png":
        write_png(path, svg)
    else:
        html = page(title, [Section(chart=svg, rows=rows)], notes)
        write_text(path, svg if kind == ".svg" else html)


def page(title: str, sections: Sequence[Section], notes: Sequence[str] = ()) -> str:
    """Return a page that stands alone: the charts, each with its data folded away below."""
    parts = [f"<h1>{escape(title)}</h1>"]
    for section in sections:
        parts.append(f"<figure>{section.chart}</figure>")
        parts += [f"<p>{escape(line)}</p>" for line in section.lines]
        parts += [_data(section.rows)] if section.rows else []
    parts += [f"<p class=note>{escape(line)}</p>" for line in notes]
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )


def _data(rows: Sequence[Mapping[str, Any]]) -> str:
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{_cell(v)}</td>" for v in row.values()) + "</tr>" for row in rows
    )
    return (
        "<details><summary>Data</summary><table><thead><tr>"
        f"{head}</tr></thead><tbody>{body}</tbody></table></details>"
    )


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else escape(str(value))
