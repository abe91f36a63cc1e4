"""Non-negative least squares for many small problems at once.

    minimise ½ b'Gb − h'b  over  b ≥ 0

by block principal pivoting (Kim and Park 2011; Portugal, Júdice and Vicente 1994): guess which
constants are above 0, solve for them, exchange all that turn out wrong. Where exchanging all stops
making progress, one at a time is exchanged (Murty's rule), which ends for certain.
"""

from __future__ import annotations

import numpy as np

from traincast.fit.constants import Array

_RIDGE = 1e-11
_WRONG = 1e-12
_TRIES = 3


def nnls(gram: Array, right: Array, rounds: int = 30) -> Array:
    """Return b (S, M) for G (S, M, M) and h (S, M); after `rounds`, what is below 0 is cut off."""
    size = np.sqrt(np.maximum(np.diagonal(gram, axis1=1, axis2=2), 1e-300))
    g = gram / (size[:, :, None] * size[:, None, :])
    h = right / size
    m = h.shape[1]
    g[:, np.arange(m), np.arange(m)] = 1 + _RIDGE
    found = np.zeros_like(h)
    left = np.arange(len(h))
    above = np.ones(h.shape, bool)
    best = np.full(len(h), m + 1)
    tries = np.full(len(h), _TRIES)
    for _ in range(rounds):
        b, slope = _solve(g[left], h[left], above)
        wrong = np.where(above, b < -_WRONG, slope < -_WRONG)
        count = wrong.sum(axis=1)
        found[left] = b
        go = count > 0
        if not go.any():
            break
        left, above, wrong, count = left[go], above[go], wrong[go], count[go]
        best, tries = best[go], tries[go]
        better = count < best
        tries = np.where(better, _TRIES, tries - 1)
        best = np.minimum(best, count)
        single = tries < 0
        if single.any():
            last = m - 1 - np.argmax(wrong[single][:, ::-1], axis=1)
            wrong[single] = np.arange(m) == last[:, None]
        above = above ^ wrong
    return np.maximum(found, 0) / size


def _solve(g: Array, h: Array, above: np.ndarray) -> tuple[Array, Array]:
    """Return b where it is above 0 (0 elsewhere), and the slope of the cost."""
    both = above[:, :, None] & above[:, None, :]
    matrix = np.where(both, g, 0.0)
    at = np.arange(h.shape[1])
    matrix[:, at, at] = np.where(above, g[:, at, at], 1.0)
    b = np.linalg.solve(matrix, np.where(above, h, 0.0)[:, :, None])[:, :, 0]
    slope = np.matmul(g, b[:, :, None])[:, :, 0] - h
    return b, slope
