"""Networks as people write them: each is traced, priced in full, and agrees with PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch runs the networks")

from more_networks import NETWORKS
from ours import figures
from reference import measure
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils.checkpoint import checkpoint

from traincast.graph import Attr
from traincast.graph.kinds.special import SPECIAL
from traincast.ingest.pytorch.functions import _fresh
from traincast.ingest.pytorch.probe import Source, trace_source
from traincast.simulate.predict import predict

BATCH = 4
LOOK_AT_VALUES = {"transformer", "experts_by_mask", "speech", "losses"}
UNCOUNTED = {
    # The base grid times each sample's 2 × 3 matrix: 256 sites, 2 of 3 multiply-adds.
    "spatial_transformer": (BATCH * 256 * 2 * 3 * 2, 0),
    # 6 outputs, each 8 × 8 multiply-adds and 8 more a sample; backward once, for the weight.
    "bilinear": (BATCH * 6 * (8 * 8 + 8) * 2,) * 2,
    # Rows of 4 values and two more against 32; no gradient passes the search for the nearest.
    "quantised": (BATCH * 32 * 6 * 2, None),
    # The input and the first states have no gradient, and yet cuDNN's backward pass is taken to
    # compute it: 3 · 8 gates from 8 values, two directions at 12 positions, four first states.
    "speech": (0, BATCH * (2 * 12 + 4) * 3 * 8 * 8 * 2),
}
"""FLOPs of products that PyTorch's counter does not see, forward and backward."""
KEPT = {
    "recommender",
    "messages",
    "experts_by_mask",
    "losses",
    "windows",
    "deformed",
    "quantised",
    "neighbours",
}
"""Networks of which indices and masks are kept in other types, or by other ops, than here; or
values that autograd keeps for a search through which no gradient comes back, until that is over."""


def source_of(name: str) -> Source:
    def inputs(batch: int, _seq: int) -> tuple[tuple[object, ...], dict[str, object]]:
        with unset_fake_temporarily():
            example = NETWORKS[name]()[1]
        fed = _fresh(example, batch)
        return (fed if isinstance(fed, tuple) else (fed,)), {}

    return Source(name=name, reference=name, build=lambda: NETWORKS[name]()[0], inputs=inputs)


@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in ("gradient_penalty", "forces")])
@pytest.mark.filterwarnings("ignore")
def test_a_network_by_hand(name: str) -> None:
    source = source_of(name)
    torch.manual_seed(0)
    graph = trace_source(source, batch=BATCH)
    unknown = {op.attrs["fn"] for op in graph.ops if op.kind == "unknown"}
    assert unknown - SPECIAL.keys() == set()
    looked = any("random data" in note for note in graph.notes)
    assert looked == (name in LOOK_AT_VALUES)
    assert graph.fixed == (("batch",) if name == "experts_by_mask" else ())
    torch.manual_seed(0)
    real = measure(source, BATCH, 0, torch.float32, real=True)
    ours = figures(graph, BATCH, 0, "fp32")
    forward, backward = UNCOUNTED.get(name, (0, 0))
    assert ours.forward_flops == real.forward_flops + forward
    if backward is not None:
        assert ours.backward_flops == real.backward_flops + backward
    masks = sum(
        3 * graph_elements(graph, op.inputs[0]) for op in graph.ops if op.kind == "dropout"
    )  # a CPU keeps a float of 4 bytes where a GPU keeps a byte
    if name not in KEPT and "cell" not in name and name != "speech":
        assert ours.kept_bytes + masks == pytest.approx(real.kept_bytes, rel=0.06, abs=16)


def graph_elements(graph: object, name: str) -> int:
    from traincast.graph import Graph, elements

    assert isinstance(graph, Graph)
    return elements(graph.tensors[name].shape, BATCH, 0)


@pytest.mark.parametrize(("name", "gates"), [("lstm_cell", 4), ("gru_cell", 3)])
def test_a_cell_is_two_products_and_one_kernel(name: str, gates: int) -> None:
    """As on a GPU: the gates of 16 units in one kernel each way, biases' gradients as sums."""
    graph = trace_source(source_of(name))
    assert [op.kind for op in graph.ops if op.layer == "cell"][-3:] == ["linear"] * 2 + ["unknown"]
    ours = figures(graph, BATCH, 0, "fp32")
    assert ours.backward_ops[f"_thnn_fused_{name}_backward"] == 3
    # Products with both weights at 3 positions, and the layer of 16 to 4.
    assert ours.forward_flops == BATCH * 2 * (3 * gates * 16 * (8 + 16) + 16 * 4)


def test_a_gradient_within_the_forward_pass() -> None:
    """PyTorch's counter cannot follow it: each product once more for its input's gradient."""
    graph = trace_source(source_of("gradient_penalty"))
    ours = figures(graph, BATCH, 0, "fp32")
    layers = BATCH * 2 * (14 * 14 * 4 * 3 * 9 + 784)
    assert ours.forward_flops == 2 * layers
    unknown = {op.attrs["fn"] for op in graph.ops if op.kind == "unknown"}
    assert unknown == {"convolution_backward"} <= SPECIAL.keys()


def test_a_second_derivative_reaches_every_weight() -> None:
    """By hand, with a, c, d the products of 8 → 12 (two of them), 12 → 6 and 6 → 1.

    The slope takes each once more. Backward: the two first layers have a gradient for their weight
    alone, the others two; of the slope's products the one by the last layer has one, for its
    weight, as what it is multiplied with is constant, and the others two.
    """
    ours = figures(trace_source(source_of("forces")), BATCH, 0, "fp32")
    a, c, d = (2 * BATCH * 5 * product for product in (8 * 12, 12 * 6, 6 * 1))
    assert ours.forward_flops == 2 * (2 * a + c + d)
    assert ours.backward_flops == (2 * a + 2 * c + 2 * d) + (4 * a + 2 * c + d)


def test_what_is_computed_without_a_gradient_has_none() -> None:
    ours = figures(trace_source(source_of("teacher")), BATCH, 0, "fp32")
    layer = BATCH * 2 * 16 * 8
    assert (ours.forward_flops, ours.backward_flops) == (2 * layer, layer)


class Blocks(torch.nn.Module):
    """Blocks of which every second one is run again, as one reentrant call or not."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        nn = torch.nn
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)
        )
        self.norm = nn.LayerNorm(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, block in enumerate(self.blocks):
            x = x + (checkpoint(block, x, use_reentrant=self.reentrant) if i % 2 else block(x))
        return self.norm(x).square().mean()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_a_checkpointed_call_runs_again_and_keeps_its_input(reentrant: bool) -> None:
    """PyTorch's counter sees products that run again; by the way of a call, not the last one."""

    def inputs(batch: int, _seq: int) -> tuple[tuple[object, ...], dict[str, object]]:
        return (torch.zeros(batch, 16, 32),), {}

    source = Source(
        name="blocks", reference="blocks", build=lambda: Blocks(reentrant), inputs=inputs
    )
    graph = trace_source(source, batch=BATCH)
    real = measure(source, BATCH, 0, torch.float32, real=True)
    found = predict(graph, "h200", batch=BATCH, precision="fp32")
    forward, backward = found.step.op_flops.sum(axis=0)
    again = found.step.op_flops[found.step.again, 0].sum()
    assert forward == real.forward_flops
    assert backward + again == real.backward_flops
    product = 2 * BATCH * 16 * 32 * 64
    assert again == (4 if reentrant else 2) * product
    kept = replace(graph, ops=tuple(replace(o, attrs=_uncalled(o.attrs)) for o in graph.ops))
    plain = predict(kept, "h200", batch=BATCH, precision="fp32")
    assert found.seconds > plain.seconds
    assert found.memory.peak < plain.memory.peak
    rows = found.by("op")
    assert sum(r.seconds for r in rows) == pytest.approx(
        sum(found.step.device_s[p] for p in ("forward", "backward"))
    )


def _uncalled(attrs: Mapping[str, Attr]) -> dict[str, Attr]:
    return {k: v for k, v in attrs.items() if k not in ("checkpoint", "reentrant")}


def test_parts_are_copied_by_strides_and_whole_gradients_as_they_lie() -> None:
    """Of 6 × 12 values, 12 are written at a time: autograd copies all 72 of each gradient."""
    step = predict(trace_source(source_of("parts_written")), "h200", batch=BATCH).step
    kernels = zip(step.kernels.names, step.kernels.read.tolist(), strict=True)
    copies = {(n, read) for n, read in kernels if n in ("copy_", "copy_.narrow", "clone")}
    rows = {round(size / BATCH / 4) for name, size in copies if name == "copy_.narrow"}
    whole = {round(size / BATCH / 4) for name, size in copies if name == "clone"}
    assert {12} <= rows
    assert {72} <= whole
    assert not any(name == "copy_" for name, _ in copies)
