"""Fitting needs scipy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("scipy", reason="fitting needs scipy")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Write a CSV of columns and return its path."""
    from fit_runs import write_table

    def make(columns: Any, name: str = "runs.csv") -> Path:
        return write_table(tmp_path / name, columns)

    return make
