"""Two published tables of collective costs, entry by entry, for the estimators that use them.

From PyDTNN, the library behind Castelló et al., PDP 2021 (github.com/hpca-uji/PyDTNN at a985779).
`bta` is called a binary tree there and `vdg` van de Geijn.
No machine runs exactly this, so `fastest` never chooses it: the two all-reduce entries look
exchanged (`bta` has Rabenseifner's cost, `vdg` a tree's with one of its two latencies), a broadcast
by tree has three latencies a level, a gather costs as much as a broadcast, and log2 is not rounded
where the formula of a power of two is meant. Its sent bytes are the bytes of its β term, since the
table names no schedule to count them from.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from traincast.network.registry import register
from traincast.network.terms import FloatArray, Terms, Wire, ceil_log2

_SOURCE = "Castelló et al., PDP 2021, as in github.com/hpca-uji/PyDTNN at a985779"
_Factors = Callable[[FloatArray, FloatArray, FloatArray], tuple[FloatArray, ...]]
"""From (p, L = ⌈lg p⌉, s = (p−1)/p) to the factors of α, nβ and nγ."""


def _tree_broadcast(p: FloatArray, L: FloatArray, s: FloatArray) -> tuple[FloatArray, ...]:
    return 3 * L, L, 0 * s


def _long_broadcast(p: FloatArray, L: FloatArray, s: FloatArray) -> tuple[FloatArray, ...]:
    return np.log2(p) + p - 1, 2 * s, 0 * s


_TABLE: dict[tuple[str, str], _Factors] = {
    ("all-reduce", "bta"): lambda p, L, s: (2 * np.log2(p), 2 * s, s),
    ("all-reduce", "vdg"): lambda p, L, s: (L, 2 * L, L),
    ("reduce", "bta"): lambda p, L, s: (L, L, L),
    ("reduce", "vdg"): lambda p, L, s: (2 * np.log2(p), 2 * s, s),
    ("broadcast", "bta"): _tree_broadcast,
    ("broadcast", "vdg"): _long_broadcast,
    ("scatter", "bta"): lambda p, L, s: (L, s, 0 * s),
    ("scatter", "vdg"): lambda p, L, s: (np.log2(p), s, 0 * s),
    ("gather", "bta"): _tree_broadcast,
    ("gather", "vdg"): _long_broadcast,
    ("all-gather", "bta"): lambda p, L, s: (p - 1, s, 0 * s),
    ("all-gather", "vdg"): lambda p, L, s: (4 * L, s, 0 * s),
    ("reduce-scatter", "bta"): lambda p, L, s: (p - 1, s, s),
    ("reduce-scatter", "vdg"): lambda p, L, s: (p - 1, s, s),
}


def _enter(op: str, label: str) -> None:
    factors = _TABLE[op, label]

    def terms(n: FloatArray, p: FloatArray, wire: Wire, **options: float) -> Terms:
        messages, moved, reduced = factors(p, ceil_log2(p), (p - 1) / p)
        return Terms(
            messages=messages,
            moved=moved * n,
            reduced=reduced * n,
            sent=moved * n,
            total=moved * n * p,
        )

    register(op, f"castello-{label}", source=_SOURCE, candidate=False)(terms)


for _op, _label in _TABLE:
    _enter(_op, _label)
