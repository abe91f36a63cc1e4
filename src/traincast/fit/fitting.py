"""Fitting an expression to runs: strength of the regulariser, evolution, polish, bootstrap."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError
from traincast.fit.constants import Array, Form, split_at
from traincast.fit.evolve import ROWS, Evolved, Settings, evolve, load_optimizer
from traincast.fit.expression import ExpressionForm
from traincast.fit.factors import Runs
from traincast.fit.folds import FOLDS, assign_folds, bootstrap_weights
from traincast.fit.generic import GenericForm
from traincast.fit.loss import PENALTIES, Loss, loss_named
from traincast.fit.model import LEVEL, Model, canonical
from traincast.fit.polish import Problem, in_threads, polish
from traincast.fit.strength import GRID, Curve, Study, cross_validate, narrowed

Tell = Callable[[str, float], None]
"""Is given what is being done, and the share of it that is done."""
_AGREE = 1e-3
_DRIFT = 0.05


def _silent(_what: str, _share: float) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How to fit."""

    loss: str = "relative"
    regularisation: str = "l1"
    strength: float | None = None
    """λ, instead of choosing it by cross-validation."""
    seed: int = 0
    seeds: int = 3
    """Evolutions, from `seed` on."""
    folds: int = FOLDS
    bootstrap: int = 200
    """Samples; 0 for none."""
    settings: Settings = field(default_factory=Settings)
    reference: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedResult:
    """What one evolution led to after the polish."""

    seed: int
    loss: float
    generations: int
    evaluations: int
    converged: bool


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A model with how it came about."""

    model: Model
    runs: Runs
    options: Options
    loss: Loss
    value: float
    """The mean loss over all runs, scaled as the loss is."""
    strength: float
    """λ."""
    curve: Curve
    how: str
    """How folds were made."""
    seeds: tuple[SeedResult, ...]
    drift: Mapping[str, float]
    """Exponents that differ over seeds whose losses agree, and by how much."""
    on_bound: tuple[str, ...]
    coverage: float | None
    """Share of runs inside the interval of samples that did not draw them."""
    warnings: tuple[str, ...]

    def fitted(self) -> Array:
        """Return the model's times of the runs it was fitted to."""
        return self.model.times(self.runs.columns)

    def held_out(self) -> Array:
        """Return each run's time by fits that did not see it."""
        return self.curve.held_out() * self.model.unit


def study_of(form: Form, runs: Runs, options: Options) -> Study:
    """Return the problem of fitting a form to runs."""
    unit = float(np.median(runs.times))
    constants = form.constants
    low = np.array([c.low for c in constants])
    high = np.array([c.high for c in constants])
    if isinstance(form, GenericForm):
        needs_base = form.base or form.categories or not form.terms
        for i, c in enumerate(constants):
            if c.kind == "base" and not needs_base:
                high[i] = 0.0
    problem = Problem(
        bound=form.bind(runs.scaled()), measured=runs.times / unit, loss=loss_named(options.loss),
        share=PENALTIES[options.regularisation],
        penalised=np.array([c.penalised for c in constants], float), split=split_at(form),
    )  # fmt: skip
    return Study(problem=problem, constants=constants, low=low, high=high,
                 refits=options.regularisation in ("l1", "elastic"))  # fmt: skip


def fit_form(form: Form, runs: Runs, options: Options, tell: Tell = _silent) -> Fit:
    """Return the fitted model."""
    load_optimizer()
    if isinstance(form, ExpressionForm):
        form = replace(form, unit=float(np.median(runs.times)))
    with single_threaded():
        return _fit(form, runs, options, tell)


def _fit(form: Form, runs: Runs, options: Options, tell: Tell) -> Fit:
    study = study_of(form, runs, options)
    free = int((study.high > study.low).sum())
    count = len(runs.times)
    if free > count - 2:
        raise InvalidValueError(
            f"{count} runs cannot fix {free} constants; give more runs or fewer factors"
        )
    tell("choosing the strength", 0.0)
    folds, how = assign_folds(count, runs.groups, options.folds, options.seed)
    grid = (0.0,) if options.regularisation == "none" else GRID
    if options.strength is not None:
        grid = (options.strength,)
    curve = cross_validate(study, folds, grid, form, options.seed)
    strength = curve.grid[curve.chosen()]
    if study.refits and strength > 0:
        study, strength_left = narrowed(study, strength, form, options.seed), 0.0
    else:
        strength_left = strength
    evolved = _evolve(form, runs, study, strength_left, options, tell)
    tell("polishing", 0.0)
    x, values = _polished(study, strength_left, evolved, count)
    best = int(np.argmin(values))
    low, high = study.low, study.high
    tell("bootstrap", 0.0)
    weights = bootstrap_weights(count, runs.groups, options.bootstrap, options.seed)
    draws = np.empty((0, x.shape[1]))
    if options.bootstrap:
        start = np.repeat(x[best][None], len(weights), 0)
        batch = study.batch(start, weights, strength_left)
        draws = canonical(form, polish(study.problem, batch, 12, near=True))
    out = curve.held_out()
    unit = float(np.median(runs.times))
    spread = _spread(np.log(study.problem.measured / np.maximum(out, 1e-12)))
    model = Model(
        form=form, factors=runs.factors, time=runs.time, unit=unit,
        x=canonical(form, x[best][None])[0], draws=draws, locked=high <= low, spread=spread,
        reference=dict(options.reference),
    )  # fmt: skip
    drift = _drift(model, canonical(form, x), values)
    bounds = _on_bound(study, x[best], low, high)
    return Fit(
        model=model, runs=runs, options=options, loss=study.problem.loss,
        value=float(values[best]), strength=strength, curve=curve, how=how,
        seeds=tuple(
            SeedResult(seed=e.seed, loss=float(v), generations=e.generations,
                       evaluations=e.evaluations, converged=e.converged)
            for e, v in zip(evolved, values, strict=True)
        ),
        drift=drift, on_bound=bounds, coverage=_coverage(model, study, weights, draws),
        warnings=runs.warnings,
    )  # fmt: skip


def _evolve(
    form: Form, runs: Runs, study: Study, strength: float, options: Options, tell: Tell
) -> list[Evolved]:
    """Return what each seed finds; each looks at its own sample of the runs."""
    shares = dict.fromkeys(range(options.seeds), 0.0)

    def one(place: int) -> Evolved:
        seed = options.seed + place
        rng = np.random.default_rng([seed, 4])
        count = len(runs.times)
        at = np.sort(rng.permutation(count)[:ROWS]) if count > ROWS else np.arange(count)
        part = replace(study.problem, bound=form.bind(runs.scaled(at)),
                       measured=study.problem.measured[at])  # fmt: skip
        start = np.zeros((1, len(study.low)))
        variation = study.batch(start, np.ones((1, len(at))), strength)

        def told(share: float) -> None:
            shares[place] = share
            tell("evolution", sum(shares.values()) / len(shares))

        return evolve(part, variation, study.constants, seed, options.settings, told)

    return in_threads(one, list(shares))


def _polished(
    study: Study, strength: float, evolved: list[Evolved], count: int
) -> tuple[Array, Array]:
    """Return constants (seeds, P) and their losses: the best of each seed's candidates."""
    flat = np.concatenate([e.candidates for e in evolved])
    x = polish(study.problem, study.batch(flat, np.ones((1, count)), strength), 60)
    cost = study.problem.value(x) / study.problem.scale + strength * study.problem.penalty(x)
    ends = np.cumsum([len(e.candidates) for e in evolved])
    picks = np.array([
        end - len(e.candidates) + int(np.argmin(cost[end - len(e.candidates) : end]))
        for e, end in zip(evolved, ends, strict=True)
    ])  # fmt: skip
    return x[picks], study.problem.value(x[picks])


def _spread(logs: Array) -> tuple[float, float]:
    ends = np.quantile(logs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return max(-float(ends[0]), 0.0), max(float(ends[1]), 0.0)


def _coverage(
    model: Model, study: Study, weights: NDArray[np.float64], draws: Array
) -> float | None:
    """Return the share of runs inside the interval of the samples that did not draw them."""
    out = weights == 0
    seen = out.sum(axis=0) >= 5
    if not len(draws) or not seen.any():
        return None
    bound = study.problem.bound
    logs = np.concatenate([np.log(np.maximum(bound.times(part), 1e-12))
                           for part in np.array_split(draws, 8) if len(part)])  # fmt: skip
    many = np.maximum(out.sum(axis=0), 1)
    middle = (logs * out).sum(axis=0) / many
    width = 1.96 * np.sqrt(np.maximum((logs**2 * out).sum(axis=0) / many - middle**2, 0))
    low, high = (np.sqrt(width**2 + e**2) for e in model.spread)
    error = np.log(study.problem.measured) - middle
    inside = (error >= -low) & (error <= high)
    return float(inside[seen].mean())


def _drift(model: Model, x: Array, values: Array) -> dict[str, float]:
    """Return exponents that seeds with the same loss disagree about: they are not identified.

    An exponent that is not defined, its coefficient being 0, is none of them.
    """
    same = values <= values.min() * (1 + _AGREE) + 1e-12
    if same.sum() < 2:
        return {}
    x = model.in_units(x[same])
    gaps = {c.name: float(np.ptp(x[:, i])) for i, c in enumerate(model.form.constants)
            if not c.linear and not np.isnan(x[:, i]).any()}  # fmt: skip
    return {name: gap for name, gap in gaps.items() if gap > _DRIFT}


def _on_bound(study: Study, x: Array, low: Array, high: Array) -> tuple[str, ...]:
    """Return exponents that ended on a bound which is not 0."""
    found = []
    for i, c in enumerate(study.constants):
        if c.linear or high[i] <= low[i]:
            continue
        ends = [end for end in (low[i], high[i]) if end != 0 and abs(x[i] - end) < 1e-6]
        found += [f"{c.name} ({end:g})" for end in ends]
    return tuple(found)


@contextlib.contextmanager
def single_threaded() -> Iterator[None]:
    """Keep BLAS from splitting products of small matrices over threads of its own."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError:
        yield
        return
    with threadpool_limits(1, user_api="blas"):
        yield
