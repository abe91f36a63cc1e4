"""Record which kernels real training steps launch, op by op, with torch.profiler.

    python benchmarks/profile_steps.py OUT.json.gz [--minutes 3] [--networks zoo|handmade|…]
        [--precision fp32] [--inference]

For each network, precision and layout of one step after warm-up: every aten op that launched
something, with its input shapes and its kernels' names and microseconds. With `--inference` of one
forward pass in eval mode without gradients. Needs torch, torchvision and transformers.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from measure_steps import BLIND, FRESH, HANDMADE, TEXT, UNSEEN, TraincastError, fourth_suite
from traincast.measure.clock import clock_of
from traincast.measure.table import workload_of
from traincast.measure.trainer import Trainer, settings
from traincast.measure.workload import choose, sized, source_of

HERE = Path(__file__).parent / "data/h200"
NETWORKS = (
    ("torchvision:resnet50", 224, 64), ("torchvision:vgg16", 224, 32),
    ("torchvision:mobilenet_v2", 224, 64), ("torchvision:efficientnet_b0", 224, 64),
    ("torchvision:densenet121", 224, 32), ("torchvision:convnext_tiny", 224, 64),
    ("torchvision:swin_t", 224, 32), ("torchvision:vit_b_16", 224, 64),
    ("torchvision:regnet_y_3_2gf", 224, 64), ("torchvision:shufflenet_v2_x1_0", 224, 64),
)  # fmt: skip


def by_hand(file: str, networks: tuple[tuple[str, int], ...]) -> list[dict[str, str]]:
    return [
        {"model": f"{file}.py:{name}", "image": "", "batch": str(batch), "seq": "",
         "precision": precision, "optimizer": "adamw", "layout": ""}
        for precision in ("tf32", "amp_bf16", "fp32")
        for name, batch in networks
    ]  # fmt: skip


def zoo() -> list[dict[str, str]]:
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
    return [{name: str(value) for name, value in case.items()} for case in found]


NETWORKS_OF = {
    "zoo": zoo,
    "handmade": lambda: by_hand("handmade", HANDMADE),
    "unseen": lambda: by_hand("unseen", UNSEEN),
    "fresh": lambda: by_hand("fresh", FRESH),
    "blind": lambda: by_hand("blind", BLIND),
    "fourth": fourth_suite,
}


def record(case: dict[str, str], inference: bool) -> list[list[object]]:
    torch.cuda.empty_cache()
    workload = choose(workload_of(case, unit=None, root=HERE))
    source = source_of(workload)
    workload = sized(workload, source)
    clock = clock_of("cuda")
    with settings(workload):
        trainer = Trainer(workload, source)
        run = partial(trainer.step, clock.mark)
        if inference:
            trainer.module.eval()
            run = torch.no_grad()(trainer.infer)
        for _ in range(3):
            run()
        torch.cuda.synchronize()
        kinds = [ProfilerActivity.CPU, ProfilerActivity.CUDA]
        with profile(activities=kinds, record_shapes=True) as p:
            run()
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
    parser.add_argument("--networks", choices=NETWORKS_OF, default="zoo")
    parser.add_argument("--inference", action="store_true", help="forward passes alone")
    parser.add_argument("--precision", default="", help="of all networks: this precision alone")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    steps = []
    for case in NETWORKS_OF[options.networks]():
        if options.precision not in ("", case["precision"]):
            continue
        if time.monotonic() > deadline:
            print("out of time")
            break
        try:
            steps.append({**case, "ops": record(case, options.inference)})
        except TraincastError as problem:
            print("left out:", case["model"], problem, flush=True)
            continue
        print(case["model"], case["precision"], case["layout"], len(steps[-1]["ops"]), flush=True)
    with gzip.open(options.out, "wt") as file:
        json.dump({"torch": torch.__version__, "steps": steps}, file)


if __name__ == "__main__":
    main()
