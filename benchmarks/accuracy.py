"""How far the roofline's predictions are from measured H200 training steps.

    python benchmarks/accuracy.py [TABLE.csv] [--refit]

TABLE.csv has one measured run a row, as benchmarks/measure_steps.py writes it; by default the 65
held-out runs in benchmarks/data/h200, on which nothing was fitted. `--refit` (needs scipy) fits
the tier's efficiencies anew for each network without that network's rows, and prints the
percentiles of measured ÷ predicted that `traincast.estimate.intervals` ships: no network judges
itself.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
from pathlib import Path

import numpy as np

from traincast.estimate.intervals import interval
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.program import kernels_of, program_of
from traincast.estimate.roofline import TIERS, Efficiency, price
from traincast.graph.precision import precision_named
from traincast.hardware import load_device
from traincast.ingest import resolve
from traincast.parallel.memory import memory_of
from traincast.simulate.step import _host, update_seconds

TABLE = Path(__file__).parent / "data/h200/held_out_steps.csv"
FITTED = ("gemm", "conv", "attention", "bandwidth", "depthwise", "gap_s", "dispatch_s",
          "backward_dispatch")  # fmt: skip


class Run:
    """One measured row, ready to be priced with any efficiencies."""

    def __init__(self, row: dict[str, str], root: Path, graphs: dict[tuple[str, str], object]):
        key = (row["model"], row["image"])
        if key not in graphs:
            image = int(row["image"]) if row["image"] else None
            graphs[key] = resolve(row["model"], image=image, root=root)
        self.row, self.model = row, row["model"]
        self.device = load_device("h200")
        self.program = program_of(graphs[key], precision_named(row["precision"]))
        batch, seq = int(row["batch"]), int(row["seq"] or 0)
        self.kernels = kernels_of(self.program, batch, seq)
        count = np.bincount(self.program.op_class, minlength=len(self.program.classes))
        self.times = count[self.kernels.op_class]
        # The table's sgd has momentum 0.9.
        name = "momentum" if row["optimizer"] == "sgd" else row["optimizer"]
        self.optimizer = optimizer_named(name)
        memory = memory_of(
            self.program, self.kernels, batch, seq, optimizer=self.optimizer, workspace=34e6
        )
        self.peak_gib = memory.peak / 2**30
        self.oom = row.get("error") == "oom"
        if not self.oom:
            self.measured = np.array([float(row[k]) for k in ("step_ms", "fwd_ms", "bwd_ms")])
            spread = float(row["step_p90"]) - float(row["step_p10"])
            self.noisy = spread > 0.15 * self.measured[0]

    def predict(self, eff: Efficiency) -> tuple[float, float, float, bool]:
        """Return milliseconds of the step, forward, backward, and whether the host bounds it."""
        layout = self.row["layout"] or "nchw"
        seconds = price(self.kernels, self.device, self.program.precision, layout, eff).seconds
        seconds = seconds * self.times
        forward = seconds[self.kernels.phase == 0].sum()
        host = _host(self.program, self.kernels, eff).sum(axis=0)
        update, update_host, _ = update_seconds(self.program, self.device, eff, self.optimizer)
        device_total, host_total = seconds.sum() + update, host.sum() + update_host
        return (
            1e3 * max(device_total, host_total),
            1e3 * max(forward, host[0]),
            1e3 * max(seconds.sum() - forward, host[1]),
            host_total > device_total,
        )


def report(runs: list[Run], eff: Efficiency) -> None:
    good = [r for r in runs if not r.oom]
    ratio = np.array([r.predict(eff)[0] / r.measured[0] for r in good])
    memory = np.array([r.peak_gib / float(r.row["peak_gib"]) for r in good])
    print(f"{'model':44} {'rows':>4} {'step MAPE':>10} {'bias':>7} {'memory MAPE':>12}")
    for model in [*sorted({r.model for r in good}), "all", "quiet rows"]:
        mine = np.array(
            [model in (r.model, "all") or (model == "quiet rows" and not r.noisy) for r in good]
        )
        error = ratio[mine] - 1
        print(
            f"{model[:44]:44} {mine.sum():4} {abs(error).mean():10.1%} {error.mean():+7.1%} "
            f"{abs(memory[mine] - 1).mean():12.1%}"
        )
    inside = []
    for run in good:
        step, _, _, host_bound = run.predict(eff)
        low, high = interval("roofline", "h200", step, host_bound)
        inside.append(low <= run.measured[0] <= high)
    print(f"the 90 % interval holds {np.mean(inside):.0%} of the runs")
    room = load_device("h200").available_bytes / 2**30
    for run in runs:
        if run.oom:
            verdict = "does not fit" if run.peak_gib > room else "FITS"
            what = " ".join((run.model, *(run.row[k] for k in ("batch", "seq", "precision"))))
            print(f"out of memory: {what}: predicted {run.peak_gib:.0f} GiB, {verdict}")


def refit(runs: list[Run]) -> None:
    from scipy.optimize import minimize

    good = [r for r in runs if not r.oom]
    tier = TIERS["datacenter-gpu"]
    start = np.log([getattr(tier, name) for name in FITTED])

    def efficiency(x: np.ndarray) -> Efficiency:
        return dataclasses.replace(tier, **dict(zip(FITTED, map(float, np.exp(x)), strict=True)))

    def loss(x: np.ndarray, rows: list[Run]) -> float:
        eff, total = efficiency(x), 0.0
        for run in rows:
            errors = abs(np.log(np.array(run.predict(eff)[:3]) / run.measured))
            total += (0.5 if run.noisy else 1.0) * float(errors @ (1.0, 0.3, 0.3))
        # Physics: nothing beyond 90 % of a peak, a launch within 4 µs, half the bandwidth.
        prior = 2 * np.maximum(0, x[:5] - np.log(0.9)) ** 2
        limits = max(0, x[5] - np.log(4e-6)) ** 2 + 2 * max(0, np.log(0.55) - x[3]) ** 2
        return total / len(rows) + float(prior.sum()) + limits

    options = {"maxfev": 600}
    best = minimize(loss, start, args=(good,), method="Nelder-Mead", options=options)
    shown = ", ".join(f"{n}={v:.3g}" for n, v in zip(FITTED, np.exp(best.x), strict=True))
    print(f"fitted on all: {shown}", flush=True)
    start = best.x
    kinds: dict[str, list[float]] = {"host": [], "device": []}
    for model in sorted({r.model for r in good}):
        others = [r for r in good if r.model != model]
        options = {"maxfev": 120}
        found = minimize(loss, start, args=(others,), method="Nelder-Mead", options=options)
        for run in good:
            if run.model == model:
                step, _, _, host_bound = run.predict(efficiency(found.x))
                kinds["host" if host_bound else "device"].append(run.measured[0] / step)
        print(f"fitted without {model}", flush=True)
    every = np.array(kinds["host"] + kinds["device"])
    print(f"left-out networks: MAPE {abs(1 / every - 1).mean():.1%}")
    for kind, values in kinds.items():
        low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
        print(f"{kind}-bound, {len(values)} rows: measured ÷ predicted "
              f"5 % {low:.3f}, median {middle:.3f}, 95 % {high:.3f}")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", type=Path, default=TABLE)
    parser.add_argument("--refit", action="store_true")
    options = parser.parse_args()
    if not options.table.is_file():
        raise SystemExit(f"{options.table}: there is no such table of measured steps")
    graphs: dict[tuple[str, str], object] = {}
    with options.table.open() as file:
        rows = [row for row in csv.DictReader(file) if not row["mode"]]
    runs = [Run(row, options.table.parent, graphs) for row in rows]
    report(runs, TIERS["datacenter-gpu"])
    if options.refit:
        refit(runs)


if __name__ == "__main__":
    main()
