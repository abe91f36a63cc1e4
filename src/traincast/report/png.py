"""SVG charts as PNG, through the optional package cairosvg."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from traincast.errors import MissingExtraError, OutputFileError
from traincast.report.files import write_bytes


def check_png() -> Any:
    """Return what draws PNG files; refuse them where it is missing, before any work."""
    try:
        return importlib.import_module("cairosvg")
    except ImportError as error:
        what = "a .png plot (.svg and .html need nothing)"
        raise MissingExtraError("cairosvg", "plot", what) from error
    except OSError as error:
        raise OutputFileError(
            "a .png plot needs the library cairo, which this machine lacks; install it (Debian: "
            "libcairo2), or plot to .svg or .html"
        ) from error


def write_png(path: Path, svg: str, scale: float = 2.0) -> None:
    """Draw an SVG document into a PNG file."""
    write_bytes(path, check_png().svg2png(bytestring=svg.encode(), scale=scale))
