"""The measuring script as users run it: alone, stopped, resumed, on bad files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from traincast.measure.bench import header, results, runner
from traincast.measure.bench.emit import emit

# An import of traincast would fail: the script has to do without.
ALONE = "import runpy, sys; sys.modules['traincast'] = None; sys.argv[:] = sys.argv[1:]; " \
    "runpy.run_path(sys.argv[0], run_name='__main__')"  # fmt: skip


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("alone") / "bench.py"
    path.write_text(emit())
    return path


def command(script: Path, out: Path, seconds: float) -> list[str]:
    return [sys.executable, "-I", "-c", ALONE, str(script), str(out), "--device", "cpu",
            "--minutes", str(seconds / 60)]  # fmt: skip


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_script_runs_alone_and_goes_on_where_it_ended(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    done = subprocess.run(command(script, out, 3), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "s left" in done.stderr
    head, *rows = lines(out)
    assert head["header"]["schema"] == 1
    assert head["header"]["kind"] == "cpu"
    assert head["header"]["torch"] == torch.__version__
    assert os.uname().nodename not in json.dumps(head) or len(os.uname().nodename) < 4
    assert rows
    for row in rows:
        assert row["seconds"] > 0
        assert row["spread"] >= 0

    with out.open("a") as file:
        file.write('{"family": "gemm", "m": 1')  # as a kill leaves it
    again = subprocess.run(command(script, out, 2), capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert lines(out)[: len(rows) + 1] == [head, *rows]
    more = lines(out)[1:]
    assert len(more) > len(rows)
    assert len({runner.case_key(row) for row in more}) == len(more)
    assert results.read_results([out]).rows == more


def test_ctrl_c_leaves_a_valid_file(script: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    process = subprocess.Popen(command(script, out, 60), stderr=subprocess.PIPE, text=True)
    while not (out.exists() and out.read_text().count("\n") > 2):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "goes on" in said
    assert len(lines(out)) > 2
    assert out.read_text().endswith("\n")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (
            '{"header": {"schema": 1, "device": "Other", "torch": "1"}}\n',
            ["device Other", "choose"],
        ),
        ('{"header": {"schema": 9}}\n', ["schema 9"]),
        ('{"family": "machine"}\n', ["schema None"]),
        ("HEADER\nnot json\n", [":2:", "no row of results"]),
        ("[1]\n", [":1:"]),
    ],
)
def test_another_machines_file_is_not_added_to(text: str, parts: list[str], tmp_path: Path) -> None:
    runner.start("cpu")
    out = tmp_path / "out.jsonl"
    before = text.replace("HEADER", json.dumps({"header": header.header(0)}))
    out.write_text(before)
    with pytest.raises(SystemExit) as refused:
        runner.main([str(out), "--device", "cpu", "--minutes", "0.01"])
    for part in parts:
        assert part in str(refused.value)
    assert out.read_text() == before


def test_an_error_becomes_a_row_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore")

    draw, _, weight = runner.FAMILIES["conv"]
    monkeypatch.setattr(runner, "FAMILIES", {
        "conv": (draw, fails, weight), "gemm": runner.FAMILIES["gemm"]
    })  # fmt: skip
    monkeypatch.setattr(runner, "FIRST", {})
    out = tmp_path / "out.jsonl"
    assert runner.main([str(out), "--device", "cpu", "--minutes", "0.03"]) == 0
    rows = lines(out)[1:]
    failed = [row for row in rows if row["family"] == "conv"]
    assert failed[0]["error"] == "CUDA out of memory. Tried to allocate 3 GiB"
    assert "seconds" not in failed[0]
    assert any(row["family"] == "gemm" and row["seconds"] > 0 for row in rows)


def test_a_lost_device_ends_the_process_and_the_case_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    draw, _, weight = runner.FAMILIES["conv"]
    monkeypatch.setattr(runner, "FAMILIES", {"conv": (draw, fails, weight)})
    monkeypatch.setattr(runner, "FIRST", {})
    monkeypatch.setattr(runner, "usable", lambda: False)
    out = tmp_path / "out.jsonl"
    cases = []
    for _ in range(2):
        with pytest.raises(SystemExit) as ended:
            runner.main([str(out), "--device", "cpu", "--minutes", "1"])
        assert ended.value.code == 3
        cases.append(runner.case_key(lines(out)[-1]))
    assert "illegal memory access" in lines(out)[-1]["error"]
    assert cases[0] != cases[1]


def test_cuda_where_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(SystemExit, match="--device cpu"):
        runner.start("cuda")


def test_both_sides_agree_on_schema_and_keys() -> None:
    assert results.SCHEMA == header.SCHEMA
    row = {"family": "gemm", "m": 1, "dtype": "fp32", "seconds": 1.0, "spread": 0.1, "lag": 0}
    assert (
        results.case_key(row)
        == runner.case_key(row)
        == '{"dtype": "fp32", "family": "gemm", "m": 1}'
    )
