"""How long `traincast plan` takes: tables and search, by network, devices and depth.

    python benchmarks/plan_speed.py            # all rows
    python benchmarks/plan_speed.py --quick    # the first few

Seconds of this process's own CPU time, the lowest of three runs, after the network is loaded:
layers, configurations, prices of all parts, transfers of all pairs, elimination, baselines not
included. Published for AlexNet, VGG-16 and Inception-v3 on 4 devices: 0.02, 0.1 and 0.4 s.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from dataclasses import replace

from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_for
from traincast.graph import Graph, Op
from traincast.graph.precision import precision_named
from traincast.hardware import load_cluster
from traincast.ingest import resolve
from traincast.parallel.configurations import _enumerated
from traincast.parallel.overlap import _pattern
from traincast.search.strategies import Search
from traincast.simulate.layerwise import Setting, build_tables
from traincast.simulate.step import Plan

ROWS = (
    ("alexnet", "1x4xp100", "powers"),
    ("vgg16", "1x4xp100", "powers"),
    ("inception_v3", "1x4xp100", "powers"),
    ("inception_v3", "1x2xp100", "powers"),
    ("inception_v3", "2x4xp100", "powers"),
    ("inception_v3", "4x4xp100", "powers"),
    ("inception_v3", "4x4xp100", "all"),
    ("resnet18", "4x4xp100", "powers"),
    ("resnet50", "4x4xp100", "powers"),
    ("resnet101", "4x4xp100", "powers"),
    ("resnet152", "4x4xp100", "powers"),
    ("gpt2", "4x4xp100", "powers"),
    ("gpt2×24", "4x4xp100", "powers"),
    ("gpt2×48", "4x4xp100", "powers"),
    ("gpt2×96", "4x4xp100", "powers"),
    ("densenet121", "1x4xp100", "powers"),
)


def deeper(graph: Graph, blocks: int) -> Graph:
    """Return GPT-2 with its last block repeated until it has so many."""
    last = "transformer.h.11"
    block = [op for op in graph.ops if op.name == last or op.name.startswith(last + ".")]
    at = max(i for i, op in enumerate(graph.ops) if op in block) + 1
    tensors, ops = dict(graph.tensors), list(graph.ops[:at])

    def renamed(name: str, to: int) -> str:
        return re.sub(r"\bh\.1([01])\b", lambda m: f"h.{to - 1 + int(m[1])}", name)

    for k in range(12, blocks):
        for op in block:
            for name in (*op.inputs, *op.outputs):
                tensors.setdefault(renamed(name, k), replace(tensors[name], name=renamed(name, k)))
            ops.append(_again(op, k, renamed))
    tail = [_again(op, blocks - 1, renamed) for op in graph.ops[at:]]
    return replace(graph, ops=(*ops, *tail), tensors=tensors, name=f"gpt2×{blocks}")


def _again(op: Op, k: int, renamed: Callable[[str, int], str]) -> Op:
    return replace(
        op,
        name=renamed(op.name, k),
        layer=renamed(op.layer, k),
        inputs=tuple(renamed(n, k) for n in op.inputs),
        outputs=tuple(renamed(n, k) for n in op.outputs),
    )


def network(name: str) -> Graph:
    """Return a network; NAME×N is one of so many blocks."""
    base, _, blocks = name.partition("×")
    graph = resolve(base)
    return deeper(graph, int(blocks)) if blocks else graph


def seconds(graph: Graph, shape: str, degrees: str, runs: int = 3) -> tuple[float, int, bool]:
    """Return the least CPU seconds of some runs, the layers, and whether the plan is proven."""
    cluster = load_cluster(shape)
    setting = Setting(
        cluster=cluster,
        estimator=estimator_for("auto", cluster.device),
        precision=precision_named("fp32"),
        plan=Plan(
            batch=(4 if graph.has_sequence else 32) * cluster.devices,
            seq=graph.seq,
            optimizer=optimizer_named("momentum"),
        ),
        objective="published",
        scheme="server",
        degrees=degrees,
    )
    best = float("inf")
    for _ in range(runs):
        _enumerated.cache_clear()
        _pattern.cache_clear()
        begun = time.process_time()
        tables = build_tables(graph, setting)
        found = Search(tables, [c.parts > 0 for c in tables.configs]).run()
        best = min(best, time.process_time() - begun)
    return best, len(tables.configs), found.proven


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print("| network | layers | cluster | degrees | CPU s | proven |\n|---|---:|---|---|---:|---|")
    for name, shape, degrees in ROWS[:4] if quick else ROWS:
        took, layers, proven = seconds(network(name), shape, degrees, 1 if degrees == "all" else 3)
        print(f"| {name} | {layers} | {shape} | {degrees} | {took:.2f} | {proven} |", flush=True)


if __name__ == "__main__":
    main()
