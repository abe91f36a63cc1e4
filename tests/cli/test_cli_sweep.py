"""traincast sweep, with a training script that answers at once."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

SWEEP = """
[sweep]
design = "grid"
frameworks = ["pytorch", "mxnet"]

[factors]
kernel = [1, 3, 4]
pool = ["none", "max"]
"""
ANSWER = '{"epoch_s": 0.5, "spread": 0.02, "version": "9.9"}'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.toml"
    path.write_text(SWEEP)
    return path


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Make environments whose python reads its order and says what it is told to."""
    monkeypatch.setenv("TRAINCAST_FRAMEWORKS", str(tmp_path / "frameworks"))

    def make(framework: str, code: str = f"echo '{ANSWER}'") -> None:
        python = tmp_path / "frameworks" / framework / "bin" / "python"
        python.parent.mkdir(parents=True, exist_ok=True)
        python.write_text(f"#!/bin/sh\nread order\n{code}\n")
        python.chmod(0o755)

    make("pytorch")
    make("mxnet")
    return make


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_writes_one_table_a_framework(cli, file, answers, tmp_path):
    found = cli("sweep", file)
    assert found.status == 0
    assert "2 left out: an even kernel" in found.out
    assert "Wrote " in found.out
    for framework in ("pytorch", "mxnet"):
        table = rows(tmp_path / f"{framework}.csv")
        assert {(r["kernel"], r["pool"]) for r in table} == {
            ("1", "none"), ("1", "max"), ("3", "none"), ("3", "max"),
        }  # fmt: skip
        assert list(table[0]) == ["kernel", "pool", "epoch_s"]
        assert {r["epoch_s"] for r in table} == {"0.5"}


def test_progress_is_told_on_standard_error(cli, file, answers):
    found = cli("sweep", file, "--limit", 3)
    assert "3 of 3: " in found.err
    assert "0.5 s an epoch" in found.err
    assert "of 3" not in found.out


def test_json(cli, file, answers, tmp_path):
    data = cli("sweep", file, "--json").data
    assert data["runs"] == 8
    assert data["left_out"] == {"an even kernel has no equal padding on both sides": 2}
    first, second = data["frameworks"]
    assert (first["framework"], second["framework"]) == ("pytorch", "mxnet")
    assert first["table"] == str(tmp_path / "pytorch.csv")
    assert (first["runs"], first["done"], first["failed"]) == (4, 4, 0)
    assert first["epoch_s"] == {"least": 0.5, "median": 0.5, "most": 0.5}
    assert first["versions"] == ["9.9"]


def test_limit_and_resume(cli, file, answers):
    def counts() -> list[int]:
        data = cli("sweep", file, "--dry-run", "--json").data
        return [entry["done"] for entry in data["frameworks"]]

    assert sum(counts()) == 0
    cli("sweep", file, "--limit", 3)
    assert sum(counts()) == 3
    cli("sweep", file)
    assert counts() == [4, 4]


def test_one_framework(cli, file, answers, tmp_path):
    cli("sweep", file, "--framework", "mxnet")
    assert (tmp_path / "mxnet.csv").exists()
    assert not (tmp_path / "pytorch.csv").exists()


def test_output_elsewhere(cli, file, answers, tmp_path):
    cli("sweep", file, "--output", tmp_path / "a" / "b", "--limit", 1, "--framework", "mxnet")
    assert len(rows(tmp_path / "a" / "b" / "mxnet.csv")) == 1


def test_a_dry_run_runs_and_writes_nothing(cli, file, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINCAST_FRAMEWORKS", str(tmp_path / "none"))
    found = cli("sweep", file, "--dry-run")
    assert found.status == 0
    assert "1, 3, 4" in found.out
    assert "none (4)" in found.out
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep.toml"]


def test_failures_are_counted_and_explained(cli, file, answers):
    answers("mxnet", "echo 'ImportError: libgomp' >&2; exit 1")
    found = cli("sweep", file)
    assert found.status == 0
    assert "4 mxnet failed: status 1: ImportError: libgomp" in found.out
    answers("mxnet")
    assert cli("sweep", file, "--json").data["frameworks"][1]["failed"] == 4
    data = cli("sweep", file, "--again", "--json").data["frameworks"][1]
    assert (data["done"], data["failed"], data["failures"]) == (4, 0, [])


def test_where_every_run_fails_the_status_is_1(cli, file, answers):
    answers("mxnet", "exit 5")
    found = cli("sweep", file, "--framework", "mxnet")
    assert found.status == 1
    assert "all 4 runs failed, first: status 5: no message" in found.err


def test_a_missing_environment(cli, file, tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINCAST_FRAMEWORKS", str(tmp_path / "none"))
    found = cli("sweep", file)
    found.refused("no environment of", "scripts/frameworks", "TRAINCAST_FRAMEWORKS")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep.toml"]


def test_a_wrong_file(cli, file):
    file.write_text(SWEEP.replace("kernel = [1, 3, 4]", "kernel = [0]"))
    cli("sweep", file).refused("sweep.toml", "factors.kernel", "whole number from 1 to 32")


def test_no_combination_fits(cli, file):
    file.write_text(SWEEP.replace("kernel = [1, 3, 4]", "kernel = [4]"))
    cli("sweep", file).refused("no combination", "even kernel")


@pytest.mark.parametrize("args", [("--limit", 0), ("--limit", "few"), ("--framework", "jax")])
def test_wrong_options(cli, file, args):
    cli("sweep", file, *args).refused(args[0])


def test_the_log_has_what_the_table_leaves_out(cli, file, answers, tmp_path):
    cli("sweep", file, "--limit", 1, "--framework", "pytorch")
    (line,) = (tmp_path / "pytorch.jsonl").read_text().splitlines()
    record = json.loads(line)
    assert {"run", "settings", "status", "epoch_s", "started", "run_s", "machine"} <= set(record)
