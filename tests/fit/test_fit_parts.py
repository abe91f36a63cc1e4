"""The parts of a fit: non-negative least squares, folds, expressions of a user's own, files."""

from __future__ import annotations

import contextlib
import json

import numpy as np
import pytest
from fit_runs import fitted, reference_runs
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InputFileError, InvalidValueError, TraincastError
from traincast.fit.build import FormWish
from traincast.fit.expression import ExpressionForm, parse
from traincast.fit.folds import assign_folds, bootstrap_weights
from traincast.fit.nnls import nnls
from traincast.fit.saved import load_model, saved_text


@given(seed=st.integers(0, 10**6), columns=st.integers(1, 12))
def test_many_least_squares_at_once_are_those_of_scipy(seed: int, columns: int) -> None:
    from scipy.optimize import nnls as one

    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (6, 40, columns))
    y = rng.normal(1, 1, (6, 40))
    found = nnls(x.transpose(0, 2, 1) @ x, np.einsum("snk,sn->sk", x, y))
    for i in range(6):
        expected, residual = one(x[i], y[i])
        assert np.linalg.norm(x[i] @ found[i] - y[i]) == pytest.approx(residual, rel=1e-7)
        np.testing.assert_allclose(found[i], expected, atol=1e-5)


def test_collinear_columns_do_not_break_it() -> None:
    x = np.ones((1, 10, 3))
    found = nnls(x.transpose(0, 2, 1) @ x, np.full((1, 3), 20.0))
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(2.0)


def test_groups_are_held_out_whole() -> None:
    groups = np.repeat([f"g{i}" for i in range(12)], 5)
    folds, how = assign_folds(60, groups, 10, 0)
    assert how == "leave one group out (12 groups)"
    assert all(len(set(folds[groups == g])) == 1 for g in set(groups))
    many = np.repeat([f"g{i}" for i in range(40)], 3)
    folds, how = assign_folds(120, many, 10, 0)
    assert how.startswith("10-fold, whole groups")
    assert all(len(set(folds[many == g])) == 1 for g in set(many))
    assert set(np.bincount(folds)) == {12}
    weights = bootstrap_weights(60, groups, 50, 0)
    assert all(len(set(row[groups == "g3"])) == 1 for row in weights)


def test_folds_by_run_are_even_and_depend_on_the_seed() -> None:
    folds, how = assign_folds(103, None, 10, 0)
    assert how == "10-fold, by run"
    assert set(np.bincount(folds)) == {10, 11}
    assert not np.array_equal(folds, assign_folds(103, None, 10, 1)[0])


def test_own_expression_finds_its_constants(write) -> None:
    source = "(a*kernel**p + b*filters) * workers**q * (batch/32)**s + c"
    model = fitted(write(reference_runs()), form=FormWish(expression=source), regularisation="none"
                   ).model  # fmt: skip
    found = {key.split(":")[1]: e.value for key, e in model.original.items()}
    expected = {"a": 0.5, "p": 2.0, "b": 0.02, "q": -0.9, "s": -0.3, "c": 2.0}
    assert found == pytest.approx(expected, abs=1e-3)


def test_which_constants_are_solved_for() -> None:
    def kinds(source: str) -> tuple[list[str], list[str]]:
        form = ExpressionForm(source=source, factors=("x", "y"))
        return ([c.name for c in form.constants if not c.linear],
                [c.name for c in form.constants if c.linear])  # fmt: skip

    assert kinds("a*x**p + c") == (["p"], ["a", "c"])
    assert kinds("(a + b*x)*d") == (["a", "b"], ["d"])
    assert kinds("a*x/(y + k) + log(x)*b") == (["k"], ["a", "b"])
    assert kinds("t = a*exp(-x*k) + 2") == (["k"], ["a"])


def test_an_offset_of_an_expression_counts(write) -> None:
    columns = reference_runs()
    source = "2 + a*(kernel**2 + 0.04*filters)*workers**q*(batch/32)**-0.3"
    model = fitted(write(columns), form=FormWish(expression=source), regularisation="none").model
    assert model.original["coefficient:a"].value == pytest.approx(0.5, abs=1e-6)
    assert model.original["free:q"].value == pytest.approx(-0.9, abs=1e-6)


BAD_EXPRESSIONS = {
    "a*kernel +": "is no expression",
    "__import__('os').system('true')": "is not allowed",
    "a if kernel else b": "is not allowed",
    "a*kernel.real": "is not allowed",
    "[a for a in kernel]": "is not allowed",
    "a*sin(kernel)": "unknown function 'sin'",
    "a*log(kernel, filters)": "log takes 1 argument",
    "kernel*filters": "no constant to fit",
    "a + b": "names no column",
    "a*'x'*kernel": "is no number",
    "a*" * 1500 + "kernel": "characters; write at most",
    "(" * 300 + "a" + ")" * 300 + "*kernel": "--expr",
    "lambda: kernel": "is not allowed",
    "a := kernel": "is no expression",
}


@pytest.mark.parametrize("source", BAD_EXPRESSIONS)
def test_a_bad_expression_is_refused(write, source: str) -> None:
    with pytest.raises(TraincastError) as caught:
        fitted(write(reference_runs()), form=FormWish(expression=source))
    assert BAD_EXPRESSIONS[source] in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_is_executed_or_breaks_the_parser(text: str) -> None:
    with contextlib.suppress(TraincastError):
        parse(text)


def test_columns_of_text_and_constants_cannot_be_in_an_expression(write) -> None:
    columns = reference_runs() | {"name": ["x", "y"] * 96, "one": np.ones(192)}
    with pytest.raises(InvalidValueError, match="name, which holds text"):
        fitted(write(columns), form=FormWish(expression="a*name*kernel"))
    with pytest.raises(InvalidValueError, match="one is 1 in every run"):
        fitted(write(columns), form=FormWish(expression="a*one*kernel"))


@pytest.mark.parametrize("expression", [None, "a*kernel**p*workers**q + c"])
def test_a_saved_model_predicts_the_same(write, tmp_path, expression: str | None) -> None:
    columns = reference_runs(0.03) | {"kind": ["x", "y"] * 96}
    fit = fitted(write(columns), form=FormWish(expression=expression), bootstrap=20)
    path = tmp_path / "model.json"
    path.write_text(saved_text(fit.model, {}))
    model = load_model(path)
    points = fit.model.columns([{"kernel": 5, "workers": 6}, {"kernel": 1}])
    before, after = fit.model.forecast(points), model.forecast(points)
    np.testing.assert_array_equal(after.times, before.times)
    np.testing.assert_allclose(after.low, before.low, rtol=1e-5)
    assert model.original.keys() == fit.model.original.keys()


def test_other_files_are_refused(write, tmp_path) -> None:
    good = json.loads(saved_text(fitted(write(reference_runs(0.03))).model, {}))
    cases = {
        "is not JSON": "{", "is not a fitted model": "[]",
        "of version 2; this traincast reads 1": json.dumps(good | {"version": 2}),
        "is a damaged model": json.dumps(good | {"model": {}}),
        "damaged model (ValueError its constants":
            json.dumps(good | {"model": good["model"] | {"constants": []}}),
    }  # fmt: skip
    for message, text in cases.items():
        path = tmp_path / "model.json"
        path.write_text(text)
        with pytest.raises(InputFileError) as caught:
            load_model(path)
        assert message in str(caught.value)
    with pytest.raises(InputFileError, match="no such file"):
        load_model(tmp_path / "absent.json")
