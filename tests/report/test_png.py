"""PNG charts: drawn by cairosvg where it and its library are there, refused clearly where not."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from traincast.errors import MissingExtraError, OutputFileError
from traincast.report import png

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="8" height="4"></svg>'


def test_a_picture_of_twice_the_size(tmp_path: Path) -> None:
    try:
        png.check_png()
    except (MissingExtraError, OutputFileError) as error:
        pytest.skip(str(error))
    path = tmp_path / "x.png"
    png.write_png(path, SVG)
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    # Width and height stand in the header's first eight bytes, big-endian.
    assert (data[16:20], data[20:24]) == ((16).to_bytes(4, "big"), (8).to_bytes(4, "big"))


@pytest.mark.parametrize(
    ("raised", "error", "text"),
    [
        (ImportError("no module"), MissingExtraError, r"pip install 'traincast\[plot\]'"),
        (OSError("no library called cairo-2"), OutputFileError, "libcairo2"),
    ],
)
def test_what_is_missing_is_named(monkeypatch, raised, error, text: str) -> None:
    def fail(_: str) -> None:
        raise raised

    monkeypatch.setattr(importlib, "import_module", fail)
    with pytest.raises(error, match=text):
        png.check_png()
