"""Fit what the host takes for ops in networks, over what it takes for each in a loop of its own.

    python benchmarks/fit_host.py [--steps ../shared/data/h200/train_steps.csv]

Prints the table IN_NETWORKS of `estimate/calibrated/host.py`, how far the host's times for whole
networks then lie from measured ones, for each eighth of the networks by a fit without it, and how
far measured ones lie from each other.

Two sources: the host's own time for 137 networks (benchmarks/host_times.py, twice; the first time
each phase began with an idle device), and phases of the
steps in the shared table that the host bounds. Hosts change their pace from minute to minute: the
first tell what ops take beside each other, with a pace of their own in each phase, and at the pace
of the moment's addition to the power of a half, which explains most; the second also tell the pace.
A group that few networks use stays near what all groups have in common.
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.optimize import least_squares

from traincast.estimate.calibrated.host import host_parts, op_cost
from traincast.estimate.calibrated.library import profile_for
from traincast.estimate.calibrated.profile import Host
from traincast.estimate.program import kernels_of, program_of
from traincast.graph.evaluation import evaluated
from traincast.graph.graph import Graph
from traincast.graph.precision import precision_named
from traincast.hardware import load_device
from traincast.ingest import resolve
from traincast.simulate.predict import predict
from traincast.simulate.validate import read_runs

HERE = Path(__file__).resolve().parent
FORMS = ("infer", "forward", "backward")
COLUMNS = (("infer_ms", "forward"), ("fwd_ms", "forward"), ("bwd_ms", "backward"))
COMMON = (1.4, 2.0, 1.0)
"""What a group's factor is near without evidence."""
GIVEN = {"pass": (6.0, 20.0, 30.0), "launch": (0.4, 0.4, 0.4)}
"""The same for groups that are counted in additions. A further launch of the same op is most of
its dispatch less; ops of many launches, as sorts, are few here at the sizes of real batches."""
PULL, FIRM, ROBUST, PACE = 0.3, 30.0, 0.15, 0.5
WEIGHT = 2.0
"""A measured step's, over a measurement of the host alone."""
RUNS, LAG = 2, 0.3
"""Measurements of the host alone, and steps that the device may be behind at their end."""
BOUND = 0.7
"""What the device takes at most of a phase that the host bounds."""
STEPS = HERE.parent.parent / "shared/data/h200/train_steps.csv"


class Case(NamedTuple):
    model: str
    parts: dict[str, float]
    """Seconds of each group, from single ops."""
    measured: float
    run: int = 0
    """Which measurement of the host alone it is of; 0: a phase of a measured step."""


Cases = tuple[list[Case], list[Case], list[Case]]


def parts_of(host: Host, graph: Graph, precision: str, layout: str, form: int) -> dict[str, float]:
    """Return seconds of each group in one phase."""
    how = precision_named(precision)
    graph = graph if form else evaluated(graph, how.autocast)
    program = program_of(graph, how, layout)
    kernels = kernels_of(program, graph.batch, graph.seq)
    counts = np.bincount(program.op_class, minlength=len(program.classes))
    parts = {"pass": op_cost(host, "add")[1]}
    for i, group, seconds in host_parts(host, program, kernels, form):
        parts[group] = parts.get(group, 0.0) + seconds * float(counts[i])
    return parts


def host_cases(host: Host) -> Cases:
    """Return the host's own times for networks, of each form."""
    unit = op_cost(host, "add")[1]
    found: Cases = ([], [], [])
    with gzip.open(HERE / "data/h200/host.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        if "problem" in row or row.get("lag", 0.0) > LAG:
            continue
        tests = "networks.py" in row["model"]
        root = HERE.parent / "tests/pytorch" if tests else HERE / "data/h200"
        graph = resolve(row["model"], batch=row["batch"], seq=row["seq"], root=root)
        for form, name in enumerate(FORMS):
            if name in row:
                parts = parts_of(host, graph, row["precision"], "nchw", form)
                measured = row[name] / (row["unit"] / unit) ** PACE
                found[form].append(Case(row["model"], parts, measured, row["run"]))
    return found


def step_cases(host: Host, table: Path) -> Cases:
    """Return phases of measured steps that the host bounds, of each form."""
    found: Cases = ([], [], [])
    for row in read_runs(table):
        if row.get("error") or row.get("mode"):
            continue
        image, seq = (int(row[k]) if row.get(k) else None for k in ("image", "seq"))
        batch = int(row["batch"])
        graph = resolve(row["model"], image=image, batch=batch, seq=seq, root=table.parent)
        layout = row.get("layout") or "nchw"
        for form, (column, phase) in enumerate(COLUMNS):
            device = predict(
                graph, "h200", batch=batch, seq=seq, precision=row["precision"], layout=layout,
                inference=form == 0,
            ).step.device_s[phase]  # fmt: skip
            measured = float(row[column]) / 1e3
            if device < BOUND * measured:
                parts = parts_of(host, graph, row["precision"], layout, form)
                found[form].append(Case(row["model"], parts, measured))
    return found


def fitted(cases: list[Case], form: int) -> tuple[dict[str, float], list[float]]:
    """Return the factor of each group, and the pace of each run."""
    names = sorted({name for case in cases for name in case.parts})
    table = np.array([[case.parts.get(name, 0.0) for name in names] for case in cases])
    wanted = np.log([case.measured for case in cases])
    start = np.log([GIVEN.get(name, COMMON)[form] for name in names])
    pull = np.array([FIRM if name == "launch" else PULL for name in names])
    runs = np.array([case.run for case in cases])
    weight = np.where(runs == 0, WEIGHT, 1.0)

    def off(values: np.ndarray) -> np.ndarray:
        factors, pace = values[:-RUNS], np.array([0.0, *values[-RUNS:]])
        gaps = np.log(table @ np.exp(factors)) + pace[runs] - wanted
        return np.concatenate([weight * gaps, pull * (factors - start)])

    solved = least_squares(off, [*start, *RUNS * [0.0]], loss="soft_l1", f_scale=ROBUST)
    factors = dict(zip(names, map(float, np.exp(solved.x[:-RUNS])), strict=True))
    return factors, [1.0, *map(float, np.exp(solved.x[-RUNS:]))]


def errors(cases: list[Case], factors: dict[str, float], pace: list[float]) -> np.ndarray:
    """Return logarithms of predicted over measured."""
    return np.array([
        np.log(sum(factors.get(n, 1.0) * s for n, s in c.parts.items()) / c.measured)
        + np.log(pace[c.run])
        for c in cases
    ])  # fmt: skip


def repeated() -> dict[str, tuple[int, float]]:
    """Return how far both measurements of one network are apart, beyond what all have in common."""
    with gzip.open(HERE / "data/h200/host.jsonl.gz", "rt") as file:
        rows = [json.loads(line) for line in file]
    times = {(r["model"], r["precision"], r["run"]): r for r in rows if "problem" not in r}
    found = {}
    for form in FORMS:
        pairs = [
            np.log(one[form] / two[form])
            for (model, precision, run), one in times.items()
            if run == 1 and form in one
            and form in (two := times.get((model, precision, 2), {}))
        ]  # fmt: skip
        apart = np.array(pairs) - np.median(pairs)
        found[form] = (len(apart), float(np.abs(np.expm1(apart)).mean()))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=Path, default=STEPS)
    profile = profile_for(load_device("h200"))
    assert profile is not None
    assert profile.host is not None
    own, steps = host_cases(profile.host), step_cases(profile.host, parser.parse_args().steps)
    every = [[*a, *b] for a, b in zip(own, steps, strict=True)]
    found = [fitted(some, form) for form, some in enumerate(every)]
    for name in sorted(set().union(*(factors for factors, _ in found))):
        values = ", ".join(f"{factors.get(name, 0.0):.2f}" for factors, _ in found)
        print(f'    "{name}": ({values}),')
    for form, some in enumerate(every):
        models = sorted({case.model for case in some})
        out = np.zeros(len(some))
        for turn in range(8):
            chosen = {model for place, model in enumerate(models) if place % 8 == turn}
            kept = [case for case in some if case.model not in chosen]
            index = [i for i, case in enumerate(some) if case.model in chosen]
            out[index] = errors([some[i] for i in index], *fitted(kept, form))
        print(f"{FORMS[form]}, paces {', '.join(f'{p:.2f}' for p in found[form][1])}")
        for run, what in enumerate(("steps", "host alone", "host alone, without waiting")):
            off = out[[case.run == run for case in some]]
            print(
                f"  {what}: {len(off)} cases, left out: mean error "
                f"{np.abs(np.expm1(off)).mean():.1%}, spread {off.std():.3f}, "
                f"middle {np.expm1(np.median(off)):+.1%}"
            )
    for form, (count, apart) in repeated().items():
        print(f"{form}: {count} networks measured twice, {apart:.1%} apart on average")


if __name__ == "__main__":
    main()
