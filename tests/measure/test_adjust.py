"""Adjusting a profile to measured runs, on steps whose factors are known beforehand."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from traincast.errors import InvalidValueError
from traincast.estimate.calibrated.models import KernelModel
from traincast.estimate.calibrated.profile import Profile, profile_from_json, profile_to_json
from traincast.measure.adjust import _spread as spread_of_runs
from traincast.measure.adjust import adjust_to_runs, family_of, rank_correlation
from traincast.measure.group_fit import PRIOR, Seen, Table, fit_factors, folds_of, left_out
from traincast.simulate.predict import predict

SHARES = ((0.9, 0.1), (0.7, 0.3), (0.5, 0.5), (0.3, 0.7), (0.1, 0.9), (0.6, 0.4))
NETWORKS = ("resnet18", "resnet50", "vgg11", "alexnet", "squeezenet1_0", "densenet121",
            "mobilenet_v2", "vit_b_16", "bert-base", "gpt2")  # fmt: skip


def model(compute: float, bandwidth: float, floor_s: float = 2e-6) -> KernelModel:
    return KernelModel(
        compute=compute, bandwidth=bandwidth, floor_s=floor_s, error=0.1, spread=0.1, rows=10
    )


PROFILE = Profile(
    device="h200",
    models={
        "gemm.forward|bf16|": model(0.7, 0.7),
        "conv.forward|bf16|nhwc": model(0.4, 0.8, 8e-6),
        "attention|bf16|": model(0.5, 0.6),
        "pointwise|fp32|": model(0.0, 0.8),
    },
    host=None,
)


def seen(i: int, seconds: float, parts: dict[str, float], host: float = 0.0) -> Seen:
    return Seen(
        row=i, network=f"net{i}", family=f"net{i}", column="step_ms", samples=1, seconds=seconds,
        parts={(name,): value for name, value in parts.items()}, host=host,
    )  # fmt: skip


def two_groups(matrix: float, vector: float, tiny: float = 0.0) -> Table:
    """Steps of 1 s as predicted, measured with other factors; a group that hardly matters."""
    rows = []
    for i, (a, b) in enumerate(SHARES):
        parts = {"matrix": a, "vector": b}
        measured = matrix * a + vector * b
        if tiny:
            parts["norm"] = 0.001
            measured += tiny * 0.001
        rows.append(seen(i, measured, parts))
    return Table(rows)


def test_factors_are_found_again() -> None:
    table = two_groups(1.6, 0.8)
    fit = fit_factors(table, np.arange(len(SHARES)))
    found = dict(zip(fit.names, np.exp(fit.theta), strict=True))
    assert found["matrix"] == pytest.approx(1.6, rel=0.05)
    assert found["vector"] == pytest.approx(0.8, rel=0.05)
    errors = dict(zip(fit.names, fit.error, strict=True))
    assert errors["matrix"] < 0.1


def test_what_the_runs_cannot_tell_stays() -> None:
    fit = fit_factors(two_groups(1.6, 0.8, tiny=3.0), np.arange(len(SHARES)))
    refused = {name for name, _ in fit.refused}
    assert refused == {"norm", "host"}
    assert all(fit.theta[i] == 0.0 and fit.error[i] == PRIOR for _, i in fit.refused)


def test_the_hosts_factor_comes_from_runs_that_it_bounds() -> None:
    rows = [seen(i, 3.0, {"vector": 0.1 * (i + 1)}, host=2.0) for i in range(5)]
    fit = fit_factors(Table(rows), np.arange(5))
    ((name, i),) = fit.kept
    assert name == "host"
    assert np.exp(fit.theta[i]) == pytest.approx(1.5, rel=0.05)
    assert fit.refused[0][0] == "vector"


def test_an_outlier_moves_little() -> None:
    table = two_groups(1.3, 1.3)
    table.seconds[2] *= 20.0
    fit = fit_factors(table, np.arange(len(SHARES)))
    found = dict(zip(fit.names, np.exp(fit.theta), strict=True))
    assert found["matrix"] == pytest.approx(1.3, rel=0.12)
    assert found["vector"] == pytest.approx(1.3, rel=0.12)


def test_few_runs_are_trusted_little() -> None:
    """One network, half as long again as predicted, moves its factor less than ten of them do."""

    def found(networks: int) -> float:
        rows = [seen(i, 1.5, {"matrix": 1.0}) for i in range(networks)]
        fit = fit_factors(Table(rows), np.arange(networks))
        return float(np.exp(fit.theta[fit.names.index("matrix")]))

    assert 1.0 < found(1) < found(3) < found(10) < 1.5
    assert found(1) < 1.4
    assert found(10) == pytest.approx(1.5, rel=0.02)


def test_a_prediction_lies_inside_its_own_interval() -> None:
    """Runs left out that all took a fifth less, or a quarter more, still leave 1 inside."""
    for ratio in (0.8, 1.25):
        table = Table([seen(i, ratio * (1 + i / 1000), {"matrix": 1.0}) for i in range(12)])
        low, high = spread_of_runs(table, np.ones(12), np.zeros(12, dtype=bool))["device"]
        assert low <= 1.0 <= high
        assert low == pytest.approx(min(ratio, 1.0), abs=0.02)
        assert high == pytest.approx(max(ratio, 1.0), abs=0.05)


def test_a_family_is_left_out_whole() -> None:
    rows = [
        replace(seen(i, 1.0, {"matrix": 1.0}), family=family)
        for i, family in enumerate(("a", "b", "a", "c", "b", "a"))
    ]
    fold, count = folds_of(rows)
    assert count == 3
    for one, other in itertools.combinations(range(6), 2):
        assert (fold[one] == fold[other]) == (rows[one].family == rows[other].family)


def test_networks_left_out_do_not_judge_themselves() -> None:
    """The only network with attention is five times too slow: no other can tell."""
    rows = [seen(i, a + b, {"matrix": a, "vector": b}) for i, (a, b) in enumerate(SHARES)]
    rows.append(seen(9, 5.0, {"attention": 1.0}))
    guess, _, _ = left_out(Table(rows))
    assert guess[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("timm:resnet50", "torchvision:resnet101", True),
        ("timm:tf_efficientnet_b0", "timm:efficientnet_b4.ra2_in1k", True),
        ("timm:gluon_resnet50_v1d", "resnet18", True),
        ("hf:configs/llama-small.json", "hf:configs/llama-large.json", True),
        ("timm:resnet50", "timm:resnext50_32x4d", False),
        ("a.py:build", "a.py:other", False),
    ],
)
def test_families(one: str, other: str, same: bool) -> None:
    assert (family_of(one) == family_of(other)) is same


def test_rank_correlation_is_spearmans() -> None:
    stats = pytest.importorskip("scipy.stats")
    draw = np.random.default_rng(3)
    one, other = draw.integers(0, 9, 40).astype(float), draw.normal(size=40)
    assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic)


def table_of_runs(path: Path, truth: Profile, scatter: float = 0.0) -> Path:
    """Write runs as long as a profile says, some of them scattered."""
    file = path / "truth.json"
    file.write_text(profile_to_json(truth), encoding="utf-8")
    lines = ["model,batch,precision,layout,optimizer,step_ms,mode,error"]
    draw = np.random.default_rng(1)
    for name in NETWORKS:
        for batch in (512, 1024):
            found = predict(
                name, "h200", batch=batch, precision="bf16", optimizer="momentum", profile=file,
                layout="nhwc", estimator="calibrated",
            )  # fmt: skip
            ms = found.seconds * 1e3 * np.exp(scatter * draw.normal())
            lines.append(f"{name},{batch},bf16,nhwc,sgd,{ms:.4f},,")
    lines += ["resnet18,64,bf16,nhwc,sgd,9,compile,", "resnet50,64,bf16,nhwc,sgd,,,oom"]
    runs = path / "runs.csv"
    runs.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return runs


def test_real_networks_tell_the_factors(tmp_path: Path) -> None:
    truth = replace(PROFILE, factors={"convolution": 1.5, "vector": 0.8, "matrix": 1.25})
    told: list[tuple[int, int]] = []
    found = adjust_to_runs(
        PROFILE, table_of_runs(tmp_path, truth), progress=lambda n, of: told.append((n, of))
    )
    assert told[-1] == (22, 22)
    assert found.adjusted
    assert (found.rows, found.networks) == (20, 10)
    assert dict(found.skipped) == {
        "a compiled step runs other kernels": 1, "the run ended with oom": 1
    }  # fmt: skip
    factors = found.profile.factors
    both = factors["convolution"] * factors.get("convolution.nhwc", 1.0)
    assert both == pytest.approx(1.5, rel=0.1)
    for name in ("vector", "matrix"):
        value, error = found.factors[name]
        assert abs(np.log(value / truth.factors[name])) < 1.5 * error < 0.25
    assert {"attention", "host"} <= set(found.refused)
    assert found.after.mape < 0.5 * found.before.mape
    assert found.after.rank > 0.99
    assert "convolution.nchw" not in factors
    note = found.profile.provenance["adjusted"][-1]
    assert (note["table"], note["rows"], note["networks"]) == ("runs.csv", 20, 10)
    low, high = found.profile.errors["device"]
    assert low < 1.0 < high
    assert json.loads(json.dumps(found.to_dict()))["adjusted"] is True
    again = profile_from_json(profile_to_json(found.profile), "again.json")
    assert dict(again.factors) == dict(factors)


def test_steps_add_up_as_predict_has_them(tmp_path: Path) -> None:
    """Runs exactly as long as predicted: the parts that are fitted make up whole predictions."""
    found = adjust_to_runs(PROFILE, table_of_runs(tmp_path, PROFILE))
    assert found.before.mape < 1e-4
    assert not found.adjusted


def test_noise_adjusts_nothing(tmp_path: Path) -> None:
    """Runs that are as predicted but for their scatter: factors would only learn the scatter."""
    runs = table_of_runs(tmp_path, PROFILE, scatter=0.25)
    found = adjust_to_runs(PROFILE, runs)
    if not found.adjusted:
        assert found.profile.factors == PROFILE.factors
        assert found.verdict.startswith("nothing was adjusted")
    assert found.after.mape > 0.9 * found.before.mape
    low, high = found.profile.errors["device"]
    assert low == pytest.approx(np.exp(-1.645 * 0.25), abs=0.15)
    assert high == pytest.approx(np.exp(1.645 * 0.25), abs=0.35)


def test_factors_multiply_those_a_profile_has(tmp_path: Path) -> None:
    truth = replace(PROFILE, factors={"convolution": 1.5, "matrix": 1.5, "vector": 1.5})
    start = replace(PROFILE, factors={"convolution": 1.5, "matrix": 1.5, "vector": 1.0})
    found = adjust_to_runs(start, table_of_runs(tmp_path, truth))
    assert found.profile.factors["vector"] == pytest.approx(1.5, rel=0.1)
    assert found.profile.factors["matrix"] == pytest.approx(1.5, rel=0.1)


def test_too_few_networks_are_refused(tmp_path: Path) -> None:
    runs = tmp_path / "few.csv"
    runs.write_text(
        "model,batch,precision,step_ms\nresnet18,8,bf16,3\nresnet50,8,bf16,9\nnope,1,bf16,2\n",
        encoding="utf-8",
    )
    with pytest.raises(
        InvalidValueError, match=r"few.csv has runs of 2 networks.*takes 3"
    ) as error:
        adjust_to_runs(PROFILE, runs)
    assert "unknown model 'nope'" in str(error.value)


def test_a_profile_without_models_needs_the_complete_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traincast.measure.adjust.shipped", lambda name: None)
    with pytest.raises(InvalidValueError, match="rtx-3090 has no kernel models"):
        adjust_to_runs(
            replace(PROFILE, device="rtx-3090", models={}), table_of_runs(tmp_path, PROFILE)
        )


def test_percentiles_of_runs_hold_whatever_the_kernels(tmp_path: Path) -> None:
    start = replace(PROFILE, spread=0.03, errors={"device": (0.5, 2.0)})
    found = adjust_to_runs(start, table_of_runs(tmp_path, PROFILE)).profile
    assert found.errors["device"] != (0.5, 2.0)
    assert found.spread == 0.0
