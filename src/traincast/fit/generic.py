"""The generic expression, in the style of Kavarakuntla et al. (IEEE Access 12, 2024).

    t = (Σ a_i · I_i^p_i) · Π E_j^q_j + C   [+ c · W^r]

A term I_i may be a product of several factors, each with its own power (ours); a categorical factor
has one coefficient a level; the base a_0 is a term without a factor. In a product, and among the
E_j, a categorical factor multiplies by one number a level (ours). The part in brackets is
communication that grows with the workers W (ours), which lets the time have a minimum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from traincast.fit.constants import Array, Bound, Constant

POWER, PRODUCT, SCALING, GROWTH, MULTIPLIER = (0.0, 3.0), (-3.0, 3.0), (-1.5, 1.5), (0.1, 2.0), 3.0
"""Bounds of p, of p in a product of factors, of q, of r, and of the logarithm of a multiplier."""


@dataclass(frozen=True, kw_only=True)
class GenericForm:
    """Which factors are in the expression, and where."""

    terms: tuple[tuple[str, ...], ...] = ()
    """Intrinsic factors: each term is a number, or a product of numbers and categories."""
    levelled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categorical factors in products, with their levels; the first multiplies by 1."""
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categorical intrinsic factors with their levels."""
    scaling: tuple[str, ...] = ()
    """Numeric extrinsic factors."""
    multipliers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Categorical extrinsic factors with their levels; the first multiplies by 1."""
    base: bool = False
    """Whether the sum has a constant term, whatever else is in it."""
    communication: str | None = None
    """The factor W of the communication term."""
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Own bounds of a factor's exponent."""
    fixed: frozenset[str] = frozenset()
    """Factors with one value besides 0: their power means nothing and is 1."""

    @cached_property
    def pairs(self) -> tuple[tuple[int, str, str], ...]:
        """Each power or multiplier: the term it is in, its factor, and its level if it has one."""
        return tuple(
            (i, name, level)
            for i, term in enumerate(self.terms)
            for name in term
            for level in self.levelled.get(name, ("", ""))[1:]
        )

    @cached_property
    def levels(self) -> tuple[tuple[str, str], ...]:
        """Each coefficient of a level: factor and level."""
        return tuple((name, level) for name, levels in self.categories.items() for level in levels)

    @cached_property
    def multiplied(self) -> tuple[tuple[str, str], ...]:
        """Each multiplier other than 1: factor and level."""
        return tuple((n, level) for n, levels in self.multipliers.items() for level in levels[1:])

    @cached_property
    def constants(self) -> tuple[Constant, ...]:
        """All constants: p, q, logarithms of multipliers, r; then a, base, levels, C, c."""
        found = [self._power(*pair) for pair in self.pairs]
        for name in self.scaling:
            low, high = self.bounds.get(name, SCALING)
            found.append(Constant(name=name, kind="scaling", factor=name, low=low, high=high))
        for name, level in self.multiplied:
            found.append(
                Constant(name=f"{name}={level}", kind="multiplier", factor=name, level=level,
                         low=-MULTIPLIER, high=MULTIPLIER)
            )  # fmt: skip
        w = self.communication
        if w:
            found.append(Constant(name=f"{w} (communication)", kind="growth", factor=w,
                                  low=GROWTH[0], high=GROWTH[1], penalised=False))  # fmt: skip
        for term in self.terms:
            name = "*".join(term)
            found.append(Constant(name=name, kind="coefficient", factor=name))
        # The base is always there, so that what a regulariser leaves of a factor has a place; it is
        # locked at 0 where the form does not have it.
        found.append(Constant(name="base", kind="base", penalised=False))
        for name, level in self.levels:
            found.append(Constant(name=f"{name}={level}", kind="level", factor=name, level=level))
        found.append(Constant(name="constant", kind="constant", penalised=False))
        if w:
            found.append(Constant(name="communication", kind="communication", factor=w))
        return tuple(found)

    def _power(self, term: int, name: str, level: str) -> Constant:
        factors = self.terms[term]
        often = sum(name in t for t in self.terms) > 1 or name in self.scaling
        # A long product goes by its first factor, where that tells it from the others.
        short = len(factors) > 2 and sum(t[0] == factors[0] for t in self.terms) == 1
        within = f"{factors[0]}*…" if short else "*".join(factors)
        place = f" (in {within})" if often else ""
        if level:
            return Constant(name=f"{name}={level}{place}", kind="multiplier", factor=name,
                            level=level, low=-MULTIPLIER, high=MULTIPLIER)  # fmt: skip
        low, high = self.bounds.get(name, PRODUCT if len(factors) > 1 else POWER)
        if name in self.fixed:
            low = high = 1.0
        return Constant(name=name + place, kind="exponent", factor=name, low=low, high=high)

    def bind(self, columns: Mapping[str, NDArray[np.generic]]) -> Bound:
        """Return the expression at runs."""
        return _BoundGeneric(self, columns)

    def text(self) -> str:
        """Return the expression as people write it."""
        parts = [
            "·".join(["a", *(f"m[{n}]" if n in self.levelled else f"{n}^p" for n in term)])
            for term in self.terms
        ]
        parts += [f"a[{name}]" for name in self.categories]
        parts = [*(["a"] if self.base or self.categories else []), *parts] or ["a"]
        inner = " + ".join(parts)
        outer = [f"{n}^q" for n in self.scaling] + [f"m[{n}]" for n in self.multipliers]
        text = (f"({inner})" if outer and len(parts) > 1 else inner) + "".join(
            f" · {part}" for part in outer
        )
        text += " + C"
        return text + (f" + c·{self.communication}^r" if self.communication else "")


class _BoundGeneric:
    """The arrays of a generic expression, made once for a set of runs."""

    def __init__(self, form: GenericForm, columns: Mapping[str, NDArray[np.generic]]) -> None:
        self.runs = len(next(iter(columns.values()))) if columns else 0
        numbers = {n for _, n, level in form.pairs if not level}
        values = {n: np.asarray(columns[n], float) for n in numbers}
        # 0 to any power is 0, also to the power 0: a factor that is off costs nothing.
        logs = {n: np.log(np.where(v > 0, v, 1)) for n, v in values.items()}
        self.logs = self._stack(
            [(columns[n] == level).astype(float) if level else logs[n]
             for _, n, level in form.pairs]
        )  # fmt: skip
        ones = np.ones(self.runs)
        self.on = self._stack(
            [np.prod([values[n] > 0 if n in numbers else ones for n in t], axis=0, dtype=float)
             for t in form.terms]
        )  # fmt: skip
        self.owner = np.array([i for i, _, _ in form.pairs], int)
        self.starts = np.searchsorted(self.owner, np.arange(len(form.terms)))
        self.single = len(form.pairs) == len(form.terms)
        self.all_on = bool(np.all(self.on))
        outer = [np.log(np.asarray(columns[n], float)) for n in form.scaling]
        outer += [(columns[n] == level).astype(float) for n, level in form.multiplied]
        self.outer = self._stack(outer)
        self.hot = self._stack([(columns[n] == lv).astype(float) for n, lv in form.levels])
        w = form.communication
        self.workers = None if w is None else np.log(np.asarray(columns[w], float))
        sizes = (len(form.pairs), len(outer), int(w is not None), len(form.terms), len(form.levels))
        k, q, r, t, l = sizes
        self.p, self.q = slice(0, k), slice(k, k + q)
        self.split = k + q + r
        self.a = slice(self.split, self.split + t)
        self.base = self.split + t
        self.level = slice(self.base + 1, self.base + 1 + l)
        self.constant = self.base + 1 + l
        self.total = self.constant + 1 + r

    def _stack(self, rows: list[Array]) -> Array:
        return np.array(rows, float).reshape(len(rows), self.runs)

    def _parts(self, theta: Array) -> tuple[Array, Array]:
        """Return what each term is at coefficient 1 (S, terms, N) and Π E^q (S, N)."""
        arg = theta[:, self.p, None] * self.logs
        if not self.single:
            arg = np.add.reduceat(arg, self.starts, axis=1)
        terms = np.exp(arg, out=arg)
        if not self.all_on:
            terms *= self.on
        return terms, np.exp(theta[:, self.q] @ self.outer)

    def design(self, theta: Array) -> Array:
        """Return what each linear constant is multiplied by."""
        terms, outer = self._parts(theta)
        found = np.empty((len(theta), self.total - self.split, self.runs))
        at = terms.shape[1]
        np.multiply(terms, outer[:, None], out=found[:, :at])
        found[:, at] = outer
        np.multiply(self.hot, outer[:, None], out=found[:, at + 1 : at + 1 + len(self.hot)])
        found[:, self.constant - self.split] = 1.0
        if self.workers is not None:
            found[:, -1] = np.exp(theta[:, self.split - 1, None] * self.workers)
        return found

    def offset(self, theta: Array) -> Array | float:
        """Return 0: without coefficients there is no time."""
        return 0.0

    def times(self, x: Array) -> Array:
        """Return the scaled times of the runs."""
        terms, outer = self._parts(x[:, : self.split])
        inner = np.matmul(x[:, None, self.a], terms)[:, 0] + x[:, self.base, None]
        inner += x[:, self.level] @ self.hot
        found: Array = inner * outer + x[:, self.constant, None]
        if self.workers is not None:
            found += x[:, -1:] * np.exp(x[:, self.split - 1, None] * self.workers)
        return found

    def jacobian(self, x: Array) -> tuple[Array, Array]:
        """Return times and derivatives; x^p has the derivative x^p·ln x in p."""
        found = np.empty((len(x), self.total, self.runs))
        found[:, self.split :] = self.design(x[:, : self.split])
        scalable = np.matmul(x[:, None, self.split : self.constant],
                             found[:, self.split : self.constant])[:, 0]  # fmt: skip
        weighted = found[:, self.a] * x[:, self.a, None]
        np.multiply(weighted if self.single else weighted[:, self.owner], self.logs,
                    out=found[:, self.p])  # fmt: skip
        np.multiply(self.outer, scalable[:, None], out=found[:, self.q])
        times = scalable + x[:, self.constant, None]
        if self.workers is not None:
            added = x[:, -1:] * found[:, -1]
            found[:, self.split - 1] = added * self.workers
            times += added
        return times, found
