"""Kernels carried from the device they were measured on to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast.estimate.calibrated.transfer import MOST, carried, saving
from traincast.hardware import load_device
from traincast.simulate.predict import predict

H200, RTX = load_device("h200"), load_device("rtx-3090")


def test_a_worked_example() -> None:
    """35 % of 989.4 TFLOP/s on 132 units at 1.98 GHz, to 71.2 TFLOP/s on 82 at 1.695 GHz."""
    fed = (71.2e12 / (82 * 1.695e9)) / (989.4e12 / (132 * 1.98e9))
    found = carried(np.array([0.35]), RTX.peak("fp16"), RTX, H200.peak("fp16"), H200)
    assert found[0] == pytest.approx(1 / (1 + (1 / 0.35 - 1) * fed))
    assert found[0] == pytest.approx(0.80, abs=0.005)


@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5, 0.9])
def test_the_same_device_reaches_the_same(fraction: float) -> None:
    found = carried(np.array([fraction]), H200.peak("bf16"), H200, H200.peak("bf16"), H200)
    assert found[0] == pytest.approx(fraction)


def test_what_uses_no_unit_well_follows_the_clocks() -> None:
    """A kernel far from any peak takes as many cycles there as here."""
    e = 1e-4
    found = carried(np.array([e]), RTX.peak("fp16"), RTX, H200.peak("fp16"), H200)[0]
    slower = (H200.peak("fp16") * e) / (RTX.peak("fp16") * found)
    assert slower == pytest.approx((132 * 1.98) / (82 * 1.695), rel=0.01)


def test_nothing_is_carried_beyond_what_kernels_reach() -> None:
    found = carried(np.array([0.99, 3.0]), RTX.peak("fp16"), RTX, H200.peak("fp16"), H200)
    assert list(found) == [MOST, MOST]


@pytest.mark.parametrize("fraction", [0.2, 1.0, 1.47, 2.2])
def test_what_an_algorithm_saves_it_saves_anywhere(fraction: float) -> None:
    """Winograd's F(2×2, 3×3) multiplies 2.25 times less often: 1.47 of the peak by the formula."""
    rates = RTX.peak("fp32"), RTX, H200.peak("fp32"), H200
    found = saving(np.array([fraction]), *rates)[0]
    plain = carried(np.array([min(fraction, 1.0)]), *rates)[0]
    assert found == pytest.approx(plain * max(fraction, 1.0))


@pytest.mark.parametrize(
    ("device", "dtype", "taken"),
    [
        ("titan-xp", "fp16", False),  # 1/64 of fp32's rate (NVIDIA's CUDA guide, capability 6.1)
        ("p100", "fp16", True),  # twice fp32's rate (capability 6.0)
        ("v100", "fp16", True), ("v100", "bf16", False), ("v100", "tf32", False),
        ("rtx-2080-ti", "bf16", False), ("a100-40gb", "tf32", True), ("titan-xp", "fp32", True),
    ],
)  # fmt: skip
def test_types_that_units_take(device: str, dtype: str, taken: bool) -> None:
    assert load_device(device).takes(dtype) == taken


@pytest.mark.parametrize("device", ["titan-xp", "gtx-1080"])
def test_a_product_in_a_type_that_no_unit_takes_runs_as_in_fp32(device: str) -> None:
    """Measured on a TITAN Xp, networks in fp16 take 0.95 to 2.2 times as long as in fp32."""
    half, full = (
        predict("vgg16", device, batch=12, precision=p).step.device_s["forward"]
        for p in ("fp16", "fp32")
    )
    assert 0.75 < half / full < 1.1


def test_another_host_is_taken_to_be_slower() -> None:
    """Of six published machines, hosts took 0.92 to 1.8 times what the H200's takes."""
    ours, other = (
        sum(predict("resnet50", device, batch=1).step.host_s[p] for p in ("forward", "backward"))
        for device in ("h200", "a100-40gb")
    )
    assert 0.95 < other / ours < 1.8
    assert other > ours


def test_more_units_take_less_time() -> None:
    more = replace(H200, units=264)
    rate = H200.peak("bf16")
    assert carried(np.array([0.4]), rate, more, rate, H200)[0] > 0.4
