"""Record which kernels real training steps launch, op by op, with torch.profiler.

    python benchmarks/profile_steps.py OUT.json.gz [--minutes 3]

For each network, precision and layout of one step after warm-up: every aten op that launched
something, with its input shapes and its kernels' names and microseconds. Needs torch,
torchvision and transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from measure_steps import TEXT, step_of

NETWORKS = (
    ("torchvision:resnet50", 224, 64), ("torchvision:vgg16", 224, 32),
    ("torchvision:mobilenet_v2", 224, 64), ("torchvision:efficientnet_b0", 224, 64),
    ("torchvision:densenet121", 224, 32), ("torchvision:convnext_tiny", 224, 64),
    ("torchvision:swin_t", 224, 32), ("torchvision:vit_b_16", 224, 64),
    ("torchvision:regnet_y_3_2gf", 224, 64), ("torchvision:shufflenet_v2_x1_0", 224, 64),
)  # fmt: skip


def cases() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    ways = (("amp_bf16", "nhwc"), ("amp_bf16", "nchw"), ("tf32", "nchw"), ("fp32", "nchw"))
    for precision, layout in ways:
        found += [
            {"model": model, "image": image, "batch": batch, "seq": "", "precision": precision,
             "optimizer": "sgd", "layout": layout}
            for model, image, batch in NETWORKS
        ]  # fmt: skip
        low = "bf16" if precision == "amp_bf16" else precision
        if layout == "nchw":
            found += [
                {"model": f"hf:{name}.json", "image": "", "batch": 4, "seq": 512,
                 "precision": low, "optimizer": "adamw", "layout": ""}
                for name in TEXT
            ]  # fmt: skip
    return found


def record(case: dict[str, object]) -> list[list[object]]:
    torch.cuda.empty_cache()
    forward, optimizer = step_of(case)

    def one() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward().backward()
        optimizer.step()

    for _ in range(3):
        one()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as p:
        one()
        torch.cuda.synchronize()
    rows = []
    for event in p.events():
        if event.kernels:
            kernels = [[k.name[:120], k.duration] for k in event.kernels]
            rows.append([event.name, event.input_shapes, kernels])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=3)
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    steps = []
    for case in cases():
        if time.monotonic() > deadline:
            print("out of time")
            break
        steps.append({**case, "ops": record(case)})
        print(case["model"], case["precision"], case["layout"], len(steps[-1]["ops"]), flush=True)
    with gzip.open(options.out, "wt") as file:
        json.dump({"torch": torch.__version__, "steps": steps}, file)


if __name__ == "__main__":
    main()
