"""What can be asked, what is refused and why, and the largest batch that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast import load_device, predict
from traincast.errors import InvalidValueError, PredictionError, UnknownNameError
from traincast.hardware import all_devices
from traincast.ingest import zoo_graph

DEVICES = [d.name for d in all_devices()]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(
        ["resnet18", "gpt2", "lstm-ptb", "mobilenet_v2", "t5-small", "bert-base", "vit_b_16"]
    ),
    st.sampled_from(DEVICES),
    st.sampled_from(["sgd", "adamw"]),
    st.booleans(),
    st.booleans(),
)
def test_the_largest_batch_fits_and_the_next_does_not(
    model: str, device: str, optimizer: str, recompute: bool, inference: bool
) -> None:
    made = zoo_graph(model)
    options: dict[str, Any] = {
        "optimizer": optimizer,
        "recompute": recompute,
        "inference": inference,
    }
    try:
        found = predict(made, device, batch="max", **options)
    except PredictionError:
        assert not predict(made, device, batch=1, **options).fits
        return
    batch = found.step.plan.batch
    assert found.fits
    assert not predict(made, device, batch=batch + 1, **options).fits
    assert predict(made, device, batch=batch, **options).memory == found.memory


def test_the_largest_batch_of_a_small_network_on_a_large_memory() -> None:
    """LeNet-5 needs some 60 kB a sample: 4 TB of a server hold over 2²⁵ of them."""
    batch = predict("lenet5", "epyc-7742", batch="max").step.plan.batch
    assert batch > 1 << 25
    assert not predict("lenet5", "epyc-7742", batch=batch + 1).fits


def test_a_model_that_fits_at_no_batch_says_so() -> None:
    with pytest.raises(PredictionError) as caught:
        predict("llama-3.1-70b", "t4", batch="max")
    message = str(caught.value)
    assert message.startswith("llama-3.1-70b does not fit on t4 even at batch 1: it needs ")
    assert message.endswith(
        "use a lower precision, recomputation, a leaner optimizer or more devices"
    )
    assert caught.value.exit_status == 1


def test_what_does_not_fit_is_predicted_and_said() -> None:
    found = predict("gpt2", "t4", batch=4096)
    assert not found.fits
    assert found.to_dict()["fits"] is False
    assert found.suggestions[0].change.startswith("it does not fit: lower the batch to ")


def test_mixed_precision_is_the_default_where_there_are_units_for_it() -> None:
    assert predict("mnist-small", "h200").precision == "amp_bf16"
    assert predict("mnist-small", "v100").precision == "amp_fp16"
    assert predict("mnist-small", "p100").precision == "fp32"


def test_defaults_come_from_the_graph() -> None:
    found = predict("gpt2", "h200")
    made = zoo_graph("gpt2")
    assert (found.step.plan.batch, found.step.plan.seq) == (made.batch, made.seq)


def test_throughput_in_samples_and_tokens() -> None:
    found = predict("gpt2", "h200", batch=3, seq=100, accumulate=4)
    assert found.samples == 12
    assert found.tokens_per_s == pytest.approx(12 * 100 / found.seconds)
    assert predict("resnet18", "h200").tokens_per_s is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": 0}, "batch 0 is not a whole number of at least 1"),
        ({"batch": -4}, "batch -4 is not a whole number of at least 1"),
        ({"batch": 2.5}, "batch 2.5 is not a whole number of at least 1"),
        ({"batch": True}, "batch True is not a whole number of at least 1"),
        ({"batch": "many"}, "batch 'many' is neither a whole number of at least 1 nor max"),
        ({"batch": "--5"}, "batch '--5' is neither a whole number of at least 1 nor max"),
        ({"batch": "²"}, "batch '²' is neither a whole number of at least 1 nor max"),
        ({"accumulate": 0}, "accumulate 0 is not a whole number of at least 1"),
        ({"layout": "hwcn"}, "layout 'hwcn' is unknown; use nchw or nhwc"),
        ({"seq": 5}, "resnet18 has no sequence axis; leave out seq"),
        ({"epochs": 3}, "epochs needs dataset_size, the number of samples in an epoch"),
        ({"price_per_hour": 3}, "price_per_hour needs dataset_size and epochs, or tokens"),
        ({"tokens": 1e9}, "resnet18 has no tokens; give dataset_size and epochs instead"),
        ({"dataset_size": 0}, "dataset_size 0 must be above 0"),
        ({"epochs": float("nan"), "dataset_size": 5}, "epochs nan must be above 0"),
        (
            {"tokens": 1, "dataset_size": 1},
            "give either tokens, or dataset_size and epochs, not both",
        ),
    ],
)
def test_what_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        predict("resnet18", "h200", **options)
    assert str(caught.value) == said
    assert caught.value.exit_status == 2


def test_a_batch_may_be_text() -> None:
    assert predict("resnet18", "h200", batch=" 8 ").step.plan.batch == 8


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"precision": "fp31"}, "precision"),
        ({"optimizer": "adamx"}, "optimizer"),
        ({"estimator": "oracle"}, "estimator"),
        ({"device": "h2000"}, "device"),
    ],
)
def test_unknown_names_are_named(options: dict[str, Any], kind: str) -> None:
    with pytest.raises(UnknownNameError, match=f"unknown {kind} ") as caught:
        predict("resnet18", **{"device": "h200", **options})
    assert caught.value.kind == kind


def test_an_unknown_model_comes_with_its_neighbours() -> None:
    with pytest.raises(UnknownNameError, match="unknown model 'resnet81'; did you mean resnet"):
        predict("resnet81")


def test_a_graph_that_holds_for_one_size_only() -> None:
    made = replace(zoo_graph("gpt2"), fixed=("batch", "seq"), batch=2, seq=64)
    assert predict(made, "h200").step.plan.batch == 2
    assert predict(made, "h200", batch="max").step.plan.batch == 2
    with pytest.raises(InvalidValueError, match="gpt2 holds for batch 2 only; export it with a"):
        predict(made, "h200", batch=3)
    with pytest.raises(InvalidValueError, match="gpt2 holds for seq 64 only"):
        predict(made, "h200", seq=65)


def test_what_was_assumed_about_the_loss_matters_in_training_only() -> None:
    made = replace(zoo_graph("resnet18"), notes=("loss assumed", "made by hand"))
    assert predict(made, "h200").notes == ("loss assumed", "made by hand")
    assert predict(made, "h200", inference=True).notes == ("made by hand",)


def test_totals_of_a_run() -> None:
    """1,000 samples in batches of 32 are 32 steps an epoch, the last one partly filled."""
    found = predict("resnet18", "h200", batch=32, dataset_size=1000, epochs=3, price_per_hour=7.2)
    assert found.totals is not None
    assert found.totals.steps == 32 * 3
    assert found.totals.seconds == pytest.approx(96 * found.seconds)
    assert found.totals.cost == pytest.approx(96 * found.seconds * 7.2 / 3600)
    tokens = predict("gpt2", "h200", batch=4, seq=256, accumulate=2, tokens=1e6).totals
    assert tokens is not None
    assert tokens.steps == pytest.approx(1e6 / (4 * 256 * 2))
    assert tokens.cost is None
    assert predict("gpt2", "h200", batch=4).totals is None


def test_a_compiled_model_moves_less_but_is_launched_and_updated_by_the_host() -> None:
    eager = predict("resnet18", "h200", batch=64)
    compiled = predict("resnet18", "h200", batch=64, compiled=True)
    for phase in ("forward", "backward"):
        assert compiled.step.device_s[phase] < eager.step.device_s[phase]
        assert compiled.step.host_s[phase] > 0
    assert compiled.step.host_s["optimizer"] == eager.step.host_s["optimizer"]
    assert compiled.step.device_s["optimizer"] == eager.step.device_s["optimizer"]
    assert predict("resnet18", "h200", batch=1, compiled=True).bound_by == "launch"


def test_a_processor_has_no_host_to_wait_for() -> None:
    found = predict("resnet18", "xeon-8380", batch=1)
    assert sum(found.step.host_s.values()) == 0


def test_suggestions_carry_the_gain_that_they_bring() -> None:
    found = predict("resnet50", "h200", batch=64, precision="fp32")
    assert 0 < len(found.suggestions) <= 3
    by_change = {s.change: s.gain for s in found.suggestions}
    assert "train in amp_bf16" in by_change
    after = predict("resnet50", "h200", batch=64, precision="amp_bf16")
    gain = after.samples_per_s / found.samples_per_s - 1
    assert by_change["train in amp_bf16"] == pytest.approx(gain)
    assert all(s.gain > 0.03 for s in found.suggestions)


def test_a_device_may_be_given_as_an_object() -> None:
    twice = load_device("h200")
    twice = replace(twice, memory_bandwidth=2 * twice.memory_bandwidth)
    before, after = (predict("resnet18", d, batch=256, compiled=True) for d in ("h200", twice))
    assert after.seconds < before.seconds
