"""The estimators by name. Each is loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from traincast.errors import UnknownNameError
from traincast.estimate.roofline import Estimator, Roofline


def _castello() -> Estimator:
    from traincast.estimate.castello.estimator import Castello

    return Castello()


def _paleo() -> Estimator:
    from traincast.estimate.paleo.estimator import Paleo

    return Paleo()


def _many_core(model: str) -> Estimator:
    from traincast.estimate.viebke.estimator import ManyCore

    return ManyCore(model)


ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "roofline": Roofline,
    "paleo": _paleo,
    "castello": _castello,
    "viebke-a": lambda: _many_core("a"),
    "viebke-b": lambda: _many_core("b"),
}
CPU_ONLY = frozenset({"viebke-a", "viebke-b"})
"""Estimators that say nothing of other devices."""


@cache
def estimator_named(name: str) -> Estimator:
    """Return the estimator of a name."""
    if name not in ESTIMATORS:
        raise UnknownNameError("estimator", name, ESTIMATORS, f"(known: {', '.join(ESTIMATORS)})")
    return ESTIMATORS[name]()
