"""Kernels carried from the device they were measured on to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from traincast.estimate.calibrated.transfer import MOST, carried
from traincast.hardware import load_device

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


def test_more_units_take_less_time() -> None:
    more = replace(H200, units=264)
    rate = H200.peak("bf16")
    assert carried(np.array([0.4]), rate, more, rate, H200)[0] > 0.4
