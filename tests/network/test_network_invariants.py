"""What holds for every algorithm, message, group and link."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.hardware import Cluster, Link, load_cluster
from traincast.network import OPERATIONS, algorithms, bytes_sent, collective_seconds, fastest

SIZES = st.floats(1, 1e12)
RANKS = st.integers(1, 3000)
LINKS = st.builds(
    Link,
    name=st.just("any"),
    title=st.just(""),
    kind=st.just("ethernet"),
    latency_s=st.sampled_from([0.0, 1e-7, 1e-6, 3e-5]),
    bandwidth=st.floats(1e6, 1e12),
)
NAMES = [(op, name) for op in OPERATIONS for name in algorithms(op)]
ALGORITHMS = st.sampled_from(NAMES)
GAMMA = st.sampled_from([0.0, 1e-12, 1e-10])
# Sums of the same terms in another order differ in the last digits.
EPS = 1 + 1e-9


@given(ALGORITHMS, SIZES, SIZES, RANKS, LINKS, GAMMA)
def test_more_bytes_are_never_faster(case, size, more, ranks, link, gamma) -> None:
    op, name = case
    small, large = sorted((size, more))
    times = collective_seconds(op, [small, large], ranks, link, algorithm=name, gamma=gamma)
    assert 0 <= times[0] <= times[1] * EPS


@given(ALGORITHMS, SIZES, RANKS, LINKS, st.floats(1, 1e3), GAMMA)
def test_more_bandwidth_is_never_slower(case, size, ranks, link, factor, gamma) -> None:
    op, name = case
    quick = replace(link, bandwidth=link.bandwidth * factor)
    slow_s = collective_seconds(op, size, ranks, link, algorithm=name, gamma=gamma)
    assert collective_seconds(op, size, ranks, quick, algorithm=name, gamma=gamma) <= slow_s * EPS


@given(ALGORITHMS, SIZES, LINKS)
def test_one_rank_costs_nothing(case, size, link) -> None:
    op, name = case
    assert collective_seconds(op, size, 1, link, algorithm=name) == 0
    assert bytes_sent(op, size, 1, name) == 0


@given(SIZES, st.integers(2, 10**6))
def test_ring_all_reduce_sends_the_least_possible(size, ranks) -> None:
    assert bytes_sent("all-reduce", size, ranks) == pytest.approx(2 * (ranks - 1) / ranks * size)


@given(SIZES, RANKS, LINKS, GAMMA)
def test_ring_all_reduce_is_reduce_scatter_and_all_gather(size, ranks, link, gamma) -> None:
    def ring(op: str) -> float:
        return collective_seconds(op, size, ranks, link, algorithm="ring", gamma=gamma)

    assert ring("all-reduce") == pytest.approx(ring("reduce-scatter") + ring("all-gather"))


@given(st.sampled_from(OPERATIONS), SIZES, RANKS, LINKS, GAMMA)
def test_fastest_is_no_slower_than_any(op, size, ranks, link, gamma) -> None:
    best = fastest(op, size, ranks, link, gamma=gamma)
    assert best.algorithm in algorithms(op, candidates=True)
    for name in algorithms(op, candidates=True):
        each = collective_seconds(op, size, ranks, link, algorithm=name, gamma=gamma)
        assert best.seconds <= each * EPS


@given(st.sampled_from(OPERATIONS), SIZES, st.integers(2, 64), LINKS)
def test_hierarchical_in_one_node_is_flat(op, size, ranks, link) -> None:
    one = _cluster(link, nodes=1, devices=64)
    two_levels = collective_seconds(op, size, ranks, one, algorithm="hierarchical")
    assert two_levels == pytest.approx(fastest(op, size, ranks, link).seconds)
    for name in set(algorithms(op)) & {"ring", "binomial", "pairwise"}:
        named = collective_seconds(op, size, ranks, one, algorithm="hierarchical", intra=name)
        assert named == collective_seconds(op, size, ranks, link, algorithm=name)


@given(st.sampled_from(OPERATIONS), SIZES, st.integers(1, 256), LINKS, st.floats(1, 1e3))
@settings(max_examples=50)
def test_a_cluster_with_a_faster_network_is_never_slower(op, size, ranks, link, factor) -> None:
    slow = _cluster(link, nodes=32, devices=8)
    quick = replace(slow, inter_link=replace(link, bandwidth=link.bandwidth * factor))
    for name in ("fastest", "hierarchical", "ring" if "ring" in algorithms(op) else "fastest"):
        slow_s = collective_seconds(op, size, ranks, slow, algorithm=name)
        quick_s = collective_seconds(op, size, ranks, quick, algorithm=name)
        assert quick_s <= slow_s * EPS


@given(ALGORITHMS, st.lists(SIZES, min_size=1, max_size=4), st.lists(RANKS, min_size=1, max_size=4))
@settings(max_examples=50)
def test_arrays_are_the_numbers_one_by_one(case, sizes, ranks) -> None:
    op, name = case
    link = Link(name="l", title="", kind="pcie", latency_s=1e-6, bandwidth=1e10)
    grid = collective_seconds(op, np.array(sizes)[:, None], ranks, link, algorithm=name)
    assert grid.shape == (len(sizes), len(ranks))
    for i, size in enumerate(sizes):
        for j, count in enumerate(ranks):
            single = collective_seconds(op, size, count, link, algorithm=name)
            assert isinstance(single, float)
            assert grid[i, j] == pytest.approx(single, rel=1e-12)


@given(ALGORITHMS, SIZES, st.integers(2, 3000))
def test_no_rank_sends_more_than_all_and_no_less_than_its_part(case, size, ranks) -> None:
    op, name = case
    busiest = bytes_sent(op, size, ranks, name)
    total = bytes_sent(op, size, ranks, name, every_rank=True)
    assert total / ranks <= busiest * EPS
    assert busiest <= total * EPS


def _cluster(link: Link, nodes: int, devices: int) -> Cluster:
    return replace(
        load_cluster(f"{nodes}x{devices}xh100"), intra_link=link, inter_link=link, ports_per_node=1
    )
