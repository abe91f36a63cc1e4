"""What is claimed of predictions on an H200, against real training steps."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from traincast.simulate.summary import summarise
from traincast.simulate.validate import ValidatedRow, read_runs, validate

pytestmark = pytest.mark.skipif(
    not all(map(find_spec, ("torch", "torchvision", "transformers"))),
    reason="traces networks of torchvision and Transformers",
)

ROOT = Path(__file__).parents[2]
HELD_OUT = ROOT / "benchmarks/data/h200/held_out_steps.csv"
SHARED = ROOT.parent / "shared/data/h200/train_steps.csv"


def rows_of(table: Path) -> list[ValidatedRow]:
    if not table.exists():
        pytest.skip(f"{table.name} is not here: its rows are measured runs that are not shipped")
    return list(validate(read_runs(table), device="h200", root=table.parent))


@pytest.mark.parametrize("table", [HELD_OUT, SHARED], ids=["held-out", "shared"])
def test_steps_are_as_close_as_claimed(table: Path) -> None:
    rows = rows_of(table)
    assert [r.problem for r in rows if r.problem] == []
    eager = [r for r in rows if not r.given.get("mode")]
    found = summarise(eager)
    quiet = found["step_ms quiet"]
    assert quiet.mape is not None and quiet.mape <= 0.08
    assert quiet.p90 is not None and quiet.p90 <= 0.20
    assert quiet.bias is not None and abs(quiet.bias) <= 0.04
    step = found["step_ms"]
    assert step.mape is not None and step.mape <= 0.15
    assert step.coverage is not None and 0.80 <= step.coverage <= 0.98
    memory = found["peak_gib"]
    assert memory.mape is not None and memory.mape <= 0.08
    assert all(r.fits is False for r in rows if r.out_of_memory)
    assert all(r.fits for r in rows if not r.out_of_memory)
