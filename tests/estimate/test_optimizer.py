"""What an update moves and keeps, derived by writing the passes out."""

from __future__ import annotations

import pytest

from traincast import predict
from traincast.errors import UnknownNameError
from traincast.estimate.optimizer import OPTIMIZERS, optimizer_named
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
    assert found.kernels == len(passes)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_every_optimizer_says_how_its_traffic_comes_about(name: str) -> None:
    found = OPTIMIZERS[name]
    assert found.how
    # Nothing updates a parameter without reading it and its gradient and writing it.
    assert found.traffic >= 3
    assert found.ops > 0


def test_launches_grow_with_tensors_and_elements() -> None:
    """A launch takes 64 tensors, or 320 blocks of 65,536 elements: 20,971,520."""
    momentum = OPTIMIZERS["momentum"]
    assert momentum.launches(1, 10) == 3
    assert momentum.launches(64, 10) == 3
    assert momentum.launches(65, 10) == 6
    assert momentum.launches(1, 20_971_520) == 3
    assert momentum.launches(1, 20_971_521) == 6


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
