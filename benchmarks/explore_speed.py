"""How fast the five-axes study is.

    python benchmarks/explore_speed.py

ResNet-50: five axes of 20 values, each at 20 numbers of nodes, data and model parallelism, with
every crossing found. CPU seconds, the best of several runs, beside the budget.
"""

from __future__ import annotations

import time

import numpy as np

from traincast.search.explore import AXES, Study, prepare

BUDGET_S = 2.0
VALUES = 20
REPEATS = 5


def study_once(study: Study) -> tuple[int, int]:
    """Return how many steps were predicted and how many crossings found."""
    nodes = np.unique(np.rint(np.geomspace(2, 512, VALUES + 4)))[:VALUES]
    points = crossings = 0
    for axis in AXES.values():
        base = getattr(study.base, axis.key)
        if axis.name == "nodes":
            # Already the second axis of the others: on its own it meets 20 batches instead.
            batches = np.rint(np.geomspace(study.base.batch / 16, study.base.batch * 16, VALUES))
            pair = [(axis, nodes), (AXES["batch"], batches)]
        else:
            values = np.geomspace(base / 16, base * 16, VALUES)
            pair = [(axis, np.rint(values) if axis.whole else values), (AXES["nodes"], nodes)]
        sweep = study.sweep(pair)
        points += 2 * sweep.data.step.size
        crossings += len(sweep.crossings)
    return points, crossings


def main() -> None:
    study = prepare("resnet50", "xeon-8180", precision="fp32").study
    best = float("inf")
    for _ in range(REPEATS):
        start = time.process_time()
        points, crossings = study_once(study)
        best = min(best, time.process_time() - start)
    grid = study.base.batch * np.ones((len(AXES), VALUES, VALUES))
    start = time.process_time()
    study.at(batch=grid)
    alone = time.process_time() - start
    print(f"{points} steps of {study.network.name}, {len(study.network.layers)} layers")
    print(f"with {crossings} crossings  {best:.3f} s CPU (budget {BUDGET_S:.0f} s)")
    print(f"without crossings  {alone:.3f} s CPU")


if __name__ == "__main__":
    main()
