"""The shipped profiles that rest on published timings: their form, and what they say of them."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from traincast.estimate.calibrated.estimator import Calibrated
from traincast.estimate.calibrated.library import shipped, shipped_names
from traincast.estimate.calibrated.profile import SCHEMA, Profile
from traincast.estimate.calibrated.species import scales_of
from traincast.estimate.program import FAMILIES, kernel_table
from traincast.graph.precision import precision_named
from traincast.hardware import load_device
from traincast.measure.calibration import samples_of

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ROOT / "src/traincast/hardware/profiles"
MAKER = "benchmarks/published_profiles.py"
PUBLISHED = ROOT.parent / "shared/data/published"


def _profile(name: str) -> Profile:
    found = shipped(name)
    assert found is not None
    return found


def _made_here(name: str) -> bool:
    body = json.loads((PROFILES / f"{name}.json").read_text(encoding="utf-8"))
    return bool(body["provenance"].get("made_by") == MAKER)


NAMES = [n for n in shipped_names() if _made_here(n)]


def test_devices_that_others_have_timed_have_a_profile() -> None:
    wanted = {
        "a100-80gb",
        "h100",
        "v100",
        "p100",
        "t4",
        "l4",
        "l40s",
        "b200",
        "mi100",
        "mi210",
        "p4",
    }
    assert wanted <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
class TestForm:
    def test_is_small_and_of_the_device_it_names(self, name: str) -> None:
        text = (PROFILES / f"{name}.json").read_text(encoding="utf-8")
        assert f'"schema": {SCHEMA},' in text
        assert len(text) < 150_000
        assert _profile(name).device == name == load_device(name).name

    def test_says_what_it_rests_on(self, name: str) -> None:
        provenance = _profile(name).provenance
        assert provenance["sources"]
        for source in provenance["sources"]:
            repository, _, rest = source["source"].partition(", ")
            assert repository.count("/") == 1
            assert rest.startswith(("MIT", "Apache-2.0"))
            assert source["rows"] > 0
            assert load_device(source["measured_on"]).name == source["measured_on"]
        assert set(provenance["left_out_errors"]) <= set(_profile(name).models)

    def test_parameters_are_physical(self, name: str) -> None:
        for key, model in _profile(name).models.items():
            matrix = key.startswith(("gemm", "conv", "attention"))
            # Winograd needs 4/9 of the FLOPs that are counted, so convolutions may pass the peak.
            assert (0.05 < model.compute <= 1.5) == matrix, key
            assert 0.02 < model.bandwidth <= 20.0, key
            assert 0.0 < model.floor_s < 1e-4, key
            assert 0.0 < model.error < 1.0, key
            assert model.rows >= 6, key

    def test_corrections_have_the_features_that_kernels_have(self, name: str) -> None:
        families = {"gemm": "gemm", "conv": "conv", "conv1": "conv", "conv3": "conv",
                    "attention": "attention",
                    "native_layer_norm": "norm", "_softmax": "softmax"}  # fmt: skip
        for key, model in _profile(name).models.items():
            species = key.split("|")[0]
            head = species if species in FAMILIES else species.partition(".")[0]
            family = families.get(
                head.removesuffix("_backward_data").removesuffix("_backward"), head
            )
            assert model.residual is not None, key
            assert np.isfinite(model.residual.weights).all(), key
            assert len(model.residual.scales) == len(scales_of(key, family)), key


@pytest.fixture(scope="module")
def rows() -> object:
    if not PUBLISHED.is_dir():
        pytest.skip("the tables of published timings are not here")
    spec = importlib.util.spec_from_file_location(
        "published_rows", ROOT / "benchmarks/published_rows.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["published_rows"] = module
    spec.loader.exec_module(module)
    found: dict[tuple[str, str], list[dict[str, object]]] = {}
    for p in module.published(PUBLISHED):
        found.setdefault((p.device, p.source), []).append(p.row)
    return found


@pytest.mark.parametrize(
    ("source", "device", "family", "dtype", "precision", "median"),
    [
        ("aiconfigurator", "a100-80gb", "gemm", "bf16", "bf16", 0.12),
        ("aiconfigurator", "h100", "gemm", "bf16", "bf16", 0.12),
        ("aiconfigurator", "b200", "gemm", "bf16", "bf16", 0.12),
        ("aiconfigurator", "l40s", "gemm", "bf16", "bf16", 0.15),
        ("ett", "a100-80gb", "stream", "bf16", "bf16", 0.05),
        ("ett", "a100-80gb", "attention", "bf16", "bf16", 0.20),
        ("neusight", "v100-pcie", "gemm", "fp32", "fp32", 0.12),
        ("neusight", "p4", "gemm", "fp32", "fp32", 0.15),
        ("neusight", "mi210", "gemm", "fp32", "fp32", 0.20),
        ("neusight", "h100", "gemm", "fp32", "fp32", 0.10),
        ("neusight", "t4", "stream", "fp32", "fp32", 0.03),
        ("neusight", "p100-pcie", "stream", "fp32", "fp32", 0.03),
        ("neusight", "v100-pcie", "conv", "fp32", "fp32", 0.25),
        ("deepbench", "titan-xp", "conv", "fp32", "fp32", 0.20),
    ],
)
def test_predicts_published_timings(
    rows: dict[tuple[str, str], list[dict[str, object]]],
    source: str, device: str, family: str, dtype: str, precision: str, median: float,
) -> None:  # fmt: skip
    """Half of the published kernels are priced within `median`, in logarithms.

    NeuSight's times hold the host's dispatch, so of its rows those over 1 ms are taken.
    """
    least = 1e-3 if source == "neusight" else 0.0
    some = [
        r for r in rows[device, source]
        if r["family"] == family and r["dtype"] == dtype and float(str(r["seconds"])) > least
        and r.get("form") != "both"
    ]  # fmt: skip
    samples = list(samples_of(some[:: max(len(some) // 500, 1)]))
    table = kernel_table([(0, s.phase, s.kernel) for s in samples])
    priced = Calibrated(_profile(device)).price(
        table, load_device(device), precision_named(precision)
    )
    off = [abs(math.log(p / s.seconds)) for p, s in zip(priced.seconds, samples, strict=True)]
    assert len(off) >= 50
    assert np.median(off) < median
