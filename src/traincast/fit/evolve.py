"""The search for exponents by differential evolution (scipy), coefficients solved for inside."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from traincast.errors import MissingExtraError
from traincast.fit.constants import Array, Constant, even_spread, likely_range
from traincast.fit.polish import Batch, Problem, coefficients

TOLERANCE = 1e-8
ROWS = 250
"""Runs that the evolution looks at; the polish afterwards sees all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of the evolution; the rest are scipy's defaults (best1bin, F 0.5 to 1, CR 0.7)."""

    population: int = 10
    """Candidates for each exponent."""
    generations: int = 120
    """At most."""
    tolerance: float = TOLERANCE
    """Relative spread of the costs at which a population has converged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    """What one seed found."""

    seed: int
    candidates: Array
    """The best few sets of constants (K, P), best first."""
    generations: int
    evaluations: int
    converged: bool


def load_optimizer() -> Any:
    """Return scipy.optimize."""
    try:
        import scipy.optimize as found
    except ImportError:
        raise MissingExtraError("scipy", "fit", "fitting") from None
    return found


def evolve(
    problem: Problem,
    variation: Batch,
    constants: Sequence[Constant],
    seed: int,
    settings: Settings,
    tell: Callable[[float], None] = lambda _: None,
) -> Evolved:
    """Search the exponents of one variation (R = 1); `tell` is given the share that is done."""
    optimizer = load_optimizer()
    e = problem.split
    low, high = variation.low[0, :e], variation.high[0, :e]
    free = high > low
    theta_low = np.where(free, low, variation.low[0, :e])

    def cost(theta: Array) -> Array:
        """Return the regularised cost of exponents (free, S) as scipy passes them."""
        full = np.repeat(theta_low[None], theta.shape[1], axis=0)
        full[:, free] = theta.T
        many = Batch(
            start=full, weights=np.broadcast_to(variation.weights, (len(full), len(weights))),
            low=np.broadcast_to(variation.low, (len(full), len(low_all))),
            high=np.broadcast_to(variation.high, (len(full), len(low_all))),
            strength=np.broadcast_to(variation.strength, len(full)),
        )  # fmt: skip
        x = coefficients(problem, full, many)
        value = problem.value(x, variation.weights) / problem.scale
        found: Array = value + variation.strength[0] * problem.penalty(x)
        return found

    weights, low_all = variation.weights[0], variation.low[0]
    if not free.any():
        alone = coefficients(problem, theta_low[None], variation)
        return Evolved(seed=seed, candidates=alone, generations=0, evaluations=1, converged=True)
    done = 0
    rng = np.random.default_rng(seed)
    count = settings.population * int(free.sum())
    first, last = likely_range(constants, variation.low[0], variation.high[0])
    # Half of the first generation is spread over all bounds, half where constants mostly lie.
    start = np.concatenate([
        even_spread(rng, count - count // 2, low[free], high[free]),
        even_spread(rng, max(count // 2, 1), first[free], last[free]),
    ])  # fmt: skip

    def told(*_: Any, **__: Any) -> None:
        nonlocal done
        done += 1
        tell(min(done / settings.generations, 1.0))

    # One argument takes the seed, under a name that depends on scipy's version.
    names = inspect.signature(optimizer.differential_evolution).parameters
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = optimizer.differential_evolution(
            cost, list(zip(low[free], high[free], strict=True)), vectorized=True,
            updating="deferred", polish=False, tol=settings.tolerance, atol=1e-12,
            maxiter=settings.generations, init=start, callback=told,
            **{"rng" if "rng" in names else "seed": rng},
        )  # fmt: skip
    order = np.argsort(found.population_energies, kind="stable")[:6]
    theta = np.repeat(theta_low[None], len(order) + 1, axis=0)
    theta[:, free] = np.vstack([found.x, found.population[order]])
    many = Batch(start=theta, weights=np.repeat(variation.weights, len(theta), 0),
                 low=np.repeat(variation.low, len(theta), 0),
                 high=np.repeat(variation.high, len(theta), 0),
                 strength=np.repeat(variation.strength, len(theta)))  # fmt: skip
    return Evolved(
        seed=seed,
        candidates=coefficients(problem, theta, many),
        generations=int(found.nit),
        evaluations=int(found.nfev),
        converged=bool(found.success),
    )
