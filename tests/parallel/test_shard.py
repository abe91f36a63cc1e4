"""A shard's work sums to the whole, and what it sends follows from what it lacks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.estimate.program import kernels_of, program_of
from traincast.graph.precision import PRECISIONS
from traincast.ingest import zoo_graph
from traincast.parallel.shard import shard_program


def flops(program, batch: int, seq: int) -> float:
    kernels = kernels_of(program, batch, seq)
    count = np.bincount(program.op_class, minlength=len(program.classes))
    return float((kernels.flops * count[kernels.op_class]).sum())


@settings(max_examples=25, deadline=None)
@given(
    name=st.sampled_from(("alexnet", "vgg16", "resnet50", "resnext50_32x4d", "gpt2", "nin")),
    devices=st.sampled_from((2, 4, 8)),
    batch=st.integers(1, 40),
)
def test_the_work_of_all_shards_is_the_work_of_the_whole(
    name: str, devices: int, batch: int
) -> None:
    graph = zoo_graph(name)
    program = program_of(graph, PRECISIONS["fp32"])
    seq = 64 if graph.seq else 0
    whole = flops(program, batch, seq)
    part = flops(shard_program(program, "model", devices).program, batch, seq)
    # 1000 classes split 16 ways and GPT-2's odd vocabulary and 12 heads leave uneven parts, and
    # the largest part is what counts: never less than an equal share, and not much more.
    assert part * devices >= whole * (1 - 1e-12)
    assert part * devices <= whole * 1.35


def test_channels_that_divide_evenly_leave_equal_shares() -> None:
    program = program_of(zoo_graph("vgg16"), PRECISIONS["fp32"])
    for devices in (2, 4, 8):
        part = flops(shard_program(program, "model", devices).program, 32, 0)
        assert part * devices == pytest.approx(flops(program, 32, 0), rel=1e-12)


def test_one_weird_trick_keeps_each_devices_flops() -> None:
    """K times the samples by 1/K of the outputs: as many multiply-adds as data parallelism."""
    program = program_of(zoo_graph("alexnet"), PRECISIONS["fp32"])
    for devices in (2, 4, 8):
        part = flops(shard_program(program, "hybrid", devices).program, 128, 0)
        assert part == pytest.approx(flops(program, 128, 0), rel=1e-12)


def test_traffic_of_alexnets_dense_layers_by_hand() -> None:
    """AlexNet's dense layers take 9216, 4096 and 4096 values a sample. On 4 devices with 128
    samples each, fp32: every one gathers 4·128 rows of each, and scatters their gradients."""
    program = program_of(zoo_graph("alexnet"), PRECISIONS["fp32"])
    sharded = shard_program(program, "hybrid", 4)
    sent = [t for traffic in sharded.traffic for t in traffic]
    gathered = sorted(t.bytes_at(128, 0) for t in sent if not t.backward)
    assert gathered == [4 * 4 * 128 * 4096, 4 * 4 * 128 * 4096, 4 * 4 * 128 * 9216]
    scattered = sorted(t.bytes_at(128, 0) for t in sent if t.backward)
    assert scattered == gathered
    assert {t.collective for t in sent} == {"all-gather", "reduce-scatter"}


def test_data_parallelism_and_one_device_split_nothing() -> None:
    program = program_of(zoo_graph("resnet18"), PRECISIONS["fp32"])
    for strategy, devices in (("data", 8), ("model", 1), ("hybrid", 1)):
        sharded = shard_program(program, strategy, devices)
        assert sharded.program.classes == program.classes
        assert not any(sharded.traffic)
        assert not sharded.split
