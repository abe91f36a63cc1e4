"""How good a fit is: held-out runs, extrapolation, and the same for other learners."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError
from traincast.fit.baselines import BASELINES, load_learners, predict_baseline
from traincast.fit.constants import Array, Form
from traincast.fit.expression import ExpressionForm
from traincast.fit.factors import FEWEST_ROWS, Runs, middle
from traincast.fit.fitting import Fit, Options, Tell, _silent, fit_form
from traincast.fit.polish import in_threads

_PART = 0.2
"""Share of the runs that an extrapolation test holds out, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Errors on runs that were not fitted; the first two are fractions."""

    mape: float
    median: float
    rmse: float
    """In the unit of the time's column."""
    r2: float
    """Of the logarithm of the time."""
    r2_time: float
    """Of the time itself."""
    coverage: float | None = None
    """Share of runs inside the stated interval."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extrapolation:
    """Trained where a factor is small, judged where it is large."""

    factor: str
    up_to: float
    """The largest value trained on."""
    trained: int
    judged: int
    values: tuple[float, ...]
    """The smallest and the largest value judged."""
    scores: dict[str, Score]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """All of it; methods by name, `generic` being ours."""

    how: str
    """How the folds were made."""
    scores: dict[str, Score]
    extrapolations: tuple[Extrapolation, ...]
    skipped: tuple[str, ...]
    """Extrapolations that the runs do not allow, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A run far from what the fits that did not see it say."""

    row: int
    """Where it stands in the file, the header being row 1."""
    measured: float
    predicted: float


def outliers(fit: Fit) -> list[Outlier]:
    """Return runs whose held-out error is beyond four robust deviations and 10 %, worst first."""
    predicted = np.maximum(fit.held_out(), 1e-300)
    off = np.log(fit.runs.times / predicted)
    off = off - np.median(off)
    size = 1.4826 * float(np.median(np.abs(off)))
    far = np.flatnonzero(np.abs(off) > max(4 * size, 0.1))
    return [
        Outlier(row=int(fit.runs.rows[i]), measured=float(fit.runs.times[i]),
                predicted=float(predicted[i]))
        for i in far[np.argsort(-np.abs(off[far]))]
    ]  # fmt: skip


def score(measured: Array, predicted: Array, coverage: float | None = None) -> Score:
    """Return the errors of predictions."""
    safe = np.maximum(predicted, 1e-300)
    off = np.abs(predicted / measured - 1)
    logs = np.log(measured)
    return Score(
        mape=float(off.mean()),
        median=float(np.median(off)),
        rmse=float(np.sqrt(np.mean((predicted - measured) ** 2))),
        r2=_r2(logs, np.log(safe)),
        r2_time=_r2(measured, predicted),
        coverage=coverage,
    )


def _r2(y: Array, predicted: Array) -> float:
    total = float(((y - y.mean()) ** 2).sum())
    rest = float(((y - predicted) ** 2).sum())
    return 1 - rest / total if total > 0 else 0.0


def judge(
    fit: Fit, form: Form, factors: Sequence[str | tuple[str, float]], tell: Tell = _silent,
    *, compare: bool = True,
) -> Judgement:  # fmt: skip
    """Return held-out errors of the model and of the baselines on the same folds.

    `factors` are those to extrapolate over, perhaps with the largest value to train on.
    """
    if compare:
        load_learners()
    runs, options = fit.runs, fit.options
    scores = {"generic": score(runs.times, fit.held_out(), fit.coverage)}
    if compare:
        scores |= _compared(runs, fit.curve.folds, options.seed, tell)
    found, skipped = [], []
    for wanted in factors:
        name, limit = wanted if isinstance(wanted, tuple) else (wanted, None)
        tell(f"extrapolation over {name}", 0.0)
        try:
            found.append(extrapolate(runs, form, options, name, limit, compare=compare))
        except InvalidValueError as error:
            skipped.append(str(error))
    return Judgement(how=fit.how, scores=scores, extrapolations=tuple(found),
                     skipped=tuple(skipped))  # fmt: skip


def _compared(runs: Runs, folds: NDArray[np.int64], seed: int, tell: Tell) -> dict[str, Score]:
    jobs = [(name, fold) for name in BASELINES for fold in range(int(folds.max()) + 1)]
    done = 0

    def one(job: tuple[str, int]) -> Array:
        nonlocal done
        name, fold = job
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        found = predict_baseline(
            name, runs.factors, {n: v[inside] for n, v in runs.columns.items()},
            runs.times[inside], {n: v[outside] for n, v in runs.columns.items()}, seed,
        )  # fmt: skip
        done += 1
        tell("other learners", done / len(jobs))
        return found

    results = dict(zip(jobs, in_threads(one, jobs), strict=True))
    found = {}
    for name in BASELINES:
        out = np.empty_like(runs.times)
        for fold in range(int(folds.max()) + 1):
            out[folds == fold] = results[name, fold]
        found[name] = score(runs.times, out)
    return found


def subset(runs: Runs, at: NDArray[np.int64], form: Form) -> Runs:
    """Return some of the runs, with the references and ranges of these alone."""
    columns = {n: v[at] for n, v in runs.columns.items()}
    factors = []
    for f in runs.factors:
        if f.categorical:
            factors.append(f)
            continue
        values = np.asarray(columns[f.name], float)
        own = 1.0 if isinstance(form, ExpressionForm) else middle(values)
        factors.append(replace(f, reference=own, low=float(values.min()), high=float(values.max())))
    return replace(
        runs, times=runs.times[at], columns=columns, rows=runs.rows[at], factors=tuple(factors),
        groups=None if runs.groups is None else runs.groups[at],
    )  # fmt: skip


def split_by(runs: Runs, name: str, limit: float | None) -> tuple[NDArray[np.int64], float]:
    """Return which runs are trained on (factor at most the limit), and that limit."""
    known = {f.name: f for f in runs.factors}
    if name not in known or known[name].categorical:
        numbers = ", ".join(f.name for f in runs.factors if not f.categorical)
        raise InvalidValueError(f"--extrapolate {name}: no numeric factor; there are {numbers}")
    values = np.asarray(runs.columns[name], float)
    steps = np.unique(values)
    if len(steps) < 3:
        raise InvalidValueError(
            f"{name} has {len(steps)} values: an extrapolation over it needs at least 3"
        )
    if limit is None:
        enough = [s for s in steps[1:-1] if (values > s).mean() >= _PART]
        limit = float(enough[-1] if enough else steps[1])
    inside = np.flatnonzero(values <= limit)
    if len(inside) < FEWEST_ROWS or len(inside) == len(values):
        raise InvalidValueError(
            f"--extrapolate {name}={limit:g} leaves {len(inside)} runs to train on and "
            f"{len(values) - len(inside)} to judge; choose another limit"
        )
    return inside, limit


def extrapolate(
    runs: Runs, form: Form, options: Options, name: str, limit: float | None, *, compare: bool
) -> Extrapolation:
    """Fit where a factor is at most the limit, judge where it is above."""
    inside, limit = split_by(runs, name, limit)
    outside = np.setdiff1d(np.arange(len(runs.times)), inside)
    small = subset(runs, inside, form)
    if small.groups is not None and len(np.unique(small.groups)) < 2:
        small = replace(small, groups=None)
    quick = replace(options, seeds=1, folds=min(options.folds, 5), bootstrap=min(options.bootstrap,
                    60))  # fmt: skip
    fit = fit_form(form, small, quick)
    new = {n: v[outside] for n, v in runs.columns.items()}
    measured = runs.times[outside]
    forecast = fit.model.forecast(new)
    inside_interval = (measured >= forecast.low) & (measured <= forecast.high)
    scores = {"generic": score(measured, forecast.times, float(inside_interval.mean()))}
    if compare:
        found = in_threads(
            lambda method: predict_baseline(method, small.factors, small.columns, small.times, new,
                                            options.seed),
            list(BASELINES),
        )  # fmt: skip
        scores |= {m: score(measured, p) for m, p in zip(BASELINES, found, strict=True)}
    values = np.asarray(new[name], float)
    return Extrapolation(
        factor=name, up_to=limit, trained=len(inside), judged=len(outside),
        values=(float(values.min()), float(values.max())), scores=scores,
    )  # fmt: skip
