"""Factors of groups of kernels, fitted to measured steps and judged on networks left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.estimate.program import Flags, Floats, Ints

PRIOR = 0.3
"""Standard deviation of a factor's logarithm before any run was seen."""
TOLD = 0.8
"""A factor whose standard error stays above this fraction of the prior's was not told."""
ALIKE = 0.5
"""Correlation of errors among runs of one network: ten of them do not tell ten times as much."""
_NOISE, _RUNS = 0.15, 4.0
"""Standard deviation of log(measured / predicted) to assume, and as of how many runs: so much is
known beforehand of how far networks lie from any model."""
_FOLDS = 10
_HUBER = 1.345


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One measured time, with the parts of its prediction; seconds."""

    row: int
    """Which row of the table it is from."""
    network: str
    family: str
    column: str
    samples: int
    seconds: float
    """Measured."""
    parts: Mapping[tuple[str, ...], float]
    """Device seconds by the groups whose factors multiply them."""
    host: float
    """Host seconds."""


class Table:
    """Measured times as columns: a step is the longer of device and host."""

    def __init__(self, seen: Sequence[Seen]) -> None:
        self.seen = seen
        combos = sorted({groups for s in seen for groups in s.parts})
        self.names = sorted({name for groups in combos for name in groups} | {"host"})
        self.size = len(self.names)
        at = {name: i for i, name in enumerate(self.names)}
        self.seconds = np.array([s.seconds for s in seen])
        self._host = np.array([s.host for s in seen])
        self._parts = np.array([[s.parts.get(c, 0.0) for c in combos] for s in seen])
        self._member = np.zeros((len(combos), self.size))
        for i, groups in enumerate(combos):
            self._member[i, [at[name] for name in groups]] = 1.0
        rows = Counter(s.network for s in seen)
        self.weight = np.array([1.0 / (1.0 + ALIKE * (rows[s.network] - 1)) for s in seen])

    def _clocks(self, theta: Floats) -> tuple[Floats, Floats]:
        device: Floats = self._parts * np.exp(self._member @ theta)
        host: Floats = self._host * np.exp(theta[self.names.index("host")])
        return device, host

    def predicted(self, theta: Floats) -> Floats:
        """Return seconds with factors exp(theta)."""
        device, host = self._clocks(theta)
        longer: Floats = np.maximum(device.sum(axis=1), host)
        return longer

    def shares(self, theta: Floats) -> Floats:
        """Return each group's share in each time, the derivative of its logarithm: (times, θ)."""
        device, _ = self._clocks(theta)
        share: Floats = (device / device.sum(axis=1)[:, None]) @ self._member
        bound = self.host_bound(theta)
        share[bound] = 0.0
        share[bound, self.names.index("host")] = 1.0
        return share

    def host_bound(self, theta: Floats) -> Flags:
        """Return which times the host sets, with factors exp(theta)."""
        device, host = self._clocks(theta)
        bound: Flags = host > device.sum(axis=1)
        return bound


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """Logarithms of factors, with their standard errors."""

    names: Sequence[str]
    theta: Floats
    error: Floats
    told: Flags
    """Which of them the runs can tell; the others are 0."""

    @property
    def kept(self) -> list[tuple[str, int]]:
        """Names and places of the factors that the runs tell."""
        return [(name, i) for i, name in enumerate(self.names) if self.told[i]]

    @property
    def refused(self) -> list[tuple[str, int]]:
        """Names and places of those they do not."""
        return [(name, i) for i, name in enumerate(self.names) if not self.told[i]]


def fit_factors(table: Table, index: Ints) -> Fit:
    """Return the factors that fit some of the times, leaving at 1 what those cannot tell."""
    told = np.ones(table.size, dtype=bool)
    while True:
        theta, error = _fit(table, index, told)
        vague = told & (error > TOLD * PRIOR)
        if not vague.any():
            return Fit(table.names, theta, error, told)
        # Groups that cannot be told apart are given up one by one: the next may then be told.
        told[int(np.argmax(np.where(vague, error, -1.0)))] = False


def _fit(table: Table, index: Ints, told: Flags) -> tuple[Floats, Floats]:
    """Minimise Huber's loss of log(measured / predicted) with a normal prior on θ."""
    theta = np.zeros(table.size)
    log_measured = np.log(table.seconds[index])
    counts = float(table.weight[index].sum())
    free = np.flatnonzero(told)
    prior = np.eye(len(free)) / PRIOR**2
    for _ in range(60):
        off = log_measured - np.log(table.predicted(theta)[index])
        slope = table.shares(theta)[index][:, free]
        spread = 1.4826 * float(np.median(abs(off)))
        noise = np.sqrt((counts * spread**2 + _RUNS * _NOISE**2) / (counts + _RUNS))
        calm = np.minimum(1.0, _HUBER * noise / np.maximum(abs(off), 1e-12))
        weight = table.weight[index] * calm / noise**2
        square = slope.T @ (slope * weight[:, None]) + prior
        move = np.linalg.solve(square, slope.T @ (weight * off) - theta[free] / PRIOR**2)
        theta[free] += np.clip(move, -0.3, 0.3)
        if np.abs(move).max(initial=0.0) < 1e-5:
            break
    error = np.full(table.size, PRIOR)
    error[free] = np.sqrt(np.diag(np.linalg.inv(square)))
    return theta, error


def folds_of(seen: Sequence[Seen]) -> tuple[Ints, int]:
    """Return the fold of every time, and how many there are: whole families of networks each.

    Ten, or as many as there are families. Where there is but one family, whole networks.
    """
    unit = [s.family for s in seen]
    if len(set(unit)) < 3:
        unit = [s.network for s in seen]
    sizes = Counter(unit)
    count = min(_FOLDS, len(sizes))
    load = [0] * count
    fold = {}
    for name, size in sorted(sizes.items(), key=lambda item: (-item[1], item[0])):
        fold[name] = load.index(min(load))
        load[fold[name]] += size
    return np.array([fold[name] for name in unit]), count


def left_out(table: Table) -> tuple[Floats, Flags, int]:
    """Return every time as predicted by factors that were fitted without its fold.

    With it, which of them the host sets, and the number of folds.
    """
    fold, count = folds_of(table.seen)
    guess, bound = np.empty(len(fold)), np.empty(len(fold), dtype=np.bool_)
    for i in range(count):
        theta = fit_factors(table, np.flatnonzero(fold != i)).theta
        out = fold == i
        guess[out], bound[out] = table.predicted(theta)[out], table.host_bound(theta)[out]
    return guess, bound, count
