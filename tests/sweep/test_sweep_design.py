"""Grids and Latin hypercubes: what each factor takes, whatever the constraints."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.measure.sweep.design import Levels, Range, grid, latin_hypercube

SEEDS = st.integers(0, 2**32 - 1)


def anything(_: object) -> bool:
    return True


@given(st.integers(1, 80), SEEDS, st.floats(0.01, 10), st.floats(1.1, 1000), st.booleans())
def test_a_range_has_one_point_in_each_slice(runs, seed, low, ratio, log):
    factor = Range(low=low, high=low * ratio, log=log)
    points = latin_hypercube({"x": factor}, runs, seed, anything)
    spread = [
        math.log(p["x"] / low) / math.log(ratio) if log else (p["x"] - low) / (low * ratio - low)
        for p in points
    ]
    # A value that lies on a border by rounding belongs to either slice.
    for place, share in enumerate(sorted(spread)):
        assert place / runs - 1e-9 <= share <= (place + 1) / runs + 1e-9


@given(st.integers(1, 80), SEEDS, st.integers(1, 7))
def test_levels_are_taken_equally_often(runs, seed, levels):
    points = latin_hypercube({"x": Levels(tuple(range(levels)))}, runs, seed, anything)
    counts = Counter(p["x"] for p in points)
    # The slices at a level's two borders may belong to either neighbour.
    assert all(abs(counts[i] - runs / levels) < 2 for i in range(levels))
    if runs % levels == 0:
        assert set(counts.values()) == {runs // levels}


def test_a_level_named_twice_is_taken_twice_as_often():
    points = latin_hypercube({"x": Levels((1, 1, 2))}, 30, 5, anything)
    assert Counter(p["x"] for p in points) == {1: 20, 2: 10}


@given(SEEDS, st.integers(1, 20), st.integers(1, 30))
def test_whole_numbers_are_whole_and_within_their_bounds(seed, low, width):
    factor = Range(low=low, high=low + width, whole=True, log=bool(seed % 2))
    points = latin_hypercube({"x": factor}, 100, seed, anything)
    assert all(isinstance(p["x"], int) and low <= p["x"] <= low + width for p in points)


def test_every_whole_number_is_equally_likely():
    points = latin_hypercube({"x": Range(low=3, high=6, whole=True)}, 40, 1, anything)
    assert Counter(p["x"] for p in points) == {3: 10, 4: 10, 5: 10, 6: 10}


@given(st.integers(2, 60), SEEDS)
def test_a_constraint_is_met_without_changing_what_a_factor_takes(runs, seed):
    factors = {
        "x": Range(low=0, high=1), "y": Range(low=0, high=1), "z": Levels(("a", "b", "c")),
    }  # fmt: skip
    free = latin_hypercube(factors, runs, seed, anything)
    held = latin_hypercube(factors, runs, seed, lambda p: abs(p["x"] + p["y"] - 1) < 0.9)
    assert all(abs(p["x"] + p["y"] - 1) < 0.9 for p in held)
    for name in factors:
        assert sorted(p[name] for p in free) == sorted(p[name] for p in held)


def test_a_constraint_that_nothing_meets_ends():
    points = latin_hypercube({"x": Levels((1, 2))}, 10, 0, lambda _: False)
    assert len(points) == 10


def test_the_same_seed_gives_the_same_points_and_another_seed_others():
    factors = {"x": Range(low=0, high=1), "y": Levels((1, 2))}
    first, second, other = (latin_hypercube(factors, 20, seed, anything) for seed in (3, 3, 4))
    assert first == second != other


def test_a_grid_is_the_product_of_the_levels():
    factors = {"x": Levels((1, 2)), "y": Range(low=1, high=100, log=True, whole=True, count=3)}
    expected = [{"x": x, "y": y} for x, y in itertools.product((1, 2), (1, 10, 100))]
    assert grid(factors) == expected


def test_levels_of_a_linear_range():
    assert Range(low=0.0, high=0.5, count=3).levels() == [0.0, 0.25, 0.5]
    assert Range(low=1, high=3, whole=True, count=9).levels() == [1, 2, 3]


@pytest.mark.parametrize("runs", [1, 2, 210])
def test_columns_of_a_hypercube_are_shuffled_apart(runs):
    factors = {name: Range(low=0, high=1) for name in "ab"}
    points = latin_hypercube(factors, runs, 0, anything)
    if runs > 100:
        mean = sum((p["a"] - 0.5) * (p["b"] - 0.5) for p in points) / runs
        # The correlation of two random permutations has a deviation of 1/√(n-1) around 0.
        assert abs(12 * mean) < 4 / math.sqrt(runs - 1)
    assert len(points) == runs
