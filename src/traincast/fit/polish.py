"""Local fits of many problems at once: Gauss-Newton steps inside bounds.

Folds, bootstrap samples, strengths of the regulariser and starts differ in weights of the runs,
bounds and λ alone, so they are solved side by side. An absolute error is made of weighted squares
again and again (iteratively reweighted least squares), its corner rounded less from stage to stage.
What sits at a bound and wants to leave it is not moved; the L1 penalty bounds a step at 0.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traincast.fit.constants import Array, Bound
from traincast.fit.loss import Loss
from traincast.fit.nnls import nnls

T = TypeVar("T")
R = TypeVar("R")
ELEMENTS = 400_000
"""Numbers of a chunk's derivatives: they stay in the processor's cache."""
_GIVE_UP = 1e7
_PASSES = 4
_ENOUGH = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Runs, their times, and what is minimised."""

    bound: Bound
    measured: Array
    """Times (N) over the median time."""
    loss: Loss
    share: float
    """Share of Σ|x| in the regulariser, 0 to 1."""
    penalised: Array
    """1 for the constants that the regulariser draws to 0, else 0 (P)."""
    split: int
    """How many constants are non-linear."""

    @property
    def scale(self) -> float:
        """The loss of predicting the median."""
        return self.loss.scale(self.measured)

    def value(self, x: Array, weights: Array | None = None) -> Array:
        """Return the mean loss (R) of constants (R, P), without the regulariser."""
        r, _ = self.loss.residual(self.bound.times(x), self.measured)
        w = np.ones(self.measured.shape) if weights is None else weights
        found: Array = (self.loss.rho(r) * w).sum(axis=-1) / w.sum(axis=-1)
        return found

    def penalty(self, x: Array) -> Array:
        """Return R(x) of constants (R, P)."""
        found: Array = (self.share * np.abs(x) + (1 - self.share) * x * x) @ self.penalised
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """R variations of a problem."""

    start: Array
    """Constants to start from (R, P)."""
    weights: Array
    """Weights of the runs (R, N): 0 leaves a run out."""
    low: Array
    high: Array
    """Bounds (R, P); equal ones lock a constant."""
    strength: Array
    """λ (R)."""

    def rows(self, at: slice | NDArray[np.int64]) -> Batch:
        """Return some of the variations."""
        return Batch(start=self.start[at], weights=self.weights[at], low=self.low[at],
                     high=self.high[at], strength=self.strength[at])  # fmt: skip


def polish(problem: Problem, batch: Batch, iterations: int = 40, *, near: bool = False) -> Array:
    """Return the constants (R, P) of local minima, each from its start.

    `iterations` is the most steps in the last stage; earlier ones take at most half as many.
    `near` says that the start is nearly a minimum: the first stage is left out.
    """
    count, constants = batch.start.shape
    size = max(1, ELEMENTS // (constants * max(len(problem.measured), 1)))
    pieces = [batch.rows(slice(i, i + size)) for i in range(0, count, size)]

    def one(piece: Batch) -> Array:
        return _polish(problem, piece, iterations, near)

    found = in_threads(one, pieces)
    return np.concatenate(found) if found else batch.start


def in_threads(work: Callable[[T], R], pieces: list[T]) -> list[R]:
    """Return the results in order; numpy leaves the interpreter free while it computes."""
    workers = min(len(pieces), os.cpu_count() or 1, 4)
    if workers < 2:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, pieces))


def coefficients(problem: Problem, theta: Array, batch: Batch) -> Array:
    """Return constants (R, P) for given exponents (R, E): the rest by non-negative least squares.

    The loss is stood in for by squares weighted for it.
    """
    design = problem.bound.design(theta)
    w = batch.weights * problem.loss.weights_of_squares(problem.measured)
    w = w / np.maximum(batch.weights.sum(axis=1, keepdims=True), 1e-300)
    weighted = design * w[:, None]
    gram = np.matmul(weighted, design.transpose(0, 2, 1))
    target = problem.measured - problem.bound.offset(theta)
    right = np.matmul(weighted, np.broadcast_to(target, w.shape)[:, :, None])[:, :, 0]
    e = problem.split
    # In units of the squares' own scale, as the penalty is in those of the loss.
    ratio = _squares(problem) * batch.strength[:, None] * problem.penalised[e:]
    right = right - ratio * problem.share / 2
    at = np.arange(right.shape[1])
    gram[:, at, at] += ratio * (1 - problem.share)
    locked = batch.high[:, e:] <= batch.low[:, e:]
    right = np.where(locked, 0.0, right)
    keep = ~locked
    gram = np.where(keep[:, :, None] & keep[:, None, :], gram, 0.0)
    gram[:, at, at] += locked
    return np.concatenate([theta, nnls(gram, right)], axis=1)


def _squares(problem: Problem) -> float:
    measured = problem.measured
    w = problem.loss.weights_of_squares(measured)
    return max(float(np.mean(w * (1 - measured) ** 2)), 1e-9)


def _polish(problem: Problem, batch: Batch, iterations: int, near: bool) -> Array:
    x = np.clip(batch.start, batch.low, batch.high)
    stages = problem.loss.smoothing[-2:] if near else problem.loss.smoothing
    for number, smooth in enumerate(stages):
        last = number == len(stages) - 1
        _stage(problem, batch, x, smooth, iterations if last else max(iterations // 2, 4))
    return x


def _stage(problem: Problem, batch: Batch, x: Array, smooth: float, iterations: int) -> None:
    """Move x to a minimum of the (rounded) cost, in place."""
    left: NDArray[np.int64] = np.arange(len(x))
    cost, slope, curve = _local(problem, batch, x, smooth)
    damping = np.full(len(x), 1e-3)
    quiet = np.zeros(len(x), int)
    for _ in range(iterations):
        b = batch.rows(left)
        trial, hoped = _step(problem, b, x[left], slope, curve, damping)
        new_cost, new_slope, new_curve = _local(problem, b, trial, smooth)
        better = new_cost <= cost
        gain = np.where(better, cost - new_cost, 0.0)
        enough = _ENOUGH * np.abs(cost) + 1e-15
        quiet = np.where(better & (gain > enough), 0, quiet + better)
        ended = (quiet >= 2) | ((hoped >= 0) & (hoped <= enough)) | (damping > _GIVE_UP)
        x[left[better]] = trial[better]
        cost = np.where(better, new_cost, cost)
        slope = np.where(better[:, None], new_slope, slope)
        curve = np.where(better[:, None, None], new_curve, curve)
        damping = np.where(better, np.maximum(damping / 5, 1e-9), damping * 8)
        go = ~ended
        if not go.any():
            break
        if not go.all():
            left, cost, slope, curve = left[go], cost[go], slope[go], curve[go]
            damping, quiet = damping[go], quiet[go]


def _local(problem: Problem, batch: Batch, x: Array, smooth: float) -> tuple[Array, Array, Array]:
    """Return cost (R), slope (R, P) without |x|, and curvature (R, P, P) at x."""
    times, jacobian = problem.bound.jacobian(x)
    r, dr = problem.loss.residual(times, problem.measured)
    share = batch.weights / (batch.weights.sum(axis=1, keepdims=True) * problem.scale)
    cost = (share * problem.loss.rho(r, smooth)).sum(axis=1)
    w = share * problem.loss.weight(r, smooth) * dr
    slope = np.matmul(jacobian, (w * r)[:, :, None])[:, :, 0]
    curve = np.matmul(jacobian * (w * dr)[:, None], jacobian.transpose(0, 2, 1))
    lam = batch.strength[:, None]
    squares = (1 - problem.share) * problem.penalised
    cost += batch.strength * problem.penalty(x)
    slope += 2 * lam * squares * x
    at = np.arange(x.shape[1])
    curve[:, at, at] += 2 * lam * squares
    return cost, slope, curve


def _step(
    problem: Problem, batch: Batch, x: Array, slope: Array, curve: Array, damping: Array
) -> tuple[Array, Array]:
    """Return where a damped Newton step leads inside bounds, and what it should gain.

    Under an L1 penalty it does not lead across 0.
    """
    lam = batch.strength[:, None] * problem.share * problem.penalised
    side = np.where(x != 0, np.sign(x), -np.sign(slope))
    pull = np.where((x == 0) & (np.abs(slope) <= lam), 0.0, slope + lam * side)
    low = np.where((lam > 0) & (side > 0), np.maximum(batch.low, 0), batch.low)
    high = np.where((lam > 0) & (side < 0), np.minimum(batch.high, 0), batch.high)
    stuck = ((x <= low) & (pull >= 0)) | ((x >= high) & (pull <= 0)) | (high <= low)
    stuck |= (lam > 0) & (x == 0) & (pull == 0)
    at = np.arange(x.shape[1])
    size = np.sqrt(np.maximum(curve[:, at, at], 1e-30))
    matrix = curve / (size[:, :, None] * size[:, None, :])
    matrix[:, at, at] += damping[:, None] + 1e-12
    move = np.zeros_like(x)
    # What a step would push beyond its bound stays there, and the rest is solved for again.
    for _ in range(_PASSES):
        free = ~stuck
        fixed = np.matmul(matrix, (move * size)[:, :, None])[:, :, 0]
        right = np.where(free, -pull / size - fixed, 0.0)
        part = np.where(free[:, :, None] & free[:, None, :], matrix, 0.0)
        part[:, at, at] += stuck
        solved = np.linalg.solve(part, right[:, :, None])[:, :, 0] / size
        whole = np.where(free, solved, move)
        beyond = free & ((x + whole < low) | (x + whole > high))
        if not beyond.any():
            break
        move = np.where(beyond, np.clip(x + whole, low, high) - x, move)
        stuck = stuck | beyond
    found = np.clip(x + whole, low, high)
    move = found - x
    bent = np.matmul(curve, move[:, :, None])[:, :, 0]
    return found, -((pull + bent / 2) * move).sum(axis=1)
