"""Scales and ticks of charts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Format = Callable[[float], str]
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""),
             (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scale:
    """Where values lie on paper."""

    low: float
    """Value at `start`."""
    high: float
    """Value at `end`, above `low`."""
    start: float
    """Place in pixels."""
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        """Return the place of a value."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def holds(self, value: float) -> bool:
        """Tell whether a value lies on the axis; a rounding error beyond it does."""
        slack = 1e-9 * (abs(self.low) + abs(self.high))
        return self.low - slack <= value <= self.high + slack


def value_range(values: Sequence[float], log: bool, pad: float = 0.0) -> tuple[float, float]:
    """Return ends that hold all values, with some room; a linear range that is near 0 has it."""
    usable = [v for v in values if math.isfinite(v) and (v > 0 or not log)]
    if not usable:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(usable), max(usable)
    if log:
        room = (high / low) ** pad if high > low else 2.0
        return low / room, high * room
    if 0 < low < 0.4 * high:
        low = 0.0
    room = (high - low) * pad if high > low else abs(high) or 1.0
    return (low if low == 0 else low - room), high + room


def ticks(low: float, high: float, log: bool, most: int = 8) -> list[float]:
    """Return round values between two ends, at most about `most` of them."""
    if log:
        return _log_ticks(low, high, most)
    step = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10):
        if (high - low) / (step * factor) <= most:
            step *= factor
            break
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    start, end = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for parts in ((1, 2, 5), (1, 3), (1,)):
        found = [p * 10.0**e for e in range(start, end + 1) for p in parts]
        found = [v for v in found if low * (1 - 1e-9) <= v <= high * (1 + 1e-9)]
        if len(found) <= most:
            break
    if len(found) < 2:
        return ticks(low, high, False, most)
    return found[:: -(-len(found) // most)]


def powers_of_two(low: float, high: float, most: int = 10) -> list[float]:
    """Return powers of two between two ends, every second or third where there are many."""
    found = [
        2.0**e
        for e in range(math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9) + 1)
    ]
    return found[:: -(-len(found) // most)] if found else []


def si_format(unit: str = "", digits: int = 3) -> Format:
    """Return a format with decimal prefixes: `10 ms`, `2.5 TB/s`, `512`."""

    def text(value: float) -> str:
        if value == 0:
            return f"0 {unit}".rstrip()
        factor, prefix = next(
            (step for step in _PREFIXES if abs(value) >= step[0] * (1 - 1e-9)), _PREFIXES[-1]
        )
        shown = f"{value / factor:.{digits}g}"
        return f"{shown} {prefix}{unit}".rstrip()

    return text


def plain_format(value: float) -> str:
    """Return a number with as many digits as it needs, thousands apart."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
