"""Whole networks under mixed plans, in 2 and 4 processes, train as one process does.

In float32 to its tolerance. ResNet-18 is compared in float64: on noise and so few samples, its
batch norms multiply a rounding error tenfold a step, in one process as in several.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from crew import Crew, assert_same, crew_of

from traincast.parallel.strategy import LayerSplit, Strategy

BATCH = 4


@pytest.fixture(scope="module", params=[2, 4])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with crew_of(request.param) as crew:
        yield crew


def vision(name: str, **options: Any) -> nn.Module:
    from traincast.ingest.pytorch.sources import declare_torchvision_ops

    declare_torchvision_ops()
    models = pytest.importorskip("torchvision").models
    return models.get_model(name, weights=None, **options)


def alexnet() -> Any:
    """AlexNet on small images, with 48 features in place of 4,096 in its dense layers."""
    with torch.device("meta"):
        module = vision("alexnet", num_classes=6)
        dense = [nn.Linear(9216, 48), nn.Linear(48, 48), nn.Linear(48, 6)]
    for place, layer in zip((1, 4, 6), dense, strict=True):
        module.classifier[place] = layer
    module.to_empty(device="cpu")
    for part in module.modules():
        if isinstance(part, nn.Conv2d | nn.Linear):
            part.reset_parameters()
    return module, (torch.zeros(1, 3, 63, 63),), (6,)


def resnet18() -> Any:
    return vision("resnet18", num_classes=6), (torch.zeros(1, 3, 48, 48),), (6,)


def inception_module() -> Any:
    vision("alexnet", num_classes=2)
    from torchvision.models.inception import InceptionA

    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(224 + 8, 6))
    return nn.Sequential(InceptionA(4, pool_features=8), head), (torch.zeros(1, 4, 9, 9),), (6,)


def vgg_block() -> Any:
    layers: list[nn.Module] = []
    for a, b in ((3, 4), (4, 4), (4, 8)):
        layers += [nn.Conv2d(a, b, 3, padding=1), nn.ReLU(inplace=True)]
    layers += [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 25, 12), nn.ReLU(), nn.Dropout(0.5)]
    return nn.Sequential(*layers, nn.Linear(12, 6)), (torch.zeros(1, 3, 10, 10),), (6,)


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


@pytest.mark.parametrize("build", [alexnet, vgg_block, inception_module, resnet18])
def test_a_network_under_a_mixed_plan_trains_as_one(crew: Crew, build: Any) -> None:
    dtype = torch.float64 if build is resnet18 else torch.float32
    module, (x,), _ = build()
    layers = mixed(module, x, crew.world)
    strategy = Strategy(build.__name__, BATCH, crew.world, layers)
    answers = assert_same(
        crew, build, strategy, dtype=dtype, lr=5e-4 if build is resnet18 else 0.02
    )
    sizes = {sum(torch.Size(s).numel() for s in a[2].values() if s != (0,)) for a in answers}
    assert len(sizes) > 1 or crew.world == 2  # processes hold different slices


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
