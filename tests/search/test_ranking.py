"""The cheapest choices in order, against enumeration."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.search.elimination import total_cost
from traincast.search.ranking import ranked

Graph = tuple[list[np.ndarray], dict[tuple[int, int], np.ndarray]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Return random costs, with ties or without, on any graph of up to five nodes."""
    count = draw(st.integers(1, 5))
    sizes = [draw(st.integers(1, 4)) for _ in range(count)]
    pairs = list(itertools.permutations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    whole = draw(st.booleans())

    def make(*shape: int) -> np.ndarray:
        return rng.integers(0, 5, shape).astype(float) if whole else rng.random(shape)

    nodes = [make(s) for s in sizes]
    return nodes, {(i, j): make(sizes[i], sizes[j]) for i, j in chosen}


def _all(nodes: list[np.ndarray], edges: dict[tuple[int, int], np.ndarray]) -> list[float]:
    choices = itertools.product(*(range(len(n)) for n in nodes))
    return sorted(total_cost(nodes, edges, choice) for choice in choices)


@settings(max_examples=300, deadline=None)
@given(graphs(), st.integers(1, 40))
def test_the_first_of_all_choices_in_order(graph: Graph, most: int) -> None:
    nodes, edges = graph
    found = list(ranked(nodes, edges, most) or ())
    totals = _all(nodes, edges)
    assert [total for total, _ in found] == pytest.approx(totals[:most])
    assert len({choice for _, choice in found}) == len(found)
    for total, choice in found:
        assert total == pytest.approx(total_cost(nodes, edges, choice))


@settings(max_examples=300, deadline=None)
@given(graphs(), st.floats(0, 4))
def test_all_choices_within_a_slack(graph: Graph, slack: float) -> None:
    nodes, edges = graph
    totals = _all(nodes, edges)
    found = [total for total, _ in ranked(nodes, edges, 10**6, slack) or ()]
    surely = [t for t in totals if t <= totals[0] + slack - 1e-9]
    perhaps = [t for t in totals if t <= totals[0] + slack + 1e-9]
    assert len(surely) <= len(found) <= len(perhaps)
    assert found == pytest.approx(totals[: len(found)])


def test_a_graph_too_dense_for_tables_is_not_ranked() -> None:
    rng = np.random.default_rng(0)
    nodes = [rng.random(6) for _ in range(8)]
    edges = {p: rng.random((6, 6)) for p in itertools.combinations(range(8), 2)}
    assert ranked(nodes, edges, 3, cap=1000) is None
