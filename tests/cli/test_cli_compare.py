"""traincast compare."""

from __future__ import annotations

import pytest


def test_every_estimator_of_a_gpu(cli) -> None:
    data = cli("compare", "resnet18", "-d", "v100", "-b", 64, "-p", "fp32", "--json").data
    assert list(data["estimators"]) == ["calibrated", "roofline", "paleo", "castello"]
    for name, found in data["estimators"].items():
        single = cli(
            "predict", "resnet18", "-d", "v100", "-b", 64, "-p", "fp32", "--estimator", name,
            "--json",
        ).data  # fmt: skip
        assert found["step_ms"] == pytest.approx(single["step_ms"])
        assert found["problem"] is None
    assert data["batch"] == 64


def test_layers_are_sorted_by_how_far_estimates_lie_apart(cli) -> None:
    data = cli("compare", "vgg16", "-d", "p100", "-b", 32, "--top", "all", "--json").data
    spreads = [max(row["ms"].values()) - min(row["ms"].values()) for row in data["layers"]]
    assert spreads == sorted(spreads, reverse=True)
    assert len(cli("compare", "vgg16", "--top", 3, "--json").data["layers"]) == 3
    assert cli("compare", "vgg16", "--top", 0, "--json").data["layers"] == []


def test_paleo_counts_a_convolution_of_vgg_by_hand(cli) -> None:
    """conv1_2 of VGG-16 at batch 64: 64·224²·64·(9·64) multiply-adds forward.

    Twice that in FLOPs at K20's 3.52 TFLOP/s is 67.3 ms, three times over a step (forward and two
    gradients), and memory traffic comes on top.
    """
    data = cli("compare", "vgg16", "-d", "k20", "-b", 64, "-p", "fp32", "--top", "all", "--json")
    layer = next(r for r in data.data["layers"] if r["layer"] == "features.2")
    compute = 3 * 2 * 64 * 224**2 * 64 * 9 * 64 / 3.52e12 * 1e3
    assert compute < layer["ms"]["paleo"] < 1.2 * compute


def test_what_paleo_takes_for_granted_is_said(cli) -> None:
    found = cli("compare", "gpt2", "-d", "h100", "--top", 2)
    assert "paleo: computes in fp32 and updates by plain SGD" in found.out
    assert "attention" in found.out
    out = cli("compare", "resnet18", "-d", "k20", "-p", "fp32", "--optimizer", "sgd").out
    assert "whatever is asked for" not in out


def test_the_many_core_model_speaks_of_cpus(cli) -> None:
    data = cli("compare", "mnist-small", "-d", "xeon-phi-7120p", "--json").data
    assert "viebke-a" in data["estimators"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["resnet5"], ["'resnet5'", "resnet50"]),
        (["resnet18", "-d", "h2000"], ["'h2000'", "h200"]),
        (["resnet18", "-p", "fp31"], ["'fp31'", "fp32"]),
        (["resnet18", "--optimizer", "adan"], ["'adan'", "adam"]),
        (["resnet18", "-b", "0"], ["--batch"]),
        (["resnet18", "--seq", "8"], ["no sequence axis"]),
        (["resnet18", "--top", "few"], ["--top"]),
    ],
)
def test_bad_input_names_the_thing_and_the_fix(cli, argv: list[str], said: list[str]) -> None:
    cli("compare", *argv).refused(*said)
