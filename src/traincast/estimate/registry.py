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


ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "roofline": Roofline,
    "paleo": _paleo,
    "castello": _castello,
}


@cache
def estimator_named(name: str) -> Estimator:
    """Return the estimator of a name."""
    if name not in ESTIMATORS:
        raise UnknownNameError("estimator", name, ESTIMATORS, f"(known: {', '.join(ESTIMATORS)})")
    return ESTIMATORS[name]()
