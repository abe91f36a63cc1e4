"""Environments whose `python` is a script of ours instead of a framework."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sweep_helpers import make_environment

from traincast.measure.sweep.plan import Sweep, read_sweep
from traincast.measure.sweep.runner import WORKERS

FAKE = """
import os, subprocess, sys, time
sys.path.insert(0, WORKERS)
from harness import Job

job = Job()
kinds = ("good", "fails", "hangs", "garbage", "zero", "crashes")
kind = kinds[job.settings["layers"] - 1]
with open(PIDS, "a") as file:
    file.write(f"{os.getpid()}\\n")
if kind == "fails":
    print("Traceback\\nValueError: no such kernel", file=sys.stderr)
    sys.exit(3)
if kind == "hangs":
    child = subprocess.Popen(["sleep", "600"])
    with open(PIDS, "a") as file:
        file.write(f"{child.pid}\\n")
    time.sleep(600)
if kind == "garbage":
    print("hello", file=job._out, flush=True)
    sys.exit(0)
if kind == "zero":
    print('{"epoch_s": 0}', file=job._out, flush=True)
    sys.exit(0)
if kind == "crashes":
    os.abort()
print("the framework says hello")
while job.more():
    time.sleep(0.001)
job.finish(7, "1.0")
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    return tmp_path / "pids"


@pytest.fixture
def fake(tmp_path: Path, pids: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of each framework that behaves as the setting `layers` says."""
    script = tmp_path / "fake.py"
    script.write_text(FAKE.replace("WORKERS", repr(str(WORKERS))).replace("PIDS", repr(str(pids))))
    for framework in ("pytorch", "tensorflow", "mxnet"):
        make_environment(tmp_path / "frameworks", framework, sys.executable, str(script))
    monkeypatch.setenv("TRAINCAST_FRAMEWORKS", str(tmp_path / "frameworks"))
    return tmp_path / "frameworks"


TomlFile = Callable[..., Path]


@pytest.fixture
def toml_file(tmp_path: Path) -> TomlFile:
    """Write a grid over kinds of workers, with other lines of the table `sweep`."""

    def write(layers: list[int], *lines: str, kernels: tuple[int, ...] = (3,)) -> Path:
        path = tmp_path / "sweep.toml"
        path.write_text(
            '[sweep]\ndesign = "grid"\noutput = "out"\ntimed_s = 0.01\nleast_epochs = 2\n'
            + "\n".join(lines)
            + f"\n[factors]\nlayers = {json.dumps(layers)}\nkernel = {json.dumps(kernels)}\n"
        )
        return path

    return write


@pytest.fixture
def sweep_of(toml_file: TomlFile) -> Callable[..., Sweep]:
    return lambda *args, **more: read_sweep(toml_file(*args, **more))
