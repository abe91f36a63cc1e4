"""Kernel models: a few physical parameters, and a smooth correction by shape.

A kernel that moves `bytes` and multiplies `flops` takes

    t = floor + ( (flops / (peak · e_c · fill))² + (bytes / (bandwidth · e_b))² )^½

`e_c` and `e_b` are what it reaches of the datasheet's peak and bandwidth, `fill` how far its tiles
fill the multiprocessors (waves), `floor` what the shortest launch takes. The square root of squares
is a smooth maximum. Three numbers cannot tell which algorithm a library picks for a shape, so what
is left is a smooth function of the shape, a Gaussian process over its logarithms:

    log t(x) = log base(x) + mean + Σᵢ wᵢ · ( a² · k(r) + b² · k(r / ρ) ),   r = |(x - xᵢ) / s|
    k(r) = (1 + √3 r) exp(-√3 r)

k is Matérn's function of order 3/2, which bends more sharply than a bell curve: where a library
changes its algorithm there is a cliff, and left-out shapes of all kinds are predicted better. b is
what the smooth part leaves at shapes that it has not seen: not the clock's error, which is small,
but whims of libraries. They hold for the very shape that was measured and its next of kin (ρ).
Of many measured shapes those are kept that the others do not tell, with weights that are fitted to
all (a projected process: Rasmussen & Williams, Gaussian Processes for Machine Learning, 2006,
8.3.4).

Far from every measured shape the sum vanishes: outside the measured range a kernel is priced by its
physical parameters alone, and the error to expect grows to `spread`, what those alone leave.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from traincast.estimate.program import Floats, Ints

_RESIDUE = 3.0
"""Largest correction, in logarithms (a factor of 20 either way)."""
FIXED = 128.0
"""Steps of a feature for each doubling, in a profile and therefore in fitting: the weights of
shapes that lie close together differ so much that they hold for these very shapes alone."""
CLOCK = 0.03
"""Relative error of a measured kernel."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residual:
    """A Gaussian process over features; logarithms of measured over base seconds."""

    mean: float
    amplitude: float
    """Standard deviation of what the process explains."""
    noise: float
    """b, standard deviation of what it does not explain where nothing near was measured."""
    scales: Floats
    """(features,): distance over which two shapes are alike."""
    points: Floats
    """(points, features): measured shapes, divided by `scales`."""
    weights: Floats
    """(points,)"""

    def at(self, features: Floats, whims: bool = True) -> tuple[Floats, Floats, Floats]:
        """Return the correction for each row, how far it can be trusted, and how near it is.

        The last two go from 0 to 1: whether a shape like it was measured, and whether the very
        shape was. Without `whims` the smooth part alone counts, for another device.
        """
        apart = _apart(features / self.scales, self.points)
        alike, near = _matern(apart), _near(apart) if whims else np.zeros_like(apart)
        value = self.mean + (self.amplitude**2 * alike + self.noise**2 * near) @ self.weights
        known: Floats = alike.max(axis=1, initial=0.0)
        same: Floats = near.max(axis=1, initial=0.0)
        return np.clip(value, -_RESIDUE, _RESIDUE), known, same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelModel:
    """What one kind of kernel takes on one device, in one type and layout."""

    compute: float
    """e_c, of the peak for the type; 0 for kernels that multiply no matrices."""
    bandwidth: float
    """e_b, of memory bandwidth; may exceed 1 where caches serve what `bytes` counts."""
    floor_s: float
    """Seconds of the shortest launch."""
    error: float
    """Standard deviation of log(measured / predicted) on shapes left out."""
    spread: float
    """The same for the physical parameters alone: what to expect outside the measured range."""
    rows: int
    """Measurements it was fitted to."""
    residual: Residual | None = field(default=None)

    def base(self, flops: Floats, traffic: Floats, peak: float, bandwidth: float) -> Floats:
        """Return seconds by the physical parameters alone; `flops` is divided by its fill."""
        work = flops / (peak * self.compute) if self.compute > 0 else np.zeros_like(flops)
        moved = traffic / (bandwidth * self.bandwidth)
        seconds: Floats = self.floor_s + np.hypot(work, moved)
        return seconds


def fit_base(
    flops: Floats, traffic: Floats, seconds: Floats, peak: float, bandwidth: float
) -> tuple[float, float, float]:
    """Return e_c, e_b and the floor that fit measured seconds best, in relative terms."""
    matrix = bool(np.any(flops > 0))
    start = np.log([0.4, 0.6, max(float(seconds.min()) * 0.8, 1e-8)])
    free = np.array([matrix, True, True])
    low, high = np.log([1e-3, 1e-3, 1e-8]), np.log([1.5, 20.0, 1e-2])

    def off(theta: Floats) -> Floats:
        e_c, e_b, floor = np.exp(theta)
        work = flops / (peak * e_c) if matrix else 0.0
        guess = floor + np.hypot(work, traffic / (bandwidth * e_b))
        residue: Floats = np.log(guess / seconds)
        return residue

    theta = levenberg(off, start, free, low, high)
    e_c, e_b, floor = (float(v) for v in np.exp(theta))
    return (e_c if matrix else 0.0), e_b, floor


def levenberg(
    off: Callable[[Floats], Floats],
    theta: Floats,
    free: NDArray[np.bool_],
    low: Floats,
    high: Floats,
) -> Floats:
    """Minimise the sum of √(1 + off²) over the free entries of theta, within bounds."""

    def cost(value: Floats) -> float:
        return float(np.sqrt(1.0 + off(value) ** 2).sum())

    index = np.flatnonzero(free)
    damping, best = 1e-2, cost(theta)
    for _ in range(60):
        now = off(theta)
        weight = 1.0 / np.sqrt(1.0 + now**2)
        slope = np.empty((len(now), len(index)))
        for column, i in enumerate(index):
            step = theta.copy()
            step[i] += 1e-4
            slope[:, column] = (off(step) - now) / 1e-4
        square = slope.T @ (slope * weight[:, None])
        pull = slope.T @ (now * weight)
        damped = square + damping * np.diag(np.diag(square) + 1e-9)
        move = theta.copy()
        move[index] -= np.linalg.solve(damped, pull)
        move = np.clip(move, low, high)
        found = cost(move)
        if found < best:
            done = best - found < 1e-7 * best
            theta, best, damping = move, found, damping * 0.3
            if done:
                break
        else:
            damping *= 4.0
            if damping > 1e6:
                break
    return theta


_NOISES = (0.03, 0.06, 0.12, 0.25, 0.4)
_STRETCH = (0.7, 1.0, 1.4, 2.0, 3.0, 4.5)
_TURNS = (0.6, 1.7)
_TRIED = 350
"""Shapes that decide how far the process reaches; all of them shape it then."""
_ENOUGH = 50
"""Shapes from which each feature's own reach is tried."""


def fit_residual(
    features: Floats, log_ratio: Floats, scales: Floats, most: int, met: float = CLOCK
) -> tuple[Residual, float]:
    """Return the process that best predicts each shape from the others, and its error there.

    `scales` are multiplied by one common stretch, then each on its own where that predicts left-out
    shapes better. Each row of `features` is a different shape, in steps of 1 / `FIXED`; `most` of
    them are kept at most, and none that is met within a relative error of `met` without.
    """
    mean = short(float(np.median(log_ratio)))
    rest = np.clip(log_ratio - mean, -_RESIDUE, _RESIDUE)
    amplitude = short(max(float(np.sqrt(np.mean(rest**2))), 0.02))
    tried = np.arange(len(rest))
    if len(rest) > _TRIED:
        tried = np.random.default_rng(0).permutation(len(rest))[:_TRIED]

    def judge(reach: Floats) -> tuple[float, float]:
        return _judged(features[tried] / reach, rest[tried], amplitude)

    mae, noise, scales = min(
        ((*judge(scales * stretch), scales * stretch) for stretch in _STRETCH), key=lambda t: t[0]
    )
    told: list[int] = []
    if len(rest) >= _ENOUGH:
        told = [int(i) for i in np.flatnonzero(np.ptp(features, axis=0) > 0)]
    for feature in (*told, *told):
        for turn in _TURNS:
            reach = scales.copy()
            reach[feature] *= turn
            found = judge(reach)
            if found[0] < 0.995 * mae:
                mae, noise, scales = *found, reach
    scales = np.array([short(float(scale)) for scale in scales])
    scaled = features / scales
    off = _left_out(scaled[tried], rest[tried], amplitude, noise)
    error = float(np.sqrt(np.mean(off**2)))
    kept, weights = _projected(scaled, rest, amplitude, noise, most, met)
    residual = Residual(
        mean=mean, amplitude=amplitude, noise=noise, scales=scales, points=scaled[kept],
        weights=weights,
    )  # fmt: skip
    return residual, error


_RIDGE = 1e-3
"""Keeps weights of shapes that lie close together small enough for 16-bit floats."""
_REACH = 0.08
"""ρ: how far a whim reaches, as a part of the distances over which shapes are alike."""


_SPREAD, _ROUNDS = 0.3, 9
"""Shapes that are kept because they are unlike all others, as a part of all that are; and rounds in
which those follow that the ones before them predict worst. Left-out shapes are predicted as well as
by shapes that are merely spread, measured ones that are not kept twice as well."""


def _projected(
    scaled: Floats, rest: Floats, amplitude: float, noise: float, most: int, met: float
) -> tuple[Ints, Floats]:
    """Return which shapes to keep, `most` of them at most, and their weights.

    Weights w make Σ ((rest - shared·w) / σ)² + wᵀ·own·w least: shapes that are kept are met but for
    the clock's error, the others but for what the smooth part leaves.
    """
    kept = _spread_out(scaled, min(max(int(_SPREAD * most), 6), len(rest)))
    for left in range(_ROUNDS, -1, -1):
        apart = _apart(scaled, scaled[kept])
        shared = amplitude**2 * _matern(apart) + noise**2 * _near(apart)
        sigma = np.full(len(rest), noise)
        sigma[kept] = CLOCK
        own = shared[kept] + _RIDGE * amplitude**2 * np.eye(len(kept))
        weighted = shared / sigma[:, None] ** 2
        weights = np.linalg.solve(shared.T @ weighted + own, weighted.T @ rest)
        off = np.abs(shared @ weights - rest)
        off[kept] = 0.0
        worst = np.argsort(-off)[: (most - len(kept)) // left if left else 0]
        worst = worst[off[worst] > met]
        if not len(worst):
            break
        kept = np.concatenate([kept, worst])
    return kept, weights


def _spread_out(scaled: Floats, most: int) -> Ints:
    """Return so many shapes, each the least alike to those before it (pivoted Cholesky)."""
    left, rows = np.ones(len(scaled)), np.zeros((most, len(scaled)))
    chosen = np.zeros(most, dtype=np.int64)
    for i in range(most):
        pick = int(left.argmax())
        row = _matern(_apart(scaled[pick : pick + 1], scaled))[0] - rows[:i, pick] @ rows[:i]
        rows[i] = row / np.sqrt(max(left[pick], 1e-9))
        left = np.maximum(left - rows[i] ** 2, 0.0)
        left[pick] = 0.0
        chosen[i] = pick
    return chosen


def short(value: float) -> float:
    """Return a number as a profile holds it: four digits."""
    return float(f"{value:.4g}")


def _judged(scaled: Floats, rest: Floats, amplitude: float) -> tuple[float, float]:
    """Return the mean error in predicting each shape from the others, and the noise it takes."""
    values, vectors = np.linalg.eigh(amplitude**2 * _matern(_apart(scaled, scaled)))
    turned, squares = vectors.T @ rest, vectors**2
    found = []
    for noise in _NOISES:
        shrunk = 1.0 / (np.maximum(values, 0.0) + noise**2)
        off = (vectors @ (turned * shrunk)) / (squares @ shrunk)
        found.append((float(np.mean(np.abs(off))), noise))
    return min(found)


def _left_out(scaled: Floats, rest: Floats, amplitude: float, noise: float) -> Floats:
    """Return how far off each shape is if it is predicted from the others."""
    gram = amplitude**2 * _matern(_apart(scaled, scaled)) + noise**2 * np.eye(len(rest))
    inverse = np.linalg.inv(gram)
    off: Floats = (inverse @ rest) / np.diag(inverse)
    return off


def _apart(one: Floats, other: Floats) -> Floats:
    """Return the distance of each shape of one list to each of another."""
    square = (one**2).sum(1)[:, None] + (other**2).sum(1)[None, :] - 2.0 * one @ other.T
    apart: Floats = np.sqrt(np.maximum(square, 0.0))
    return apart


def _matern(apart: Floats) -> Floats:
    """Return how far shapes at a distance go together: 1 for the same."""
    far = np.sqrt(3.0) * apart
    alike: Floats = (1.0 + far) * np.exp(-far)
    return alike


def _near(apart: Floats) -> Floats:
    """Return the same for what holds for the very shape and its next of kin alone."""
    near = np.zeros_like(apart)
    close = apart < 5.0 * _REACH
    near[close] = _matern(apart[close] / _REACH)
    return near
