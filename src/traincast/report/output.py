"""To standard output: JSON for machines, tables for people."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_PIPE_WIDTH = 120


def show(what: dict[str, Any] | list[Any] | str | RenderableType) -> None:
    """Print data as JSON, text as it is and anything else through rich."""
    if isinstance(what, dict | list):
        # Whole before any of it is written: what cannot be JSON must not leave half a document.
        what = json.dumps(what, ensure_ascii=False, allow_nan=False, indent=1)
    if isinstance(what, str):
        sys.stdout.write(what + "\n")
        return
    from rich.console import Console

    # Names come from users: brackets and colons in them are no markup.
    make = partial(Console, highlight=False, markup=False, emoji=False)
    if sys.stdout.isatty():
        make().print(what)
        return
    console = make(width=_pipe_width(), file=sys.stdout)
    with console.capture() as captured:
        console.print(what)
    for line in captured.get().splitlines():
        sys.stdout.write(line.rstrip() + "\n")


def _pipe_width() -> int:
    """Return the columns to use where there is no terminal: COLUMNS if it says so."""
    wanted = os.environ.get("COLUMNS", "")
    return int(wanted) if wanted.isascii() and wanted.isdigit() and int(wanted) else _PIPE_WIDTH
