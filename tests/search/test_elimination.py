"""The exact search against enumeration, on graphs of every form."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.search.elimination import Elimination, Solution, solve, total_cost

Graph = tuple[list[np.ndarray], dict[tuple[int, int], np.ndarray]]


def _enumerated(nodes: list[np.ndarray], edges: dict[tuple[int, int], np.ndarray]) -> float:
    choices = itertools.product(*(range(len(n)) for n in nodes))
    return min(total_cost(nodes, edges, choice) for choice in choices)


@st.composite
def graphs(draw: st.DrawFn, whole: bool = True) -> Graph:
    """Return random costs, whole numbers or not, on a graph that need not collapse."""
    count = draw(st.integers(1, 6))
    sizes = [draw(st.integers(1, 4 if count < 6 else 3)) for _ in range(count)]
    pairs = list(itertools.permutations(range(count), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    make = (lambda *s: rng.integers(0, 12, s).astype(float)) if whole else rng.random
    nodes = [np.asarray(make(*[s])) if whole else rng.random(s) for s in sizes]
    edges = {}
    for i, j in chosen:
        shape = (sizes[i], sizes[j])
        edges[i, j] = make(*shape) if whole else rng.random(shape)
    return nodes, edges


@settings(max_examples=400, deadline=None)
@given(graphs())
def test_equals_enumeration_with_ties(graph: Graph) -> None:
    nodes, edges = graph
    found = solve(nodes, edges)
    assert found.exact
    assert found.cost == _enumerated(nodes, edges)
    assert found.cost == total_cost(nodes, edges, found.choice)
    assert solve(nodes, edges) == found


@settings(max_examples=300, deadline=None)
@given(graphs(whole=False))
def test_equals_enumeration(graph: Graph) -> None:
    nodes, edges = graph
    assert solve(nodes, edges).cost == pytest.approx(_enumerated(nodes, edges), rel=1e-12)


@settings(max_examples=200, deadline=None)
@given(graphs(whole=False))
def test_a_search_that_is_not_exact_is_bounded(graph: Graph) -> None:
    nodes, edges = graph
    found = solve(nodes, edges, cap=1)
    optimum = _enumerated(nodes, edges)
    assert found.bound <= optimum + 1e-9
    assert found.cost >= optimum - 1e-9
    assert found.cost == pytest.approx(total_cost(nodes, edges, found.choice))
    if found.exact:
        assert found.cost == pytest.approx(optimum)


def _worked() -> Graph:
    """Six nodes of three choices whose optimum and intermediate tables were derived by hand."""
    nodes = [np.array([(7 * k + 3 * c) % 8 + 1.0 for c in range(3)]) for k in range(6)]
    pairs = [(0, 1), (1, 2), (1, 3), (2, 4), (3, 4), (0, 4), (4, 5)]
    edges = {
        (i, j): np.array(
            [[(3 * i + 5 * j + 2 * a + 7 * b + a * b) % 11 for b in range(3)] for a in range(3)],
            dtype=float,
        )
        for i, j in pairs
    }
    return nodes, edges


def test_the_worked_example() -> None:
    nodes, edges = _worked()
    assert solve(nodes, edges) == Solution((0, 1, 1, 1, 2, 2), 28.0, 28.0, True, 2)


def test_the_tables_of_the_worked_example() -> None:
    work = Elimination(*_worked())
    work.remove(2)
    assert work.tables[1, 4].tolist() == [[13, 9, 11], [9, 6, 3], [12, 9, 6]]
    work.remove(3)
    assert work.tables[1, 4].tolist() == [[26, 19, 18], [16, 19, 13], [23, 18, 19]]
    work.remove(1)
    assert work.tables[0, 4].tolist() == [[29, 28, 18], [23, 33, 25], [28, 29, 32]]
    work.remove(4)
    assert work.tables[0, 5].tolist() == [[29, 27, 25], [32, 28, 32], [37, 33, 37]]


def test_a_graph_that_does_not_collapse_is_solved_exactly() -> None:
    """All pairs of six nodes: no node ever has fewer than three neighbours at first."""
    rng = np.random.default_rng(5)
    nodes = [rng.random(4) for _ in range(6)]
    edges = {p: rng.random((4, 4)) for p in itertools.combinations(range(6), 2)}
    found = solve(nodes, edges)
    assert found.exact
    assert found.final == 6
    assert found.cost == pytest.approx(_enumerated(nodes, edges))


def test_ties_go_to_the_lowest_index() -> None:
    nodes = [np.zeros(3) for _ in range(4)]
    edges = {p: np.zeros((3, 3)) for p in itertools.combinations(range(4), 2)}
    assert solve(nodes, edges).choice == (0, 0, 0, 0)


def test_messages_bound_a_large_graph_well() -> None:
    """A grid of 6 × 6 nodes, exact by elimination, against the bound without it."""
    rng = np.random.default_rng(1)
    nodes = [rng.random(5) for _ in range(36)]
    edges = {}
    for i in range(36):
        if i % 6 < 5:
            edges[i, i + 1] = rng.random((5, 5))
        if i < 30:
            edges[i, i + 6] = rng.random((5, 5))
    exact, bounded = solve(nodes, edges), solve(nodes, edges, cap=1)
    assert exact.exact
    assert not bounded.exact
    assert 0.9 * exact.cost <= bounded.bound <= exact.cost <= bounded.cost <= 1.1 * exact.cost


def test_a_dense_graph_too_large_for_tables_is_bounded() -> None:
    """All pairs of nine nodes, with tables of at most 4,000 entries; 262,144 choices by numpy."""
    rng = np.random.default_rng(8)
    nodes = [rng.random(4) for _ in range(9)]
    edges = {p: rng.random((4, 4)) for p in itertools.combinations(range(9), 2)}
    totals = np.zeros((4,) * 9)
    for i, costs in enumerate(nodes):
        totals += costs.reshape([4 if n == i else 1 for n in range(9)])
    for (i, j), table in edges.items():
        totals += table.reshape([4 if n in (i, j) else 1 for n in range(9)])
    found = solve(nodes, edges, cap=4000)
    assert not found.exact
    assert 0 < found.bound <= totals.min() <= found.cost <= 1.1 * totals.min()
    assert totals[found.choice] == pytest.approx(found.cost)
    assert solve(nodes, edges).cost == pytest.approx(totals.min())
