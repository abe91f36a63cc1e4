"""Measuring through a process that may die: what was measured stays in the store."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from traincast.errors import InvalidValueError, PredictionError
from traincast.measure import store as stored
from traincast.measure.bench import session

pytest.importorskip("torch")

# Stands in for the measuring process: five cases, in the order of its protocol. What it does at
# the third one is the test's choice.
CHILD = """
import json, os, signal, sys
def say(**said): print(json.dumps(said), flush=True)
asked = json.loads(sys.stdin.readline())
if os.path.exists({gone!r}):
    say(problem="no device here; use --device cpu")
    sys.exit(2)
say(header={{"schema": 1, "device": "Tester", "torch": "2", "threads": 2, "kind": "cuda"}})
asked |= json.loads(sys.stdin.readline())
for m in range(5):
    case = {{"family": "gemm", "m": m, "dtype": "fp32"}}
    if json.dumps(case, sort_keys=True) in asked["done"]:
        continue
    say(begin=case)
    if m == 2:
        {fault}
    say(row={{**case, "seconds": 1.0 + m}})
"""
STICKY = 'say(row={**case, "error": "illegal access"}); sys.exit(3)'
CRASH = "os.kill(os.getpid(), signal.SIGSEGV)"
BREAKS = "raise ValueError('broken')"


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINCAST_STORE", str(tmp_path / "store.db"))

    def make(fault: str = "pass") -> Path:
        gone = tmp_path / "gone"
        text = CHILD.format(fault=fault, gone=str(gone))
        monkeypatch.setattr(session, "_CHILD", (sys.executable, "-c", text))
        return gone

    return make


def rows_of(found: session.Measured) -> list[tuple[int, object]]:
    return [(row["m"], row.get("seconds", row.get("error"))) for row in found.results.rows]


def test_rows_go_to_the_store(child) -> None:
    child()
    told: list[tuple[int, str]] = []
    found = session.measure_here(device=None, minutes=1, told=lambda *said: told.append(said))
    assert rows_of(found) == [(m, 1.0 + m) for m in range(5)]
    assert (found.new, found.problem) == (5, "")
    assert told == [(m, "gemm") for m in range(5)]
    with stored.open_store() as store:
        (kept,) = stored.calibrations(store)
        assert kept.header["device"] == "Tester"
        assert len(stored.results(store, kept.run)) == 5


@pytest.mark.parametrize(
    ("fault", "said"),
    [(STICKY, "illegal access"), (CRASH, "SIGSEGV"), (BREAKS, "ValueError: broken")],
)
def test_a_case_that_kills_the_process_is_noted_and_passed_over(
    child, fault: str, said: str
) -> None:
    child(fault)
    found = session.measure_here(device=None, minutes=1)
    assert [m for m, _ in rows_of(found)] == [0, 1, 2, 3, 4]
    assert said in str(rows_of(found)[2][1])
    assert found.results.errors == 1
    assert found.results.families == {"gemm": 4}
    assert found.problem == ""


def test_a_device_that_disappears_leaves_what_was_measured(child, tmp_path: Path) -> None:
    child(f"open({str(tmp_path / 'gone')!r}, 'w').close(); sys.exit(3)")
    found = session.measure_here(device=None, minutes=1)
    assert [m for m, _ in rows_of(found)] == [0, 1, 2]
    assert "no device" in found.problem


def test_no_device_at_all(child) -> None:
    child().touch()
    with pytest.raises(InvalidValueError, match="use --device cpu"):
        session.measure_here(device="cuda", minutes=1)
    with stored.open_store() as store:
        assert stored.calibrations(store) == []


def test_a_later_session_goes_on_and_again_begins_anew(child) -> None:
    child("sys.exit(0)")
    first = session.measure_here(device=None, minutes=1)
    assert [m for m, _ in rows_of(first)] == [0, 1]
    child()
    second = session.measure_here(device=None, minutes=1)
    assert ([m for m, _ in rows_of(second)], second.new) == ([0, 1, 2, 3, 4], 3)
    with stored.open_store() as store:
        assert len(stored.calibrations(store)) == 1
    third = session.measure_here(device=None, minutes=1, again=True)
    assert third.new == 5


def test_nothing_measured_is_said(child, monkeypatch: pytest.MonkeyPatch) -> None:
    child()
    python, flag, text = session._CHILD
    monkeypatch.setattr(session, "_CHILD", (python, flag, text.replace("range(5)", "range(0)")))
    with pytest.raises(PredictionError, match="nothing was measured on Tester"):
        session.measure_here(device=None, minutes=1)


def test_a_silent_process_is_ended(child, monkeypatch: pytest.MonkeyPatch) -> None:
    child("import time; time.sleep(600)")
    monkeypatch.setattr(session, "_CASE_S", 0.5)
    found = session.measure_here(device=None, minutes=1)
    assert "hung" in str(rows_of(found)[2][1])
    assert len(found.results.rows) == 5
