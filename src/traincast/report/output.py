"""To standard output: JSON for machines, tables for people."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

_PIPE_WIDTH = 120


def show(what: dict[str, Any] | list[Any] | str | RenderableType) -> None:
    """Print data as JSON, text as it is and anything else through rich."""
    if isinstance(what, dict | list):
        json.dump(what, sys.stdout, ensure_ascii=False, indent=1)
        sys.stdout.write("\n")
        return
    if isinstance(what, str):
        print(what)
        return
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(width=width, highlight=False, soft_wrap=False).print(what)
