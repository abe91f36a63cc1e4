"""The store: nothing is lost, and what cannot be read says why."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from traincast.errors import InputFileError, OutputFileError
from traincast.measure import store as module
from traincast.measure.store import (
    add_result,
    add_run,
    calibration,
    calibrations,
    open_store,
    result_keys,
    results,
    runs,
    start_calibration,
    store_path,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "store.db"


def test_runs_come_back_as_they_went_in(path: Path) -> None:
    with open_store(path) as store:
        add_run(store, model="resnet50", batch=32, device="h200", step_ms=12.5, depth=[{"a": 1}])
        add_run(store, model="gpt2", batch=8, seq=1024, device="h100", error="oom")
    with open_store(path) as store:
        first, second = runs(store)
        assert [r["model"] for r in runs(store, model="gpt2")] == ["gpt2"]
        assert [r["model"] for r in runs(store, device="h200")] == ["resnet50"]
        assert runs(store, since="2999-01-01") == []
        assert len(runs(store, since="2020-01-01")) == 2
    assert (first["step_ms"], first["batch"], first["depth"]) == (12.5, 32, [{"a": 1}])
    assert first["seq"] is None
    assert (second["error"], second["seq"], second["step_ms"]) == ("oom", 1024, None)


def test_types_are_kept_strictly(path: Path) -> None:
    with open_store(path) as store, pytest.raises(sqlite3.IntegrityError):
        add_run(store, model="resnet50", batch="many")


def test_a_calibration_that_was_broken_off_goes_on(path: Path) -> None:
    with open_store(path) as store:
        start_calibration(store, "a", {"device": "h200"})
        add_result(store, "a", "gemm/1", {"seconds": 1e-5})
        add_result(store, "a", "gemm/0", {"seconds": 2e-5})
    with open_store(path) as store:
        again = start_calibration(store, "a", {"device": "other"})
        assert again.header == {"device": "h200"}
        assert result_keys(store, "a") == {"gemm/0", "gemm/1"}
        add_result(store, "a", "gemm/1", {"seconds": 3e-5})
        assert results(store, "a") == {"gemm/1": {"seconds": 3e-5}, "gemm/0": {"seconds": 2e-5}}
        assert list(results(store, "a")) == ["gemm/1", "gemm/0"]
        start_calibration(store, "b", {})
        assert [c.run for c in calibrations(store)] == ["a", "b"]
        assert results(store, "b") == {}
        assert calibration(store, "c") is None
        with pytest.raises(sqlite3.IntegrityError):
            add_result(store, "c", "key", {})


KILLED = """
import sys, time
from pathlib import Path
from traincast.measure.store import add_run, open_store
with open_store(Path(sys.argv[1])) as store:
    for batch in range(1, 6):
        add_run(store, model="resnet50", batch=batch)
    print("written", flush=True)
    time.sleep(60)
"""


def test_nothing_is_lost_when_killed(path: Path) -> None:
    source = str(Path(module.__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{KILLED}", path],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        process.send_signal(signal.SIGKILL)
    with open_store(path) as store:
        assert [r["batch"] for r in runs(store)] == [1, 2, 3, 4, 5]


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TRAINCAST_STORE", raising=False)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert store_path() == tmp_path / ".local/share/traincast/store.db"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert store_path() == tmp_path / "data/traincast/store.db"
    monkeypatch.setenv("TRAINCAST_STORE", str(tmp_path / "mine.db"))
    assert store_path() == tmp_path / "mine.db"
    with open_store():
        pass
    assert (tmp_path / "mine.db").is_file()


def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    with open_store(path) as store:
        store.connection.execute("PRAGMA user_version = 99")
    with pytest.raises(InputFileError, match=r"newer traincast.*version 99.*update"), \
            open_store(path):  # fmt: skip
        pass


def test_a_locked_store_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_WAIT_S", 0.05)
    with open_store(path) as store:
        store.connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(InputFileError, match=r"store\.db: is locked.*wait") as caught, \
                open_store(path) as other:  # fmt: skip
            add_run(other, model="resnet50")
        assert caught.value.exit_status == 2
        store.connection.execute("COMMIT")
    with open_store(path) as store:
        assert runs(store) == []


def test_files_that_are_no_store(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("this is no database, however long it may be " * 50)
    with pytest.raises(InputFileError, match=r"text\.db.*not a store"), open_store(text):
        pass
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE runs (a)")
    for version in (0, 1):
        connection.execute(f"PRAGMA user_version = {version}")
        with pytest.raises(InputFileError, match="another program"), open_store(foreign):
            pass
    connection.close()
    with pytest.raises(OutputFileError, match="TRAINCAST_STORE"), open_store(tmp_path):
        pass
    with pytest.raises(OutputFileError, match="TRAINCAST_STORE"), open_store(text / "a.db"):
        pass
