"""What the many-core models promise for any parameters."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError
from traincast.estimate.viebke import (
    PUBLISHED,
    Contention,
    Factors,
    Machine,
    Run,
    Times,
    Work,
    machine_of,
    model_a,
    model_b,
    shared_issue,
)

PHI = PUBLISHED.machine
SMALL = PUBLISHED.networks["mnist-small"]


@pytest.mark.parametrize(
    ("threads", "cpi"),
    [(1, 1), (60, 1), (61, 1), (120, 1), (121, 1.5), (180, 1.5), (240, 2), (244, 2), (3840, 2)],
)
def test_cpi_by_threads(threads: int, cpi: float) -> None:
    assert PHI.cpi_at(threads) == cpi


def test_an_issue_rate_of_two_gives_the_published_cpi() -> None:
    assert shared_issue(4, 2) == (1, 1, 1.5, 2) == PHI.cpi


def test_a_machine_from_the_catalog() -> None:
    epyc = machine_of("epyc-9654")
    assert (epyc.clock_hz, epyc.cores, epyc.cpi, epyc.threads) == (2.4e9, 96, (1.0,), 96)
    twice = machine_of("epyc-9654", threads_per_core=2)
    assert (twice.cpi, twice.threads) == ((1.0, 2.0), 192)
    better = machine_of("epyc-9654", threads_per_core=2, issue_rate=1.25)
    assert better.cpi == (1.0, 1.6)
    assert machine_of("xeon-phi-7120p") == PHI
    assert machine_of("xeon-phi-7120p", cores=30).cpi == PHI.cpi
    assert machine_of("xeon-phi-7120p", threads_per_core=2).cpi == (1, 1)
    assert machine_of("epyc-9654", clock_hz=3e9).clock_hz == 3e9


def test_a_gpu_is_no_many_core_cpu() -> None:
    with pytest.raises(InvalidValueError, match=r"h200 is no CPU.*traincast predict"):
        machine_of("h200")


@pytest.mark.parametrize(
    "bad", [{"cores": 0}, {"clock_hz": 0.0}, {"clock_hz": math.nan}, {"cpi": ()}, {"cpi": (0.0,)}]
)
def test_a_machine_that_cannot_be(bad: dict) -> None:
    with pytest.raises(InvalidValueError, match="machine 'phi'"):
        Machine(**({"name": "phi", "clock_hz": 1e9, "cores": 2} | bad))


def test_contention_between_and_beyond_the_rows() -> None:
    table = SMALL.contention
    assert table.at(45) == pytest.approx((1.36e-3 + 3.07e-3) / 2)  # halfway from 30 to 60
    assert table.at(7680) == pytest.approx(2 * 2.25e-1)  # c·p beyond the last row
    assert [table.origin(p) for p in (30, 45, 3840, 3841)] == [
        "table", "interpolated", "table", "extrapolated",
    ]  # fmt: skip
    assert Contention(((1, 2e-6),)).at(300) == pytest.approx(6e-4)
    assert Contention(((4, 2e-6), (8, 3e-6))).at(2) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    "rows", [(), ((0, 1.0),), ((2, 1.0), (1, 1.0)), ((1, 1.0), (1, 2.0)), ((1, -1.0),)]
)
def test_a_contention_table_that_cannot_be(rows: tuple) -> None:
    with pytest.raises(InvalidValueError, match="contention"):
        Contention(rows)


@pytest.mark.parametrize("threads", [0, -1, 1.5, True])
def test_threads_are_whole_and_at_least_one(threads: int) -> None:
    run = Run()
    with pytest.raises(InvalidValueError, match="threads"):
        model_a(SMALL.work, PUBLISHED.factors, PHI, SMALL.contention, run, threads)
    with pytest.raises(InvalidValueError, match="threads"):
        model_b(SMALL.times, PHI, SMALL.contention, run, threads)


@pytest.mark.parametrize("bad", [{"images": 0}, {"test_images": -1}, {"epochs": 0}])
def test_a_run_that_cannot_be(bad: dict) -> None:
    with pytest.raises(InvalidValueError):
        Run(**bad)


counts = st.integers(1, 5000)
runs = st.builds(
    Run,
    images=st.integers(1, 10**6),
    test_images=st.integers(0, 10**5),
    epochs=st.integers(1, 1000),
)


@given(runs, counts)
def test_twice_the_epochs_doubles_all_but_the_preparation(run: Run, threads: int) -> None:
    twice = replace(run, epochs=2 * run.epochs)
    a, aa = (
        model_a(SMALL.work, PUBLISHED.factors, PHI, SMALL.contention, r, threads)
        for r in (run, twice)
    )
    for part in ("training", "validation", "test", "memory"):
        assert getattr(aa, part) == pytest.approx(2 * getattr(a, part))
    assert aa.sequential - a.sequential == pytest.approx(15 * 10 * run.epochs / 1.238e9, rel=1e-3)
    b, bb = (model_b(SMALL.times, PHI, SMALL.contention, r, threads) for r in (run, twice))
    assert bb.total - bb.sequential == pytest.approx(2 * (b.total - b.sequential))
    assert bb.sequential == b.sequential


@given(runs, counts, counts)
def test_more_threads_are_no_slower_but_for_contention(run: Run, p: int, q: int) -> None:
    p, q = sorted((p, q))
    less, more = (model_b(SMALL.times, PHI, SMALL.contention, run, t) for t in (p, q))
    if PHI.cpi_at(p) == PHI.cpi_at(q):
        assert more.total - more.memory <= (less.total - less.memory) * (1 + 1e-12)


@given(counts, counts)
def test_contention_never_falls_with_threads(p: int, q: int) -> None:
    p, q = sorted((p, q))
    for network in PUBLISHED.networks.values():
        assert network.contention.at(p) <= network.contention.at(q) * (1 + 1e-12)


def test_validation_images_default_to_the_training_images() -> None:
    times = Times(prepare=0, forward=1, backward=2)
    machine, none = Machine(name="m", clock_hz=1e9, cores=4), Contention(((1, 0.0),))
    run = Run(images=8, test_images=4, epochs=2)
    found = model_b(times, machine, none, run, 4)
    assert (found.training, found.validation, found.test) == (12, 4, 2)
    without = model_b(times, machine, none, replace(run, validation_images=0), 4)
    assert (without.validation, without.total) == (0, 14)


def test_calls_of_a_framework_cost_instructions_too() -> None:
    work = Work(prepare=0, forward=100, backward=300, forward_calls=10, backward_calls=20)
    factors = Factors(sequential=0, forward=1, backward=2, forward_call=5, backward_call=7)
    machine = Machine(name="m", clock_hz=1.0, cores=1)
    run = Run(images=1, test_images=1, epochs=1, validation_images=0)
    found = model_a(work, factors, machine, Contention(((1, 0.0),)), run, 1)
    assert found.test == 100 + 5 * 10
    assert found.training == 150 + 600 + 140
