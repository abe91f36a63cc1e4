"""The published models as estimators of `predict`, held to their authors' figures."""

from __future__ import annotations

from dataclasses import replace

import pytest

from traincast.errors import InvalidValueError, PredictionError
from traincast.estimate.registry import ESTIMATORS
from traincast.hardware import load_device
from traincast.ingest import zoo_graph
from traincast.simulate.compare import compare
from traincast.simulate.predict import predict
from traincast.simulate.study import Request, study


def test_paleos_alexnet_on_a_titan_x() -> None:
    """One-tower AlexNet, batch 128, GEMM only, rules of the paper (Qi, Sparks & Talwalkar, ICLR
    2017; evaluated from the equations): 33.070696, 88.392536 and 1.687073 ms."""
    found = predict("alex_v2", "titan-x", batch=128, precision="fp32", estimator="paleo")
    phases = found.step.phase_s
    assert phases["forward"] * 1e3 == pytest.approx(33.070696, abs=1e-6)
    assert phases["backward"] * 1e3 == pytest.approx(88.392536, abs=1e-6)
    assert phases["optimizer"] * 1e3 == pytest.approx(1.687073, abs=1e-6)
    assert found.seconds * 1e3 == pytest.approx(123.150305, abs=2e-6)


@pytest.mark.parametrize(
    ("network", "images", "training", "memory"),
    [
        # Model A at 240 threads, seconds of a run: 70, 70 and 15 epochs of 60,000 images.
        ("mnist-small", 70 * 60_000, 246.8094, 245.0),
        ("mnist-medium", 70 * 60_000, 2831.9467, 670.25),
        ("mnist-large", 15 * 60_000, 7135.9350, 517.5),
    ],
)
def test_viebkes_model_a_on_the_xeon_phi(
    network: str, images: int, training: float, memory: float
) -> None:
    found = predict(network, "xeon-phi-7120p", batch=240, estimator="viebke-a")
    step = (training + memory) / images * 240
    assert found.seconds == pytest.approx(step, rel=1e-6)


def test_castellos_node_is_the_datasheets_roofline() -> None:
    """A product of VGG-16's size is bound by arithmetic: 2·m·n·k over the peak, no more."""
    found = predict("vgg16", "v100", batch=64, precision="fp32", estimator="castello")
    peak = load_device("v100").peak("fp32")
    assert found.seconds >= sum(found.step.flops) / peak
    rows = {row.name: row for row in found.by("op")}
    conv = rows["features.7"]  # 3×3, 128 to 128 channels at 112×112
    flops = 2 * 64 * 112 * 112 * 128 * 128 * 9
    assert conv.forward_s == pytest.approx(flops / peak, rel=0.2)


def test_the_many_core_models_are_for_cpus() -> None:
    with pytest.raises(InvalidValueError, match="h200 is no CPU"):
        predict("mnist-small", "h200", estimator="viebke-a")
    with pytest.raises(PredictionError, match="model b needs measured times of resnet18"):
        predict("resnet18", "epyc-7742", estimator="viebke-b")


@pytest.mark.parametrize(("device", "count"), [("titan-x", 4), ("xeon-phi-7120p", 5)])
def test_compare_asks_everyone_who_has_a_say(device: str, count: int) -> None:
    found = compare(zoo_graph("mnist-large"), load_device(device), batch=64)
    assert len(found.opinions) == count
    assert {o.estimator for o in found.opinions} <= {*ESTIMATORS, "calibrated", "transfer"}
    for opinion in found.opinions:
        assert opinion.problem is None
        parts = opinion.forward_s + opinion.backward_s + opinion.optimizer_s
        assert parts == pytest.approx(opinion.step_s)
    first = found.disagreements[0]
    assert first.spread == max(d.spread for d in found.disagreements)


def test_a_model_of_whole_layers_is_not_asked_to_split_them() -> None:
    request = Request(
        device="xeon-phi-7120p", estimator="viebke-a", strategies=("data", "model"), devices=(1, 2)
    )
    with pytest.raises(InvalidValueError, match=r"viebke-a prices whole layers.*strategy model"):
        study(zoo_graph("mnist-large"), request)
    rows = study(zoo_graph("mnist-large"), replace(request, strategies=("data",)))
    assert rows[0].compute_s == rows[1].compute_s
