"""Seconds of collective operations on a flat network, by the tables of the authors' code.

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

Source: github.com/hpca-uji/PyDTNN at a985779 (formulas only); the counts of messages, elements sent
and elements added are those of `traincast.network.published`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traincast.errors import UnknownNameError
from traincast.network import Wire, find

Floats = NDArray[np.float64]
OPERATIONS = (
    "all-reduce", "reduce", "broadcast", "gather", "scatter", "all-gather", "reduce-scatter",
)  # fmt: skip
# Whose entry is for long vectors, or for rings, in each row of the tables.
_LONG = dict(zip(OPERATIONS, ("bta", "vdg", "vdg", "vdg", "vdg", "bta", "bta"), strict=True))
_SHORT = dict(zip(OPERATIONS, ("vdg", "bta", "bta", "bta", "bta", "vdg", "bta"), strict=True))
FAMILIES: Mapping[str, tuple[Mapping[str, str], ...]] = MappingProxyType(
    {
        "long": (_LONG,),
        "short": (_SHORT,),
        "best": (_LONG, _SHORT),
        "bta": (dict.fromkeys(OPERATIONS, "bta"),),
        "vdg": (dict.fromkeys(OPERATIONS, "vdg"),),
    }
)
"""Entries to use, by name; of several, the cheapest is taken message by message."""
_ANY = Wire(alpha=0.0, beta=1.0)
"""The tables count alike on every wire."""


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
    cheapest: Floats | None = None
    for table in FAMILIES[family]:
        terms = find(operation, f"castello-{table[operation]}").terms(n, p, _ANY)
        messages = terms.messages
        if natural_log and operation == "scatter" and family == "vdg":
            messages = np.log(p)
        seconds = np.where(p > 1, messages * a + terms.moved * b + terms.reduced * c, 0.0)
        cheapest = seconds if cheapest is None else np.minimum(cheapest, seconds)
    assert cheapest is not None
    return cheapest
