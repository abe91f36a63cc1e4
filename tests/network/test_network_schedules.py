"""The formulas against message schedules played out rank by rank."""

import numpy as np
import pytest
import schedules

from traincast.network import Wire, find

CASES = {
    ("all-reduce", "ring"): schedules.ring_all_reduce,
    ("all-reduce", "recursive-doubling"): schedules.doubling_all_reduce,
    ("all-reduce", "butterfly"): schedules.butterfly_all_reduce,
    ("all-gather", "recursive-doubling"): schedules.doubling_all_gather,
    ("all-gather", "bruck"): schedules.bruck_all_gather,
    ("reduce-scatter", "recursive-halving"): schedules.halving_reduce_scatter,
    ("all-to-all", "bruck"): schedules.bruck_all_to_all,
    ("all-to-all", "ring"): schedules.ring_all_to_all,
    ("scatter", "binomial"): schedules.binomial_scatter,
}
WIRE = Wire(alpha=1.0, beta=1.0, gamma=1.0)


def counts(op: str, name: str, n: float, p: int) -> dict[str, float]:
    terms = find(op, name).terms(np.array([n]), np.array([float(p)]), WIRE)
    names = ("messages", "moved", "reduced", "sent", "total")
    return {field: float(np.broadcast_to(getattr(terms, field), (1,))[0]) for field in names}


@pytest.mark.parametrize(("op", "name"), CASES)
@pytest.mark.parametrize("p", [*range(2, 20), 31, 32, 33, 48])
def test_formula_counts_what_the_schedule_does(op: str, name: str, p: int) -> None:
    play = CASES[op, name](p)
    got = counts(op, name, float(p), p)  # n = p bytes: blocks of one byte
    assert got["messages"] == play.messages
    assert got["moved"] == pytest.approx(play.moved)
    assert got["reduced"] == pytest.approx(play.reduced)
    assert got["sent"] == pytest.approx(play.busiest)
    assert got["total"] == pytest.approx(play.total)


@pytest.mark.parametrize("p", [*range(2, 20), 32, 48])
def test_rabenseifner_counts_what_the_schedule_does(p: int) -> None:
    play = schedules.rabenseifner_all_reduce(p)
    got = counts("all-reduce", "rabenseifner", float(1 << (p.bit_length() - 1)), p)
    assert got == pytest.approx(
        {
            "messages": play.messages,
            "moved": play.moved,
            "reduced": play.reduced,
            "sent": play.busiest,
            "total": play.total,
        }
    )


@pytest.mark.parametrize("p", range(2, 40))
def test_binomial_gather_is_the_scatter_backwards(p: int) -> None:
    play = schedules.binomial_scatter(p)
    got = counts("gather", "binomial", float(p), p)
    assert (got["messages"], got["moved"], got["total"]) == (play.messages, play.moved, play.total)
    # Backwards, a rank sends its whole subtree once: what it received in the scatter.
    subtree = max(min(1 << k, p - (1 << k)) for k in range(p.bit_length()) if (1 << k) < p)
    assert got["sent"] == subtree
