"""Compare the kernels of a program with those that torch.profiler recorded, op by op.

    python benchmarks/compare_kernels.py [--step resnet50] [--all] [--data kernel_lists.json.gz]

For each recorded training step and each aten op that launched something: how often it did and
for how many microseconds, and how often our program says so and with how many bytes. Prints the
ops whose counts differ (all of them with --all), and the share of the time whose ops agree.
Needs torch, torchvision and transformers, to trace the networks.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from traincast.estimate.program import Kernels, Program, kernels_of, program_of
from traincast.graph import Graph
from traincast.graph.precision import PRECISIONS
from traincast.ingest import resolve

DATA = Path(__file__).parent / "data/h200/kernel_lists.json.gz"
Step = dict[str, Any]

PROFILED = {
    "convolution": ("cudnn_convolution",),
    "convolution.bias": ("add",),
    "convolution_backward.data": (),
    "convolution_backward.weight": ("convolution_backward",),
    "convolution_backward.bias": ("sum",),
    "_to_copy": ("copy",),
    "clone": ("copy",),
    "copy_.permute": ("copy",),
    "copy_.transpose": ("copy",),
    "copy_.narrow": ("copy",),
    "relu": ("clamp_min",),
    "hardtanh": ("clamp",),
    "mul_scalar": ("mul",),
    "div_scalar": ("div",),
    "stack": ("cat",),
    "rnn": ("_cudnn_rnn",),
    "rnn_backward.data": ("_cudnn_rnn_backward",),
    "embedding": ("gather",),
    "embedding_dense_backward": ("embedding_dense_backward", "fill"),
    "nll_loss_backward": ("nll_loss_backward", "fill"),
    "max_pool2d_with_indices_backward": ("max_pool2d_with_indices_backward", "fill"),
    "_adaptive_avg_pool2d_backward": ("_adaptive_avg_pool2d_backward", "fill"),
    "_softmax_backward_data": ("_softmax_backward_data", "mul"),
    "index_put": ("_index_put_impl", "fill", "remainder", "mul", "div", "copy", "arange"),
    **dict.fromkeys(
        ("zeros", "zeros_like", "ones", "ones_like", "full", "new_zeros", "fill"), ("fill",)
    ),
}
"""What the profiler calls our kernels, in-place or not; all others go by their own name."""
HALF = {
    "_scaled_dot_product_attention": ("_cudnn_attention_forward",),
    "_scaled_dot_product_attention_backward": ("_cudnn_attention_backward",),
}
FULL = {
    "native_batch_norm": ("cudnn_batch_norm",),
    "native_batch_norm_backward": ("cudnn_batch_norm_backward",),
    "_scaled_dot_product_attention": ("_efficient_attention_forward",),
    "_scaled_dot_product_attention_backward": (
        "_efficient_attention_backward", "mul", "sum", "copy", "fill",
    ),
}  # fmt: skip
OPTIMIZER = ("_foreach_add", "_foreach_mul", "_fused_adamw")
NOT_OURS = ("Activity Buffer Request", "_local_scalar_dense")
"""The profiler's own, and the copy of a single value to the host."""


def steps(path: Path = DATA) -> list[Step]:
    """Return the recorded steps."""
    with gzip.open(path, "rt") as file:
        found: list[Step] = json.load(file)["steps"]
    return found


def title(step: Step) -> str:
    """Return a step's network and how it was trained."""
    return " ".join(str(step[k]) for k in ("model", "precision", "layout")).strip()


def graph_of(step: Step, folder: Path = DATA.parent) -> Graph:
    """Return the network of a step."""
    return resolve(str(step["model"]), image=int(step["image"] or 0) or None, root=folder)


def recorded(step: Step) -> tuple[Counter[str], Counter[str]]:
    """Return ops that launched something, and their microseconds, by aten name."""
    count: Counter[str] = Counter()
    time: Counter[str] = Counter()
    for name, _, kernels in step["ops"]:
        if name.removeprefix("aten::") not in NOT_OURS:
            short = name.removeprefix("aten::").removesuffix("_")
            count[short] += 1
            time[short] += sum(us for _, us in kernels)
    return count, time


def form_of(kernel: str) -> str:
    """Return how an elementwise kernel finds its operands, by the name of the kernel."""
    if "unrolled_elementwise" in kernel:
        return "mixed"
    return "strided" if "::elementwise_kernel<128" in kernel else ""


def program_for(step: Step, graph: Graph) -> Program:
    """Return our program of a step, with what it launches."""
    return program_of(graph, PRECISIONS[step["precision"]], step["layout"] or "nchw")


def expected(step: Step, program: Program) -> tuple[Counter[str], Counter[str]]:
    """Return how many ops ought to launch something, and their bytes, by aten name."""
    kernels = kernels_of(program, int(step["batch"]), int(step["seq"] or 0))
    times = np.bincount(program.op_class, minlength=len(program.classes))[kernels.op_class]
    count: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    for i, many in enumerate(times):
        names = tuple(profiled(kernels, i))
        for name in names:
            count[name] += int(many)
        main = names[0] if names else "convolution_backward"
        moved[main] += float(many * (kernels.read[i] + kernels.write[i]))
    # The gradient of the loss itself is a single one.
    count["fill"] += 1
    return count, moved


def profiled(kernels: Kernels, i: int) -> Iterator[str]:
    """Yield the aten ops that the profiler shows for a kernel."""
    name, form = kernels.names[i], kernels.names[i].rpartition(".")[2]
    if form in ("strided", "mixed", "turned", "spread", "masked", "learned"):
        name = name.removesuffix(f".{form}")
    # cuDNN has no gradient for a learned bias, so that PyTorch's own kernels run with one.
    special = (HALF if kernels.each[i] == 2 and form != "learned" else FULL).get(name)
    if name == "convolution" and _own_depthwise(kernels, i):
        special = ("_conv_depthwise2d",)
    yield from special or PROFILED.get(name, (name.removesuffix("_"),))
    passes = {"native_batch_norm": 3, "native_batch_norm_backward": 2}.get(name, np.inf)
    if kernels.nhwc[i] and kernels.each[i] == 2 and kernels.launches[i] > passes:
        yield "fill"
    if name == "native_layer_norm_backward" and kernels.launches[i] == 4:
        yield from ("sum", "sum")


def _own_depthwise(kernels: Kernels, i: int) -> bool:
    """Tell whether PyTorch's own kernel runs: one channel a group, channels first."""
    _, _, depth, groups = kernels.dims[i]
    return bool(groups > 1 and depth == kernels.window[i].prod() and not kernels.nhwc[i])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", default="", help="part of a step's name")
    parser.add_argument("--all", action="store_true", help="also ops that agree")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    graphs: dict[str, Graph] = {}
    for step in steps(options.data):
        if options.step not in title(step):
            continue
        model = str(step["model"])
        graphs[model] = graphs.get(model) or graph_of(step, options.data.parent)
        real, time = recorded(step)
        ours, moved = expected(step, program_for(step, graphs[model]))
        names = [n for n in {*real, *ours} if n not in OPTIMIZER]
        total = sum(time[n] for n in names)
        agree = sum(time[n] * min(ours[n], real[n]) / max(ours[n], real[n]) for n in names)
        print(f"{title(step)}: {total / 1000:.2f} ms, {agree / total:.2%} of it explained")
        for name in sorted(names, key=lambda n: -time[n]):
            if options.all or real[name] != ours[name]:
                rate = moved[name] / time[name] / 1e6 if time[name] else 0.0
                print(
                    f"  {name:40} {real[name]:5} {time[name]:9.0f} µs   ours {ours[name]:5} "
                    f"{moved[name] / 1e6:9.1f} MB {rate:6.2f} TB/s"
                )


if __name__ == "__main__":
    main()
