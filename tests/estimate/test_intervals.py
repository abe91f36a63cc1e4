"""Intervals: wider where kernels are less sure, by a hand derivation and as properties."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import predict
from traincast.estimate.calibrated.estimator import Calibrated, widening
from traincast.estimate.calibrated.profile import Profile, profile_from_json, profile_to_json

SPREAD = st.floats(0.0, 1.0)


def own(spread: float = 0.04) -> Calibrated:
    profile = Profile(
        device="h200", models={}, host=None, spread=spread,
        errors={"device": (0.9, 1.2), "host": (0.8, 1.3)},
    )  # fmt: skip
    return Calibrated(profile)


def test_a_step_whose_kernels_are_twice_as_unsure() -> None:
    """√(0.035² + 0.12²) over √(0.035² + 0.04²) is 0.125 / 0.05315."""
    low, high = own().interval(2.0, False, 0.12)
    wider = 0.125 / 0.0531507
    assert low == pytest.approx(2.0 * 0.9**wider, rel=1e-5)
    assert high == pytest.approx(2.0 * 1.2**wider, rel=1e-5)
    assert own().interval(2.0, False, 0.04) == pytest.approx((1.8, 2.4))


@pytest.mark.parametrize(
    ("spread", "host_bound", "told"), [(0.3, True, 0.04), (None, False, 0.04), (0.3, False, 0.0)]
)
def test_percentiles_as_they_are(spread: float | None, host_bound: bool, told: float) -> None:
    """Bound by the host, with kernels of which nothing is known, or without a middle to compare."""
    expected = (0.8, 1.3) if host_bound else (0.9, 1.2)
    assert own(told).interval(1.0, host_bound, spread) == pytest.approx(expected)


@given(SPREAD, SPREAD, st.floats(0.001, 1.0))
def test_less_sure_kernels_never_make_an_interval_narrower(
    one: float, other: float, typical: float
) -> None:
    assert (widening(one, typical) <= widening(other, typical)) == (
        math.hypot(0.035, one) <= math.hypot(0.035, other)
    )
    assert widening(typical, typical) == pytest.approx(1.0)


def test_shapes_that_were_measured_are_surer_than_strange_ones() -> None:
    """ResNet-50's convolutions are all among the measured ones; those on 223 pixels are not."""
    usual, strange = (
        predict("torchvision:resnet50", "h200", batch=batch, image=image, precision="tf32").step
        for batch, image in ((64, 224), (61, 235))
    )
    assert usual.spread is not None
    assert strange.spread is not None
    assert usual.spread < strange.spread
    assert predict("resnet50", "h200", estimator="roofline").step.spread is None


def test_the_spread_of_a_profile_survives_its_file() -> None:
    made = own(0.0316).profile
    assert profile_from_json(profile_to_json(made), "mine.json").spread == pytest.approx(0.0316)
    assert profile_from_json(profile_to_json(replace(made, spread=0.0)), "mine.json").spread == 0.0
