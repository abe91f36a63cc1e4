"""The command: it trains, says how far it is from one process, and fails without leaving anyone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from traincast.cli import main
from traincast.parallel.strategy import LayerSplit, Strategy, strategy_to_json

MODEL = """
import os, signal, torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.fc = nn.Linear(4 * 36, 5)
        self.seen = 0
    def forward(self, x):
        self.seen += 1
        if self.seen == {fatal} and os.environ.get("FATE") == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.seen == {fatal} and os.environ.get("FATE") == "raise":
            raise ValueError("no good")
        if self.seen == {fatal} and os.environ.get("FATE") == "sleep":
            import time
            time.sleep(600)
        return self.fc(torch.relu(self.conv(x)).flatten(1))

def build(batch=1):
    return Net(), torch.zeros(batch, 3, 6, 6)
"""
LAYERS = (
    LayerSplit("conv", "conv", {"height": 2}),
    LayerSplit("fc", "linear", {"channel": 2}),
)

LOSS = '  {"name": "cross_entropy", "op": "cross_entropy", "degrees": {}},'


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(MODEL.replace("{fatal}", "4"))
    strategy = Strategy(f"{tmp_path}/net.py:build", 4, 2, LAYERS)
    path = tmp_path / "plan.json"
    path.write_text(strategy_to_json(strategy, {"predicted": {"step_ms": 1.5}}))
    return path


def workers(parent: int) -> list[str]:
    """Ids of the processes that train, started by a process."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, above = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            trains = b"spawn_main" in (process / "cmdline").read_bytes()
        except OSError:  # It has just ended.
            continue
        if above == str(parent) and trains and state != "Z":
            found.append(process.name)
    return found


def test_a_plan_trains_as_one_process_does(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(plan), "--steps", "10", "--check", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert len(found["losses"]) == 10
    assert found["steps"] == 8
    assert found["check"]["loss"] < 1e-5
    assert found["check"]["weight"] < 1e-5
    assert found["predicted"]["step_ms"] == 1.5
    # Halo rows: one each way, forward; the image needs no gradient. 4 samples · 3 channels come
    # from the loader, so the dense layer alone makes others send: halves of 4 × 4 × 36 values to
    # each other, their gradients back; the logits and theirs.
    half = 4 * 4 * 18 * 4
    logits = 4 * 3 * 4
    assert found["activation_bytes"] == 2 * 2 * half + 2 * logits
    whole = (4 * 27 + 4) * 4
    assert found["parameter_bytes"] == [whole + 2 * 145 * 4, whole + 3 * 145 * 4]


@pytest.mark.parametrize(
    ("fate", "said"),
    [
        ("die", "was ended by SIGKILL"),
        ("raise", "failed: ValueError: no good"),
        ("sleep", "no process took a step for 4 s"),
    ],
)
def test_a_process_that_fails_ends_all(
    plan: Path,
    fate: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FATE", fate)
    patience = "4" if fate == "sleep" else "120"
    assert main(["run", str(plan), "--timeout", patience]) == 1
    assert said in capsys.readouterr().err
    assert not workers(os.getpid())


def test_a_port_in_use_is_named(plan: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main(["run", str(plan), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"port {port} cannot be used (it is in use); choose another with --port" in said
    assert not workers(os.getpid())


def test_a_plan_for_more_processes_than_allowed(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(plan), "--processes", "1"]) == 2
    said = capsys.readouterr().err
    assert "for 2 devices, but at most 1 processes may be started here" in said


def test_a_plan_of_another_model(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Strategy(f"{tmp_path}/net.py:build", 4, 2, (LayerSplit("a.b", "conv", {"sample": 2}),))
    plan.write_text(strategy_to_json(other))
    assert main(["run", str(plan)]) == 2
    assert "does not run (a.b); it is a plan of another model" in capsys.readouterr().err
    wrong = Strategy(f"{tmp_path}/net.py:build", 4, 2, (LayerSplit("fc", "conv", {"sample": 2}),))
    plan.write_text(strategy_to_json(wrong))
    assert main(["run", str(plan)]) == 2
    assert "its layer 'fc' is a conv, the model's is a linear" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--optimizer", "adafactor"], "optimizer 'adafactor' is unknown; use sgd"),
        (["--steps", "2"], "--warmup 2 leaves none of --steps 2 to time"),
        (["--lr", "0"], "--lr '0' is not a number above 0"),
        (["--data", "nowhere"], "nowhere: is no folder"),
    ],
)
def test_bad_options(
    plan: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(plan), *options]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_of_images(plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cats", "dogs"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(3):
            image.new("RGB", (9, 7), (40 * i, 90, 10)).save(tmp_path / "data" / name / f"{i}.png")
    options = ["--data", str(tmp_path / "data"), "--steps", "3", "--check", "--json"]
    assert main(["run", str(plan), *options]) == 0
    assert json.loads(capsys.readouterr().out)["check"]["weight"] < 1e-5


def test_in_double_precision_nothing_but_rounding_is_left(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--precision", "fp64", "--optimizer", "adam", "--steps", "4", "--check", "--json"]
    assert main(["run", str(plan), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["check"]["weight"] < 1e-13
    assert found["check"]["weight_travel"] > 1e-2
    assert found["predicted"] is None


def test_an_image_that_cannot_be_read_is_named(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL.Image")
    (tmp_path / "data" / "cats").mkdir(parents=True)
    (tmp_path / "data" / "cats" / "torn.png").write_bytes(b"no image")
    assert main(["run", str(plan), "--data", str(tmp_path / "data")]) == 2
    assert "torn.png: is no image that can be read" in capsys.readouterr().err
    assert not workers(os.getpid())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not valid JSON: line 1, column 1"),
        ('{"schema": "traincast-strategy/1"', "is not valid JSON"),
        ("[]", "is no plan"),
        ('{"schema": "traincast-strategy/9"}', "is no plan: \"schema\" is 'traincast-strategy/9'"),
        ('{"schema": "traincast-strategy/1", "model": 3}', '"model" is 3, not of type str'),
    ],
)
def test_a_corrupt_plan(
    tmp_path: Path, text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "torn.json"
    path.write_text(text)
    assert main(["run", str(path)]) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_plan_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", str(tmp_path / "none.json")]) == 2
    assert "cannot be read: No such file" in " ".join(capsys.readouterr().err.split())


def test_fewer_samples_than_parts(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = (LayerSplit("conv", "conv", {"sample": 2}),)
    plan.write_text(strategy_to_json(Strategy(f"{tmp_path}/net.py:build", 4, 2, layers)))
    assert main(["run", str(plan), "--batch", "1"]) == 2
    assert "sample 2 is more than the 1 positions there are" in capsys.readouterr().err


def test_another_launcher_with_another_number_of_processes(
    plan: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    group = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in group.items():
        monkeypatch.setenv(name, value)
    assert main(["run", str(plan)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "the plan is for 2 devices, torchrun started 3 processes" in said


def test_under_torchrun_device_0_prints(plan: Path) -> None:
    done = subprocess.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
            "-m", "traincast", "run", str(plan), "--steps", "3", "--check", "--json",
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["check"]["weight"] < 1e-5


def test_a_plan_is_predicted_on_the_processes_that_run_it(
    plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = plan.read_text().replace('"layers": [', '"layers": [\n' + LOSS)
    plan.write_text(text.replace('"predicted"', '"cluster": "1x2xp100",\n "predicted"'))
    assert main(["run", str(plan), "--steps", "4", "--calibrate"]) == 0
    said = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "here, " in said
    assert "1.50 ms on 1x2xp100; this ran on" in said
    assert main(["run", str(plan), "--steps", "4", "--calibrate", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["predicted"]["same_device"] is False
    here = found["predicted_here"]
    # What moves is counted by the run, and derived from the graph by the prediction.
    assert here["communication_bytes"] == pytest.approx(found["communication_bytes"], rel=0.01)
    assert here["step_ms"] > 0
    assert here["alone_ms"] > 0


def test_an_interrupt_ends_all(plan: Path) -> None:
    environment = {**os.environ, "FATE": "sleep", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.Popen(
        [sys.executable, "-m", "traincast", "run", str(plan)], env=environment,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    until = time.monotonic() + 120
    while len(started := workers(run.pid)) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(1)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted" in said
    assert len(started) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
