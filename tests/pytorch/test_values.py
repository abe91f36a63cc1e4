"""Passes with real values, for modules that look at them: what they hold, and when they stop."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch runs the networks")

from torch import nn

from traincast.errors import IngestError
from traincast.ingest.pytorch import passes
from traincast.ingest.pytorch.probe import Source, trace_source

WIDTH, LAYERS = 256, 24


class Routed(nn.Module):
    """Rows go to one of two deep experts, found by their values."""

    def __init__(self, penalty: bool = False) -> None:
        super().__init__()
        self.penalty = penalty
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(x)
        for sign in (1, -1):
            (rows,) = torch.where(x[:, 0] * sign > 0)
            y = x[rows]
            for layer in self.layers:
                y = torch.sigmoid(layer(y))
            out = out.index_add(0, rows, y)
        if self.penalty:
            (slope,) = torch.autograd.grad(out.sum(), self.layers[0].weight, create_graph=True)
            return out.mean() + slope.square().mean()
        return out.mean()


def source(*, penalty: bool = False) -> Source:
    def inputs(batch: int, _seq: int) -> tuple[tuple[object, ...], dict[str, object]]:
        return (torch.zeros(batch, WIDTH),), {}

    return Source(
        name="routed", reference="routed", build=lambda: Routed(penalty), inputs=inputs,
        batch=64,
    )  # fmt: skip


def test_a_pass_holds_what_the_module_holds_alone() -> None:
    """Of 24 layers' results a few are alive at a time: 64 rows of 256 values of 2 bytes each."""
    torch.manual_seed(0)
    trace = passes._run(source(), Routed().bfloat16(), torch.bfloat16, (64, 0), real=True)
    each = 64 * WIDTH * 2
    made = sum(op.kind in ("linear", "pointwise") for op in trace.ops)
    assert made >= 4 * LAYERS
    assert 2 * each < trace.held < 8 * each


def test_a_gradient_within_a_pass_with_values() -> None:
    graph = trace_source(source(penalty=True), batch=8)
    assert any("random data" in note for note in graph.notes)
    assert sum(op.kind == "linear" for op in graph.ops) >= 2 * LAYERS


@pytest.mark.parametrize("limit", ["LARGEST_PASS", "LONGEST_PASS"])
def test_a_pass_too_large_or_too_long_is_refused(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, limit, 0)
    with pytest.raises(IngestError, match=r"at batch 5 it takes .*B and .*give a smaller batch"):
        trace_source(source(), batch=64)
