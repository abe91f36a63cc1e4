"""Importing the package and finding a name stay light."""

from __future__ import annotations

import subprocess
import sys

import pytest

import traincast.hardware

HEAVY = "sorted(m for m in ('numpy', 'pydantic', 'scipy', 'torch') if m in sys.modules)"


def loaded_after(statement: str) -> str:
    code = f"import sys; {statement}; print({HEAVY})"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize(
    "statement",
    [
        "import traincast.hardware",
        "import traincast.hardware as h; h.device_names(); h.link_names()",
        "import traincast.hardware as h; h.resolve_device_name('NVIDIA A100')",
    ],
)
def test_nothing_heavy_is_imported(statement: str) -> None:
    assert loaded_after(statement) == "[]"


def test_the_test_above_can_fail() -> None:
    assert "pydantic" in loaded_after("import traincast.hardware as h; h.load_device('h200')")


def test_one_device_reads_one_device_file() -> None:
    statement = (
        "from pathlib import Path; read = []; real = Path.read_bytes; "
        "Path.read_bytes = lambda p: (read.append(p.name), real(p))[1]; "
        "import traincast.hardware as h; h.load_device('a100'); "
        "assert sorted(read) == ['a100-80gb.toml', 'aliases.toml', 'links.toml'], read"
    )
    loaded_after(statement)


def test_the_public_names_are_sorted_and_there() -> None:
    names = traincast.hardware.__all__
    constants = [n for n in names if n.isupper()]
    classes = [n for n in names if n[0].isupper() and not n.isupper()]
    functions = [n for n in names if n.islower()]
    assert names == sorted(constants) + sorted(classes) + sorted(functions)
    assert all(hasattr(traincast.hardware, name) for name in names)
