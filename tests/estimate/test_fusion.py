"""Compiled programs, against hand derivations, real Inductor code and recorded H200 kernels."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traincast import predict
from traincast.estimate.fusion import compiled_layout, fused
from traincast.estimate.program import Kernels, Program, kernels_of, program_of
from traincast.graph import Graph, Op, Size, Tensor
from traincast.graph.precision import PRECISIONS
from traincast.ingest import resolve, zoo_graph

FP32 = PRECISIONS["fp32"]
DATA = Path(__file__).parents[3] / "shared" / "data" / "h200"


def graph(tensors: dict[str, tuple[Any, ...]], *ops: tuple[Any, ...]) -> Graph:
    """Name: (role, *shape); op: (name, kind, inputs, outputs, attributes)."""
    return Graph(
        name="small",
        tensors={
            name: Tensor(name=name, role=role, shape=tuple(map(Size.parse, shape)))
            for name, (role, *shape) in tensors.items()
        },
        ops=tuple(
            Op(name=n, kind=k, inputs=tuple(i.split()), outputs=tuple(o.split()), attrs=a)
            for n, k, i, o, a in ops
        ),
    )


def compiled(source: Graph, batch: int, precision: str = "fp32") -> tuple[Program, Kernels]:
    program = fused(program_of(source, PRECISIONS[precision]), True)
    return program, kernels_of(program, batch, source.seq)


def listed(program: Program, kernels: Kernels, backward: bool) -> list[tuple[str, float, float]]:
    """Return name, bytes read and written of each kernel, in the order of ops."""
    return [
        (kernels.names[i], float(kernels.read[i]), float(kernels.write[i]))
        for index in program.op_class
        for i in np.flatnonzero(kernels.op_class == index)
        if (kernels.phase[i] > 0) == backward
    ]


def feed_forward() -> Graph:
    """h + second(gelu(first(norm(h)))), with h a product too, and the mean as the loss."""
    wide = dict.fromkeys(("f", "g"), ("activation", "B", 32))
    slim = dict.fromkeys(("h", "n", "o", "y"), ("activation", "B", 8))
    return graph(
        {
            "x": ("input", "B", 8),
            "w0": ("parameter", 8, 8), "w1": ("parameter", 32, 8), "w2": ("parameter", 8, 32),
            "scale": ("parameter", 8), "shift": ("parameter", 8), "loss": ("activation",),
            **wide, **slim,
        },
        ("in", "linear", "x w0", "h", {}),
        ("norm", "layer_norm", "h scale shift", "n", {"axes": 1}),
        ("first", "linear", "n w1", "f", {}),
        ("act", "pointwise", "f", "g", {"fn": "gelu"}),
        ("second", "linear", "g w2", "o", {}),
        ("add", "pointwise", "h o", "y", {"fn": "add"}),
        ("loss", "reduce", "y", "loss", {"fn": "mean"}),
    )  # fmt: skip


def test_a_feed_forward_block_is_three_loops_forward() -> None:
    """A batch of 10: h, n, o, y take 320 bytes, f and g 1280, two statistics a row 80."""
    program, kernels = compiled(feed_forward(), 10)
    assert listed(program, kernels, backward=False) == [
        ("mm", 320 + 256, 320),
        ("triton.rows", 320 + 64, 320 + 80),
        ("mm", 320 + 1024, 1280),
        ("gelu", 1280, 1280),
        ("mm", 1280 + 1024, 320),
        # The residual sum has one reader, so that it is never written.
        ("triton.rows", 640, 4),
    ]


def test_backward_fuses_the_norm_with_the_sums_of_its_weights() -> None:
    program, kernels = compiled(feed_forward(), 10)
    found = listed(program, kernels, backward=True)
    assert sum(name == "mm" for name, *_ in found) == 5, "the input needs no gradient"
    # The gradient of gelu reads f and the gradient of g, and writes that of f.
    assert ("gelu_backward", 2 * 1280.0, 1280.0) in found
    # Reads h, the gradient of n, the loss's gradient (4), statistics and the scale (32); writes
    # the gradient of h: one kernel, and a small one for each of scale and shift.
    mixed = [k for k in found if k[0] == "triton.mixed"]
    assert [read for _, read, _ in mixed] == [2 * 320 + 4 + 80 + 32]
    assert sum(name == "sum" for name, *_ in found) == 2


def test_a_batch_norm_is_statistics_and_one_pass_with_what_follows() -> None:
    shapes = dict.fromkeys(("c", "n", "r", "d"), ("activation", "B", 4, 6, 6))
    net = graph(
        {
            "x": ("input", "B", 4, 6, 6),
            "w0": ("parameter", 4, 4, 1, 1), "w1": ("parameter", 4, 4, 1, 1),
            "scale": ("parameter", 4), "shift": ("parameter", 4), "loss": ("activation",), **shapes,
        },
        ("in", "conv", "x w0", "c", CONV),
        ("norm", "batch_norm", "c scale shift", "n", {}),
        ("relu", "pointwise", "n", "r", {"fn": "relu"}),
        ("out", "conv", "r w1", "d", CONV),
        ("loss", "reduce", "d", "loss", {"fn": "mean"}),
    )  # fmt: skip
    size = 5 * 4 * 36 * 4.0
    program, kernels = compiled(net, 5)
    forward = [k for k in listed(program, kernels, backward=False) if k[0].startswith("triton")]
    assert forward[:3:2] == [
        ("triton.columns", size, 32.0),
        ("triton.point", size + 32 + 32, size),
    ]
    back = listed(program, kernels, backward=True)
    # Each pass reads the gradient of r, r itself for relu's mask, c and the statistics.
    # It leaves two sums, and of them the gradients of scale and shift.
    assert ("triton.columns", 3 * size + 32, 64.0) in back
    kept = [v.spec for v in program.values if v.kept >= 0 and v.made >= 0]
    assert len(kept) == 4, "c, r and two statistics; the normalised values are computed again"


CONV = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def test_a_value_with_a_reader_beyond_a_library_call_is_kept() -> None:
    """The residual sum is not computed again from the whole chain before it."""
    program = fused(program_of(zoo_graph("vit_b_16"), PRECISIONS["amp_bf16"]), True)
    sums = [i for i, name in enumerate(program.names) if "encoder_layer_5.add" in name]
    assert any(v.made in sums and v.kept >= 0 for v in program.values)


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "vit_b_16", "mobilenet_v2", "llama-3.1-8b"])
@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_compiling_does_the_same_products_and_moves_fewer_bytes(name: str, precision: str) -> None:
    eager = program_of(zoo_graph(name), PRECISIONS[precision])
    other = fused(eager, True)
    totals = []
    for program in (eager, other):
        kernels = kernels_of(program, 4, program.graph.seq)
        times = np.bincount(program.op_class, minlength=len(program.classes))[kernels.op_class]
        moved = times * (kernels.read + kernels.write)
        totals.append(((times * kernels.flops).sum(), moved.sum()))
    assert totals[1][0] == pytest.approx(totals[0][0])
    assert totals[1][1] < 0.95 * totals[0][1]
    assert set(other.parameter_op) == set(eager.parameter_op)
    assert all(0 <= v.made <= v.last < len(other.names) for v in other.values if v.made >= 0)


@pytest.mark.parametrize(
    ("name", "layout"),
    [("resnet50", "nhwc"), ("mobilenet_v2", "nhwc"), ("resnext50_32x4d", "nchw"), ("gpt2", "nchw")],
)
def test_images_are_laid_out_as_inductor_decides(name: str, layout: str) -> None:
    """`decide_layout_opt` of torch/_inductor/graph.py refuses groups of several channels."""
    assert compiled_layout(program_of(zoo_graph(name), FP32), "nchw") == layout


def test_compiled_encoders_of_transformers_do_without_fused_attention() -> None:
    """On an H200, a compiled BERT ran 24 products a pass in float32 and no attention kernel."""
    program = fused(program_of(zoo_graph("bert-base"), PRECISIONS["bf16"]), True)
    kernels = kernels_of(program, 2, 64)
    assert not any("attention" in name for name in kernels.names)
    counts = np.bincount(program.op_class, minlength=len(program.classes))
    bmm = [i for i, name in enumerate(kernels.names) if name == "bmm" and kernels.phase[i] == 0]
    assert sum(counts[kernels.op_class[i]] for i in bmm) == 24
    assert {float(kernels.each[i]) for i in bmm} == {4.0}


RECORDED = [
    # Loops of compiled training steps on one H200 with PyTorch 2.11 (docs/compile.md): GB that
    # Inductor's kernels move by its own count, and kernels, forward and backward.
    ("torchvision:resnet50", "amp_bf16", 128, (10.47, 302), (23.42, 270)),
    ("torchvision:vgg16", "amp_bf16", 64, (5.44, 40), (7.93, 58)),
    ("torchvision:convnext_tiny", "amp_bf16", 128, (10.33, 178), (19.91, 302)),
    ("torchvision:vit_b_16", "amp_bf16", 128, (17.38, 175), (22.84, 227)),
    ("gpt2", "bf16", 16, (6.75, 46), (19.50, 203)),
    ("bert-base", "bf16", 32, (19.35, 104), (35.83, 271)),
]


@pytest.mark.parametrize(("model", "precision", "batch", "forward", "backward"), RECORDED)
def test_loops_move_the_bytes_that_were_recorded(
    model: str,
    precision: str,
    batch: int,
    forward: tuple[float, int],
    backward: tuple[float, int],
) -> None:
    net = zoo_graph(model.removeprefix("torchvision:"))
    program = fused(program_of(net, PRECISIONS[precision]), True)
    kernels = kernels_of(program, batch, {"gpt2": 1024, "bert-base": 512}.get(model, 0))
    times = np.bincount(program.op_class, minlength=len(program.classes))[kernels.op_class]
    loop = kernels.flops == 0
    for phase, (gigabytes, launches) in enumerate((forward, backward)):
        chosen = loop & (np.minimum(kernels.phase, 1) == phase)
        moved = (times * (kernels.read + kernels.write))[chosen].sum() / 1e9
        assert moved == pytest.approx(gigabytes, rel=0.3)
        assert (times * kernels.launches)[chosen].sum() == pytest.approx(launches, rel=0.3)


def test_a_vocabulary_of_odd_width_is_padded() -> None:
    """GPT-2's logits, 16 · 1024 · 50257 in bf16: read once, written for both products' sake."""
    _, kernels = compiled(zoo_graph("gpt2"), 16, "bf16")
    logits, wider = (16 * 1024 * width * 2.0 for width in (50257, 50264))
    assert any(
        (read, write) == (logits, 2 * wider)
        for read, write, phase in zip(kernels.read, kernels.write, kernels.phase, strict=True)
        if phase > 0
    )


@pytest.mark.slow
def test_peak_memory_of_compiled_steps_on_an_h200() -> None:
    table = DATA / "train_steps.csv"
    if not table.exists():
        pytest.skip(f"measured steps are not here: {table}")
    errors = []
    with table.open() as file:
        for row in csv.DictReader(file):
            if row["mode"] != "compile":
                continue
            found = predict(
                row["model"], row["device"], batch=int(row["batch"]),
                seq=int(row["seq"]) if row["seq"] else None, precision=row["precision"],
                optimizer="sgd-momentum" if row["optimizer"] == "sgd" else row["optimizer"],
                layout=row["layout"] or "nchw", compiled=True, estimator="roofline", root=DATA,
            )  # fmt: skip
            errors.append(found.memory.peak / 2**30 / float(row["peak_gib"]) - 1)
    print(f"peak of {len(errors)} compiled steps: {np.mean(np.abs(errors)):.1%} off")
    assert np.mean(np.abs(errors)) < 0.1
    assert np.max(np.abs(errors)) < 0.25


MODULE = """
import torch
from torch import nn
from torch.nn.functional import gelu

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.second(gelu(self.first(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, x):
        return self.blocks(x).square().mean()

def build(batch=4):
    return Net(), torch.zeros(batch, 16, 64)
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_forward_runs_loops_and_products_in_the_order_of_inductors_code(tmp_path: Path) -> None:
    """The code that Inductor generates for a CPU alternates as ours does."""
    torch = pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is no g++")
    from torch._inductor.utils import run_fw_bw_and_get_code

    file = tmp_path / "net.py"
    file.write_text(MODULE)
    space: dict[str, Any] = {}
    exec(MODULE, space)
    module, x = space["build"]()
    torch._dynamo.reset()
    run = torch.compile(module)
    _, (forward, _) = run_fw_bw_and_get_code(lambda: run(x))
    calls = re.findall(r"^ +(cpp_fused|extern_kernels)[\w.]*\(", forward, re.MULTILINE)
    theirs = ["call" if name.startswith("extern") else "loop" for name in calls]
    program = fused(program_of(resolve(f"{file}:build"), FP32), True)
    ours = [
        "loop" if program.classes[i].kind.startswith("loop") else "call"
        for i, name in zip(program.op_class, program.names, strict=True)
        if not name.endswith(".backward")
    ]
    assert ours == theirs
