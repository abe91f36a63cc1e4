"""How far measured steps lie from predicted ones: 90 % intervals by estimator and regime.

Each entry is the 5th and 95th percentile of measured ÷ predicted. `roofline` on the device it was
judged on: 100 training steps of 14 networks on an H200 with PyTorch 2.11, the efficiencies fitted
anew without the network being judged (so no network judges itself). Produced by
`benchmarks/accuracy.py`.
"""

from __future__ import annotations

MEASURED: dict[str, dict[str, tuple[float, float]]] = {
    "roofline": {"host": (0.764, 1.523), "device": (0.740, 1.851)},
}
MEMORY = (1.00, 1.13)
"""5th and 95th percentile of measured ÷ predicted peak memory, over 165 H200 runs of 31 networks."""
JUDGED_ON = {"roofline": frozenset({"h200"})}
UNJUDGED = 1.5
"""Factor on the logarithm of the bounds for a device of which no run has been judged."""


def interval(estimator: str, device: str, seconds: float, host_bound: bool) -> tuple[float, float]:
    """Return seconds between which a real step falls in nine cases of ten."""
    low, high = MEASURED[estimator]["host" if host_bound else "device"]
    power = 1.0 if device in JUDGED_ON[estimator] else UNJUDGED
    return seconds * low**power, seconds * high**power
