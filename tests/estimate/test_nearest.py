"""Which profile is carried over to a device that has none."""

from __future__ import annotations

import pytest

from traincast.estimate.calibrated.library import distance, nearest, shipped, shipped_names
from traincast.estimate.registry import estimator_for
from traincast.hardware import load_device


@pytest.mark.parametrize(
    ("device", "architectures"),
    [
        ("gtx-1080", {"pascal"}),
        ("rtx-4090", {"ada", "ada-lovelace", "blackwell"}),
        ("rtx-3080", {"ampere"}),
        ("gtx-980", {"maxwell"}),
        ("b100", {"blackwell"}),
        ("v100s", {"volta"}),
    ],
)
def test_kernels_come_from_the_same_generation(device: str, architectures: set[str]) -> None:
    found = nearest(load_device(device))
    assert found is not None
    assert load_device(found.device).architecture in architectures


@pytest.mark.parametrize("device", ["mi300x", "mi60", "rx-7900-xtx"])
def test_kernels_come_from_the_same_maker(device: str) -> None:
    found = nearest(load_device(device))
    assert found is not None
    assert load_device(found.device).vendor == "AMD"


def test_a_board_that_cannot_hold_its_clock_is_no_model_for_one_that_can() -> None:
    """The T4 is of the RTX 2080 Ti's generation, with 70 W instead of 250."""
    board = load_device("rtx-2080-ti")
    assert distance(board, load_device("v100")) < distance(board, load_device("t4"))


def test_a_profile_without_kernels_is_not_carried_over() -> None:
    for name in ("rtx-3080", "rtx-3090-ti", "rtx-3080-ti"):
        found = nearest(load_device(name))
        assert found is not None
        assert found.models


def test_a_device_is_not_transferred_from_itself() -> None:
    for name in shipped_names():
        found = nearest(load_device(name))
        assert found is None or found.device != name


@pytest.mark.parametrize("device", ["epyc-9654", "tpu-v4", "gaudi2"])
def test_other_kinds_of_devices_have_none(device: str) -> None:
    assert nearest(load_device(device)) is None


def test_what_a_similar_device_lacks_comes_from_the_complete_profile() -> None:
    engine = estimator_for("transfer", load_device("gtx-1080"))
    assert engine.base is shipped("h200")  # type: ignore[attr-defined]
