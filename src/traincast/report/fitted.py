"""Tables that leave out their least important columns where they would not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table


class Fitted:
    """A table built for the width at hand.

    `build` makes it without the columns it is given; `drop` names columns, least important first.
    """

    def __init__(self, build: Callable[[frozenset[str]], Table], drop: Sequence[str]) -> None:
        self._build = build
        self._drop = tuple(drop)

    def _choose(self, console: Console, options: ConsoleOptions) -> Table:
        for count in range(len(self._drop) + 1):
            table = self._build(frozenset(self._drop[:count]))
            wide = options.update(max_width=1000)
            if Measurement.get(console, wide, table).maximum <= options.max_width:
                break
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._choose(console, options)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._choose(console, options))


def plain_table(heads: Sequence[str], without: frozenset[str], left: Sequence[str]) -> Table:
    """Return an empty table without lines; all columns but those in `left` are set to the right."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in heads:
        if head not in without:
            side = "left" if head in left else "right"
            table.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
    return table


def add_row(table: Table, cells: Sequence[tuple[str, str]], style: str | None = None) -> None:
    """Add the cells, given as (head, text), whose columns the table has."""
    heads = [column.header for column in table.columns]
    table.add_row(*[text for head, text in cells if head in heads], style=style)
