"""How strong the regulariser is: λ by cross-validation, and what it leaves in.

λ is chosen over a logarithmic grid that includes 0. An L1 or elastic penalty is used to choose what
stays: whatever it sets to 0 is locked there and the rest is fitted again without a penalty, since
the penalty would pull the constants away from what they are. Its λ is half-way between the best one
and the strongest whose held-out error is within one standard error of it: stronger than the best,
which may keep a factor by chance, and not on the edge of losing one that matters. An L2 penalty
sets nothing to 0; its constants stay as they are, and its λ is the best one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.fit.constants import Array, Constant, even_spread, likely_range
from traincast.fit.generic import GenericForm
from traincast.fit.polish import Batch, Problem, coefficients, polish

GRID = (0.0, *(10.0**e for e in np.arange(-3, 0.1, 0.5)))
_STARTS, _TRIED = (4, 16), 120
"""Starts of a fit, fewest where runs are many; of how many random ones they are the best."""
_NO_PART, _NO_POWER = 2e-3, 1e-3
"""Share of the time, and exponent, below which a penalised constant is 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A form at its runs, with what may move."""

    problem: Problem
    constants: tuple[Constant, ...]
    low: Array
    high: Array
    """Bounds (P)."""
    refits: bool
    """Whether the penalty only chooses what stays."""

    def batch(self, start: Array, weights: Array, strength: Array | float,
              low: Array | None = None, high: Array | None = None) -> Batch:  # fmt: skip
        """Return variations of the fit, one a row of `start`; weights may be one row for all."""
        shape = (len(start), len(self.low))
        return Batch(
            start=start,
            weights=np.broadcast_to(weights, (len(start), weights.shape[-1])),
            low=np.broadcast_to(self.low if low is None else low, shape),
            high=np.broadcast_to(self.high if high is None else high, shape),
            strength=np.broadcast_to(np.asarray(strength, float), shape[:1]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Held-out errors by λ."""

    grid: tuple[float, ...]
    errors: Array
    """Mean loss of the runs held out, by fold and λ (K, L)."""
    sizes: Array
    """Runs of each fold (K)."""
    times: Array
    """Scaled times of every run, predicted by the fit that did not see it, by λ (L, N)."""
    folds: NDArray[np.int64]
    """The fold of every run (N)."""
    sparse: bool
    """Whether a stronger λ than the best is chosen."""

    def mean(self, without: int | None = None) -> Array:
        """Return the mean held-out error by λ, perhaps without a fold."""
        weight = self.sizes.copy()
        if without is not None:
            weight[without] = 0
        found: Array = weight @ self.errors / weight.sum()
        return found

    def chosen(self, without: int | None = None) -> int:
        """Return the place of the λ chosen."""
        mean = self.mean(without)
        # Fits that keep the same factors are equal but for rounding: the weakest λ of them.
        best = int(np.flatnonzero(mean <= 1.001 * mean.min() + 1e-9).min())
        if not self.sparse or len(self.grid) == 1:
            return best
        kept = np.arange(len(self.sizes)) != (-1 if without is None else without)
        column = self.errors[kept, best]
        error = column.std(ddof=1) / np.sqrt(len(column)) if len(column) > 1 else 0.0
        strongest = int(np.flatnonzero(mean <= mean[best] + error + 1e-6).max())
        return (best + strongest + 1) // 2

    def held_out(self) -> Array:
        """Return times (N): each fold by the λ that did best on the other folds."""
        places = np.array([self.chosen(fold) for fold in range(len(self.sizes))])
        found: Array = self.times[places[self.folds], np.arange(len(self.folds))]
        return found


def locked(study: Study, x: Array, form: object) -> tuple[Array, Array]:
    """Return bounds (R, P) that hold at 0 what a penalised fit x (R, P) set to 0.

    A term whose powers are all 0 is a constant: it goes, and the base takes its place.
    """
    low = np.repeat(study.low[None], len(x), 0)
    high = np.repeat(study.high[None], len(x), 0)
    split = study.problem.split
    at_zero = np.abs(x) <= _NO_POWER
    at_zero[:, split:] = _parts(study.problem, x) <= _NO_PART
    at_zero &= study.problem.penalised.astype(bool)
    low, high = np.where(at_zero, 0.0, low), np.where(at_zero, 0.0, high)
    if not isinstance(form, GenericForm):
        return low, high
    names = [c.kind for c in study.constants]
    base, first = names.index("base"), names.index("coefficient") if form.terms else 0
    for i in range(len(form.terms)):
        mine = [k for k, (term, _, _) in enumerate(form.pairs) if term == i]
        flat = at_zero[:, mine].all(axis=1)
        gone = at_zero[:, first + i] | flat
        for k in [*mine, first + i]:
            keep = x[:, k] if k != first + i else np.zeros(len(x))
            low[:, k] = np.where(gone, keep, low[:, k])
            high[:, k] = np.where(gone, keep, high[:, k])
        moved = flat & ~at_zero[:, first + i]
        high[:, base] = np.where(moved, np.inf, high[:, base])
    # Nothing but the constant is left: if anything scales, the base does.
    rest = [i for i, name in enumerate(names) if name in ("coefficient", "level", "base")]
    outer = [i for i, name in enumerate(names) if name in ("scaling", "multiplier")]
    empty = (high[:, rest] <= low[:, rest]).all(axis=1)
    empty &= (high[:, outer] > low[:, outer]).any(axis=1)
    high[:, base] = np.where(empty, np.inf, high[:, base])
    return low, high


def _parts(problem: Problem, x: Array) -> Array:
    """Return what share of the time each linear constant makes (R, M), of runs that have it."""
    found = []
    for row in x:  # one at a time: the arrays of many would not fit into memory
        design = problem.bound.design(row[None, : problem.split])[0]
        times = np.maximum(problem.bound.times(row[None])[0], 1e-9)
        there = np.maximum((design != 0).sum(axis=1), 1)
        found.append(row[problem.split :] * (design / times).sum(axis=1) / there)
    return np.array(found)


def refit(study: Study, x: Array, weights: Array, form: object, iterations: int = 30
          ) -> tuple[Array, Array, Array]:  # fmt: skip
    """Fit again without a penalty what penalised fits x (R, P) left in; return x and bounds."""
    low, high = locked(study, x, form)
    start = np.clip(x, low, high)
    base = [i for i, c in enumerate(study.constants) if c.kind == "base"]
    for i in base:
        start[:, i] = np.where((start[:, i] == 0) & (high[:, i] > 0), 0.05, start[:, i])
    return polish(study.problem, study.batch(start, weights, 0.0, low, high), iterations), low, high


def narrowed(study: Study, strength: float, form: object, seed: int) -> Study:
    """Return the study with what a penalised fit to all runs sets to 0 locked there."""
    ones = np.ones((1, len(study.problem.measured)))
    x = polish(study.problem, study.batch(_unpenalised(study, ones, seed), ones, strength), 40)
    low, high = locked(study, x, form)
    return replace(study, low=low[0], high=high[0])


def neutral_starts(study: Study, weights: Array, seed: int) -> Array:
    """Return for each set of weights (K, N) the best few of random exponents (K, S, P).

    What other runs said plays no part, so that a held-out fit knows nothing of what is held out.
    """
    rng = np.random.default_rng([seed, 3])
    ends = likely_range(study.constants, study.low, study.high)
    theta = even_spread(rng, _TRIED, *ends)
    theta[0] = (ends[0] + ends[1]) / 2
    many = int(np.clip(3000 // len(study.problem.measured), *_STARTS))
    found = []
    for w in weights:
        x = coefficients(study.problem, theta, study.batch(theta, w, 0.0))
        order = np.argsort(study.problem.value(x, w), kind="stable")[:many]
        found.append(x[order])
    return np.array(found)


def _unpenalised(study: Study, weights: Array, seed: int) -> Array:
    """Return the best fit without a penalty for each set of weights (K, N), from neutral starts."""
    starts = neutral_starts(study, weights, seed)
    flat = starts.reshape(-1, starts.shape[-1])
    each = np.repeat(weights, starts.shape[1], 0)
    free = polish(study.problem, study.batch(flat, each, 0.0), 20)
    values = study.problem.value(free, each).reshape(len(weights), -1)
    found: Array = free.reshape(starts.shape)[np.arange(len(weights)), values.argmin(axis=1)]
    return found


def cross_validate(
    study: Study, folds: NDArray[np.int64], grid: tuple[float, ...], form: object, seed: int
) -> Curve:
    """Return held-out errors by λ; every fold is fitted anew, from neutral starts."""
    many = int(folds.max()) + 1
    weights = (folds[None] != np.arange(many)[:, None]).astype(float)
    best = _unpenalised(study, weights, seed)
    strengths = np.tile(np.array(grid), many)
    spread = np.repeat(best, len(grid), 0)
    every = np.repeat(weights, len(grid), 0)
    x = spread
    if len(grid) > 1:
        x = polish(study.problem, study.batch(spread, every, strengths), 25)
        if study.refits:
            x = refit(study, x, every, form, 15)[0]
    times = np.concatenate([study.problem.bound.times(part) for part in np.array_split(x, many)])
    loss, measured = study.problem.loss, study.problem.measured
    rho = loss.rho(loss.residual(times, measured)[0]).reshape(many, len(grid), -1)
    out = 1 - weights
    errors = (rho * out[:, None]).sum(axis=2) / np.maximum(out.sum(axis=1), 1)[:, None]
    shaped = times.reshape(many, len(grid), -1)
    return Curve(
        grid=grid, errors=errors, sizes=out.sum(axis=1),
        times=shaped[folds, :, np.arange(len(folds))].T, folds=folds, sparse=study.refits,
    )  # fmt: skip
