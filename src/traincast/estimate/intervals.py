"""How far measured steps lie from predicted ones: 90 % intervals by estimator and regime.

Each entry is the 5th and 95th percentile of measured ÷ predicted. `roofline` on the device it was
judged on: 100 training steps of 14 networks on an H200 with PyTorch 2.11, the efficiencies fitted
anew without the network being judged (so no network judges itself). Produced by
`benchmarks/accuracy_roofline.py`. `paleo` and `castello`, which fit nothing, on those and 65
further steps of 17 networks: both leave out launches and most ops, so real steps are longer, and
Paleo knows neither reduced precision nor newer convolution algorithms. `viebke-a` and `viebke-b`:
2.06 times the mean deviations that their authors report on a Xeon Phi, 15 % and 11 % (a normal
distribution's 90 % interval for that mean).
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

from traincast.estimate.roofline import Estimator

MEASURED: dict[str, dict[str, tuple[float, float]]] = {
    "roofline": {"host": (0.792, 1.331), "device": (0.739, 1.885)},
    "paleo": {"host": (0.267, 20.7), "device": (0.267, 20.7)},
    "castello": {"host": (1.56, 16.6), "device": (1.56, 16.6)},
    "viebke-a": {"host": (0.69, 1.31), "device": (0.69, 1.31)},
    "viebke-b": {"host": (0.77, 1.23), "device": (0.77, 1.23)},
}
MEMORY = (1.00, 1.13)
"""5th and 95th percentile of measured ÷ predicted peak memory: 165 H200 runs of 31 networks."""
JUDGED_ON = {
    name: frozenset({"xeon-phi-7120p" if name.startswith("viebke") else "h200"})
    for name in MEASURED
}
UNJUDGED = 1.5
"""Factor on the interval's width, in logarithms, where no run of the device has been judged."""


@runtime_checkable
class Judged(Protocol):
    """An estimator that knows its own errors."""

    def interval(
        self, seconds: float, host_bound: bool, spread: float | None = None
    ) -> tuple[float, float]:
        """Return seconds between which a real step falls in nine cases of ten.

        `spread` is how unsure its kernels are in all: a standard deviation of the logarithm.
        """


def interval_of(
    engine: Estimator, device: str, seconds: float, host_bound: bool, spread: float | None = None
) -> tuple[float, float]:
    """Return seconds between which a real step falls in nine cases of ten."""
    if isinstance(engine, Judged):
        return engine.interval(seconds, host_bound, spread)
    return interval(engine.name, device, seconds, host_bound)


def interval(estimator: str, device: str, seconds: float, host_bound: bool) -> tuple[float, float]:
    """Return seconds between which a real step falls in nine cases of ten."""
    low, high = MEASURED[estimator]["host" if host_bound else "device"]
    if device not in JUDGED_ON[estimator]:
        middle = math.sqrt(low * high)
        low, high = middle * (low / middle) ** UNJUDGED, middle * (high / middle) ** UNJUDGED
    return seconds * low, seconds * high
