"""Kernel models: fits to made-up kernels whose parameters are known, and the profile's form."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InputFileError
from traincast.estimate.calibrated.estimator import Calibrated, cold_seconds
from traincast.estimate.calibrated.library import COMPLETE, shipped, shipped_names
from traincast.estimate.calibrated.models import KernelModel, fit_base, fit_residual
from traincast.estimate.calibrated.profile import (
    LARGEST,
    Profile,
    profile_from_json,
    profile_to_json,
    read_profile,
)
from traincast.estimate.calibrated.species import fallbacks, keys_of, species_of
from traincast.estimate.program import FAMILIES, kernels_of, program_of
from traincast.graph.precision import PRECISIONS, precision_named
from traincast.hardware import load_device
from traincast.ingest import zoo_graph
from traincast.measure.calibration import fit_models, samples_of

PEAK, BANDWIDTH = 1e15, 4e12


def test_the_fit_finds_the_parameters_that_made_the_times() -> None:
    random = np.random.default_rng(1)
    flops, traffic = 10 ** random.uniform(6, 14, 200), 10 ** random.uniform(3, 10, 200)
    seconds = 3e-6 + np.hypot(flops / (PEAK * 0.62), traffic / (BANDWIDTH * 0.85))
    found = fit_base(flops, traffic, seconds, PEAK, BANDWIDTH)
    assert found == pytest.approx((0.62, 0.85, 3e-6), rel=1e-3)


def test_a_kernel_without_products_has_no_compute_rate() -> None:
    traffic = np.geomspace(1e4, 1e10, 50)
    seconds = 2e-6 + traffic / (BANDWIDTH * 0.9)
    e_c, e_b, floor = fit_base(np.zeros(50), traffic, seconds, PEAK, BANDWIDTH)
    assert e_c == 0
    assert (e_b, floor) == pytest.approx((0.9, 2e-6), rel=1e-3)


def test_outliers_hardly_move_the_fit() -> None:
    traffic = np.geomspace(1e4, 1e10, 50)
    seconds = 2e-6 + traffic / (BANDWIDTH * 0.9)
    seconds[::10] *= 20
    _, e_b, _ = fit_base(np.zeros(50), traffic, seconds, PEAK, BANDWIDTH)
    assert e_b == pytest.approx(0.9, rel=0.1)


def test_the_correction_follows_what_was_measured_and_vanishes_far_away() -> None:
    x = np.linspace(0, 10, 60)[:, None].round(1)
    wave = 0.5 * np.sin(x[:, 0])
    residual, error = fit_residual(x, wave, np.array([1.0]), 60)
    assert error < 0.02
    between = x[:-1] + 0.5 * np.diff(x, axis=0)
    assert residual.at(between)[0] == pytest.approx(0.5 * np.sin(between[:, 0]), abs=0.03)
    far, known, same = residual.at(np.array([[1e3]]))
    assert far == pytest.approx(residual.mean)
    assert (known, same) == (pytest.approx(0), 0)


def test_a_whim_holds_for_the_shape_that_showed_it_and_not_for_others() -> None:
    """Every shape is off by its own whim: the shape itself is met, between shapes the wave is."""
    x = np.arange(0, 60, 0.5)[:, None]
    wave = np.sin(x[:, 0] / 6)
    whims = np.random.default_rng(4).normal(0, 0.3, len(x))
    residual, error = fit_residual(x, wave + whims, np.array([4.0]), len(x))
    assert error == pytest.approx(0.3, rel=0.3)
    value, _, same = residual.at(x)
    assert np.abs(value - wave - whims).mean() < 0.4 * np.abs(whims).mean()
    # What is not kept was met without.
    assert np.abs(value - wave - whims)[same < 0.99].max(initial=0.0) < 0.05
    assert (same > 0.99).mean() > 0.5
    between = x + 0.25
    off = np.abs(residual.at(between)[0] - np.sin(between[:, 0] / 6))
    assert off.mean() < 0.85 * np.abs(whims).mean()


def test_few_of_many_shapes_tell_what_all_would() -> None:
    random = np.random.default_rng(2)
    x = np.rint(random.uniform(0, 8, (600, 2)) * 128) / 128
    truth = 0.4 * np.sin(x[:, 0]) + 0.3 * np.cos(x[:, 1])
    residual, error = fit_residual(x, truth, np.array([1.0, 1.0]), 120)
    assert len(residual.weights) <= 120
    assert np.abs(residual.at(x)[0] - truth).mean() < 0.02
    coarse, _ = fit_residual(x, truth, np.array([1.0, 1.0]), 120, met=0.1)
    assert len(coarse.weights) < len(residual.weights)
    assert np.abs(coarse.at(x)[0] - truth).max() < 0.1
    assert error < 0.05


def test_a_fitted_process_says_the_same_from_its_file() -> None:
    """Close shapes of different times have large weights of either sign: digits matter."""
    random = np.random.default_rng(3)
    x = np.rint(np.column_stack([random.uniform(4, 20, 90), random.choice([5.6, 7.0], 90)]) * 128)
    x /= 128
    rest = np.where(x[:, 1] < 6, 1.0, -1.0) + 0.1 * np.sin(x[:, 0])
    residual, error = fit_residual(x, rest, np.array([2.0, 2.0]), 90)
    model = KernelModel(
        compute=0, bandwidth=1, floor_s=1e-6, error=error, spread=1, rows=90, residual=residual
    )
    profile = Profile(device="h200", models={"add|fp32|": model}, host=None)
    again = profile_from_json(profile_to_json(profile), "again.json").models["add|fp32|"].residual
    assert again is not None
    assert again.at(x)[0] == pytest.approx(residual.at(x)[0], abs=0.01)
    assert again.at(x)[0] == pytest.approx(rest, abs=0.1)


def test_vector_kernels_take_longer_in_networks_if_they_were_timed_from_the_cache() -> None:
    h200 = load_device("h200")
    traffic = np.array([1e4, 1e7, 1e9])
    longer = cold_seconds(traffic, h200)
    assert longer[0] < 1e-8
    assert longer[1] == pytest.approx(0.15 * 1e7 / 4.8e12 + 0.3e-6 * 10 / 11, rel=0.01)
    assert longer[2] < 1e-3 * 1e9 / 4.8e12
    assert not cold_seconds(traffic, load_device("epyc-genoa-2-cores")).any()


@pytest.mark.parametrize(
    ("phase", "dims", "said"),
    [
        (0, (2048, 50257, 768, 1), "gemm.forward.odd"),
        (0, (2047, 50256, 768, 1), "gemm.forward"),  # rows may be any
        (1, (2048, 768, 50257, 1), "gemm.data.odd"),
        (2, (50257, 768, 2048, 1), "gemm.weight.odd"),
        (2, (768, 768, 2047, 1), "gemm.weight"),
        (0, (197, 197, 64, 12), "gemm.batched.odd"),
    ],
)
def test_products_whose_rows_are_not_aligned_are_of_their_own_kind(
    phase: int, dims: tuple[int, ...], said: str
) -> None:
    assert species_of("mm", "gemm", phase, dims, 2, 0, ()) == said


def test_convolutions_are_told_apart_by_window_only_where_each_was_measured() -> None:
    rows = [
        {"family": "conv", "n": 8, "cin": 16 * (1 + i % 7), "cout": 16 * (1 + i // 7), "size": 14,
         "kernel": kernel, "stride": 1, "groups": 1, "layout": "nchw", "form": "forward",
         "dtype": "fp32", "seconds": 1e-4 * (1 + i)}
        for kernel, many in ((1, 65), (3, 65), (5, 61)) for i in range(many)
    ]  # fmt: skip
    device = load_device("h200")
    enough = fit_models(list(samples_of(rows)), device)
    assert {key.split(".")[0] for key in enough} == {"conv1", "conv3", "conv"}
    few = fit_models(list(samples_of(rows[:-10])), device)
    assert {key.split(".")[0] for key in few} == {"conv"}
    assert next(iter(few.values())).rows == len(rows) - 10


@given(st.floats(1.01, 8), st.sampled_from(("resnet18", "gpt2", "vgg16")))
def test_more_bandwidth_is_never_slower(times: float, name: str) -> None:
    profile = shipped(COMPLETE)
    assert profile is not None
    device = load_device("h200")
    faster = replace(device, memory_bandwidth=times * device.memory_bandwidth)
    precision = PRECISIONS["amp_bf16"]
    graph = zoo_graph(name)
    kernels = kernels_of(program_of(graph, precision, "nchw"), 4, graph.seq)
    engine = Calibrated(profile)
    before = engine.price(kernels, device, precision).seconds
    after = engine.price(kernels, faster, precision).seconds
    assert (after <= before * (1 + 1e-12)).all()


def test_every_kernel_of_the_zoo_has_a_model() -> None:
    """A fallback ends in the kernel's own family, not in any model that happens to be there."""
    profile = shipped(COMPLETE)
    assert profile is not None
    for name in ("resnet50", "mobilenet-v2", "gpt2", "bert-base", "vit-b-16"):
        graph = zoo_graph(name)
        for how in ("amp_bf16", "fp32", "tf32", "fp16"):
            precision = precision_named(how)
            kernels = kernels_of(program_of(graph, precision, "nhwc"), 2, graph.seq)
            for i, key in enumerate(keys_of(kernels, precision, "nhwc")):
                family = FAMILIES[kernels.family[i]]
                assert any(k in profile.models for k in fallbacks(key, family)), key


def test_a_profile_survives_its_own_form() -> None:
    profile = shipped(COMPLETE)
    assert profile is not None
    again = profile_from_json(profile_to_json(profile), "again.json")
    assert again.models.keys() == profile.models.keys()
    assert again.errors == profile.errors
    device, precision = load_device("h200"), PRECISIONS["tf32"]
    kernels = kernels_of(program_of(zoo_graph("resnet18"), precision, "nchw"), 8, 0)
    first = Calibrated(profile).price(kernels, device, precision).seconds
    second = Calibrated(again).price(kernels, device, precision).seconds
    assert second == pytest.approx(first, rel=1e-3)


@pytest.mark.parametrize("name", shipped_names())
def test_shipped_profiles_are_small_and_say_where_they_come_from(name: str) -> None:
    profile = shipped(name)
    assert profile is not None
    assert profile.device == name == load_device(name).name
    assert profile.provenance
    assert len(profile_to_json(profile)) < LARGEST


def test_a_profile_of_another_schema_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps({"schema": 99, "device": "h200", "models": {}}))
    with pytest.raises(InputFileError, match=r"schema 99.*reads schema 3"):
        read_profile(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a profile"),
        ('{"schema": 3, "device": "h200", "models": {"a|b|": [0, "x", 0, 0, 0, 1]}}', "damaged"),
        ('{"schema": 3, "device": "h200", "models": {"a|b|": {"compute": 0}}}', "damaged"),
        (
            '{"schema": 3, "device": "h200", "models": {"a|b|": [0, 1, 0, 0, 0, 1, 0, 1, 1, 1, 1]},'
            ' "shapes": {"points": "!", "weights": ""}}',
            "damaged",
        ),
    ],
)
def test_a_broken_profile_is_named(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    with pytest.raises(InputFileError, match=said):
        read_profile(file)


def test_factors_multiply_their_group_alone() -> None:
    model = KernelModel(compute=0, bandwidth=1, floor_s=0, error=0, spread=0, rows=1)
    models = {"pointwise|fp32|": model, "norm|fp32|": model}
    plain = Profile(device="h200", models=models, host=None)
    slow = replace(plain, factors={"norm": 2.0})
    precision, device = PRECISIONS["fp32"], load_device("h200")
    kernels = kernels_of(program_of(zoo_graph("resnet18"), precision, "nchw"), 2, 0)
    keys = keys_of(kernels, precision, "nchw")
    before = Calibrated(plain).price(kernels, device, precision).seconds
    after = Calibrated(slow).price(kernels, device, precision).seconds
    norm = np.array(["batch_norm" in key for key in keys])
    assert norm.any()
    assert after[norm] == pytest.approx(2 * before[norm])
    assert after[~norm] == pytest.approx(before[~norm])
