"""Scaling over devices: limits that must hold, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_named
from traincast.graph.precision import PRECISIONS
from traincast.hardware import load_cluster, load_device, load_link
from traincast.ingest import zoo_graph
from traincast.simulate.predict import predict
from traincast.simulate.prediction import Prediction
from traincast.simulate.scale import scale
from traincast.simulate.step import Plan

PLAN = Plan(batch=32, seq=0, optimizer=optimizer_named("momentum"))


def run(model: str = "alexnet", where: str = "4x4xp100", **options):
    cluster = load_cluster(where) if "x" in where else load_link(where)
    device = load_device("p100")
    plan = options.pop("plan", PLAN)
    return scale(
        zoo_graph(model), device, cluster, estimator_named("roofline"), PRECISIONS["fp32"], plan,
        **options,
    )  # fmt: skip


def plain_alexnet() -> Prediction:
    return predict(
        "alexnet", "p100", batch=32, precision="fp32", optimizer="momentum", estimator="roofline"
    )


def test_one_device_is_a_plain_prediction() -> None:
    for strategy in ("data", "model", "hybrid"):
        (row,) = run(devices=[1], strategies=[strategy])
        alone = plain_alexnet()
        assert row.step_s == alone.seconds
        assert row.communication_s == 0
        assert row.speedup == row.efficiency == 1


def test_data_parallel_traffic_is_the_parameters() -> None:
    """AlexNet has 61,100,840 parameters of 4 bytes, all of which are reduced in each step."""
    rows = run(devices=[2, 8], strategies=["data"])
    assert [row.traffic_bytes for row in rows] == [4 * 61_100_840] * 2


def test_without_overlap_the_step_is_compute_and_a_ring() -> None:
    """Ring all-reduce of n bytes among p: 2(p−1) steps of latency and n/p bytes each."""
    link = load_link("ethernet-10g")
    (row,) = run(
        where="ethernet-10g", devices=[8], strategies=["data"], schemes=["ring"], overlap=False,
        bucket_bytes=1e12,
    )  # fmt: skip
    size = 4 * 61_100_840
    ring = 14 * link.latency_s + 14 / 8 * size / link.bandwidth
    assert row.communication_s == pytest.approx(ring, rel=1e-9)
    assert row.step_s == pytest.approx(row.compute_s + ring, rel=1e-9)


@settings(max_examples=20, deadline=None)
@given(
    strategy=st.sampled_from(("data", "model", "hybrid")),
    devices=st.sampled_from((2, 4, 8, 16)),
    factor=st.floats(1.1, 50),
)
def test_a_faster_link_is_never_slower(strategy: str, devices: int, factor: float) -> None:
    slow = load_link("ethernet-10g")
    fast = replace(slow, bandwidth=slow.bandwidth * factor)
    graph, device = zoo_graph("alexnet"), load_device("p100")
    times = [
        scale(
            graph, device, link, estimator_named("roofline"), PRECISIONS["fp32"], PLAN,
            devices=[devices], strategies=[strategy],
        )[0].step_s
        for link in (slow, fast)
    ]  # fmt: skip
    assert times[1] <= times[0] * (1 + 1e-12)


def test_overlap_hides_at_most_the_backward_pass() -> None:
    (hidden,) = run(where="ethernet-10g", devices=[8], strategies=["data"])
    (serial,) = run(where="ethernet-10g", devices=[8], strategies=["data"], overlap=False)
    assert hidden.compute_s <= hidden.step_s <= serial.step_s
    alone = plain_alexnet()
    backward = alone.step.device_s["backward"]
    assert serial.step_s - hidden.step_s <= backward * (1 + 1e-9)


def test_strong_scaling_divides_the_batch_or_says_what_would() -> None:
    rows = run(devices=[1, 2, 4], strategies=["data"], scaling="strong")
    assert [row.batch for row in rows] == [32, 16, 8]
    with pytest.raises(InvalidValueError, match=r"batch 32 does not divide among 3.*30 or 33"):
        run(devices=[3], strategies=["data"], scaling="strong")


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"devices": [0]}, InvalidValueError, "0 devices"),
        ({"devices": [2], "strategies": ["dat"]}, UnknownNameError, "did you mean data"),
        ({"devices": [2], "scaling": "weaks"}, UnknownNameError, "did you mean weak"),
        ({"devices": [2], "schemes": ["rign"]}, UnknownNameError, "ring"),
    ],
)
def test_bad_requests_name_the_fix(options, error, text: str) -> None:
    with pytest.raises(error, match=text):
        run(**options)
