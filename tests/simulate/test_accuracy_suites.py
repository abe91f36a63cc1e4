"""The accuracy page: its arithmetic by hand, and suites whose data are not here."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import accuracy_ablation as ablation
import accuracy_causes as causes
import accuracy_page as page
import accuracy_suites as suites
from traincast.simulate.validate import ValidatedRow


def row(predicted: float, measured: float, **given: str) -> ValidatedRow:
    return ValidatedRow(
        model=given.get("model", "a"), given={"model": "a", "batch": "1", **given},
        measured={"step_ms": measured}, predicted={"step_ms": predicted},
        interval={"step_ms": (0.9 * predicted, 1.1 * predicted)},
    )  # fmt: skip


def facts(**values) -> causes.Facts:
    plain = {"measured_s": 1.0, "device_s": 1.0, "host_s": 0.5, "groups": {"matrix": 0.6},
             "unmeasured": 0.0, "spread": 0.01, "phase": ""}  # fmt: skip
    return causes.Facts(**(plain | values))


def guess(ratio: list[float], host: list[bool], networks: str) -> ablation.Guess:
    """Runs predicted to take a second each."""
    return ablation.Guess(
        measured=np.array(ratio), predicted=np.ones(len(ratio)), host_bound=np.array(host),
        quiet=np.arange(len(ratio)) > 0, networks=np.array(list(networks)),
        wider=np.ones(len(ratio)),
    )  # fmt: skip


def test_errors_by_hand() -> None:
    """Measured 2, 1 and 1/2 s for a second predicted: errors of −50 %, 0 and +100 %."""
    found = guess([2.0, 1.0, 0.5], [False] * 3, "abc")
    mape, p90, bias = found.errors(quiet=False)
    assert mape == pytest.approx(0.5)
    assert p90 == pytest.approx(0.9)  # of 0, 0.5, 1 at 0.9 of the way: 0.5 + 0.8 · 0.5
    assert bias == pytest.approx(0.5 / 3)
    assert found.errors(quiet=True) == pytest.approx((0.5, 0.9, 0.5))


def test_percentiles_by_regime_and_coverage_by_hand() -> None:
    """Host-bound runs take 1 to 3 times what is predicted, others 0.8 to 1.2 times."""
    found = guess([1.0, 2.0, 3.0, 0.8, 1.0, 1.2], [True] * 3 + [False] * 3, "abcabc")
    split = ablation.percentiles(found, split=True)
    assert split["host"] == pytest.approx((1.1, 2.9))
    assert split["device"] == pytest.approx((0.82, 1.18))
    assert list(ablation.inside(found, split)) == [False, True, False] * 2
    one = ablation.percentiles(found, split=False)
    assert one["host"] == one["device"]


def test_an_interval_without_the_networks_own_runs() -> None:
    """Of networks at 1, 2 and 3, only the middle one lies between the other two."""
    found = guess([1.0, 2.0, 3.0] * 2, [True] * 3 + [False] * 3, "abcabc")
    assert list(ablation.left_out(found)) == [False, True, False] * 2


def test_a_run_with_less_sure_kernels_lies_in_a_wider_interval() -> None:
    """1.4 lies outside 0.8 to 1.25, and inside 0.64 to 1.5625, twice as wide in logarithms."""
    ends = {"host": (0.8, 1.25), "device": (0.8, 1.25)}
    found = guess([1.4, 1.4, 1.6], [False] * 3, "abc")
    wider = replace(found, wider=np.array([1.0, 2.0, 2.0]))
    assert list(ablation.inside(wider, ends)) == [False, True, False]
    assert list(ablation.inside(ablation.alike(wider), ends)) == [False] * 3


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"spread": 0.16, "host_s": 2.0}, "noisy run, host-bound"),
        ({"spread": 0.16}, "noisy run"),
        ({"host_s": 2.0, "measured_s": 1.8}, "host's pace"),
        ({"host_s": 2.0, "measured_s": 1.1}, "host taken for too slow"),
        ({"unmeasured": 0.25}, "shapes not measured"),
        ({"host_s": 0.9}, "both clocks close"),
        ({}, "matrix kernels"),
        ({"spread": None}, "matrix kernels"),
    ],
)
def test_the_first_cause_that_applies(values: dict[str, float], cause: str) -> None:
    assert facts(**values).cause == cause


def test_shares_of_causes_by_hand() -> None:
    """Errors of 10 %, 20 % and 30 %: the noisy run has half of all."""
    found = [
        (row(1.1, 1.0), facts()), (row(0.8, 1.0), facts()), (row(1.3, 1.0), facts(spread=0.5)),
    ]  # fmt: skip
    told = {cause: rest for cause, *rest in causes.shares(found)}
    assert told["noisy run"] == pytest.approx([1, 0.3, 0.5])
    assert told["matrix kernels"] == pytest.approx([2, 0.15, 0.5])


def test_the_worst_rows_have_different_settings() -> None:
    rows = [row(1.5, 1.0), row(1.4, 1.0), row(0.7, 1.0, batch="2"), row(1.0, 1.0, batch="4")]
    assert [causes.error_of(r) for r in causes.worst(rows, 2)] == pytest.approx([0.5, -0.3])


def test_distribution_by_hand() -> None:
    """Errors of −4, 0, +8 and +40 %: half within 5 %, three quarters within 30 %."""
    lines = page.distribution([row(p, 100.0) for p in (96.0, 100.0, 108.0, 140.0)]).splitlines()
    cells = dict(zip(lines[0].split(" | "), lines[2].split(" | "), strict=True))
    assert cells["| within 5 %"] == "| 50 %"
    assert cells["within 30 %"] == "75 %"
    assert cells["within 50 %"] == "100 %"
    assert cells["e at 50 %"] == "+4 %"


def test_percentages_and_tables() -> None:
    assert page.percent(0.1234) == "12.3 %"
    assert page.percent(-0.1234, sign=True) == "−12.3 %"
    assert page.percent(-0.0001, 0, sign=True) == "0 %"
    assert page.percent(None) == "–"
    assert page.table(("a", "b"), [["1", "2"]]) == "| a | b |\n|---|---:|\n| 1 | 2 |"
    assert page.anchor("RTX 3090, timm") == "rtx-3090-timm"


def test_a_suite_whose_data_are_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suites, "SHARED", tmp_path / "steps.csv")
    monkeypatch.setattr(suites.timm_rtx3090, "DATA", tmp_path / "timm.csv.gz")
    monkeypatch.setattr(suites.published_steps, "DATA", tmp_path)
    found = [*suites.h200(), *suites.rtx3090(3), *suites.published(tmp_path)]
    assert all("not here" in suite.missing for suite in found)
    assert len(found) == 6
    text = page.section(found[0], "chart.svg", [], [])
    assert "Not judged: steps.csv is not here." in text
    assert "steps.csv is not here" in page.glance(found)


def test_cases_predict_as_validate_does() -> None:
    table = [
        {"model": "resnet18", "batch": "8", "precision": "tf32", "step_ms": "9"},
        {"model": "resnet18", "batch": "64", "precision": "amp_bf16", "optimizer": "adamw",
         "layout": "nhwc", "mode": "compile", "step_ms": "9"},
        {"model": "resnet5", "batch": "8", "step_ms": "9"},
    ]  # fmt: skip
    rows = suites.judged(table, device="h200")
    found = ablation.guess(causes.cases(rows, None), ablation.own_engine())
    assert 1e3 * found.predicted == pytest.approx([r.predicted["step_ms"] for r in rows[:2]])
    assert rows[2].problem is not None
