"""Real training steps of small networks on this CPU, and the arithmetic of what is timed."""

from __future__ import annotations

import copy
import itertools
from collections import namedtuple
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="a training step needs PyTorch")

import torch.nn.functional as F  # noqa: N812

from traincast.errors import IngestError, InvalidValueError, TraincastError, UnknownNameError
from traincast.ingest.pytorch.sources import declare_torchvision_ops
from traincast.ingest.zoo import ENTRIES
from traincast.measure.breakdown import Breakdown, Part, undisturbed
from traincast.measure.clock import Clock
from traincast.measure.feed import Loss
from traincast.measure.layers import ITSELF, by_layer
from traincast.measure.memory import cpu_peak_bytes
from traincast.measure.ops import OUTSIDE, by_op
from traincast.measure.steps import Effort, _timed, measure
from traincast.measure.trainer import Trainer
from traincast.measure.workload import Workload, choose, located, sized, source_of

QUICK = Effort(warmup=1, least=2, most=2)

MODELS = """
import torch
from torch import nn

def mlp(batch=2):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(batch, 6)

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return x + self.act(self.inner(x))

def residual(batch=2):
    return nn.Sequential(Residual()), torch.zeros(batch, 4)

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 4)
        self.kinds = nn.Embedding(3, 4)
        self.out = nn.Linear(4, 5)

    def forward(self, words, kinds):
        return self.out(self.words(words) + self.kinds(kinds))

def words(batch=2, seq=4):
    whole = torch.zeros(batch, seq, dtype=torch.int64)
    return Words(), (whole, whole.clone())

def wide(batch=10):
    return nn.Linear(1000, 1000, bias=False), torch.zeros(batch, 1000)

class Huge(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1 << 50))

    def forward(self, x):
        return x.sum() * self.weight[0]

def huge():
    return Huge(), torch.zeros(2, 3)

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x.reshape(-1, 7))

def broken(batch=2):
    return Broken(), torch.zeros(batch, 4)

def frozen(batch=2):
    return nn.ReLU(), torch.zeros(batch, 4)
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(MODELS)
    return path


def trainer_of(model: str, **options) -> Trainer:
    workload = choose(Workload(model=model, unit="cpu", **options))
    source = source_of(workload)
    return Trainer(sized(workload, source), source)


def counting() -> Clock:
    """A clock on which one second passes from each mark to the next."""
    numbers = itertools.count()
    return Clock(mark=lambda: next(numbers), between=lambda a, b: float(b - a), wait=lambda: None)


def test_a_real_step_of_a_built_in_network() -> None:
    found = measure(Workload(model="lenet5", batch=4, unit="cpu"), effort=QUICK)
    assert found.error == ""
    assert found.parameters == 61_706
    assert found.torch == torch.__version__
    timing = found.timing
    assert timing is not None
    assert timing.steps == 2
    assert 0 < timing.low_s <= timing.step_s <= timing.high_s
    assert all(s > 0 for s in timing.phases_s)
    assert sum(timing.phases_s) <= 2 * timing.high_s
    assert found.infer_s is not None
    assert found.breakdown is None
    assert (found.workload.precision, found.workload.unit) == ("fp32", "cpu")
    assert "loss: cross-entropy on the output is assumed" in found.notes


def test_the_steps_are_those_of_a_plain_loop(models: Path) -> None:
    """After three steps the weights are those that a loop written by hand arrives at."""
    ours = trainer_of(f"{models}:mlp", batch=5, optimizer="momentum")
    theirs = copy.deepcopy(ours.module)
    x = ours.feed[0][0].clone()
    for _ in range(3):
        ours.step(lambda: None)
    (target,) = ours.loss.targets
    assert x.std() > 0
    assert target.shape == (5,)
    optimizer = torch.optim.SGD(theirs.parameters(), lr=1e-4, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(theirs(x), target).backward()
        optimizer.step()
    for mine, other in zip(ours.module.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, other)
        assert torch.equal(mine.grad, other.grad)


@pytest.mark.parametrize(
    ("name", "kind", "states"),
    [("sgd", "SGD", 0), ("momentum", "SGD", 1), ("adam", "Adam", 3), ("adamw", "AdamW", 3)],
)
def test_optimizers(models: Path, name: str, kind: str, states: int) -> None:
    trainer = trainer_of(f"{models}:mlp", optimizer=name)
    trainer.step(lambda: None)
    assert type(trainer.optimizer).__name__ == kind
    first = trainer.optimizer.state[next(trainer.module.parameters())]
    assert len([v for v in first.values() if v is not None]) == states


@pytest.mark.parametrize(
    ("precision", "weights", "logits"),
    [
        ("fp32", torch.float32, torch.float32),
        ("bf16", torch.bfloat16, torch.bfloat16),
        ("amp_bf16", torch.float32, torch.bfloat16),
    ],
)
def test_precisions(models: Path, precision: str, weights, logits) -> None:
    trainer = trainer_of(f"{models}:mlp", precision=precision)
    seen = []
    trainer.module.register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
    trainer.step(lambda: None)
    assert next(trainer.module.parameters()).dtype == weights
    assert seen == [logits]


def test_channels_last() -> None:
    trainer = trainer_of("lenet5", batch=2, layout="nhwc")
    (x,) = trainer.feed[0]
    assert x.is_contiguous(memory_format=torch.channels_last)
    weight = trainer.module[3].weight
    assert weight.is_contiguous(memory_format=torch.channels_last)
    assert not weight.is_contiguous()


def test_indices_are_drawn_within_the_table_that_they_index(models: Path) -> None:
    trainer = trainer_of(f"{models}:words", batch=8, seq=16)
    words, kinds = trainer.feed[0]
    assert words.shape == (8, 16)
    assert len(words.unique()) > 10
    assert words.max() < 50
    assert set(kinds.unique().tolist()) == {0, 1, 2}


def test_timing_by_hand() -> None:
    """Three steps with starts at 0, 10 and 30, the last ending at 90: 10, 20 and 60 seconds."""
    script = iter([0, 1, 4, 8, 10, 13, 20, 29, 30, 32, 60, 90])
    clock = Clock(mark=lambda: next(script), between=lambda a, b: b - a, wait=lambda: None)

    class Steps:
        def step(self, mark):
            return mark(), mark(), mark(), mark()

    timing = _timed(Steps(), clock, Effort(least=3, most=3), lambda _: None)
    assert timing.steps == 3
    assert timing.step_s == 20
    assert (timing.low_s, timing.high_s) == (10, 60)
    # forward 1, 3, 2; backward 3, 7, 28; update 4, 9, 30
    assert timing.phases_s == (2, 7, 9)


def test_how_long_to_measure() -> None:
    usual = Effort()
    assert not usual.enough(7, 100)
    assert usual.enough(8, 1.5)
    assert not usual.enough(39, 1.4)
    assert usual.enough(40, 0)


def test_what_looking_cost_is_taken_off() -> None:
    assert undisturbed([3, 5], [1, 1], 6) == [2, 4]
    assert undisturbed([0.5, 9.5], [1, 1], 4) == [0, 4]  # nothing below zero
    assert undisturbed([2, 4], [1, 5], 12) == [4, 8]  # noise: only scaled
    assert undisturbed([1, 1], [0, 1], 1.5) == [1, 0.5]
    assert undisturbed([0, 0], [1, 1], 5) == [0, 0]


def test_marks_of_layers_by_hand(models: Path) -> None:
    """One second a mark. A linear layer: one in forward; in backward the product, the transpose
    of its weight, and the gradients of weight and bias. The model itself: before the first
    layer and after each one; in backward the start, cross-entropy's two nodes."""
    trainer = trainer_of(f"{models}:mlp")
    trainer.step(lambda: None)
    forward, backward, update = 1 + 1 + 1 + 4, 4 + 4 + 1 + 3, 1
    found = by_layer(
        trainer, counting(), step_s=forward + backward + update,
        phases_s=(forward, backward, update), steps=2,
    )  # fmt: skip
    parts = {p.name: (p.forward_s, p.backward_s) for p in found.parts}
    assert parts == {
        "0": (1, 4), "1": (1, 1), "2": (1, 4), ITSELF: (4, 3), "(optimizer)": (None, None),
    }  # fmt: skip
    assert found.overhead_s == 0
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.step_s)
    assert found.parts[0].seconds == max(p.seconds for p in found.parts)


def test_layers_inside_layers_and_in_place_ops(models: Path) -> None:
    """The addition of the residual belongs to the block, not to its parts."""
    found = measure(
        Workload(model=f"{models}:residual", unit="cpu"), depth="layer", effort=QUICK
    ).breakdown
    assert found is not None
    parts = {p.name: p for p in found.parts}
    assert set(parts) == {"0", "0.inner", "0.act", ITSELF, "(optimizer)"}
    assert parts["0.act"].calls == 2
    assert parts["0"].calls == 4  # before, between and after its parts; in backward the addition
    assert sum(p.seconds for p in found.parts) == pytest.approx(found.step_s)
    assert found.to_dict()["parts"][0]["share"] == pytest.approx(
        found.parts[0].seconds / found.step_s
    )


def test_similar_layers_together() -> None:
    names = ("h.0.mlp.fc", "h.11.mlp.fc", "h.0.mlp", "fc2", "block.3")
    parts = tuple(Part(name=n, calls=2, seconds=1, forward_s=0.25, backward_s=0.75) for n in names)
    found = Breakdown(depth="layer", parts=parts, overhead_s=0, step_s=5).similar()
    assert [(p.name, p.count, p.seconds) for p in found.parts] == [
        ("h.*.mlp.fc", 2, 2), ("h.0.mlp", 1, 1), ("fc2", 1, 1), ("block.3", 1, 1),
    ]  # fmt: skip
    assert (found.parts[0].forward_s, found.parts[0].backward_s) == (0.5, 1.5)


def test_a_forward_pass_alone_computes_no_loss(tmp_path: Path) -> None:
    """A Transformers model that is given labels returns a loss; without them it has none."""
    declare_torchvision_ops()
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(
        '{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 40, '
        '"n_positions": 128, "n_embd": 8, "n_layer": 1, "n_head": 2}'
    )
    trainer = trainer_of("hf:config.json", root=tmp_path, batch=2, seq=16)
    _, kwargs = trainer.feed
    assert kwargs["input_ids"].max() < 40
    assert len(kwargs["labels"].unique()) > 5
    seen = []
    trainer.module.register_forward_hook(lambda _m, _i, out: seen.append(out.loss is None))
    trainer.step(lambda: None)
    trainer.infer()
    assert seen == [False, True]
    assert not trainer.loss.assumed


@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_a_compiled_model_has_no_layers(models: Path) -> None:
    trainer = trainer_of(f"{models}:mlp", compiled=True)
    with pytest.raises(InvalidValueError, match="--depth op"):
        by_layer(trainer, counting(), step_s=1, phases_s=(1, 1, 1), steps=1)


def test_operators_of_a_step(models: Path) -> None:
    """Two linear layers: two products with addition forward, three in backward (the first layer's
    input needs no gradient)."""
    trainer = trainer_of(f"{models}:mlp")
    trainer.step(lambda: None)
    clock = Clock(mark=lambda: None, between=lambda _a, _b: 0.0, wait=lambda: None)
    found = by_op(trainer, clock, step_s=1e-3, steps=3)
    calls = {p.name: p.calls for p in found.parts}
    assert calls["aten::addmm"] == 2
    assert calls["aten::mm"] == 3
    assert calls["aten::threshold_backward"] == 1
    assert OUTSIDE in calls
    assert sum(p.seconds for p in found.parts) == pytest.approx(1e-3)
    assert all(p.seconds >= 0 for p in found.parts)


def test_peak_memory_of_a_cpu_by_hand(models: Path) -> None:
    """It is highest when the weight's gradient is made. Weight, gradient and two AdamW states of
    4 MB each; 40 kB each of input and gradient of the logits; ten targets and a few numbers."""
    trainer = trainer_of(f"{models}:wide", batch=10)
    trainer.step(lambda: None)
    assert cpu_peak_bytes(trainer) == pytest.approx(4 * 4_000_000 + 80_000 + 80, abs=64)
    plain = trainer_of(f"{models}:wide", batch=10, optimizer="sgd")
    plain.step(lambda: None)
    assert cpu_peak_bytes(plain) == pytest.approx(2 * 4_000_000 + 80_000 + 80, abs=64)


def test_losses() -> None:
    y = torch.randn(4, 3)
    loss = Loss()
    assert torch.equal(loss(y), F.cross_entropy(y, loss.targets[0]))
    assert loss.assumed
    own = Loss()
    assert own({"loss": torch.tensor(2.0), "logits": y}) == 2
    assert own(torch.tensor(3.0)) == 3
    assert not own.assumed
    single = torch.randn(4, 1)
    zeros = F.binary_cross_entropy_with_logits(single, torch.zeros(4, 1))
    assert torch.equal(Loss()(single), zeros)
    heads = namedtuple("heads", ("logits", "aux_logits"))
    both = Loss()
    expected = F.cross_entropy(y, both(heads(y, y)) and both.targets[0]) * 1.4
    assert torch.allclose(both(heads(y, y)), expected)
    with pytest.raises(TypeError, match="no floating-point tensor"):
        Loss()(torch.zeros(3, dtype=torch.int64))


def test_every_built_in_network_has_a_module_but_those_of_paleo() -> None:
    declare_torchvision_ops()
    pytest.importorskip("torchvision")
    pytest.importorskip("transformers")
    for name, entry in ENTRIES.items():
        if entry.source.startswith("paleo:"):
            with pytest.raises(InvalidValueError, match="Paleo"):
                source_of(Workload(model=name))
        else:
            assert source_of(Workload(model=name)).batch == entry.batch


def test_a_model_that_does_not_fit_is_a_result(models: Path) -> None:
    """Four petabytes of weights: the allocator of every machine refuses."""
    found = measure(Workload(model=f"{models}:huge", unit="cpu"), effort=QUICK)
    assert found.error == "oom"
    assert found.timing is None
    assert found.workload.batch == 32


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ("nin", "Paleo"),
        ("paleo:nin", "Paleo's format"),
        ("torchvision:resnet5", "resnet50"),
        ("resnet5", "resnet50"),
        ("none.onnx", "no such file"),
        ("torchvision:", "names no model"),
        ("nets.py", "nets.py:FUNCTION"),
        ("nets.py:mpl", "mlp"),
        ("nets.py:frozen", "no parameters"),
    ],
)
def test_what_cannot_be_measured_says_why(models: Path, model: str, said: str) -> None:
    with pytest.raises(TraincastError, match=said):
        measure(Workload(model=model, unit="cpu", root=models.parent), effort=QUICK)


def test_a_graph_is_no_module(tmp_path: Path) -> None:
    from traincast.graph import graph_to_json
    from traincast.ingest.references import zoo_graph

    (tmp_path / "net.json").write_text(graph_to_json(zoo_graph("lenet5")))
    with pytest.raises(InvalidValueError, match=r"graph in JSON.*no PyTorch module"):
        measure(Workload(model="net.json", unit="cpu", root=tmp_path))


def test_an_error_in_a_users_model_names_its_line(models: Path) -> None:
    with pytest.raises(IngestError, match=r"nets\.py:\d+ \(return self\.inner\(x\.reshape"):
        measure(Workload(model=f"{models}:broken", unit="cpu"), effort=QUICK)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"precision": "tf32"}, "tf32 is for GPUs"),
        ({"precision": "fp8"}, "fp8"),
        ({"precision": "int3"}, "int3"),
        ({"optimizer": "lion"}, "lion"),
        ({"layout": "nhcw"}, "nhcw"),
        ({"seq": 8}, "no sequence"),
    ],
)
def test_options_that_cannot_be(options: dict, said: str) -> None:
    with pytest.raises((InvalidValueError, UnknownNameError), match=said):
        measure(Workload(model="lenet5", unit="cpu", **options), effort=QUICK)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_here() -> None:
    with pytest.raises(InvalidValueError, match="--device cpu"):
        measure(Workload(model="lenet5", unit="cuda"))


def test_files_in_references_move_with_the_table(tmp_path: Path) -> None:
    w = Workload(model="nets/a.py:build?width=3", root=tmp_path)
    assert located(w) == f"{tmp_path.resolve()}/nets/a.py:build?width=3"
    assert located(w, tmp_path / "tables") == "../nets/a.py:build?width=3"
    hf = Workload(model="hf:config.json", root=tmp_path)
    assert located(hf, tmp_path) == "hf:config.json"
    assert located(Workload(model="torchvision:resnet18")) == "torchvision:resnet18"
    assert located(Workload(model="package.module:build")) == "package.module:build"
