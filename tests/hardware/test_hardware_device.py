"""What a device says of itself: peaks and their fallbacks, and what it refuses to be."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.hardware import PRECISIONS, Device, Link, load_device


def a_device(**changes: Any) -> Device:
    fields: dict[str, Any] = {
        "name": "toy",
        "title": "Toy",
        "vendor": "nobody",
        "tier": "datacenter-gpu",
        "architecture": "toy",
        "year": 2024,
        "memory_bytes": 1e9,
        "memory_bandwidth": 1e11,
        "matrix_flops": {},
        "vector_flops": {"fp32": 1e12},
        "units": 10,
        "clock_hz": 1e9,
    }
    return Device(**{**fields, **changes})


@pytest.mark.parametrize(
    ("device", "precision", "tflops"),
    [
        ("h100", "bf16", 989.4),
        ("h100", "fp32", 66.9),  # never tf32 unless asked for
        ("h100", "tf32", 494.7),
        ("h100", "fp64", 66.9),
        ("a100", "fp8", 312),  # no fp8 units: the 16-bit ones
        ("v100", "fp16", 125),
        ("v100", "bf16", 15.7),  # no bf16 units: fp32, not the fp16 ones
        ("v100", "tf32", 15.7),
        ("v100", "fp64", 7.8),
        ("p100", "fp16", 21.2),
        ("p100", "bf16", 10.6),
        ("mi250x", "fp32", 47.9),  # CDNA multiplies fp32 matrices on its matrix units
        ("mi250x", "tf32", 47.9),
        ("gtx-1080-ti", "fp16", 11.34),
        ("xeon-8480+", "bf16", 114.7),
        ("xeon-8480+", "fp16", 7.168),
    ],
)
def test_the_peak_falls_back_as_documented(device: str, precision: str, tflops: float) -> None:
    assert load_device(device).peak(precision) == pytest.approx(tflops * 1e12)


def test_half_precision_slower_than_fp32_is_computed_in_fp32() -> None:
    device = a_device(vector_flops={"fp32": 8e12, "fp16": 0.125e12})
    assert device.peak("fp16") == 8e12
    assert device.vector_peak("fp16") == 8e12


def test_elementwise_work_uses_the_ordinary_units() -> None:
    h100 = load_device("h100")
    assert h100.vector_peak() == pytest.approx(66.9e12)
    assert h100.vector_peak("bf16") == pytest.approx(133.8e12)
    assert h100.vector_peak("fp64") == pytest.approx(33.5e12)
    assert h100.vector_peak("tf32") == pytest.approx(66.9e12)


def test_a_missing_precision_is_refused_by_name() -> None:
    with pytest.raises(InvalidValueError, match=r"tpu-v4 has no fp64 arithmetic; it has fp32, bf1"):
        load_device("tpu-v4").peak("fp64")
    with pytest.raises(UnknownNameError, match="unknown precision 'bf17'; did you mean bf16"):
        load_device("h100").peak("bf17")
    with pytest.raises(UnknownNameError, match="unknown precision"):
        load_device("h100").vector_peak("half")


def test_the_ridge_is_peak_over_bandwidth() -> None:
    assert load_device("h100").ridge("bf16") == pytest.approx(989.4e12 / 3.35e12)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"memory_bytes": 0.0}, "memory_bytes = 0.0"),
        ({"memory_bandwidth": float("inf")}, "memory_bandwidth = inf"),
        ({"units": 0}, "units = 0"),
        ({"clock_hz": -1.0}, "clock_hz = -1.0"),
        ({"tier": "gpu"}, "tier 'gpu' is not one of datacenter-gpu"),
        ({"vector_flops": {}}, "needs at least one peak"),
        ({"vector_flops": {"fp33": 1.0}}, "vector_flops has 'fp33'"),
        ({"matrix_flops": {"bf16": -1.0}}, "matrix_flops.bf16 = -1.0"),
    ],
)
def test_an_impossible_device_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        a_device(**changes)
    assert str(caught.value).startswith("device 'toy': ")
    assert said in str(caught.value)


def test_every_problem_of_a_device_is_said_at_once() -> None:
    with pytest.raises(InvalidValueError, match=r"units = 0.*; clock_hz = 0.*; tier 'x'"):
        a_device(units=0, clock_hz=0, tier="x")


def test_a_device_can_be_hashed_pickled_and_compared() -> None:
    h100 = load_device("h100")
    assert {h100: 1}[load_device("H100-SXM")] == 1
    assert pickle.loads(pickle.dumps(h100)) == h100
    assert "NVIDIA H100" in repr(h100)
    assert "datasheet" not in repr(h100)


def test_available_memory_is_what_the_driver_offers_where_known() -> None:
    h200 = load_device("h200")
    assert h200.available_bytes == pytest.approx(150_109_880_320, rel=1e-4)
    assert a_device().available_bytes == 1e9


@given(
    matrix=st.dictionaries(st.sampled_from(PRECISIONS), st.floats(1e9, 1e16)),
    vector=st.dictionaries(st.sampled_from(PRECISIONS), st.floats(1e9, 1e16), min_size=1),
    precision=st.sampled_from(PRECISIONS),
)
def test_a_peak_is_always_one_of_the_devices_own_figures(
    matrix: dict[str, float], vector: dict[str, float], precision: str
) -> None:
    device = a_device(matrix_flops=matrix, vector_flops=vector)
    try:
        peak = device.peak(precision)
    except InvalidValueError:
        assert precision not in matrix
        return
    assert peak in {*matrix.values(), *vector.values()}
    if precision in matrix:
        assert peak == matrix[precision]


def test_a_link_costs_latency_and_bytes() -> None:
    link = Link(name="l", title="L", kind="pcie", latency_s=1e-6, bandwidth=1e9)
    assert link.seconds(1e6) == pytest.approx(1.001e-3)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"kind": "rope"}, "kind 'rope' is not one of pcie"),
        ({"bandwidth": 0.0}, "bandwidth = 0.0"),
        ({"latency_s": -1.0}, "latency_s = -1.0"),
    ],
)
def test_an_impossible_link_is_refused(changes: dict[str, Any], said: str) -> None:
    fields = {"name": "l", "title": "L", "kind": "pcie", "latency_s": 0.0, "bandwidth": 1.0}
    with pytest.raises(InvalidValueError) as caught:
        Link(**{**fields, **changes})
    assert said in str(caught.value)
