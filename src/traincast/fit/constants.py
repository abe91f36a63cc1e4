"""The constants of an expression, and what every expression can do.

A form has its constants in one order: first those that enter non-linearly (exponents), which are
searched, then those that enter linearly (coefficients), which are solved for. Everything is scaled:
factors by their reference values, times by the median time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Kind = Literal[
    "exponent", "scaling", "multiplier", "growth", "free",
    "coefficient", "level", "base", "constant", "communication",
]  # fmt: skip
LINEAR: tuple[Kind, ...] = ("coefficient", "level", "base", "constant", "communication")
"""Kinds of constants that are zero or more and enter linearly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """One unknown of an expression."""

    name: str
    """As the report has it."""
    kind: Kind
    factor: str = ""
    """The factor (or the term, a product of factors) it belongs to; empty where to none."""
    level: str = ""
    """The level of a categorical factor."""
    low: float = 0.0
    high: float = np.inf
    """Bounds of the scaled constant."""
    penalised: bool = True
    """Whether a regulariser draws it towards 0."""

    @property
    def linear(self) -> bool:
        """Whether the time is linear in it."""
        return self.kind in LINEAR


_LIKELY: dict[Kind, tuple[float, float]] = {
    "exponent": (-0.5, 1.5), "scaling": (-1.0, 0.5), "multiplier": (-0.4, 0.4),
    "growth": (0.5, 1.0), "free": (-1.0, 1.5),
}  # fmt: skip


def likely_range(constants: Sequence[Constant], low: Array, high: Array) -> tuple[Array, Array]:
    """Return where to look first for non-linear constants (E), inside their bounds (P)."""
    ends = [_LIKELY[c.kind] for c in constants if not c.linear]
    least, most = np.array(ends, float).reshape(-1, 2).T
    low, high = low[: len(ends)], high[: len(ends)]
    return np.clip(least, low, high), np.clip(most, low, high)


def even_spread(rng: np.random.Generator, count: int, low: Array, high: Array) -> Array:
    """Return `count` points (count, E) between two ends: a Latin hypercube.

    Each axis is cut into as many strips as there are points, and each strip holds one.
    """
    strips = np.array([rng.permutation(count) for _ in low]).reshape(len(low), count).T
    return np.asarray(low + (high - low) * (strips + 0.5) / count)


class Bound(Protocol):
    """An expression at given runs: N of them."""

    def design(self, theta: Array) -> Array:
        """Return what each linear constant is multiplied by: (S, linear, N) for S exponents sets.

        `theta` is (S, non-linear). Arrays have the runs last, so that sums over runs are products
        of matrices.
        """

    def offset(self, theta: Array) -> Array | float:
        """Return the times with every linear constant 0: (S, N), or 0."""

    def jacobian(self, x: Array) -> tuple[Array, Array]:
        """Return times (R, N) and their derivatives (R, constants, N) for constants x (R, P)."""

    def times(self, x: Array) -> Array:
        """Return times (R, N) for constants x (R, P)."""


class Form(Protocol):
    """An expression of time."""

    @property
    def constants(self) -> tuple[Constant, ...]:
        """All constants, non-linear ones first."""

    def bind(self, columns: Mapping[str, NDArray[np.generic]]) -> Bound:
        """Return the expression at runs: numbers scaled by their references, levels as text."""

    def text(self) -> str:
        """Return the expression as people write it."""


def split_at(form: Form) -> int:
    """Return how many constants are non-linear."""
    return sum(not c.linear for c in form.constants)
