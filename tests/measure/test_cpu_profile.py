"""A CPU's profile: real steps, page faults counted by the system, and the way to this machine's."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from traincast.estimate.calibrated.library import complement, shipped
from traincast.estimate.calibrated.profile import profile_to_json
from traincast.estimate.calibrated.serial import fresh_bytes
from traincast.estimate.program import kernels_of, program_of
from traincast.estimate.registry import estimator_for
from traincast.graph.precision import precision_named
from traincast.hardware import load_cluster, load_device
from traincast.ingest import resolve
from traincast.measure.calibration import fresh_seconds, host_from
from traincast.measure.cpu import this_cpu
from traincast.measure.machine import catalog_name
from traincast.simulate.predict import predict
from traincast.simulate.summary import summarise
from traincast.simulate.validate import read_runs, validate

NAME = "epyc-genoa-2-cores"
STEPS = Path(__file__).parents[2] / "benchmarks" / "data" / NAME / "steps.csv"
OWN = """
title = {title}
tier = "cpu"
memory = "8 GB"
memory_bandwidth = "40 GB/s"
units = {units}
node_devices = 1

[vector_flops]
fp32 = "0.2 TFLOP/s"

[sources]
"*" = "measured by traincast calibrate"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINCAST_PROFILES", str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_predictions_hold_for_real_steps_of_18_networks(folder: Path) -> None:
    for package in ("torch", "torchvision", "timm", "transformers"):
        if find_spec(package) is None:
            pytest.skip(f"{package}, which has some of the networks, is not installed")
    if not STEPS.exists():
        pytest.skip("the repository's measured data are not here")
    found = list(validate(read_runs(STEPS), device=None, estimator="calibrated", root=STEPS.parent))
    whole = summarise(found)["step_ms"]
    assert (whole.rows, whole.failed) == (18, 0)
    assert whole.mape < 0.15
    assert 0.8 <= whole.coverage <= 0.98


BLOCK = 8 * 96 * 112 * 112 * 4 / 1e6
"""Megabytes of the images between an expansion to 96 channels and its depthwise convolution."""


@pytest.mark.parametrize(
    ("op", "phase", "blocks"),
    [
        # 16 to 96 channels, of 1: the output and its copy in blocks; the gradient's copy.
        ("features.2.conv.0.0", 0, 2), ("features.2.conv.0.0", 1, 1), ("features.2.conv.0.0", 2, 1),
        # Depthwise with stride 2, whose output is small: the input's copy; its gradient and the
        # copy of that; the input's copy again.
        ("features.2.conv.1.0", 0, 1), ("features.2.conv.1.0", 1, 2), ("features.2.conv.1.0", 2, 1),
        ("features.2.conv.0.1", 0, 1),
    ],
)  # fmt: skip
def test_large_blocks_lie_on_fresh_pages(op: str, phase: int, blocks: int) -> None:
    """Pages that PyTorch 2.13 faulted in, by getrusage: 77, 39 and 39 MB for the first three."""
    program = program_of(resolve("mobilenet_v2"), precision_named("fp32"))
    kernels = kernels_of(program, 8, 0)
    index = program.op_class[program.names.index(op)]
    rows = (kernels.op_class == index) & (kernels.phase == phase)
    fresh = fresh_bytes(program, kernels)[rows].sum() / 1e6
    assert fresh == pytest.approx(blocks * BLOCK, rel=0.01)


def test_what_is_written_in_place_needs_no_memory() -> None:
    program = program_of(resolve("resnet18"), precision_named("fp32"))
    kernels = kernels_of(program, 64, 0)
    rows = [n == "relu" and p == 0 for n, p in zip(kernels.names, kernels.phase, strict=True)]
    assert kernels.write[rows].max() > 2**25
    assert not fresh_bytes(program, kernels)[rows].any()


def test_evaluation_keeps_nothing() -> None:
    program = program_of(resolve("resnet18"), precision_named("fp32"))
    kernels = kernels_of(program, 8, 0)
    forward = kernels.phase == 0
    assert fresh_bytes(program, kernels)[forward].any()
    assert not fresh_bytes(program, kernels, training=False)[forward].any()


def test_fresh_memory_costs_what_it_takes_longer_than_known_memory() -> None:
    fills = [("fresh", 4e6, 1.2e-3), ("fresh", 8e6, 2.4e-3), ("refill", 4e6, 0.2e-3)]
    rows = [
        {"family": "copy", "op": op, "bytes": size, "dtype": "int8", "seconds": seconds}
        for op, size, seconds in fills
    ]
    assert fresh_seconds(rows) == pytest.approx(0.3e-9 - 0.05e-9)
    assert fresh_seconds(rows[:2]) == 0.0
    add = {"family": "host", "op": "add", "form": "infer", "dtype": "fp32", "seconds": 2e-6}
    found = host_from([*rows, add])
    assert found is not None
    assert found.fresh_s == pytest.approx(0.25e-9)


def test_a_cpu_has_one_clock(folder: Path) -> None:
    found = predict("resnet18", NAME, batch=8)
    step = found.step
    assert found.basis == f"calibration of {NAME}"
    assert not step.host_bound
    assert sum(step.host_s.values()) == 0.0
    assert step.seconds == pytest.approx(step.op_seconds.sum() + step.update_s)
    assert step.op_bound.sum() == pytest.approx(step.op_seconds.sum())
    views = [
        i for i, c in enumerate(step.program.op_class) if step.program.classes[c].kind == "view"
    ]
    assert (step.op_seconds[views] > 0).all()


def test_nothing_of_a_gpu_is_taken_for_a_cpu() -> None:
    own = shipped(NAME)
    assert own is not None
    assert complement(own, load_device(NAME)) is None
    assert complement(own, load_device("a100-40gb")) is not None


def _calibrated(folder: Path, title: str, units: int) -> None:
    (folder / "this-cpu.toml").write_text(OWN.format(title=json.dumps(title), units=units))
    own = shipped(NAME)
    assert own is not None
    mine = profile_to_json(replace(own, device="this-cpu"))
    (folder / "this-cpu.json").write_text(mine)


def test_this_machine_is_known_once_it_was_calibrated(folder: Path) -> None:
    name, cores = this_cpu().name, len(this_cpu().cores)
    title = "A processor that no catalog has"
    assert catalog_name("cpu", title) is None
    _calibrated(folder, title, cores)
    assert catalog_name("cpu", title) == "this-cpu"
    assert catalog_name("cuda", title) is None
    assert catalog_name("cpu", f"Not {name}") is None
    _calibrated(folder, title, cores + 1)
    assert catalog_name("cpu", title) is None, "another number of cores is another device"


def test_a_calibrated_machine_is_a_device_like_any_other(folder: Path) -> None:
    _calibrated(folder, "A processor", 2)
    device = load_device("this-cpu")
    assert (device.name, device.title) == ("this-cpu", "A processor")
    assert estimator_for("auto", device).basis == "calibration of this-cpu"
    assert load_cluster("2xthis-cpu").devices == 2
    low, high = predict("resnet18", "this-cpu", batch=4).interval_s
    assert np.isfinite([low, high]).all()
