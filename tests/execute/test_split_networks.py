"""Whole networks under mixed plans, in 2 and 4 processes, train as one process does.

In float32 to its tolerance. ResNet-18 is compared in float64: on noise and so few samples, training
enlarges rounding. In one process, a change of 2e-7 in its first weights is 3e-3 in the tenth loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from crew import Crew, assert_same, crew_of, strategy_of
from network_cases import alexnet, inception_module, resnet18, transformer_block, vgg_block

from traincast.cli import main
from traincast.parallel.strategy import LayerSplit, Strategy, read_strategy

BATCH = 4


@pytest.fixture(scope="module", params=[2, 4])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with crew_of(request.param) as crew:
        yield crew


AXES = {"sample": 0, "channel": 1, "height": 2, "width": 3}


def mixed(module: nn.Module, x: torch.Tensor, world: int) -> tuple[LayerSplit, ...]:
    """A plan that changes its mind at every layer: all dims in turn, and fewer devices."""
    half = world // 2
    turns: list[dict[str, int]] = [
        {"sample": world}, {"channel": world}, {"height": world}, {"sample": 2, "width": half},
        {"width": world}, {"channel": half, "height": 2}, {}, {"height": half, "width": 2},
        {"sample": half, "channel": 2},
    ]  # fmt: skip
    found: list[LayerSplit] = []
    kinds = {nn.Conv2d: "conv", nn.MaxPool2d: "pool", nn.Linear: "linear"}

    def choose(name: str, kind: str, shape: torch.Size) -> None:
        for turn in range(len(turns)):
            degrees = turns[(len(found) + turn) % len(turns)]
            if all(AXES[d] < len(shape) and n <= shape[AXES[d]] for d, n in degrees.items()):
                found.append(LayerSplit(name, kind, degrees))
                return

    for name, part in module.named_modules():
        kind = kinds.get(type(part))
        if kind is not None:
            part.register_forward_hook(lambda _m, _i, out, n=name, k=kind: choose(n, k, out.shape))
    with torch.no_grad():
        module(x.expand(BATCH, *x.shape[1:]))
    return tuple(found)


def assert_trains_as_one(crew: Crew, build: Any, strategy: Strategy) -> list[Any]:
    deep = build is resnet18
    dtype, lr = (torch.float64, 5e-4) if deep else (torch.float32, 0.02)
    return assert_same(crew, build, strategy, dtype=dtype, lr=lr)


@pytest.mark.parametrize("build", [alexnet, vgg_block, inception_module, resnet18])
def test_a_network_under_a_mixed_plan_trains_as_one(crew: Crew, build: Any) -> None:
    module, (x,), _ = build()
    layers = mixed(module, x, crew.world)
    answers = assert_trains_as_one(crew, build, Strategy(build.__name__, BATCH, crew.world, layers))
    sizes = {sum(torch.Size(s).numel() for s in a[2].values() if s != (0,)) for a in answers}
    assert len(sizes) > 1 or crew.world == 2  # processes hold different slices


def test_a_transformer_block_by_head_and_sequence_trains_as_one(crew: Crew) -> None:
    n, half = crew.world, crew.world // 2
    layers = {
        "words": {"sample": 2, "sequence": half}, "norm1": {"sequence": n}, "qkv": {"channel": n},
        "attn": {"head": 2, "sequence": half}, "proj": {"sample": n}, "norm2": {"sample": n},
        "up": {"channel": n}, "down": {"channel": 2, "sequence": half}, "head": {"sequence": n},
        "cross_entropy": {"sample": 2, "sequence": half},
    }  # fmt: skip
    strategy = strategy_of(n, BATCH, 12, **layers)
    answers = assert_trains_as_one(crew, transformer_block, strategy)
    assert {a[2]["qkv.weight"] for a in answers} == {(48 // n, 16)}


NETWORKS = [alexnet, vgg_block, inception_module, resnet18, transformer_block]


@pytest.mark.parametrize("build", NETWORKS)
def test_the_plan_that_is_found_trains_as_one(crew: Crew, build: Any, tmp_path: Path) -> None:
    """Planned for as many samples as are worth splitting, run with fewer."""
    reference = f"{Path(__file__).parent}/network_cases.py:plan_{build.__name__}"
    where = ["--cluster", f"1x{crew.world}xp100", "-p", "fp32", "--optimizer", "sgd"]
    path = tmp_path / "plan.json"
    samples = "8" if build is alexnet else "64"
    assert main(["plan", reference, *where, "-b", samples, "-o", str(path)]) == 0
    strategy = replace(read_strategy(path), batch=BATCH)
    assert max(layer.parts for layer in strategy.layers) == crew.world
    assert_trains_as_one(crew, build, strategy)


def test_data_parallelism_is_a_plan_too(crew: Crew) -> None:
    module, _, _ = resnet18()
    degrees = {"sample": crew.world}
    names = [(n, "conv") for n, m in module.named_modules() if isinstance(m, nn.Conv2d)]
    layers = [LayerSplit(n, k, degrees) for n, k in [*names, ("maxpool", "pool"), ("fc", "linear")]]
    strategy = Strategy("resnet18", BATCH, crew.world, tuple(layers))
    answers = assert_same(crew, resnet18, strategy, "momentum", lr=5e-4)
    moved = [a[3][0] for a in answers]
    # Only the loss travels: a sum and a count a process, forward and backward, for ten steps.
    assert sum(moved) == 10 * (crew.world - 1) * 2 * 2 * 8
