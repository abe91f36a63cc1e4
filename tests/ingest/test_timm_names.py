"""Networks of timm by the names that they had in earlier releases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from traincast.ingest.pytorch.timm_names import current_name

MODELS = ["resnet50d", "swinv2_cr_tiny_224", "resnext101_32x32d", "resnext101_32x8d",
          "vit_base_patch16_224", "densenet264d"]  # fmt: skip
OLD = {
    "gluon_resnet50_v1d": "resnet50d.gluon_in1k",
    "vit_base_patch16_224_sam": "vit_base_patch16_224.sam",
    "ig_resnext101_32x32d": "resnext101_32x8d.fb_wsl_ig1b_ft_in1k",
    "gone": None,
}


def timm() -> Any:
    """Return as much of timm as names need; 32x8d for 32x32d is what its own list says."""
    return SimpleNamespace(
        list_models=lambda: MODELS,
        list_pretrained=lambda pattern: ["resnet50d.gluon_in1k"],
        models=SimpleNamespace(_registry=SimpleNamespace(_deprecated_models=OLD)),
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("resnet50d", "resnet50d"),
        ("resnet50d.some_tag", "resnet50d.some_tag"),
        ("gluon_resnet50_v1d", "resnet50d.gluon_in1k"),
        ("vit_base_patch16_224_sam", "vit_base_patch16_224"),
        ("swin_v2_cr_tiny_224", "swinv2_cr_tiny_224"),
        ("ig_resnext101_32x32d", "resnext101_32x32d"),
        ("densenet264d_iabn", "densenet264d"),
        ("gone", "gone"),
        ("never_was", "never_was"),
    ],
)
def test_names_of_earlier_releases(old: str, new: str) -> None:
    assert current_name(timm(), old) == new


def test_the_installed_timm_has_a_list_of_old_names() -> None:
    sources = pytest.importorskip("traincast.ingest.pytorch.sources")
    sources.declare_torchvision_ops()
    installed = pytest.importorskip("timm")
    assert current_name(installed, "gluon_resnet50_v1d").startswith("resnet50d")
    assert current_name(installed, "tf_efficientnet_b7_ns").startswith("tf_efficientnet_b7")
