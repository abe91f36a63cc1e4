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
DATA = ROOT / "benchmarks/data/h200"
HELD_OUT, THIRD = DATA / "held_out_steps.csv", DATA / "third_steps.csv"
BY_HAND = [DATA / f"{name}_steps.csv" for name in ("second", "unseen", "fresh")]
SHARED = ROOT.parent / "shared/data/h200/train_steps.csv"


def rows_of(table: Path) -> list[ValidatedRow]:
    if not table.exists():
        pytest.skip(f"{table.name} is not here: its rows are measured runs that are not shipped")
    return list(validate(read_runs(table), device="h200", root=table.parent))


@pytest.mark.parametrize("table", [HELD_OUT, THIRD, SHARED], ids=["held-out", "third", "shared"])
def test_steps_are_as_close_as_claimed(table: Path) -> None:
    rows = rows_of(table)
    assert [r.problem for r in rows if r.problem] == []
    eager = [r for r in rows if not r.given.get("mode")]
    found = summarise(eager)
    quiet, step, memory = (found[k] for k in ("step_ms quiet", "step_ms", "peak_gib"))
    assert (quiet.mape or 1) <= 0.08
    assert (quiet.p90 or 1) <= 0.20
    assert abs(quiet.bias or 0) <= 0.04
    assert (step.mape or 1) <= 0.15
    assert 0.80 <= (step.coverage or 0) <= 0.98
    assert (memory.mape or 1) <= 0.08
    assert all(r.fits is False for r in rows if r.out_of_memory)
    assert all(r.fits for r in rows if not r.out_of_memory)


@pytest.mark.filterwarnings("ignore")
def test_networks_by_hand_are_predicted_too() -> None:
    """A third of these steps are bound by the host of a virtual machine."""
    rows = [row for table in BY_HAND for row in rows_of(table)]
    assert [r.problem for r in rows if r.problem] == []
    found = summarise(rows)
    quiet, step, memory = (found[k] for k in ("step_ms quiet", "step_ms", "peak_gib"))
    assert (quiet.mape or 1) <= 0.09
    assert abs(quiet.bias or 0) <= 0.04
    assert (step.mape or 1) <= 0.15
    assert 0.80 <= (step.coverage or 0) <= 0.98
    assert (memory.mape or 1) <= 0.08
