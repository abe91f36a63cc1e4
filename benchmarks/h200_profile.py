"""Build the H200's profile that ships: kernels from measurements, intervals from whole steps.

    python benchmarks/h200_profile.py [--steps ../shared/data/h200/train_steps.csv] [--keep-kernels]

The same as `traincast calibrate --from benchmarks/data/h200/kernels*.jsonl.gz --name h200`, then
two things that kernels cannot tell, from runs of whole steps: one factor for the host, whose pace
differs from one machine to another, from that table, the second suite and `unseen.py`; and how far
real steps lie from predicted ones, from these and from two suites of a machine whose host took
two thirds of the others' time: the 5th and 95th percentile of measured over predicted in each
regime; for steps that the device bounds, at the middle spread of their kernels. No kernel's time is
adjusted to a step, and the held-out, third and `fresh.py`'s tables have no part in anything.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traincast.estimate.calibrated.estimator import Calibrated, widening
from traincast.estimate.calibrated.profile import LARGEST, Profile, profile_to_json, read_profile
from traincast.graph.precision import precision_named
from traincast.hardware import load_device
from traincast.ingest import resolve
from traincast.measure.bench.results import read_results
from traincast.measure.calibration import fit_updates, profile_from_results
from traincast.report.files import write_text
from traincast.simulate.predict import predict
from traincast.simulate.step import program_for, simulate_step
from traincast.simulate.validate import read_runs

HERE = Path(__file__).parent
ROOT = HERE.parent
OUT = ROOT / "src/traincast/hardware/profiles/h200.json"
STEPS = ROOT.parent / "shared/data/h200/train_steps.csv"
PACED = [HERE / f"data/h200/{name}_steps.csv" for name in ("second", "unseen")]
JUDGES = [HERE / f"data/h200/{name}_steps.csv" for name in ("blind", "fourth")]
_TAIL = 0.05


class Run(NamedTuple):
    """A measured run and both of its clocks as predicted; seconds."""

    measured: float
    device: float
    host: float
    training: bool
    spread: float
    """How unsure its kernels are."""


def clocks(profile: Profile, table: Path) -> list[Run]:
    """Return every eager run, its training step and its forward pass alone."""
    device, engine = load_device("h200"), Calibrated(profile)
    found = []
    for row in read_runs(table):
        if row.get("error") or row.get("mode"):
            continue
        how = precision_named(row["precision"])
        image, seq = (int(row[k]) if row.get(k) else None for k in ("image", "seq"))
        graph = resolve(
            row["model"], image=image, batch=int(row["batch"]), seq=seq, root=table.parent
        )
        for training, column in ((True, "step_ms"), (False, "infer_ms")):
            predicted = predict(
                graph, device, batch=int(row["batch"]), seq=seq, precision=how.name,
                optimizer={"sgd": "momentum"}.get(row["optimizer"], row["optimizer"]),
                layout=row.get("layout") or "nchw", estimator="roofline", inference=not training,
            )  # fmt: skip
            plan = predicted.step.plan
            program = program_for(predicted.graph, how, device, engine, plan)
            step = simulate_step(program, device, engine, plan)
            device_s, host_s = sum(step.device_s.values()), sum(step.host_s.values())
            found.append(
                Run(float(row[column]) / 1e3, device_s, host_s, training, step.spread or 0.0)
            )
    return found


def pace(runs: list[Run]) -> float:
    """Return the factor on the host's time that leaves the least mean error, relative to measured.

    Runs that the device bounds take part: they tell that the host was not slower.
    """
    measured, device, host = (np.array([r[i] for r in runs]) for i in range(3))

    def error(factor: float) -> float:
        return float(np.abs(np.maximum(device, factor * host) / measured - 1).mean())

    return round(float(min(np.arange(0.7, 1.3, 0.005), key=error)), 3)


def judged(profile: Profile, table: Path) -> Profile:
    """Return the profile with the host's factor, and with the errors of whole steps."""
    runs = [run for paced in (table, *PACED) for run in clocks(profile, paced)]
    factor = pace(runs)
    runs += [run for judge in JUDGES for run in clocks(profile, judge)]
    steps = [r for r in runs if r.training]
    measured, device, host = (np.array([r[i] for r in steps]) for i in range(3))
    host = host * factor
    ratio, bound = measured / np.maximum(device, host), host > device
    spread = np.array([r.spread for r in steps])
    typical = round(float(np.median(spread[~bound])), 4)
    wider = np.where(bound, 1.0, [widening(s, typical) for s in spread])
    errors = {}
    for regime, chosen in (("host", bound), ("device", ~bound)):
        low, high = np.quantile(ratio[chosen] ** (1.0 / wider[chosen]), [_TAIL, 1 - _TAIL])
        errors[regime] = (round(float(low), 3), round(float(high), 3))
    names = [judge.name for judge in (table, *PACED)]
    said = {
        "host_factor_from": names, "errors_from": [*names, *(judge.name for judge in JUDGES)],
        "runs": len(steps),
    }  # fmt: skip
    return dataclasses.replace(
        profile, factors={"host": factor}, errors=errors, spread=typical,
        provenance={**profile.provenance, "judged_by": said},
    )  # fmt: skip


def main() -> None:
    """Build it and say what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=Path, default=STEPS if STEPS.exists() else None)
    parser.add_argument(
        "--keep-kernels", action="store_true",
        help="keep the kernel models of the one that ships: minutes less",
    )  # fmt: skip
    options = parser.parse_args()
    results = read_results(sorted((HERE / "data/h200").glob("kernels*.jsonl.gz")))
    if options.keep_kernels:
        updates = fit_updates(results.rows, load_device("h200"))
        profile = dataclasses.replace(read_profile(OUT), updates=updates, factors={}, errors={})
    else:
        profile = profile_from_results(results.header, results.rows, device="h200")
    if options.steps:
        profile = judged(profile, options.steps)
    text = profile_to_json(profile)
    if len(text) > LARGEST:
        raise SystemExit(f"the profile takes {len(text)} bytes, more than {LARGEST}")
    write_text(OUT, text)
    print(f"{OUT}: {len(profile.models)} models, {len(text)} bytes")
    print(f"factors {dict(profile.factors)}, errors {dict(profile.errors)}")


if __name__ == "__main__":
    main()
