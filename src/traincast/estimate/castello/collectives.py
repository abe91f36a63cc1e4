"""Seconds of collective operations on a flat network, as the authors' code has them.

n elements, p processes, α seconds a message, β seconds to send an element, γ seconds to add two;
L = ceil(log2 p). The code knows two families, which it calls `bta` and `vdg`:

operation       bta                                      vdg
all-reduce      2·log2(p)·α + (p−1)/p·n·(2β + γ)         L·(α + n·(2β + γ))
reduce          L·(α + n·(β + γ))                        2·log2(p)·α + (p−1)/p·n·(2β + γ)
broadcast       L·(3α + n·β)                             (log2(p) + p − 1)·α + 2·(p−1)/p·n·β
scatter         L·α + (p−1)/p·n·β                        log2(p)·α + (p−1)/p·n·β
all-gather      (p−1)·α + (p−1)/p·n·β                    4·L·α + (p−1)/p·n·β
reduce-scatter  (p−1)·α + (p−1)/p·n·(β + γ)              the same

Gather costs what broadcast costs. The labels of the all-reduce are swapped: what `bta` (a binary
tree) names there is the algorithm for long vectors, what `vdg` (van de Geijn) names is a tree.
`long` and `short` are the two by what they do, `best` is the cheaper of them for each message.

Worked: an all-reduce of 10⁶ float32 values among 8 nodes, 10 Gbit/s, 0.5 µs, 4 TFLOP/s takes
3 µs + 7/8 · (6.4 ms + 0.25 µs) = 5.60321875 ms by the long algorithm, 19.20225 ms by the tree.

Source: github.com/hpca-uji/PyDTNN at a985779 (formulas only).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traincast.errors import UnknownNameError

Floats = NDArray[np.float64]
Cost = Callable[[Floats, Floats, Floats, Floats, Floats], Floats]


def _log(p: Floats) -> Floats:
    return np.log2(p)


def _steps(p: Floats) -> Floats:
    return np.ceil(np.log2(p))


def _most(p: Floats) -> Floats:
    return (p - 1) / p


def _long_reduction(n: Floats, p: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    return 2 * _log(p) * a + _most(p) * n * (2 * b + c)


def _tree_all_reduce(n: Floats, p: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    return _steps(p) * (a + n * (2 * b + c))


def _tree_reduce(n: Floats, p: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    return _steps(p) * (a + n * (b + c))


def _tree_broadcast(n: Floats, p: Floats, a: Floats, b: Floats, _: Floats) -> Floats:
    return _steps(p) * (3 * a + n * b)


def _long_broadcast(n: Floats, p: Floats, a: Floats, b: Floats, _: Floats) -> Floats:
    return (_log(p) + p - 1) * a + 2 * _most(p) * n * b


def _tree_scatter(n: Floats, p: Floats, a: Floats, b: Floats, _: Floats) -> Floats:
    return _steps(p) * a + _most(p) * n * b


def _halving_scatter(n: Floats, p: Floats, a: Floats, b: Floats, _: Floats) -> Floats:
    return _log(p) * a + _most(p) * n * b


def _ring_all_gather(n: Floats, p: Floats, a: Floats, b: Floats, _: Floats) -> Floats:
    return (p - 1) * a + _most(p) * n * b


def _tree_all_gather(n: Floats, p: Floats, a: Floats, b: Floats, _: Floats) -> Floats:
    return 4 * _steps(p) * a + _most(p) * n * b


def _ring_reduce_scatter(n: Floats, p: Floats, a: Floats, b: Floats, c: Floats) -> Floats:
    return (p - 1) * a + _most(p) * n * (b + c)


_BTA: dict[str, Cost] = {
    "all-reduce": _long_reduction,
    "reduce": _tree_reduce,
    "broadcast": _tree_broadcast,
    "gather": _tree_broadcast,
    "scatter": _tree_scatter,
    "all-gather": _ring_all_gather,
    "reduce-scatter": _ring_reduce_scatter,
}
_VDG: dict[str, Cost] = {
    "all-reduce": _tree_all_reduce,
    "reduce": _long_reduction,
    "broadcast": _long_broadcast,
    "gather": _long_broadcast,
    "scatter": _halving_scatter,
    "all-gather": _tree_all_gather,
    "reduce-scatter": _ring_reduce_scatter,
}
_LONG = {**_VDG, "all-reduce": _long_reduction, "all-gather": _ring_all_gather}
_SHORT = {**_BTA, "all-reduce": _tree_all_reduce, "all-gather": _tree_all_gather}

FAMILIES: Mapping[str, tuple[Mapping[str, Cost], ...]] = MappingProxyType(
    {
        "long": (_LONG,),
        "short": (_SHORT,),
        "best": (_LONG, _SHORT),
        "bta": (_BTA,),
        "vdg": (_VDG,),
    }
)
"""Tables of algorithms by name; of several, the cheapest is taken message by message."""
OPERATIONS = tuple(_BTA)


def collective(
    operation: str,
    elements: ArrayLike,
    processes: ArrayLike,
    *,
    latency_s: ArrayLike,
    send_s: ArrayLike,
    add_s: ArrayLike,
    family: str = "long",
    natural_log: bool = False,
) -> Floats:
    """Return the seconds of a collective; every argument may be an array.

    `send_s` is β and `add_s` is γ, seconds an element. `natural_log` reproduces the slip in the
    published `vdg` scatter, which takes the natural logarithm where log2 is meant.
    """
    if family not in FAMILIES:
        known = f"(known: {', '.join(FAMILIES)})"
        raise UnknownNameError("family of collectives", family, FAMILIES, known)
    if operation not in OPERATIONS:
        known = f"(known: {', '.join(OPERATIONS)})"
        raise UnknownNameError("collective", operation, OPERATIONS, known)
    n, p, a, b, c = (
        np.asarray(x, dtype=np.float64) for x in (elements, processes, latency_s, send_s, add_s)
    )
    times = [table[operation](n, p, a, b, c) for table in FAMILIES[family]]
    if natural_log and operation == "scatter" and family == "vdg":
        times = [np.log(p) * a + _most(p) * n * b]
    cheapest = times[0]
    for other in times[1:]:
        cheapest = np.minimum(cheapest, other)
    return cheapest
