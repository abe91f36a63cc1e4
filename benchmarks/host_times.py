"""Measure what the host takes to issue whole networks: a table that fit_host.py reads.

    python benchmarks/host_times.py OUT.jsonl [--minutes 8] [--rounds 2]

Needs torch, torchvision and transformers; traincast itself is taken from src/. A line for each
network and precision, in each round in another order: seconds of the host for a forward pass with
autograd, a backward pass, an update and a forward pass alone, in steps one after the other without
waiting for the device, at sizes at which that is done first. `lag` is what it still had to do in
the end, in steps. `unit` is an addition's dispatch at that very time, since hosts change their
pace. Of several repeats the median of the calmer half counts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import torch

from measure_steps import (
    FRESH,
    HANDMADE,
    SECOND_TEXT,
    SECOND_VISION,
    TEXT,
    THIRD_TEXT,
    THIRD_VISION,
    UNSEEN,
    VISION,
)
from traincast.ingest.pytorch.probe import Source
from traincast.measure.trainer import Trainer, settings
from traincast.measure.workload import Workload, choose, sized, source_of

SHARED = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "mobilenet_v2", "resnet18",
    "resnet50", "shufflenet_v2_x1_0", "vgg16", "vit_b_16",
    "inception_v3?aux_logits=false&init_weights=false",
)  # fmt: skip
HERE = Path(__file__).resolve().parent / "data/h200"
TESTS = Path(__file__).resolve().parent.parent / "tests/pytorch"
REPEATS, SECONDS = 14, 0.8


def networks() -> Iterator[tuple[str, Path, int, int | None]]:
    """Yield references, the folder they are relative to, batch and sequence length."""
    for name in (*SHARED, *(n for n, _, _ in (*VISION, *SECOND_VISION, *THIRD_VISION))):
        yield f"torchvision:{name}", HERE, 4, None
    for name in (*TEXT, *SECOND_TEXT, *THIRD_TEXT):
        yield f"hf:{name}.json", HERE, 2, 128
    for file, found in (("handmade", HANDMADE), ("unseen", UNSEEN), ("fresh", FRESH)):
        for name, batch in found:
            yield f"{file}.py:{name}", HERE, max(2, batch // 8), None
    sys.path.insert(0, str(TESTS))
    import more_networks
    import networks as first

    for module in (first, more_networks):
        for name, make in vars(module).items():
            if name in more_networks.NETWORKS and make.__module__ == module.__name__:
                yield f"{module.__name__}.py:{name}", TESTS, 2, None


def addition() -> float:
    """Return seconds to issue an addition that autograd records."""
    a, b = (torch.ones(8, 32, device="cuda", requires_grad=True) for _ in range(2))
    found = []
    for _ in range(8):
        torch.cuda.synchronize()
        start = time.perf_counter()
        made = [a + b for _ in range(100)]
        found.append((time.perf_counter() - start) / 100)
        del made
    return statistics.median(found[1:])


def calm(found: list[float]) -> float:
    """Return the median of the shorter half."""
    kept = sorted(found)[: max(1, (len(found) + 1) // 2)]
    return statistics.median(kept)


def times(workload: Workload, source: Source) -> dict[str, float]:
    """Return the host's seconds of each phase."""
    trainer, now = Trainer(workload, source), time.perf_counter
    for _ in range(3):
        trainer.step(now)
    torch.cuda.synchronize()
    units, marks = [addition()], []
    begun = now()
    while len(marks) < REPEATS and now() - begun < SECONDS:
        marks.append(trainer.step(now))
    stopped = now()
    torch.cuda.synchronize()
    lag = (now() - stopped) / (stopped - begun) * len(marks)
    phases = {
        name: [m[i + 1] - m[i] for m in marks[1:]]
        for i, name in enumerate(("forward", "backward", "update"))
    }
    units.append(addition())
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.module.eval()
    with torch.no_grad(), contextlib.suppress(Exception):
        for _ in range(2):
            trainer.infer()
        torch.cuda.synchronize()
        passes = [now()]
        for _ in range(12):
            trainer.infer()
            passes.append(now())
        phases["infer"] = [b - a for a, b in pairwise(passes)][1:]
        torch.cuda.synchronize()
    units.append(addition())
    found = {name: calm(seconds) for name, seconds in phases.items() if seconds}
    return {"unit": statistics.median(units), "lag": round(lag, 3), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    cases = []
    for turn in range(options.rounds):
        some = [(*n, p) for n in networks() for p in ("tf32", "amp_bf16")]
        random.Random(turn).shuffle(some)
        cases += some
    deadline = time.monotonic() + 60 * options.minutes
    with options.out.open("w") as file:
        for done, (model, root, batch, seq, precision) in enumerate(cases):
            if time.monotonic() > deadline:
                print(f"out of time: {len(cases) - done} of {len(cases)} left")
                break
            row: dict[str, Any] = {"model": model, "batch": batch, "seq": seq,
                                   "precision": precision}  # fmt: skip
            try:
                wanted = choose(Workload(
                    model=model, batch=batch, seq=seq, precision=precision, optimizer="adamw",
                    layout="nchw", root=root,
                ))  # fmt: skip
                source = source_of(wanted)
                wanted = sized(wanted, source)
                with settings(wanted):
                    row |= times(wanted, source)
            except Exception as problem:
                row["problem"] = f"{type(problem).__name__}: {str(problem)[:200]}"
            file.write(json.dumps(row) + "\n")
            file.flush()
            print(json.dumps(row), flush=True)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
