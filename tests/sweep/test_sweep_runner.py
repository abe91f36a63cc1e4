"""The runner, with workers that succeed, fail, hang, crash or talk nonsense."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traincast.errors import InputFileError, OutputFileError, UsageError
from traincast.measure.sweep.log import Log, latest, table
from traincast.measure.sweep.plan import plan_of
from traincast.measure.sweep.runner import log_of, pending, run_all

SOURCE = Path(__file__).parents[2] / "src"


def done(sweep, *, again: bool = False) -> list[dict]:
    """Do what is to be done, and return the new records by the number of layers."""
    made: list[dict] = []
    run_all(sweep, pending(sweep, plan_of(sweep).runs, again=again).runs,
            lambda _, record: made.append(record))  # fmt: skip
    return sorted(made, key=lambda r: r["settings"]["layers"])


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended but that nobody asked about does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pids: Path, seconds: float = 20) -> bool:
    """Wait for all recorded processes to end."""
    numbers = [int(line) for line in pids.read_text().split()]
    end = time.monotonic() + seconds
    while any(map(alive, numbers)) and time.monotonic() < end:
        time.sleep(0.05)
    return not any(map(alive, numbers))


def test_a_run_that_succeeds(fake, sweep_of):
    (record,) = done(sweep_of([1]))
    assert record["status"] == "ok"
    assert record["framework"] == "pytorch"
    assert record["settings"]["kernel"] == 3
    assert record["epochs"] >= 2
    assert record["epoch_min_s"] <= record["epoch_s"] <= record["epoch_max_s"]
    # 1,024 samples in batches of 64 are 16 steps.
    assert record["steps"] == 16
    assert record["step_ms"] == pytest.approx(record["epoch_s"] / 16 * 1000)
    assert record["parameters"] == 7
    assert record["version"] == "1.0"
    assert record["machine"]["cores"] >= 1


def test_each_failure_is_recorded_with_its_reason(fake, sweep_of):
    good, failed, garbage = done(sweep_of([1, 2, 4]))
    assert good["status"] == "ok"
    assert failed["status"] == garbage["status"] == "failed"
    assert failed["message"] == "status 3: ValueError: no such kernel"
    assert garbage["message"] == "printed no result, but hello"


def test_a_run_past_its_limit_is_ended_with_all_that_it_started(fake, sweep_of, pids):
    (record,) = done(sweep_of([3], "time_limit_s = 8"))
    assert (record["status"], record["message"]) == ("timeout", "ran past its limit of 8 s")
    assert len(pids.read_text().split()) == 2
    assert gone(pids)


def test_a_time_of_zero_is_no_result(fake, sweep_of):
    (record,) = done(sweep_of([5], '[fixed]\npool = "none"'))
    assert record["status"] == "failed"
    assert "epoch_s" in record["message"]


def test_a_crash_names_the_signal(fake, sweep_of):
    (record,) = done(sweep_of([6], '[fixed]\npool = "none"'))
    assert record["status"] == "failed"
    assert record["message"].startswith(f"signal {int(signal.SIGABRT)}")


def test_failures_are_not_retried_unless_asked(fake, sweep_of):
    sweep = sweep_of([1, 2])
    assert len(done(sweep)) == 2
    assert done(sweep) == []
    left = pending(sweep, plan_of(sweep).runs)
    assert (left.runs, left.done, left.failed) == ((), 1, 1)
    (again,) = done(sweep, again=True)
    assert again["settings"]["layers"] == 2


def test_a_larger_sweep_runs_only_what_is_new(fake, sweep_of):
    done(sweep_of([1], kernels=(1, 3)))
    new = done(sweep_of([1], kernels=(1, 3, 5)))
    assert [record["settings"]["kernel"] for record in new] == [5]


def test_repeats_are_runs_of_their_own(fake, sweep_of):
    made = done(sweep_of([1], "repeats = 3"))
    assert sorted(record["repeat"] for record in made) == [0, 1, 2]
    assert len({record["run"] for record in made}) == 3


def test_each_framework_has_its_own_log(fake, sweep_of):
    sweep = sweep_of([1], 'frameworks = ["pytorch", "mxnet"]')
    done(sweep)
    for framework in ("pytorch", "mxnet"):
        (record,) = log_of(sweep, framework).read()
        assert record["framework"] == framework


def test_a_record_that_was_cut_off_is_run_again(fake, sweep_of):
    sweep = sweep_of([1], kernels=(1, 3))
    done(sweep)
    path = sweep.output / "pytorch.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert len(log_of(sweep, "pytorch").read()) == 1
    assert len(done(sweep)) == 1
    records = log_of(sweep, "pytorch").read()
    assert {r["settings"]["kernel"] for r in records} == {1, 3}


def test_a_log_that_is_none_is_refused_and_left_alone(fake, sweep_of):
    sweep = sweep_of([1])
    sweep.output.mkdir()
    path = sweep.output / "pytorch.jsonl"
    path.write_text("a table of mine\n")
    with pytest.raises(InputFileError, match="line 1 is no record of a run"):
        done(sweep)
    assert path.read_text() == "a table of mine\n"


def test_two_sweeps_cannot_write_one_log(fake, sweep_of):
    sweep = sweep_of([1])
    with log_of(sweep, "pytorch").writing(), pytest.raises(OutputFileError, match="another sweep"):
        done(sweep)


def test_a_missing_environment_names_the_script(sweep_of, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINCAST_FRAMEWORKS", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="scripts/frameworks pytorch"):
        done(sweep_of([1]))


def test_the_last_success_counts_even_after_a_failure():
    def record(status: str, mark: int) -> dict:
        return {"run": "a", "status": status, "settings": {}, "mark": mark}

    found = latest([record("failed", 1), record("ok", 2), record("failed", 3), record("ok", 4)])
    assert found["a"]["mark"] == 4
    assert latest([record("ok", 1), record("failed", 2)])["a"]["mark"] == 1


def test_the_table_has_what_varies_and_one_row_a_point():
    def record(run: str, kernel: int, seconds: float, status: str = "ok") -> dict:
        chosen = {"kernel": kernel, "filters": 4, "batch": 8}
        return {"run": run, "status": status, "settings": chosen, "epoch_s": seconds}

    records = [
        record("a", 1, 0.5), record("b", 3, 2.0), record("c", 5, 9.0, "failed"),
        record("b1", 3, 1.0), record("b2", 3, 7.0),
    ]  # fmt: skip
    assert table(records, ["batch"]) == (
        ["kernel", "batch", "epoch_s"],
        [[1, 8, 0.5], [3, 8, 2.0]],
    )


@pytest.fixture
def broken_off(fake, toml_file, pids):
    """A sweep in a process of its own, in the middle of a run that hangs."""
    path = toml_file([1, 3], "time_limit_s = 500", "seed = 1", kernels=(1, 3, 5))
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-m", "traincast", "sweep", str(path)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + 60
    while time.monotonic() < end and not (
        # A run that hangs has written two numbers, its own and its child's; others have one.
        pids.exists() and len(pids.read_text().split()) >= _good_before_hanging(path) + 2
    ):
        time.sleep(0.05)
    yield process, path
    process.kill()
    process.communicate()


def _good_before_hanging(path: Path) -> int:
    from traincast.measure.sweep.plan import read_sweep

    layers = [run.settings.layers for run in plan_of(read_sweep(path)).runs]
    return layers.index(3)


def test_a_killed_sweep_loses_one_run_and_leaves_no_process(broken_off, pids):
    process, path = broken_off
    process.kill()
    process.wait()
    assert gone(pids)
    records = Log(path.parent / "out" / "pytorch.jsonl").read()
    assert len(records) == _good_before_hanging(path)
    assert all(record["status"] == "ok" for record in records)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, -15)])
def test_an_interrupted_sweep_leaves_no_process(broken_off, pids, number, status):
    process, path = broken_off
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == status
    assert gone(pids)
    if number == signal.SIGINT:
        kept = _good_before_hanging(path)
        assert f"{kept} new runs are kept; the same command goes on from there" in said
        lines = (path.parent / "out" / "pytorch.jsonl").read_text().splitlines()
        assert len([json.loads(line) for line in lines]) == kept
