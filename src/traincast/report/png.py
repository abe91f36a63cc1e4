"""SVG charts as PNG, through the optional package cairosvg."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

from traincast.errors import MissingExtraError, OutputFileError
from traincast.report.files import check_writable


def check_png() -> None:
    """Refuse a PNG file where the package that draws it is missing, before any work."""
    if importlib.util.find_spec("cairosvg") is None:
        raise MissingExtraError("cairosvg", "plot", "a .png plot (.svg and .html need nothing)")


def write_png(path: Path, svg: str, scale: float = 2.0) -> None:
    """Draw an SVG document into a PNG file."""
    check_png()
    check_writable(path)
    cairosvg = importlib.import_module("cairosvg")
    try:
        cairosvg.svg2png(bytestring=svg.encode(), write_to=str(path), scale=scale)
    except OSError as error:
        raise OutputFileError(f"{path}: cannot be written: {error}; choose another") from error
