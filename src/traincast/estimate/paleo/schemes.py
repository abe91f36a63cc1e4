"""Seconds to exchange gradients, for D bytes of weights and K workers.

No latency and no overlap with computation. With t(D) = D / (bandwidth · ppp), h = ⌈log₂ K⌉:

    one-to-all         2 · t(D·(K − 1))     a parameter server
    tree               2 · h · t(D)
    butterfly          h · t(D)
    butterfly-mixing   t(D), also for one worker: an approximate average, no all-reduce

The publication writes log₂ K without rounding up; the authors' code, and so this, rounds.
"""

from __future__ import annotations

from collections.abc import Callable

from traincast.errors import UnknownNameError
from traincast.estimate.paleo.tables import PaleoNetwork

SCHEMES: dict[str, Callable[[int], int]] = {
    "one-to-all": lambda workers: 2 * (workers - 1),
    "tree": lambda workers: 2 * (workers - 1).bit_length(),
    "butterfly": lambda workers: (workers - 1).bit_length(),
    "butterfly-mixing": lambda _: 1,
}
"""How often all weights cross the network one after another; ⌈log₂ K⌉ is (K − 1).bit_length()."""

_AUTHORS = {
    "onetoall": "one-to-all",
    "parameterserver": "one-to-all",
    "treeallreduce": "tree",
    "butterflyallreduce": "butterfly",
    "butterflymixing": "butterfly-mixing",
}


def scheme_named(name: str) -> str:
    """Return the name of a scheme, given that or the authors' name such as TreeAllReduce."""
    folded = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    found = name.lower() if name.lower() in SCHEMES else _AUTHORS.get(folded)
    if found is None:
        raise UnknownNameError(
            "communication scheme", name, SCHEMES, f"use one of {', '.join(SCHEMES)}"
        )
    return found


def exchange_seconds(
    scheme: str, weight_bytes: float, workers: int, network: PaleoNetwork, ppp: float
) -> float:
    """Return the seconds of one exchange; `ppp` is the communication percent of peak."""
    return SCHEMES[scheme](workers) * weight_bytes / (network.bandwidth * ppp)
