"""What a kernel reaches on a device other than the one it was measured on.

A kernel that reaches a fraction e of a rate (FLOP/s or bytes/s) takes 1/e of its ideal time. What
it takes beyond that is instructions, latencies and barriers: clock cycles of the multiprocessors,
which no faster matrix unit or memory shortens. So the ideal time follows the rate, the rest the
clocks:

    1/e' = 1 + (1/e - 1) · r' / r        r = rate / (multiprocessors · clock)

r is what one multiprocessor does, or is fed, in one clock cycle. An H200 multiplies 3,790 fp16
FLOPs a cycle in each multiprocessor and an RTX 3090 512, so that a convolution which reaches 35 %
of the former's peak reaches 1 / (1 + 1.857 · 0.135) = 80 % of the latter's. A kernel that uses
neither unit nor memory well, such as a depthwise convolution, follows the clocks alone, as it
should: e' / e → r / r'.

A convolution may reach more than the peak by the FLOPs of its formula: Winograd's algorithm
multiplies less often. What it saves it saves on any device; the multiplications left go by the rule
above.

Known inaccuracy: a library that has a better kernel for one of the two devices is not seen.
"""

from __future__ import annotations

import numpy as np

from traincast.estimate.kernels import Floats
from traincast.hardware import Device

MOST = 0.95
"""Largest fraction of a rate that any kernel reaches on a device where it was not measured."""


def cycles(device: Device) -> float:
    """Return clock cycles a second of all multiprocessors together."""
    return device.units * device.clock_hz


def carried(fraction: Floats, rate: float, device: Device, from_rate: float, of: Device) -> Floats:
    """Return the fraction of `rate` reached on `device`, from that of `from_rate` on `of`."""
    fed = (rate / cycles(device)) / (from_rate / cycles(of))
    beyond = np.maximum(1.0 / fraction - 1.0, 0.0)
    reached: Floats = np.minimum(1.0 / (1.0 + beyond * fed), MOST)
    return reached


def saving(fraction: Floats, rate: float, device: Device, from_rate: float, of: Device) -> Floats:
    """Return the same for a rate of FLOPs, of which an algorithm may save some: it may exceed 1."""
    saved: Floats = np.maximum(fraction, 1.0) * carried(fraction, rate, device, from_rate, of)
    return saved
