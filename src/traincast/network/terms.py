"""What a collective costs, as counts: messages, bytes moved and bytes reduced on the longest path.

Hockney's model. A message of m bytes takes α + m·β seconds, adding m received bytes to one's own
takes m·γ. Every rank can send and receive at the same time, one message each (one port, full
duplex), and every pair is equally far. An algorithm is then three counts, and its time is
`messages·α + moved·β + reduced·γ` (Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", IJHPCA 19(1), 2005).

Known inaccuracy: no congestion, no cost per byte of packing, no start-up skew between ranks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError
from traincast.hardware import Link

FloatArray: TypeAlias = NDArray[np.float64]
"""Counts and seconds; every function of this package takes and returns whole arrays of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A link in Hockney's terms, as one rank sees it."""

    alpha: float
    """Seconds a message costs however short it is, >= 0."""
    beta: float
    """Seconds per byte, > 0: the inverse of the bandwidth in one direction."""
    gamma: float = 0.0
    """Seconds to add one received byte to one's own, >= 0."""

    def __post_init__(self) -> None:
        if not (math.isfinite(self.gamma) and self.gamma >= 0):
            raise InvalidValueError(
                f"gamma = {self.gamma} has to be zero or more (seconds per reduced byte)"
            )
        if not (math.isfinite(self.alpha) and self.alpha >= 0):
            raise InvalidValueError(f"alpha = {self.alpha} has to be zero or more (seconds)")
        if not (math.isfinite(self.beta) and self.beta > 0):
            raise InvalidValueError(f"beta = {self.beta} has to be above zero (seconds per byte)")


def wire_of(link: Link, gamma: float = 0.0) -> Wire:
    """Return `link` as α, β and γ."""
    return Wire(alpha=link.latency_s, beta=1 / link.bandwidth, gamma=gamma)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The counts of one collective by one algorithm; arrays of one shape."""

    messages: FloatArray
    """Messages one after the other on the longest path: the factor of α."""
    moved: FloatArray
    """Bytes one after the other on the longest path: the factor of β."""
    reduced: FloatArray
    """Bytes added to others on the longest path: the factor of γ."""
    sent: FloatArray
    """Bytes that the busiest rank puts on its wire."""
    total: FloatArray
    """Bytes that all ranks together put on their wires."""

    def __add__(self, then: Terms) -> Terms:
        """Return the counts of this and `then`, one after the other, busiest in the same rank."""
        return Terms(
            **{f.name: getattr(self, f.name) + getattr(then, f.name) for f in fields(self)}
        )

    def seconds(self, wire: Wire) -> FloatArray:
        """Return the time of these counts on `wire`."""
        return self.messages * wire.alpha + self.moved * wire.beta + self.reduced * wire.gamma


def ceil_log2(p: FloatArray) -> FloatArray:
    """Return ⌈log2 p⌉ exactly, for whole p >= 2."""
    return np.frexp(p - 1)[1].astype(np.float64)


def floor_log2(p: FloatArray) -> FloatArray:
    """Return ⌊log2 p⌋ exactly, for whole p >= 1."""
    return np.frexp(p)[1].astype(np.float64) - 1


def power_below(p: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the largest power of two p' <= p, and the ranks r = p − p' that it leaves out."""
    power = np.exp2(floor_log2(p))
    return power, p - power


def set_bits(p: FloatArray) -> FloatArray:
    """Return the number of one bits of 0, 1, …, p−1 together.

    Bit k is one in 2^k of every 2^(k+1) consecutive numbers, and in what the last, incomplete run
    of them has beyond its first 2^k.
    """
    whole = p.astype(np.int64)
    count = np.zeros_like(whole)
    for k in range(int(whole.max()).bit_length()):
        half = 1 << k
        count += (whole // (2 * half)) * half + np.maximum(0, whole % (2 * half) - half)
    return count.astype(np.float64)
