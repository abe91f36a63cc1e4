"""Scaling studies by hand: parameter servers, accumulation, measured steps, where it pays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast.errors import InvalidValueError
from traincast.hardware import load_cluster, load_device, load_link
from traincast.ingest import resolve
from traincast.simulate.scale import ScaleRow
from traincast.simulate.study import Request, stops_paying, study

BYTES = 4 * 61_100_840
"""AlexNet's gradients: 61,100,840 parameters in fp32 (torchvision's model card)."""
BASE = Request(
    cluster="4x4xp100", network="1xethernet-10g", batch=32, precision="fp32",
    schemes=("parameter-server",), bucket_bytes=1e12,
)  # fmt: skip


def alexnet(request: Request) -> list[ScaleRow]:
    return study(resolve("alexnet"), request)


def test_parameter_servers_by_hand() -> None:
    """To the host and back over PCIe 3.0, then 2(N−1)/K of the vector through each node's port."""
    pcie, ether = load_link("pcie3-x16"), load_link("ethernet-10g")
    host = 2 * BYTES / pcie.bandwidth + 2 * pcie.latency_s
    rows = alexnet(replace(BASE, devices=(1, 2, 4, 8, 16)))
    between = [2 * (n - 1) / n * BYTES / ether.bandwidth for n in (1, 1, 2, 4)]
    assert rows[0].communication_s == 0
    for row, wire in zip(rows[1:], between, strict=True):
        assert row.communication_s == pytest.approx(host + wire, rel=1e-3)
    (one,) = alexnet(replace(BASE, devices=(16,), servers=1))
    assert one.communication_s == pytest.approx(host + 2 * 3 * BYTES / ether.bandwidth, rel=1e-3)


def test_new_values_come_back_after_the_barrier() -> None:
    """Nothing hides the second half of what parameter servers take; the first half may hide."""
    for count in (4, 16):
        (row,) = alexnet(replace(BASE, devices=(count,), bucket_bytes=1e6))
        late = row.step_s - row.compute_s
        assert row.communication_s / 2 < late < row.communication_s


def test_accumulated_passes_are_no_speed_up() -> None:
    (one,) = alexnet(replace(BASE, devices=(1,), accumulate=4))
    assert one.speedup == pytest.approx(1)
    assert one.samples_per_s == pytest.approx(4 * 32 / one.step_s)


def test_a_measured_step_leaves_only_communication_to_predict() -> None:
    predicted = alexnet(replace(BASE, devices=(1, 16), overlap=False))
    measured = alexnet(replace(BASE, devices=(1, 16), overlap=False, measured_s=0.010))
    assert measured[0].step_s == pytest.approx(0.010)
    assert measured[1].communication_s == pytest.approx(predicted[1].communication_s)
    assert measured[1].step_s == pytest.approx(0.010 + predicted[1].communication_s)
    assert measured[1].efficiency == pytest.approx(0.010 / measured[1].step_s)


def test_split_layers_are_updated_where_they_lie() -> None:
    """Of 61.1 million parameters 58.6 are in dense layers (4096 × (9216 + 4096 + 1000) and biases).

    Hybrid parallelism divides their update among 4 devices, whatever the estimator.
    """
    for estimator in ("roofline", "castello"):
        rows = alexnet(
            replace(BASE, devices=(1, 4), strategies=("hybrid",), estimator=estimator, batch=1)
        )
        assert rows[1].compute_s < rows[0].compute_s


def test_counts_default_to_powers_of_two_and_the_whole_cluster() -> None:
    counts = [row.devices for row in alexnet(replace(BASE, cluster="3x4xp100"))]
    assert counts == [1, 2, 4, 8, 12]
    counts = [row.devices for row in alexnet(replace(BASE, cluster=None, device="p100"))]
    assert counts == [1, 2, 4, 8]


def test_devices_fill_their_usual_nodes() -> None:
    """16 P100 are 4 nodes of 4, so a device file's own link joins no more than 4."""
    assert load_device("p100").node_devices == 4
    assert load_cluster("16xp100").nodes == 4
    by_count = alexnet(Request(device="p100", devices=(16,), batch=32, precision="fp32"))
    by_shape = alexnet(Request(cluster="4x4xp100", devices=(16,), batch=32, precision="fp32"))
    assert by_count[0].step_s == by_shape[0].step_s


def test_more_devices_than_the_cluster_has() -> None:
    with pytest.raises(InvalidValueError, match="32 devices are more than the 16"):
        alexnet(replace(BASE, devices=(1, 32)))


def test_where_it_stops_paying() -> None:
    """From 2 to 4 devices each adds 0.6 of what one does, from 4 to 8 only 0.2."""
    row = alexnet(replace(BASE, devices=(1,)))[0]
    speedups = {1: 1.0, 2: 1.9, 4: 3.1, 8: 3.9}
    rows = [replace(row, devices=n, speedup=s) for n, s in speedups.items()]
    assert stops_paying(rows) == {("data", "parameter-server"): 4}
