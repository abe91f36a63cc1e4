"""The 34,560 iteration times of the authors' web demo that can be reproduced without cuDNN 4."""

import csv
import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from traincast.estimate.paleo import PaleoModel, sweep
from traincast.estimate.paleo.cudnn4 import CHOICES

DATA = Path(__file__).resolve().parents[3] / "../shared/data"
DEMO = DATA / "paleo_demo_times.csv.gz"
ROUNDING_MS = 0.00051
WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)

pytestmark = pytest.mark.skipif(
    not DEMO.exists(), reason="the authors' demo data lie beside the repository, not in it"
)


@pytest.fixture(scope="module")
def demo():
    """Rows by (net, use_cudnn), each group of one setting with its workers and schemes."""
    groups = defaultdict(lambda: defaultdict(dict))
    with gzip.open(DEMO, "rt", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            setting = (
                row["device"],
                row["network"],
                row["software"],
                int(row["batch"]),
                row["scaling"],
            )
            key = (row["comm_scheme"], int(row["workers"]))
            times = (float(row["iter_time_ms"]), float(row["speedup"]))
            groups[row["net"], row["use_cudnn"]][setting][key] = times
    return groups


SCHEMES = {"OneToAll": "one-to-all", "TreeAllReduce": "tree", "ButterflyAllReduce": "butterfly"}


def compared(groups, net, *, rules, algorithms):
    """Return predicted and published (milliseconds, speed-up), one row each."""
    pairs = []
    models = {
        name: PaleoModel.for_software(name, rules=rules, algorithms=algorithms)
        for name in ("caffe", "mxnet", "tensorflow")
    }
    for (device, network, software, batch, scaling), published in groups.items():
        rows = sweep(
            models[software],
            net,
            device,
            workers=WORKERS,
            batches=(batch,),
            network=network,
            schemes=tuple(SCHEMES),
            scalings=(scaling,),
        )
        found = {(row.scheme, row.devices): (row.step_ms, row.speedup) for row in rows}
        pairs += [
            (*found[SCHEMES[scheme], workers], *times)
            for (scheme, workers), times in published.items()
        ]
    return np.array(pairs)


@pytest.mark.parametrize("net", ["alex_v2", "nin", "inception_v3"])
def test_gemm_only_times_and_speedups(demo, net):
    found = compared(demo[net, "false"], net, rules="paper", algorithms="gemm")
    assert len(found) == 6912
    assert np.abs(found[:, 0] - found[:, 2]).max() < ROUNDING_MS
    assert np.abs(found[:, 1] - found[:, 3]).max() < 0.001


@pytest.mark.parametrize("net", ["alex_v2", "nin"])
def test_times_and_speedups_with_the_choices_of_cudnn_4(demo, net):
    found = compared(demo[net, "true"], net, rules="paper", algorithms="cudnn4")
    assert len(found) == 6912
    assert np.abs(found[:, 0] - found[:, 2]).max() < ROUNDING_MS
    assert np.abs(found[:, 1] - found[:, 3]).max() < 0.001


@pytest.mark.parametrize("net", ["alex_v2", "nin", "inception_v3"])
def test_the_other_rule_set_hits_none_of_them(demo, net):
    found = compared(demo[net, "false"], net, rules="head", algorithms="gemm")
    off = np.abs(found[:, 0] - found[:, 2])
    assert off.min() > 0.0015
    assert (off / found[:, 2]).max() < 0.0066


def test_the_built_in_choices_are_the_recovered_ones():
    with (DATA / "paleo_cudnn4_choices.csv").open(encoding="utf-8", newline="") as file:
        listed = list(csv.DictReader(file))
    assert len(listed) == 88
    gemm = ("GEMM",) * 3
    for row in listed:
        built_in = CHOICES[row["net"]][int(row["per_worker_batch"])].get(row["layer"], gemm)
        expected = (row["forward"], row["backward_data"], row["backward_filter"])
        assert built_in == expected, row
    named = {(r["net"], int(r["per_worker_batch"]), r["layer"]) for r in listed}
    assert {(n, b, k) for n, by in CHOICES.items() for b, ks in by.items() for k in ks} <= named
