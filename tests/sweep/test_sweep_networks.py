"""The networks: their sizes by hand, by PyTorch, and as three frameworks counted them."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_helpers import parameters_by_hand

from traincast.measure.sweep.runner import WORKERS
from traincast.measure.sweep.settings import CHOICES, Settings, in_whole_batches, problem

DATA = Path(__file__).parents[2] / "benchmarks" / "data" / "frameworks"
ANY = st.builds(
    Settings,
    kernel=st.integers(1, 9),
    filters=st.integers(1, 5),
    layers=st.integers(1, 5),
    dropout=st.sampled_from([0.0, 0.3]),
    stride=st.integers(1, 4),
    **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
)


@pytest.fixture(scope="module")
def on_pytorch():
    torch = pytest.importorskip("torch", reason="builds networks with PyTorch")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(WORKERS))
        yield importlib.import_module("on_pytorch"), torch


@settings(max_examples=60)
@given(ANY)
def test_pytorch_trains_what_is_said_to_be_trainable_and_nothing_else(on_pytorch, wanted):
    module, torch = on_pytorch
    side = 28 if wanted.dataset == "mnist" else 32
    images = torch.zeros(2, 1 if wanted.dataset == "mnist" else 3, side, side)
    why = problem(wanted, most_threads=2)
    if why is None:
        model = module.network(asdict(wanted))
        assert model(images).shape == (2, 10)
        assert sum(p.numel() for p in model.parameters()) == parameters_by_hand(asdict(wanted))
    elif "even kernel" not in why:
        # It refuses maps below zero, and warns of weights for a map of zero.
        with pytest.raises((RuntimeError, UserWarning)):
            module.network(asdict(wanted))[:-2](images)


def test_a_known_network():
    """LeNet-like: 5·5·1·6 + 6 = 156; 5·5·6·6 + 6 = 906; 28 → 14 → 7, 6·49·10 + 10 = 2,950."""
    s = Settings(dataset="mnist", kernel=5, filters=6, layers=2, pool="max", padding="same")
    assert parameters_by_hand(asdict(s)) == 156 + 906 + 2950


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"kernel": 7, "padding": "valid", "layers": 3}, "layer 3: the kernel is larger"),
        ({"layers": 5}, "layer 5: the map is too small to be pooled"),
        ({"samples": 63}, "fewer samples than one batch"),
        ({"batch": 65, "workers": 2}, "does not divide by 2 workers"),
        ({"threads": 2, "workers": 2}, "more than most_threads"),
        ({"kernel": 4}, "even kernel"),
    ],
)
def test_why_a_combination_cannot_be_trained(change, why):
    base = Settings()
    assert problem(base, most_threads=2) is None
    assert why in (problem(replace(base, **change), most_threads=2) or "")


@given(st.integers(1, 300), st.integers(300, 5000))
def test_samples_become_the_nearest_whole_number_of_batches(batch, samples):
    found = in_whole_batches(Settings(batch=batch, samples=samples)).samples
    assert found % batch == 0
    assert found >= batch
    assert abs(found - samples) <= batch / 2


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "mxnet"])
def test_each_framework_trained_the_network_that_was_asked_for(framework):
    path = DATA / f"{framework}.jsonl"
    if not path.exists():
        pytest.skip(f"{path.name} is not there: the measured runs lie in the repository alone")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    good = [r for r in records if r["status"] == "ok"]
    assert len(good) >= 200
    for record in good:
        assert record["parameters"] == parameters_by_hand(record["settings"])
        assert record["steps"] * record["settings"]["batch"] == record["settings"]["samples"]
