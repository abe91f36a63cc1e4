"""Which runs are held out together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError

FOLDS = 10
MOST_GROUPS = 20
"""Up to so many groups each is a fold of its own (leave one group out)."""


def assign_folds(
    count: int, groups: NDArray[np.generic] | None, folds: int, seed: int
) -> tuple[NDArray[np.int64], str]:
    """Return the fold of every run, and in words how they were made."""
    rng = np.random.default_rng([seed, 1])
    if groups is None:
        many = min(folds, count)
        order = rng.permutation(count)
        found = np.empty(count, np.int64)
        found[order] = np.arange(count) % many
        return found, f"{many}-fold, by run"
    names, codes = np.unique(groups, return_inverse=True)
    if len(names) < 2:
        raise InvalidValueError("one group cannot be held out; name a column with several")
    if len(names) <= MOST_GROUPS:
        return codes.astype(np.int64), f"leave one group out ({len(names)} groups)"
    # The largest groups first, each to the fold with the fewest runs so far.
    sizes = np.bincount(codes)
    filled = np.zeros(folds, np.int64)
    place = np.empty(len(names), np.int64)
    for group in np.argsort(-sizes + rng.random(len(sizes)) * 0.5):
        place[group] = int(np.argmin(filled))
        filled[place[group]] += sizes[group]
    return place[codes], f"{folds}-fold, whole groups held out ({len(names)} groups)"


def bootstrap_weights(
    count: int, groups: NDArray[np.generic] | None, draws: int, seed: int
) -> NDArray[np.float64]:
    """Return how often each run is drawn (draws, runs); groups are drawn whole."""
    rng = np.random.default_rng([seed, 2])
    if groups is None:
        return rng.multinomial(count, np.full(count, 1 / count), size=draws).astype(float)
    names, codes = np.unique(groups, return_inverse=True)
    picked = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    return np.asarray(picked[:, codes], float)
