"""Judging a fit: scores, folds, extrapolation, other learners on the same runs."""

from __future__ import annotations

import numpy as np
import pytest
from fit_runs import fitted, reference_runs

from traincast.errors import InvalidValueError
from traincast.fit.fitting import Options
from traincast.fit.judge import extrapolate, judge, outliers, score, split_by
from traincast.fit.prepare import Wish


def test_scores_by_hand() -> None:
    found = score(np.array([1.0, 2.0, 4.0]), np.array([1.1, 2.0, 3.0]))
    assert found.mape == pytest.approx((0.1 + 0 + 0.25) / 3)
    assert found.median == pytest.approx(0.1)
    assert found.rmse == pytest.approx(np.sqrt((0.01 + 0 + 1) / 3))
    # logarithms 0, ln 2, ln 4 with mean ln 2 vary by 2 ln² 2; errors ln 1.1, 0, ln 0.75
    rest = np.log(1.1) ** 2 + np.log(0.75) ** 2
    assert found.r2 == pytest.approx(1 - rest / (2 * np.log(2) ** 2))
    assert score(np.ones(3), np.ones(3)).r2 == 0


@pytest.fixture
def fit(write):
    return fitted(write(reference_runs(0.03)), bootstrap=40)


def test_ahead_of_other_learners_in_extrapolation(fit) -> None:
    pytest.importorskip("sklearn", reason="the other learners are scikit-learn's")
    judged = judge(fit, fit.model.form, ["workers"])
    assert set(judged.scores) == {"generic", "random_forest", "svr", "gradient_boosting",
                                  "power_law", "median"}  # fmt: skip
    assert judged.scores["generic"].mape < 0.03
    assert judged.scores["generic"].mape < judged.scores["random_forest"].mape
    (test,) = judged.extrapolations
    assert (test.factor, test.up_to, test.trained, test.judged) == ("workers", 4.0, 144, 48)
    ours = test.scores["generic"].mape
    assert ours < 0.05
    assert ours < min(test.scores[n].mape for n in ("random_forest", "svr", "median"))


def test_the_power_law_of_least_squares_is_exact_where_there_is_nothing_else(write) -> None:
    pytest.importorskip("sklearn", reason="the other learners are scikit-learn's")
    columns = reference_runs()
    columns["epoch_s"] = columns["kernel"] ** 1.3 * columns["workers"] ** -0.7
    fit = fitted(write(columns))
    scores = judge(fit, fit.model.form, []).scores
    assert scores["power_law"].mape < 1e-9
    assert scores["generic"].mape < 1e-6


def test_where_an_extrapolation_splits(fit) -> None:
    inside, limit = split_by(fit.runs, "workers", 2.0)
    assert limit == 2
    assert len(inside) == 96
    assert split_by(fit.runs, "kernel", None)[1] == 5
    with pytest.raises(InvalidValueError, match="filters=500 leaves 192 runs to train on"):
        split_by(fit.runs, "filters", 500.0)
    with pytest.raises(InvalidValueError, match="no numeric factor; there are kernel"):
        split_by(fit.runs, "threads", None)


def test_two_values_are_too_few_to_extrapolate(write) -> None:
    columns = {n: v[np.isin(reference_runs()["workers"], [1, 2])]
               for n, v in reference_runs(0.03).items()}  # fmt: skip
    fit = fitted(write(columns))
    judged = judge(fit, fit.model.form, ["workers"], compare=False)
    assert judged.extrapolations == ()
    assert judged.skipped == ("workers has 2 values: an extrapolation over it needs at least 3",)


def test_what_is_judged_was_not_fitted(write) -> None:
    """Times of the judged part that are ruined change nothing but the score."""
    columns = reference_runs(0.03)
    ruined = columns | {"epoch_s": np.where(columns["workers"] == 8, 9.9, columns["epoch_s"])}
    found = []
    for name, table in (("good", columns), ("ruined", ruined)):
        fit = fitted(write(table, f"{name}.csv"), strength=0.01)
        options = Options(strength=0.01, bootstrap=0)
        test = extrapolate(fit.runs, fit.model.form, options, "workers", None, compare=False)
        found.append(test.scores["generic"])
    assert found[0].mape < 0.05
    assert found[1].mape > 0.5


def test_a_group_that_is_different_is_judged_by_the_others(write) -> None:
    columns = reference_runs(0.03)
    times = columns.pop("epoch_s")
    machine = np.resize(["a", "b", "c"], 192)
    times = np.where(machine == "c", 2 * times, times)
    path = write({**columns, "machine": list(machine), "epoch_s": times})
    wish = Wish(intrinsic=("kernel", "filters"), extrinsic=("workers", "batch"), group="machine")
    fit = fitted(path, wish)
    off = np.abs(fit.held_out() / times - 1)
    assert fit.how == "leave one group out (3 groups)"
    assert np.median(off[machine == "c"]) == pytest.approx(0.5, abs=0.1)


def test_ruined_runs_are_reported(write) -> None:
    columns = reference_runs(0.03)
    columns["epoch_s"][[30, 100]] *= [3.0, 0.4]
    found = outliers(fitted(write(columns)))
    assert [o.row for o in found] == [32, 102]
    assert found[0].measured / found[0].predicted == pytest.approx(3.0, rel=0.15)
