"""One graph serves every size: it predicts what a fresh trace at that very size predicts."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="traces networks")

from traincast.ingest.pytorch.sources import declare_torchvision_ops

declare_torchvision_ops()
pytest.importorskip("torchvision", reason="builds the networks")
pytest.importorskip("transformers", reason="builds the language models")

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from traincast.ingest import zoo_graph
from traincast.ingest.zoo import rebuild
from traincast.simulate.predict import predict

NETWORKS = (
    "alexnet", "resnet18", "googlenet", "mobilenet_v3_small", "shufflenet_v2_x1_0",
    "squeezenet1_1", "densenet121", "swin_t", "vit_b_16", "bert-base", "gpt2", "t5-small",
    "llama-3.2-1b", "mixtral-8x7b", "lstm-ptb", "dlrm", "unet", "mnist-small",
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=12, deadline=None, phases=(Phase.generate,))
@given(
    name=st.sampled_from(NETWORKS),
    # A batch of one is traced differently: PyTorch skips copies that an axis of length 1 spares.
    batch=st.integers(2, 70),
    seq=st.integers(2, 1100),
    precision=st.sampled_from(("fp32", "bf16", "amp_bf16")),
)
def test_a_graph_equals_a_fresh_trace_at_any_size(
    name: str, batch: int, seq: int, precision: str
) -> None:
    graph = zoo_graph(name)
    # BERT and GPT-2 have a table of learned positions; at its full length they do not slice it.
    seq = min(seq, graph.seq - 1) if graph.seq else 0
    fresh = rebuild(name, fixed=(batch, seq))
    ours = predict(graph, "h200", batch=batch, seq=seq or None, precision=precision)
    theirs = predict(fresh, "h200", precision=precision)
    assert ours.to_dict() == {**theirs.to_dict(), "suggestions": ours.to_dict()["suggestions"]}
