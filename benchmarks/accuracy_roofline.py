"""Fit the roofline's efficiencies to measured H200 steps, and judge them on networks left out.

    python benchmarks/accuracy_roofline.py [TABLE.csv]        # needs scipy; some minutes

TABLE.csv has one measured run a row, as `traincast validate` reads it; by default the shared H200
table. Prints the efficiencies of `traincast.estimate.roofline.TIERS["datacenter-gpu"]`, fitted to
all eager runs, and the percentiles of measured ÷ predicted that `traincast.estimate.intervals`
ships, for which they are fitted anew without the runs of each network.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from accuracy_causes import Case, cases
from accuracy_suites import SHARED, judged
from traincast.estimate.host import host_seconds, update_seconds
from traincast.estimate.program import kernels_of, program_of
from traincast.estimate.roofline import TIERS, Efficiency, price
from traincast.graph.precision import precision_named
from traincast.simulate.summary import QUIET, spread
from traincast.simulate.validate import read_runs

FITTED = ("gemm", "conv", "attention", "bandwidth", "depthwise", "gap_s", "dispatch_s",
          "backward_dispatch")  # fmt: skip
TIER = TIERS["datacenter-gpu"]


class Run:
    """A measured run, ready to be priced with any efficiencies."""

    def __init__(self, case: Case):
        row, self.case = case.row, case
        self.program = program_of(case.graph, precision_named(row.given["precision"]))
        self.kernels = kernels_of(self.program, case.plan.batch, case.plan.seq)
        count = np.bincount(self.program.op_class, minlength=len(self.program.classes))
        self.times = count[self.kernels.op_class]
        self.measured = np.array([row.measured[k] for k in ("step_ms", "fwd_ms", "bwd_ms")])
        self.weight = 1.0 if (spread(row) or 0.0) <= QUIET else 0.5

    def predict(self, eff: Efficiency) -> tuple[float, float, float, bool]:
        """Return milliseconds of the step, forward, backward, and whether the host bounds it."""
        device, plan, program = self.case.device, self.case.plan, self.program
        seconds = price(self.kernels, device, program.precision, plan.layout, eff).seconds
        seconds = seconds * self.times
        forward = seconds[self.kernels.phase == 0].sum()
        host = host_seconds(program, self.kernels, eff).sum(axis=0)
        assert plan.optimizer is not None
        update, update_host, _ = update_seconds(program, device, eff, plan.optimizer)
        device_total, host_total = seconds.sum() + update, host.sum() + update_host
        return (
            1e3 * max(device_total, host_total),
            1e3 * max(forward, host[0]),
            1e3 * max(seconds.sum() - forward, host[1]),
            host_total > device_total,
        )


def efficiency(x: np.ndarray) -> Efficiency:
    """Return the tier with other efficiencies; `x` are their logarithms."""
    return replace(TIER, **dict(zip(FITTED, map(float, np.exp(x)), strict=True)))


def loss(x: np.ndarray, runs: list[Run]) -> float:
    """Return the mean error of steps and phases, and what physics has against `x`."""
    eff, total = efficiency(x), 0.0
    for run in runs:
        errors = abs(np.log(np.array(run.predict(eff)[:3]) / run.measured))
        total += run.weight * float(errors @ (1.0, 0.3, 0.3))
    # Physics: nothing beyond 90 % of a peak, a launch within 4 µs, half the bandwidth.
    prior = 2 * np.maximum(0, x[:5] - np.log(0.9)) ** 2
    limits = max(0, x[5] - np.log(4e-6)) ** 2 + 2 * max(0, np.log(0.55) - x[3]) ** 2
    return total / len(runs) + float(prior.sum()) + limits


def fit(runs: list[Run], start: np.ndarray, tries: int) -> np.ndarray:
    """Return the efficiencies that fit best, as logarithms."""
    from scipy.optimize import minimize

    options = {"maxfev": tries}
    found: np.ndarray = minimize(loss, start, args=(runs,), method="Nelder-Mead", options=options).x
    return found


def main() -> None:
    """Fit, judge and print."""
    table = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    if not table.is_file():
        raise SystemExit(f"{table}: there is no such table of measured steps")
    eager = [row for row in read_runs(table) if not row.get("mode")]
    rows = judged(eager, device="h200", root=table.parent, estimator="roofline")
    runs = [Run(case) for case in cases(rows, table.parent)]
    best = fit(runs, np.log([getattr(TIER, name) for name in FITTED]), 600)
    shown = ", ".join(f"{n}={v:.3g}" for n, v in zip(FITTED, np.exp(best), strict=True))
    print(f"fitted to all {len(runs)} runs: {shown}", flush=True)
    kinds: dict[str, list[float]] = {"host": [], "device": []}
    for model in sorted({run.case.row.model for run in runs}):
        found = efficiency(fit([r for r in runs if r.case.row.model != model], best, 120))
        for run in runs:
            if run.case.row.model == model:
                step, _, _, host_bound = run.predict(found)
                kinds["host" if host_bound else "device"].append(run.measured[0] / step)
        print(f"fitted without {model}", flush=True)
    every = np.array(kinds["host"] + kinds["device"])
    print(f"networks left out: MAPE {abs(1 / every - 1).mean():.1%}")
    for kind, values in kinds.items():
        low, middle, high = np.quantile(values, (0.05, 0.5, 0.95))
        print(f"{kind}-bound, {len(values)} rows: measured ÷ predicted "
              f"5 % {low:.3f}, median {middle:.3f}, 95 % {high:.3f}")  # fmt: skip


if __name__ == "__main__":
    main()
