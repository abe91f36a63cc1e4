"""What a program launches, against kernels that torch.profiler recorded on an H200."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from traincast.estimate.program import kernels_of
from traincast.ingest import resolve, zoo_graph, zoo_names

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import compare_kernels as recorded
finally:
    sys.path.pop(0)

STEPS = recorded.steps()
ZOO = [s for s in STEPS if str(s["model"]).removeprefix("torchvision:") in zoo_names()]
TEXT = [s for s in STEPS if str(s["model"]).startswith("hf:")]

OFF: dict[str, dict[str, int]] = {
    # Dropout in place, which the graph does not tell, is three ops instead of one, and a copy.
    "torchvision:efficientnet_b0": {
        "mul": -2, "copy": -1, "div": -1, "fill": -1, "bernoulli": -1, "native_dropout": 1,
        "native_dropout_backward": 1,
    },
    # One gradient of a depthwise convolution is turned once, where others are turned twice.
    "torchvision:convnext_tiny": {"copy": 1},
    # transformers checks that no sequences are packed, which a trace without data leaves out.
    "hf:gpt2-medium.json": {"copy": -1, "all": -1, "eq": -1},
    "hf:bert-large.json": {"copy": -2},
    "hf:qwen-like-500m.json": {"mul": 1, "copy": -1, "bmm": -1, "all": -1, "eq": -1},
}  # fmt: skip
"""By how many ops our count is off, and why."""


def check(step: dict[str, Any], graph: Any) -> None:
    real, time = recorded.recorded(step)
    ours, _ = recorded.expected(step, recorded.program_for(step, graph))
    names = {n for n in {*real, *ours} if n not in recorded.OPTIMIZER}
    off = {n: ours[n] - real[n] for n in names if ours[n] != real[n]}
    assert off == OFF.get(str(step["model"]), {})
    total = sum(time[n] for n in names)
    agree = sum(time[n] * min(ours[n], real[n]) / max(ours[n], real[n]) for n in names)
    print(f"{recorded.title(step)}: {agree / total:.2%} of {total / 1000:.2f} ms")
    assert agree / total > 0.995


@pytest.mark.parametrize("step", ZOO, ids=recorded.title)
def test_every_op_that_launches_in_a_recorded_step_is_in_the_program(step: dict[str, Any]) -> None:
    check(step, zoo_graph(str(step["model"]).removeprefix("torchvision:")))


ELEMENTWISE = ("add", "threshold_backward", "hardtanh_backward", "silu_backward", "gelu_backward")


@pytest.mark.parametrize("step", ZOO, ids=recorded.title)
def test_elementwise_kernels_have_the_recorded_form(step: dict[str, Any]) -> None:
    """PyTorch has a kernel for operands alike, one for several types, one for several orders."""
    real = Counter(
        (short, recorded.form_of(kernels[0][0]))
        for name, _, kernels in step["ops"]
        if (short := name.removeprefix("aten::").removesuffix("_")) in ELEMENTWISE
    )
    graph = zoo_graph(str(step["model"]).removeprefix("torchvision:"))
    program = recorded.program_for(step, graph)
    kernels = kernels_of(program, int(step["batch"]), 0)
    times = np.bincount(program.op_class)[kernels.op_class]
    ours: Counter[tuple[str, str]] = Counter()
    for i, many in enumerate(times):
        name, _, form = kernels.names[i].partition(".")
        if (name, form) == ("convolution", "bias"):
            name, form = "add", "strided"
        if form == "turned":
            form = "strided"  # by the same kernel, that waits longer for memory
        if name in ELEMENTWISE:
            ours[name, form] += int(many)
    assert ours == real


@pytest.mark.slow
@pytest.mark.parametrize("step", TEXT, ids=recorded.title)
def test_language_models_launch_what_was_recorded(step: dict[str, Any]) -> None:
    pytest.importorskip("transformers", reason="builds the language models")
    check(step, resolve(str(step["model"]), root=recorded.DATA.parent))


MIXTURES = [
    s
    for s in recorded.steps(recorded.DATA.with_name("kernel_lists-fourth.json.gz"))
    if "mixtral" in str(s["model"])
]


@pytest.mark.slow
@pytest.mark.parametrize("step", MIXTURES, ids=recorded.title)
def test_a_mixture_of_experts_launches_the_recorded_products(step: dict[str, Any]) -> None:
    """In 4 bytes, with autocast too, PyTorch runs one expert's product after the other."""
    pytest.importorskip("transformers", reason="builds the network")
    network = resolve(str(step["model"]), root=recorded.DATA.parent)
    real, _ = recorded.recorded(step)
    ours, _ = recorded.expected(step, recorded.program_for(step, network))
    assert ours["mm"] == real["mm"] > 500
    assert ours["_grouped_mm"] == real["_grouped_mm"] == 0


def test_enough_steps_are_compared() -> None:
    assert len(ZOO) == 27
    assert len(TEXT) == 6
    assert len(MIXTURES) == 2
    assert {(s["precision"], s["layout"]) for s in ZOO} == {
        ("amp_bf16", "nhwc"), ("amp_bf16", "nchw"), ("tf32", "nchw"),
    }  # fmt: skip
