"""How long kernels take in training steps, as torch.profiler recorded it, and as predicted.

    python benchmarks/kernel_times.py [--step resnet50] [--vector] [--update]

For each recorded step of an H200 (`data/h200/kernel_lists*.json.gz`) the device's time in all, and
the aten ops that are furthest off. `--vector` compares kernels without products one by one, by the
bytes that they move: how much longer they take in a network than alone (`cold_seconds`). `--update`
compares optimizers' updates alone, by launches and by time. Launches' gaps, which the profiler does
not count, are left out but for those of updates. Needs torch, torchvision and transformers.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

import compare_kernels as recorded
from traincast.errors import TraincastError
from traincast.estimate.calibrated import estimator
from traincast.estimate.calibrated.estimator import MATRIX, Calibrated
from traincast.estimate.calibrated.library import COMPLETE, shipped
from traincast.estimate.host import trained_sizes
from traincast.estimate.optimizer import launch_count, optimizer_named
from traincast.estimate.program import FAMILIES, kernels_of
from traincast.graph import DTYPE_BYTES, Graph
from traincast.graph.precision import PRECISIONS
from traincast.hardware import load_device

FOLDER = recorded.DATA.parent
LISTS = "kernel_lists*.json.gz"
EDGES = (0.3e6, 2e6, 5e6, 10e6, 20e6, 35e6, 50e6, 70e6, 100e6, 200e6, 1e12)


class Priced(NamedTuple):
    """A kernel of a step."""

    op: str
    vector: bool
    traffic: float
    seconds: float


def priced(step: recorded.Step, graph: Graph) -> Iterator[Priced]:
    """Yield our kernels of a step, each as often as it runs."""
    profile = shipped(COMPLETE)
    assert profile is not None
    program = recorded.program_for(step, graph)
    kernels = kernels_of(program, int(step["batch"]), int(step["seq"] or 0))
    many = np.bincount(program.op_class, minlength=len(program.classes))[kernels.op_class]
    how, layout = PRECISIONS[step["precision"]], step["layout"] or "nchw"
    seconds = Calibrated(profile).price(kernels, load_device(COMPLETE), how, layout).seconds
    seconds = seconds - profile.gap_s * kernels.launches
    for i, times in enumerate(many):
        names = tuple(recorded.profiled(kernels, i))
        main = names[0] if names else "convolution_backward"
        single = len(names) == 1 and FAMILIES[kernels.family[i]] not in MATRIX
        traffic = float(kernels.read[i] + kernels.write[i])
        yield from [Priced(main, single, traffic, float(seconds[i]))] * int(times)


def vector_pairs(step: recorded.Step, ours: list[Priced]) -> Iterator[tuple[float, float]]:
    """Yield bytes and recorded over predicted seconds of vector kernels, the shortest first."""
    real: dict[str, list[float]] = defaultdict(list)
    for name, _, kernels in step["ops"]:
        real[name.removeprefix("aten::").removesuffix("_")].append(sum(us for _, us in kernels))
    by_op: dict[str, list[Priced]] = defaultdict(list)
    for kernel in ours:
        by_op[kernel.op].append(kernel)
    for op, kernels in by_op.items():
        if len(kernels) == len(real[op]) and all(k.vector for k in kernels):
            ordered = sorted(kernels, key=lambda k: k.seconds)
            for kernel, us in zip(ordered, sorted(real[op]), strict=True):
                yield kernel.traffic, us / 1e6 / kernel.seconds


def compare_updates(chosen: str) -> None:
    """Print launches and microseconds of optimizers' updates, recorded and ours."""
    profile, device = shipped(COMPLETE), load_device(COMPLETE)
    assert profile is not None
    off: dict[tuple[str, float], float] = {}
    for step in chain.from_iterable(map(recorded.steps, sorted(FOLDER.glob(LISTS)))):
        real = [
            us
            for name, _, kernels in step["ops"]
            if name.removeprefix("aten::").removesuffix("_") in recorded.OPTIMIZER
            for _, us in kernels
        ]
        each = DTYPE_BYTES[PRECISIONS[step["precision"]].parameters]
        key = (step["model"], each)
        if key in off or not real or chosen not in recorded.title(step):
            continue
        sizes = trained_sizes(recorded.program_for(step, recorded.graph_of(step, FOLDER)))
        optimizer = optimizer_named({"sgd": "momentum"}.get(step["optimizer"], step["optimizer"]))
        update = profile.updates[f"{optimizer.name}|{'bf16' if each == 2 else 'fp32'}"]
        us = 1e6 * update.seconds(optimizer, sizes, each, device.memory_bandwidth)
        off[key] = us / sum(real) - 1
        print(f"{recorded.title(step)}: {len(real)} launches, ours {launch_count(optimizer, sizes)}"
              f"; {sum(real):.0f} µs, predicted {off[key]:+.1%}")  # fmt: skip
    errors = np.array(list(off.values()))
    print(f"{len(off)} updates: off by {abs(errors).mean():.1%} on average, median "
          f"{np.median(abs(errors)):.1%}, bias {errors.mean():+.1%}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--step", default="", help="part of a step's name")
    parser.add_argument("--vector", action="store_true")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    if options.update:
        compare_updates(options.step)
        return
    if options.vector:
        patch.object(estimator, "cold_seconds", lambda traffic, *_: 0.0 * traffic).start()
    pairs: list[tuple[float, float]] = []
    off = []
    for path in sorted(FOLDER.glob(LISTS)):
        for step in recorded.steps(path):
            if options.step not in recorded.title(step):
                continue
            try:
                ours = list(priced(step, recorded.graph_of(step, FOLDER)))
            except TraincastError as problem:
                print(f"{recorded.title(step)}: left out: {problem}")
                continue
            pairs += vector_pairs(step, ours)
            _, time = recorded.recorded(step)
            guess: Counter[str] = Counter()
            for kernel in ours:
                guess[kernel.op] += 1e6 * kernel.seconds
            names = [n for n in {*time, *guess} if n not in recorded.OPTIMIZER]
            real, said = sum(time[n] for n in names), sum(guess[n] for n in names)
            off.append(said / real - 1)
            print(f"{recorded.title(step)}: {real / 1e3:.2f} ms, predicted {off[-1]:+.1%}")
            for name in sorted(names, key=lambda n: -abs(guess[n] - time[n]))[:3]:
                print(f"  {name:40} {time[name]:9.0f} µs   ours {guess[name]:9.0f} µs")
    print(f"{len(off)} steps: off by {np.abs(off).mean():.1%} on average, bias {np.mean(off):+.1%}")
    if options.vector:
        traffic, ratio = (np.array(column) for column in zip(*pairs, strict=True))
        for low, high in pairwise(EDGES):
            held = ratio[(traffic >= low) & (traffic < high)]
            if len(held):
                print(f"{low / 1e6:7.1f} MB and more: {np.median(held):.2f} times, {len(held)}")
        large = ratio[traffic >= EDGES[0]]
        print(f"{len(large)} kernels: {np.exp(np.log(large).mean()):.3f} times on average")


if __name__ == "__main__":
    main()
