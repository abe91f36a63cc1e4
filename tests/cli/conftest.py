"""Runs the command line in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from traincast.cli import main


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    def refused(self, *parts: str, status: int = 2) -> None:
        """One message that names the thing and the fix, and nothing else."""
        assert self.status == status
        assert self.out == ""
        assert self.err.startswith("traincast: ")
        assert "Traceback" not in self.err
        assert "defect" not in self.err
        for part in parts:
            assert part in self.err


Cli = Callable[..., Result]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*argv: object) -> Result:
        capsys.readouterr()
        status = main([str(a) for a in argv])
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run
