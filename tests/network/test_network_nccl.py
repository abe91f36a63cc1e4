"""NCCL's curves: what they keep to, what they rest on, and published rows not fitted."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.hardware import load_cluster, load_link
from traincast.network import (
    OPERATIONS,
    bytes_sent,
    collective_seconds,
    nccl,
    nccl_basis,
    nccl_seconds,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "published"
SHAPES = [
    "8xh100",
    "4x8xh100",
    "8x8xb200",
    "16xp100",
    "8xl40s",
    "4xrtx-3090",
    "8xmi300x",
    "2x8xa100-40gb",
]


@given(
    st.sampled_from(OPERATIONS),
    st.sampled_from(SHAPES),
    st.floats(1, 1e12),
    st.floats(1, 1e12),
    st.data(),
)
@settings(max_examples=200)
def test_more_bytes_are_never_faster_and_no_link_is_beaten(op, shape, size, more, data) -> None:
    cluster = load_cluster(shape)
    ranks = data.draw(st.integers(2, cluster.devices))
    small, large = sorted((size, more))
    times = nccl_seconds(op, [small, large], ranks, cluster)
    assert 0 < times[0] <= times[1]
    if ranks <= cluster.devices_per_node:
        # An adding switch sends half as much as a ring; nothing else beats the wire by over 5 %.
        least = bytes_sent(op, large, ranks, "nccl") / (cluster.intra_link.bandwidth * 1.05)
        assert times[1] >= least / (2 if op == "all-reduce" else 1)


@given(st.sampled_from(OPERATIONS), st.floats(1, 1e11), st.integers(2, 32), st.floats(1, 100))
@settings(max_examples=100)
def test_more_ports_are_never_slower(op, size, ranks, factor) -> None:
    cluster = load_cluster("4x8xh100")
    more = replace(cluster, ports_per_node=int(cluster.ports_per_node * factor))
    assert nccl_seconds(op, size, ranks, more) <= nccl_seconds(op, size, ranks, cluster)


def test_one_rank_costs_nothing() -> None:
    assert nccl_seconds("all-reduce", 1e6, 1, load_cluster("8xh100")) == 0
    assert nccl_seconds("all-reduce", 1e6, 1, load_link("infiniband-ndr")) == 0


def test_basis_says_what_was_transferred() -> None:
    assert not nccl_basis("all-reduce", load_cluster("8xh100")).transferred
    assert not nccl_basis("all-reduce", load_link("nvlink3")).transferred
    amd = nccl_basis("all-reduce", load_cluster("8xmi300x"))
    assert amd.transferred
    assert "nvlink4" in amd.text
    assert "broadcast from all-gather" in nccl_basis("broadcast", load_cluster("8xh100")).text
    assert nccl_basis("all-gather", load_cluster("8xv100")).transferred
    assert "L40S" not in nccl_basis("all-reduce", load_cluster("4xrtx-3090")).text
    assert "NCCL's latencies" in nccl_basis("all-reduce", load_cluster("2x8xh100")).text


def test_a_network_link_puts_each_rank_in_its_own_node() -> None:
    link = load_link("infiniband-ndr")
    spread = replace(load_cluster("8x8xh100"), ports_per_node=8)
    alone = nccl_seconds("all-reduce", 1e9, 8, link)
    assert alone == pytest.approx(nccl_seconds("all-reduce", 1e9, 8, spread, per_node=1))


def test_large_messages_reach_published_bus_bandwidths() -> None:
    # stas00/ml-engineering, network/README.md: 8 GiB all-reduce on 8 GPUs, none of it fitted
    for shape, ranks, bus in (("8xh200", 8, 473.1), ("8xh200", 6, 435.6), ("8xb200", 8, 838.0)):
        seconds = nccl_seconds("all-reduce", 2**33, ranks, load_cluster(shape))
        got = 2 * (ranks - 1) / ranks * 2**33 / seconds / 1e9
        print(f"{shape} {ranks}: {got:.0f} GB/s against {bus:.0f}")
        assert got == pytest.approx(bus, rel=0.2)


def test_constants_carry_their_provenance_and_errors() -> None:
    table = tomllib.loads(nccl.CONSTANTS.read_text(encoding="utf-8"))
    assert all(entry["provenance"] for entry in table["inside"] + table["between"])
    judged = {e["table"]: e for e in table["errors"] if e["rows"] == "judge"}
    assert len(judged) == 7
    assert all(e["median_over_1mb"] < 0.15 for e in judged.values())


@pytest.fixture(scope="module")
def tables():
    if not DATA.is_dir():
        pytest.skip("the published tables (../shared/data/published) are not here")
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import nccl_tables
    finally:
        sys.path.pop(0)
    return nccl_tables.rows(DATA)


def test_published_rows_not_fitted_are_within_the_stated_error(tables) -> None:
    stated = tomllib.loads(nccl.CONSTANTS.read_text(encoding="utf-8"))["errors"]
    for entry in stated:
        rows = [r for r in tables if r.table == entry["table"] and r.use == entry["rows"]]
        rows = [r for r in rows if r.size > 1e6]
        assert len(rows) == entry["over_1mb"]
        error = [abs(_predicted(r) / r.seconds - 1) for r in rows]
        print(f"{entry['table']:28} {entry['rows']:6} {len(rows):6} {np.median(error):.1%}")
        assert np.median(error) == pytest.approx(entry["median_over_1mb"], abs=1e-4)


def test_no_judged_row_was_fitted(tables) -> None:
    def keys(use: str) -> set:
        return {(r.table, r.shape, r.op, r.ranks, r.size) for r in tables if r.use == use}

    assert not keys("fit") & keys("judge")
    assert keys("fit")


def _predicted(row) -> float:
    return collective_seconds(row.op, row.size, row.ranks, row.cluster, algorithm="nccl")
