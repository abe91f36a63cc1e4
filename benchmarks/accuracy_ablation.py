"""What each part of the calibrated model contributes: predictions with one part switched off.

Parts are switched off in the prediction alone, as the profile stays as it is. That is no fair test
of waves, which the kernels' models were fitted with; so products and convolutions are also fitted
again without them, to the same measured kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from unittest.mock import patch

import numpy as np

from accuracy_causes import Case
from accuracy_suites import ROOT
from traincast.estimate.calibrated.estimator import ALL_PARTS, Calibrated, widening
from traincast.estimate.calibrated.profile import Profile
from traincast.estimate.calibrated.species import work_of
from traincast.estimate.program import Floats
from traincast.estimate.registry import estimator_for
from traincast.hardware import load_device
from traincast.measure import calibration
from traincast.measure.bench.results import read_results
from traincast.simulate.summary import QUIET, spread

KERNELS = ROOT / "benchmarks/data/h200"
REFITTED = "fitted without waves"
_FILLED = ("gemm", "conv", "rnn")
"""Families whose kernels fill the device in waves."""


@dataclass(frozen=True, kw_only=True)
class Guess:
    """Predicted and measured steps; seconds."""

    measured: Floats
    predicted: Floats
    host_bound: np.ndarray
    quiet: np.ndarray
    networks: np.ndarray
    wider: Floats
    """How much wider than in the middle the interval is, in logarithms, by the step's kernels."""

    def errors(self, quiet: bool) -> tuple[float, float, float]:
        """Return mean and 90th percentile of |error|, and the mean error."""
        chosen = self.quiet if quiet else np.ones(len(self.measured), dtype=bool)
        return errors(self.predicted[chosen], self.measured[chosen])


def errors(predicted: Floats, measured: Floats) -> tuple[float, float, float]:
    """Return mean and 90th percentile of |predicted / measured − 1|, and its mean with sign."""
    off = predicted / measured - 1.0
    size = np.abs(off)
    return float(size.mean()), float(np.quantile(size, 0.9)), float(off.mean())


def guess(cases: Sequence[Case], engine: Calibrated, *, device_only: bool = False) -> Guess:
    """Return what an engine makes of the cases; `device_only` takes the host to cost nothing."""
    steps = [case.step(engine) for case in cases]
    seconds = [sum(s.device_s.values()) if device_only else s.seconds for s in steps]
    spreads = [spread(case.row) for case in cases]
    return Guess(
        measured=np.array([case.row.measured["step_ms"] / 1e3 for case in cases]),
        predicted=np.array(seconds),
        host_bound=np.array([s.host_bound for s in steps]),
        quiet=np.array([s is not None and s <= QUIET for s in spreads]),
        networks=np.array([case.row.model for case in cases]),
        wider=np.array([
            1.0 if s.host_bound else widening(s.spread or 0.0, engine.profile.spread)
            for s in steps
        ]),
    )  # fmt: skip


def own_engine() -> Calibrated:
    """Return the calibrated engine of the H200."""
    engine = estimator_for("calibrated", load_device("h200"))
    assert isinstance(engine, Calibrated)
    return engine


def ablation(suites: Mapping[str, Sequence[Case]], refit: bool) -> dict[str, dict[str, Guess]]:
    """Return guesses by variant and suite; `refit` adds those that take a minute to fit."""
    whole = own_engine()

    def without(*parts: str) -> Calibrated:
        return replace(whole, parts=ALL_PARTS - set(parts))

    engines = {
        "everything": whole,
        "without waves, not fitted again": without("waves"),
        "without the correction by shape": without("shapes"),
        "without lowering (kernels as the graph's ops list them)": without("lowering"),
        "host by rule of thumb instead of measured costs": without("host"),
        "none of these parts": without(*ALL_PARTS),
    }
    if refit:
        engines[REFITTED] = without_waves(whole.profile)
    found = {
        name: {suite: guess(cases, engine) for suite, cases in suites.items()}
        for name, engine in engines.items()
    }
    found["without the host's clock (device alone)"] = {
        suite: guess(cases, whole, device_only=True) for suite, cases in suites.items()
    }
    return found


def without_waves(profile: Profile) -> Calibrated:
    """Return an engine whose products and convolutions were fitted as if they always fill."""
    rows = read_results(sorted(KERNELS.glob("kernels*.jsonl.gz"))).rows
    samples = [s for s in calibration.samples_of(rows) if s.kernel.family in _FILLED]
    with patch.object(calibration, "work_of", lambda kernels, _: work_of(kernels, None)):
        models = calibration.fit_models(samples, load_device("h200"))
    fitted = replace(profile, models={**profile.models, **models})
    return Calibrated(fitted, parts=ALL_PARTS - {"waves"})


Ends = Mapping[str, tuple[float, float]]


def percentiles(found: Guess, split: bool) -> Ends:
    """Return two percentiles of measured over predicted, by regime or one pair for all."""
    ratio = (found.measured / found.predicted) ** (1.0 / found.wider)
    result = {}
    for regime, bound in (("host", True), ("device", False)):
        chosen = found.host_bound == bound if split else np.ones(len(ratio), dtype=bool)
        low, high = np.quantile(ratio[chosen], (0.05, 0.95))
        result[regime] = (float(low), float(high))
    return result


def inside(found: Guess, ends: Ends) -> np.ndarray:
    """Return which runs lie inside their interval."""
    low, high = (np.where(found.host_bound, ends["host"][i], ends["device"][i]) for i in (0, 1))
    ratio = (found.measured / found.predicted) ** (1.0 / found.wider)
    held: np.ndarray = (low <= ratio) & (ratio <= high)
    return held


def left_out(found: Guess) -> np.ndarray:
    """Return which runs lie inside an interval that the runs of all other networks give."""
    held = np.zeros(len(found.measured), dtype=bool)
    for name in np.unique(found.networks):
        own = found.networks == name
        held[own] = inside(part(found, own), percentiles(part(found, ~own), split=True))
    return held


def alike(found: Guess) -> Guess:
    """Return the runs as if all kernels were as sure."""
    return replace(found, wider=np.ones(len(found.wider)))


def part(found: Guess, chosen: np.ndarray) -> Guess:
    """Return some of the runs."""
    return Guess(**{f.name: getattr(found, f.name)[chosen] for f in fields(found)})
