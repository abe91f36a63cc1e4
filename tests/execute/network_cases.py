"""Whole networks, each as a function: the module, its inputs and its classes.

`planned` gives them to `traincast plan` as FILE.py:FUNCTION, which wants a module and its inputs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from split_cases import Block


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


def transformer_block() -> Any:
    """A block of 4 heads on 12 words."""
    return Block(16, 4, 12), (torch.zeros(1, 12, dtype=torch.int64),), (7, 12)


def _for_plan(build: Any, batch: int) -> Any:
    module, inputs, _ = build()
    return module, *(t.expand(batch, *t.shape[1:]) for t in inputs)


def plan_alexnet(batch: int = 1) -> Any:
    return _for_plan(alexnet, batch)


def plan_vgg_block(batch: int = 1) -> Any:
    return _for_plan(vgg_block, batch)


def plan_inception_module(batch: int = 1) -> Any:
    return _for_plan(inception_module, batch)


def plan_resnet18(batch: int = 1) -> Any:
    return _for_plan(resnet18, batch)


def plan_transformer_block(batch: int = 1) -> Any:
    return _for_plan(transformer_block, batch)
