"""What an update moves and keeps, derived by writing the passes out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast import predict
from traincast.errors import UnknownNameError
from traincast.estimate.calibrated.profile import BlockUpdate
from traincast.estimate.optimizer import (
    OPTIMIZERS,
    Launch,
    launch_count,
    launches,
    optimizer_named,
)
from traincast.graph import elements
from traincast.ingest import zoo_graph

# Each pass as (values read, values written), for each parameter.
PASSES = {
    # p = p - lr·g
    "sgd": [("pg", "p")],
    # m = μ·m; m = m + g; p = p - lr·m
    "momentum": [("m", "m"), ("mg", "m"), ("pm", "p")],
    # One fused kernel over parameter, gradient and both moments.
    "adam": [("pgmv", "pmv")],
    "adamw": [("pgmv", "pmv")],
    # sign(β·m + (1 - β)·g), then m, in one kernel.
    "lion": [("pgm", "pm")],
}


@pytest.mark.parametrize("name", sorted(PASSES))
def test_traffic_and_state_follow_from_the_passes(name: str) -> None:
    passes = PASSES[name]
    found = OPTIMIZERS[name]
    assert found.traffic == sum(len(read) + len(written) for read, written in passes)
    state = {v for read, written in passes for v in read + written} - {"p", "g"}
    assert found.state == len(state)
    values = [one for one in found.passes if not one.scalars]
    assert [one.lists for one in values] == [len(set(read + written)) for read, written in passes]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_says_how_its_traffic_comes_about(name: str) -> None:
    found = OPTIMIZERS[name]
    assert found.how
    # Nothing updates a parameter without reading it and its gradient and writing it.
    assert found.traffic >= 3
    assert found.ops > 0


def test_a_launch_takes_so_many_blocks_or_tensors() -> None:
    """320 blocks of 65,536 elements: 20,971,520; 110 tensors of one list, 64 each of two."""
    momentum = OPTIMIZERS["momentum"]
    assert launch_count(momentum, [10]) == 3
    assert launch_count(momentum, [10] * 64) == 3
    assert launch_count(momentum, [10] * 65) == 1 + 2 + 2
    assert launch_count(momentum, [10] * 111) == 2 + 2 + 2
    assert launch_count(momentum, [20_971_520]) == 3
    assert launch_count(momentum, [20_971_521]) == 6
    assert launch_count(momentum, [20_971_520, 1]) == 6
    assert launch_count(OPTIMIZERS["adamw"], [10] * 36) == 1 + 1
    assert launch_count(OPTIMIZERS["adamw"], [10] * 37) == 1 + 2


RECORDED = {
    ("resnet50", "momentum"): 9, ("vgg16", "momentum"): 21, ("mobilenet-v2", "momentum"): 8,
    ("densenet121", "momentum"): 16, ("vit-b-16", "momentum"): 15, ("swin-t", "momentum"): 9,
}  # fmt: skip
"""Kernels of an update that torch.profiler saw on an H200 with PyTorch 2.11
(benchmarks/data/h200/kernel_lists.json.gz)."""


@pytest.mark.parametrize(("model", "name"), RECORDED)
def test_launches_are_those_that_the_profiler_saw(model: str, name: str) -> None:
    sizes = [elements(t.shape, 1, 1) for t in zoo_graph(model).parameters if t.trainable]
    assert launch_count(OPTIMIZERS[name], sizes) == RECORDED[model, name]


def by_chunks(sizes: list[int], most: int) -> list[tuple[int, int]]:
    """Return blocks and elements of each launch, chunk by chunk as PyTorch's loop has it."""
    found: list[tuple[int, int]] = []
    tensors = blocks = taken = 0
    for size in sizes:
        tensors += 1
        for start in range(0, size, 65_536):
            blocks, taken = blocks + 1, taken + min(65_536, size - start)
            last = start + 65_536 >= size
            if blocks == 320 or (tensors == most and last):
                found.append((blocks, taken))
                blocks = taken = 0
                tensors = 0 if last else 1
    return [*found, (blocks, taken)] if blocks else found


SIZES = st.lists(
    st.one_of(st.integers(1, 200_000), st.integers(20_000_000, 70_000_000)), max_size=120
)


@given(SIZES, st.sampled_from([(1, 110), (2, 64), (4, 36)]))
def test_launches_equal_pytorchs_loop(sizes: list[int], lists: tuple[int, int]) -> None:
    expected = by_chunks(sizes, lists[1])
    rows = [Launch(*map(int, row)) for row in launches(tuple(sizes), lists[0])]
    found = [r.even + r.odd for r in rows for _ in range(r.times)]
    assert sum(found) == sum(sizes)
    assert found == [taken for _, taken in expected]
    assert all(max(r.largest_even, r.largest_odd) <= 65_536 for r in rows)


def update(**given: float) -> BlockUpdate:
    known = {"launch_s": 2e-6, "chunk_s": 3e-6, "bandwidth": 0.7, "odd_chunk_s": 4e-6,
             "odd_bandwidth": 0.5}  # fmt: skip
    return BlockUpdate(**known | given)


@given(SIZES.filter(bool), st.sampled_from(sorted(OPTIMIZERS)), st.sampled_from([2.0, 4.0]))
def test_an_update_takes_no_less_for_more(sizes: list[int], name: str, each: float) -> None:
    found = update().seconds(OPTIMIZERS[name], tuple(sizes), each, 4.8e12)
    more = update().seconds(OPTIMIZERS[name], (*sizes, 1000), each, 4.8e12)
    assert more >= found * (1 - 1e-12)
    assert update().seconds(OPTIMIZERS[name], tuple(sizes), each, 9.6e12) <= found
    assert update(launch_s=3e-6).seconds(OPTIMIZERS[name], tuple(sizes), each, 4.8e12) > found
    hot = update().seconds(OPTIMIZERS[name], tuple(sizes), each, 4.8e12, hot=True)
    assert hot <= found
    moved = sum(sizes) * OPTIMIZERS[name].traffic * each
    assert found >= moved / (4.8e12 * 0.7)


def test_tensors_that_vectors_do_not_divide_take_longer() -> None:
    adamw = OPTIMIZERS["adamw"]
    even, odd = (update().seconds(adamw, (size,) * 20, 4.0, 4.8e12) for size in (65_536, 65_535))
    assert odd > even


@pytest.mark.parametrize(
    ("name", "values", "state"), [("sgd", 3, 0), ("momentum", 8, 1), ("adamw", 7, 2)]
)
@pytest.mark.parametrize(("precision", "each"), [("fp32", 4), ("bf16", 2), ("amp_bf16", 4)])
def test_an_update_of_a_network(
    name: str, values: int, state: int, precision: str, each: int
) -> None:
    """ResNet-18 has 11,689,512 parameters (torchvision), all trainable."""
    found = predict("resnet18", "h200", batch=2, optimizer=name, precision=precision)
    assert found.step.update_bytes == 11_689_512 * values * each
    assert found.memory.optimizer == 11_689_512 * state * each


def test_a_frozen_parameter_is_neither_updated_nor_has_state() -> None:
    from dataclasses import replace

    base = zoo_graph("resnet18")
    frozen = {
        n: replace(t, trainable=t.trainable and n != "fc.weight") for n, t in base.tensors.items()
    }
    found = predict(replace(base, tensors=frozen), "h200", batch=2, precision="fp32")
    # Its last layer has 1,000 × 512 weights.
    assert found.step.update_bytes == (11_689_512 - 512_000) * 7 * 4
    assert found.memory.parameters == 11_689_512 * 4
    assert found.memory.gradients == (11_689_512 - 512_000) * 4


def test_optimizers_by_name() -> None:
    assert optimizer_named("AdamW") is OPTIMIZERS["adamw"]
    assert optimizer_named("sgd-momentum") is OPTIMIZERS["momentum"]
    with pytest.raises(UnknownNameError) as caught:
        optimizer_named("admaw")
    assert str(caught.value) == (
        "unknown optimizer 'admaw'; did you mean adamw or adam? "
        "(known: sgd, momentum, adam, adamw, lion, adafactor)"
    )
