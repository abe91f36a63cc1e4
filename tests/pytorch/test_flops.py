"""FLOPs of every built-in network, forward and backward, against PyTorch's own counter."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch counts the FLOPs that this compares with")
from traincast.ingest.pytorch.sources import declare_torchvision_ops

declare_torchvision_ops()
pytest.importorskip("torchvision", reason="builds the networks")
pytest.importorskip("transformers", reason="builds the language models")

import torch
from ours import figures
from reference import measure

from traincast.graph import Graph, elements
from traincast.ingest import zoo_graph
from traincast.ingest.zoo import ENTRIES, module_source

TORCH_NETS = [n for n, e in ENTRIES.items() if not e.source.startswith("paleo:")]
BATCH, SEQ = 3, 80


def recurrent_flops(graph: Graph, seq: int) -> int:
    """FLOPs of LSTM layers, which FlopCounterMode counts as zero: each weight matrix meets each
    position of each sample once, 2 FLOPs a weight."""
    weights = sum(
        elements(graph.tensors[name].shape, 1, 1)
        for op in graph.ops
        if op.kind == "rnn"
        for name in op.inputs
        if graph.tensors[name].role == "parameter" and len(graph.tensors[name].shape) == 2
    )
    return 2 * weights * BATCH * seq


def recomputed_scores(graph: Graph, seq: int) -> int:
    """FLOPs of q·kᵀ where attention has a trainable mask: a CPU has no fused kernel for it, so
    PyTorch keeps the scores there; a GPU's fused kernel computes them again in backward."""
    total = 0
    for op in graph.ops:
        if op.kind == "attention" and len(op.inputs) > 3 and op.inputs[3] in graph.needs_grad:
            q, k = (tuple(s.at(BATCH, seq) for s in graph.tensors[n].shape) for n in op.inputs[:2])
            total += 2 * q[0] * q[1] * q[2] * q[3] * k[2]
    return total


def dropout_masks(graph: Graph, seq: int) -> int:
    """Bytes by which dropout's masks are larger on a CPU, where they have the type of their input:
    2 bytes an element in bfloat16 instead of the GPU's 1."""
    return sum(
        elements(graph.tensors[op.inputs[0]].shape, BATCH, seq)
        for op in graph.ops
        if op.kind == "dropout" and op.inputs[0] in graph.needs_grad
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TORCH_NETS)
def test_flops_and_kept_bytes_equal_pytorchs(name: str) -> None:
    graph = zoo_graph(name)
    seq = SEQ if graph.seq else 0
    real = measure(module_source(name), BATCH, seq, torch.bfloat16)
    ours = figures(graph, BATCH, seq, "bf16")
    left_out = recurrent_flops(graph, seq)
    assert ours.forward_flops == real.forward_flops + left_out
    again = recomputed_scores(graph, seq)
    assert ours.backward_flops == real.backward_flops + 2 * left_out + again
    if left_out or again:
        return  # other kernels run on a CPU, and keep other things
    kept = ours.kept_bytes + dropout_masks(graph, seq)
    assert kept == pytest.approx(real.kept_bytes, rel=0.005)
