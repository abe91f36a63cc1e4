"""What the generic model is compared with, on the same folds (scikit-learn, numpy).

All learn the logarithm of the time, so that large runs do not outweigh small ones, and see the same
factors: forests and boosting the numbers as they are, the others their logarithms, standardised.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from traincast.errors import MissingExtraError
from traincast.fit.constants import Array
from traincast.fit.factors import Column, Factor

Learner = Callable[[Array, Array, Array, Array, Array, int], Array]


def plain_features(factors: Sequence[Factor], columns: Mapping[str, Column]) -> Array:
    """Return numbers as they are, and one column a level (N, F)."""
    return _features(factors, columns, lambda f, v: v)


def log_features(factors: Sequence[Factor], columns: Mapping[str, Column]) -> Array:
    """Return logarithms of numbers, and one column a level; 0 is half the least above it."""

    def log(factor: Factor, values: Array) -> Array:
        least = factor.low if factor.low > 0 else np.min(values[values > 0], initial=1.0)
        return np.log(np.maximum(values, least / 2))

    return _features(factors, columns, log)


def _features(
    factors: Sequence[Factor],
    columns: Mapping[str, Column],
    number: Callable[[Factor, Array], Array],
) -> Array:
    found: list[NDArray[Any]] = []
    for f in factors:
        if f.categorical:
            found += [(columns[f.name] == level).astype(float) for level in f.levels]
        else:
            found.append(number(f, np.asarray(columns[f.name], float)))
    return np.array(found, float).T


def _median(_x: Array, _lx: Array, y: Array, new: Array, _new_logs: Array, _seed: int) -> Array:
    return np.full(len(new), np.median(y))


def _power_law(_x: Array, lx: Array, y: Array, _new: Array, new: Array, _seed: int) -> Array:
    """Least squares: ln t = b + Σ q·ln F, a level's multiplier included."""
    middle = lx.mean(axis=0)
    design = np.column_stack([np.ones(len(lx)), lx - middle])
    beta, *_ = np.linalg.lstsq(design, y, rcond=1e-8)
    return np.asarray(np.column_stack([np.ones(len(new)), new - middle]) @ beta)


def _forest(x: Array, _lx: Array, y: Array, new: Array, _new_logs: Array, seed: int) -> Array:
    from sklearn.ensemble import RandomForestRegressor

    found = RandomForestRegressor(n_estimators=100, random_state=seed, n_jobs=1)
    return np.asarray(found.fit(x, y).predict(new))


def _boosting(x: Array, _lx: Array, y: Array, new: Array, _new_logs: Array, seed: int) -> Array:
    from sklearn.ensemble import GradientBoostingRegressor

    found = GradientBoostingRegressor(n_estimators=200, max_depth=4, learning_rate=0.1,
                                      subsample=0.8, random_state=seed)  # fmt: skip
    return np.asarray(found.fit(x, y).predict(new))


def _support_vectors(_x: Array, lx: Array, y: Array, _new: Array, new: Array, _seed: int) -> Array:
    from sklearn.svm import SVR

    middle, size = lx.mean(axis=0), lx.std(axis=0)
    size = np.where(size > 0, size, 1.0)
    mean, spread = y.mean(), max(float(y.std()), 1e-9)
    found = SVR(C=10.0, epsilon=0.02, gamma="scale")
    found.fit((lx - middle) / size, (y - mean) / spread)
    return np.asarray(found.predict((new - middle) / size) * spread + mean)


BASELINES: dict[str, Learner] = {
    "random_forest": _forest,
    "svr": _support_vectors,
    "gradient_boosting": _boosting,
    "power_law": _power_law,
    "median": _median,
}
TITLES = {
    "generic": "generic model",
    "random_forest": "random forest",
    "svr": "support vector regression",
    "gradient_boosting": "gradient boosting",
    "power_law": "least-squares power law",
    "median": "training median",
}


def load_learners() -> None:
    """Raise where scikit-learn is not installed."""
    try:
        import sklearn.ensemble
        import sklearn.svm  # noqa: F401
    except ImportError:
        raise MissingExtraError(
            "scikit-learn", "fit", "comparing with other learners (leave it out with --no-compare)"
        ) from None


def predict_baseline(
    name: str,
    factors: Sequence[Factor],
    train: Mapping[str, Column],
    times: Array,
    new: Mapping[str, Column],
    seed: int,
) -> Array:
    """Return the times of new points by a learner trained on others."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = BASELINES[name](
            plain_features(factors, train), log_features(factors, train), np.log(times),
            plain_features(factors, new), log_features(factors, new), seed,
        )  # fmt: skip
    return np.exp(np.clip(found, -50, 50))
