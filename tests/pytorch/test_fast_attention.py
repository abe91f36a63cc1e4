"""Which modules evaluation hands to one call of C++, against PyTorch in evaluation mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="compares with PyTorch")

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from traincast.graph import verify
from traincast.graph.evaluation import evaluated
from traincast.graph.graph import Graph, elements
from traincast.ingest import resolve

CODE = """
import torch
from torch import nn


class Own(nn.Module):
    def __init__(self, weights=False, **options):
        super().__init__()
        self.weights = weights
        self.mha = nn.MultiheadAttention(64, options.pop("heads", 4), **options)
        self.out = nn.Linear(64, 10)

    def forward(self, x):
        return self.out(self.mha(x, x, x, need_weights=self.weights)[0]).mean(1)


class Stack(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.cross = kind is nn.TransformerDecoderLayer
        options = {"dim_feedforward": 256, "batch_first": True, **options}
        self.layers = nn.ModuleList(kind(64, 4, **options) for _ in range(3))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x, x) if self.cross else layer(x)
        return x.mean(1)


ENCODES = nn.TransformerEncoderLayer
NETWORKS = {
    "plain": lambda: Own(batch_first=True),
    "weights": lambda: Own(weights=True, batch_first=True),
    "odd": lambda: Own(heads=1, batch_first=True),
    "sequence_first": lambda: Own(),
    "unbiased": lambda: Own(bias=False, batch_first=True),
    "encoder": lambda: Stack(ENCODES),
    "encoder_gelu": lambda: Stack(ENCODES, activation="gelu", norm_first=True),
    "encoder_silu": lambda: Stack(ENCODES, activation=nn.functional.silu),
    "encoder_sequence_first": lambda: Stack(ENCODES, batch_first=False),
    "decoder": lambda: Stack(nn.TransformerDecoderLayer),
}
for name, build in NETWORKS.items():
    globals()[name] = lambda batch=2, build=build: (build(), torch.randn(batch, 16, 64))
"""
NAMES = [line.split('"')[1] for line in CODE.splitlines() if '": lambda' in line]


class Calls(TorchDispatchMode):
    """Counts what reaches PyTorch's dispatcher, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.found[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Graph, nn.Module]]:
    folder: Path = tmp_path_factory.mktemp("attention")
    (folder / "own.py").write_text(CODE)
    space: dict[str, Any] = {}
    exec(compile(CODE, "own.py", "exec"), space)
    return lambda name: (resolve(f"own.py:{name}", root=folder), space[name]()[0])


@pytest.mark.parametrize("name", NAMES)
def test_the_modules_that_pytorch_hands_over(
    name: str, built: Callable[[str], tuple[Graph, nn.Module]]
) -> None:
    graph, module = built(name)
    with Calls() as calls, torch.no_grad():
        module.eval()(torch.randn(2, 16, 64))
    found = evaluated(graph)
    whole = sum("linear1" in op.layer and bool(op.attrs.get("inner")) for op in found.ops)
    alone = sum(op.kind == "attention" and bool(op.attrs.get("inner")) for op in found.ops) - whole
    assert whole == calls.found["_transformer_encoder_layer_fwd"]
    # With its weights wanted too, PyTorch hands attention over that has no fused kernel.
    assert alone == (0 if name == "weights" else calls.found["_native_multi_head_attention"])
    activations = sum(op.attrs.get("fn") in ("relu", "gelu", "silu") for op in found.ops)
    assert activations == sum(calls.found[fn] for fn in ("relu", "gelu", "silu"))


@pytest.mark.parametrize("name", ["plain", "encoder", "encoder_gelu"])
def test_the_short_way_is_the_same_work_without_copies(
    name: str, built: Callable[[str], tuple[Graph, nn.Module]]
) -> None:
    graph, _ = built(name)
    short, cast = evaluated(graph), evaluated(graph, autocast=True)
    assert verify(short) is short
    assert short.parameter_count == graph.parameter_count
    assert not any(op.kind == "copy" for op in short.ops)
    assert any(op.kind == "copy" for op in cast.ops)
    for kind in ("linear", "attention"):
        sizes = [
            [elements(g.tensors[op.outputs[0]].shape, 4, 1) for op in g.ops if op.kind == kind]
            for g in (short, cast)
        ]
        assert sizes[0] == sizes[1]
