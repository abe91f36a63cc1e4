"""Build the H200's profile that ships: kernels from measurements, intervals from whole steps.

    python benchmarks/h200_profile.py [--steps ../shared/data/h200/train_steps.csv]

The same as `traincast calibrate --from benchmarks/data/h200/kernels*.jsonl.gz --name h200`, then
two things that kernels cannot tell, from training steps: one factor for the host, and how far real
steps lie from predicted ones (the 3rd and 97th percentile of measured over predicted in each
regime, which cover about 90 % of a network's runs when that network is left out). No kernel's time
is adjusted to a step, and the held-out table has no part in it.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np

from traincast.estimate.calibrated.estimator import Calibrated
from traincast.estimate.calibrated.profile import LARGEST, Profile, profile_to_json
from traincast.graph.precision import precision_named
from traincast.hardware import load_device
from traincast.ingest import resolve
from traincast.measure.bench.results import read_results
from traincast.measure.calibration import profile_from_results
from traincast.report.files import write_text
from traincast.simulate.predict import predict
from traincast.simulate.step import program_for, simulate_step
from traincast.simulate.validate import read_runs

HERE = Path(__file__).parent
ROOT = HERE.parent
OUT = ROOT / "src/traincast/hardware/profiles/h200.json"
STEPS = ROOT.parent / "shared/data/h200/train_steps.csv"
_TAIL = 0.03


def clocks(profile: Profile, table: Path) -> list[tuple[str, float, float, float]]:
    """Return of every eager run its network, measured, device and host seconds."""
    device, engine = load_device("h200"), Calibrated(profile)
    found = []
    for row in read_runs(table):
        if row.get("error") or row.get("mode"):
            continue
        how = precision_named(row["precision"])
        image, seq = (int(row[k]) if row.get(k) else None for k in ("image", "seq"))
        graph = resolve(row["model"], image=image, seq=seq, root=table.parent)
        plan = predict(
            graph, device, batch=int(row["batch"]), seq=seq, precision=how.name,
            optimizer={"sgd": "momentum"}.get(row["optimizer"], row["optimizer"]),
            layout=row.get("layout") or "nchw", estimator="roofline",
        ).step.plan  # fmt: skip
        program = program_for(graph, how, device, engine, plan)
        step = simulate_step(program, device, engine, plan)
        device_s, host_s = sum(step.device_s.values()), sum(step.host_s.values())
        found.append((row["model"], float(row["step_ms"]) / 1e3, device_s, host_s))
    return found


def judged(profile: Profile, table: Path) -> Profile:
    """Return the profile with the host's factor, and with the errors of whole steps."""
    runs = clocks(profile, table)
    _, measured, device, host = (np.array(column) for column in zip(*runs, strict=True))
    bound = host > device
    factor = float(np.exp(np.mean(np.log(measured[bound] / host[bound]))))
    host = host * factor
    ratio = measured / np.maximum(device, host)
    errors = {}
    for regime, chosen in (("host", host > device), ("device", host <= device)):
        low, high = np.quantile(ratio[chosen], [_TAIL, 1 - _TAIL])
        errors[regime] = (round(float(low), 3), round(float(high), 3))
    said = {"host_factor_and_errors_from": [table.name], "runs": len(runs)}
    return dataclasses.replace(
        profile, factors={"host": round(factor, 3)}, errors=errors,
        provenance={**profile.provenance, "judged_by": said},
    )  # fmt: skip


def main() -> None:
    """Build it and say what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=Path, default=STEPS if STEPS.exists() else None)
    options = parser.parse_args()
    results = read_results(sorted((HERE / "data/h200").glob("kernels*.jsonl.gz")))
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
