"""Evaluation mode against what PyTorch runs in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch")

from torch.utils._python_dispatch import TorchDispatchMode

from traincast.graph import verify
from traincast.graph.evaluation import evaluated
from traincast.ingest import resolve

_KINDS = {
    "convolution": "conv", "cudnn_batch_norm": "batch_norm", "native_batch_norm": "batch_norm",
    "addmm": "linear", "mm": "linear", "native_layer_norm": "layer_norm", "gelu": "gelu",
    "hardtanh": "hardtanh", "hardtanh_": "hardtanh", "relu": "relu", "relu_": "relu",
    "silu_": "silu", "sigmoid": "sigmoid", "mean": "mean", "max_pool2d_with_indices": "pool",
    "_adaptive_avg_pool2d": "mean", "mul": "mul", "add": "add", "add_": "add", "clone": "clone",
    "native_dropout": "dropout", "bernoulli_": "bernoulli", "_softmax": "softmax", "cat": "concat",
    "_log_softmax": "cross_entropy",
}  # fmt: skip
"""What an aten op is in a graph: its kind, or its function."""


class Counting(TorchDispatchMode):  # type: ignore[misc]
    """Counts aten ops."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name in _KINDS:
            self.found[_KINDS[name]] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "efficientnet_b0", "convnext_tiny"])
def test_the_same_ops_as_pytorch_in_eval_mode(name: str) -> None:
    graph = resolve(f"torchvision:{name}")
    import torchvision

    with torch.device("meta"):
        model = torchvision.models.get_model(name, weights=None).eval()
        image = torch.empty(2, 3, 224, 224)
    with Counting() as mode, torch.no_grad():
        model(image)
    ours: Counter[str] = Counter()
    for op in evaluated(graph).ops:
        ours[op.kind if op.kind in _KINDS.values() else str(op.attrs.get("fn"))] += 1
    wanted = {k: v for k, v in mode.found.items() if k != "clone"}
    assert {k: ours[k] for k in wanted} == wanted
    assert not {"dropout", "bernoulli", "cross_entropy"} & set(ours)


def test_an_evaluated_graph_is_a_graph_without_gradients() -> None:
    found = evaluated(resolve("torchvision:efficientnet_b0"))
    assert verify(found) is found
    assert not found.needs_grad
    assert found.parameter_count == resolve("torchvision:efficientnet_b0").parameter_count


OWN_LOSS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x, y):
        return nn.functional.cross_entropy(self.layer(x), y)


def net(batch=2):
    return Net(), (torch.randn(batch, 8), torch.randint(0, 5, (batch,)))


def plain(batch=2):
    return nn.Linear(8, 5), torch.randn(batch, 8)
"""


def test_a_loss_of_its_own_is_evaluated_and_an_assumed_one_is_not(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN_LOSS)
    own, assumed = (
        evaluated(resolve(f"own.py:{name}", root=tmp_path)) for name in ("net", "plain")
    )
    assert [op.kind for op in own.ops] == ["linear", "cross_entropy"]
    assert [op.kind for op in assumed.ops] == ["linear"]


NOISY = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.layer, self.kind = nn.Linear(8, 8), kind

    def forward(self, x):
        y = self.layer(x)
        if self.kind == "normal":  # as a variational encoder or a diffusion model draws
            return y * torch.randn_like(y) + torch.rand_like(y)
        keep = torch.rand(x.shape[0], 1) < 0.9
        return y * keep.to(y.dtype)


def normal(batch=2):
    return Net("normal"), torch.randn(batch, 8)


def dropping(batch=2):
    return Net("dropping"), torch.randn(batch, 8)
"""


def test_noise_that_is_computed_with_stays_and_what_drops_parts_goes(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(NOISY)
    normal, dropping = (
        [str(op.attrs.get("fn", op.kind)) for op in evaluated(graph).ops]
        for graph in (resolve(f"noisy.py:{name}", root=tmp_path) for name in ("normal", "dropping"))
    )
    assert Counter(normal) >= Counter(["linear", "randn_like", "rand_like", "mul", "add"])
    assert "mul" not in dropping
    assert dropping[0] == "linear"
