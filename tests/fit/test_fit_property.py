"""Over many generators with 5 % noise: intervals hold the truth, and noise is dropped."""

from __future__ import annotations

import numpy as np
import pytest
from fit_runs import QUICK

from traincast.fit.factors import Factor, Runs
from traincast.fit.fitting import Options, fit_form
from traincast.fit.generic import GenericForm

GENERATORS = 40
FORM = GenericForm(terms=(("a",), ("b",), ("noise",)), scaling=("batch", "workers"))


def generator(seed: int, count: int = 160) -> tuple[Runs, dict[str, float]]:
    """Runs of an expression drawn at random, and its exponents."""
    rng = np.random.default_rng(seed)
    columns = {n: rng.choice([1, 2, 4, 8, 16], count).astype(float) for n in ("a", "b", "noise")}
    columns["batch"] = rng.choice([16, 32, 64, 128, 256], count).astype(float)
    columns["workers"] = rng.choice([1, 2, 4, 8], count).astype(float)
    p, q = rng.uniform(0.5, 2.5, 2), (rng.uniform(-0.8, -0.1), rng.uniform(-1, -0.3))
    size, constant = rng.uniform(0.3, 1.0, 2), rng.uniform(0.05, 0.5)
    inner = sum(s * (columns[n] / 4) ** e for s, n, e in zip(size, "ab", p, strict=True))
    outer = (columns["batch"] / 64) ** q[0] * (columns["workers"] / 2) ** q[1]
    times = (inner * outer + constant) * np.exp(0.05 * rng.normal(size=count))
    factors = tuple(
        Factor(name=n, role="extrinsic" if n in ("batch", "workers") else "intrinsic",
               reference=float(np.median(v)), low=float(v.min()), high=float(v.max()))
        for n, v in columns.items()
    )  # fmt: skip
    runs = Runs(path="drawn", time="t_s", times=times, factors=factors, columns=columns,
                rows=np.arange(count) + 2, groups=None, warnings=(), left_out={})  # fmt: skip
    names = ("exponent:a", "exponent:b", "scaling:batch", "scaling:workers")
    return runs, dict(zip(names, (*p, *q), strict=True))


@pytest.fixture(scope="module")
def results() -> list[tuple[dict[str, float], object]]:
    found = []
    for seed in range(GENERATORS):
        runs, truth = generator(seed)
        options = Options(seeds=1, bootstrap=120, settings=QUICK, folds=5)
        found.append((truth, fit_form(FORM, runs, options)))
    return found


def test_exponents_lie_within_their_intervals(results) -> None:
    """Intervals of 95 %: of 160 exponents 152 are expected inside; fewer than 141 has p < 1e-5."""
    inside = 0
    for truth, fit in results:
        for name, value in truth.items():
            low, high = fit.model.original[name].interval
            inside += low <= value <= high
            assert fit.model.original[name].value == pytest.approx(value, abs=0.25)
    assert inside >= 0.88 * 4 * GENERATORS


def test_an_irrelevant_factor_is_driven_to_zero(results) -> None:
    gone = [fit.model.original["coefficient:noise"].value == 0 for _, fit in results]
    assert np.mean(gone) >= 0.95
    for _, fit in results:
        assert fit.model.original["coefficient:a"].value > 0
        assert fit.model.original["coefficient:b"].value > 0


def test_stated_intervals_hold_runs_that_were_not_fitted(results) -> None:
    coverage = [fit.coverage for _, fit in results]
    assert 0.92 <= np.mean(coverage) <= 0.99


def test_held_out_errors_are_those_of_the_noise(results) -> None:
    """Times × exp(0.05 z) are off by 4 % on average, whatever the constants."""
    for _, fit in results:
        error = np.mean(np.abs(fit.held_out() / fit.runs.times - 1))
        assert error == pytest.approx(0.05 * np.sqrt(2 / np.pi), abs=0.012)
