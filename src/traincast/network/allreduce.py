"""All-reduce of a vector of n bytes: every rank ends with the sum over all ranks.

Sources: TRG is Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005.
"""

from __future__ import annotations

import numpy as np

from traincast.errors import InvalidValueError
from traincast.network.exchange import TRG, all_gather_ring, reduce_scatter_ring
from traincast.network.registry import register
from traincast.network.rooted import (
    ONE_TO_ALL,
    TWO_TREE,
    broadcast_binomial,
    broadcast_double_tree,
    broadcast_flat,
    fold_halves,
    reduce_binomial,
    reduce_double_tree,
    reduce_flat,
)
from traincast.network.terms import (
    FloatArray,
    Terms,
    Wire,
    ceil_log2,
    floor_log2,
    power_below,
)

CENSUS = "Bar-Noy, Kipnis and Schieber, Parallel Processing Letters 3(1), 1993"


@register("all-reduce", "ring", source="Patarasuk and Yuan, JPDC 69(2), 2009", neighbours=True)
def ring(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Ring reduce-scatter, then ring all-gather: 2(p−1)α + 2(p−1)/p·nβ + (p−1)/p·nγ."""
    return reduce_scatter_ring(n, p, wire) + all_gather_ring(n, p, wire)


@register("all-reduce", "flat", source=ONE_TO_ALL)
def flat(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """One rank receives and adds all vectors, then sends the sum to all: 2(p−1)(α + nβ) + (p−1)nγ.

    One worker as the only parameter server.
    """
    both = reduce_flat(n, p, wire) + broadcast_flat(n, p, wire)
    return Terms(
        messages=both.messages,
        moved=both.moved,
        reduced=both.reduced,
        sent=(p - 1) * n,
        total=both.total,
    )


@register("all-reduce", "binomial", source=f"{TRG}; Paleo, ICLR 2017: tree all-reduce")
def binomial(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Binomial reduce, then binomial broadcast: 2⌈lg p⌉(α + nβ) + ⌈lg p⌉nγ."""
    both = reduce_binomial(n, p, wire) + broadcast_binomial(n, p, wire)
    return Terms(
        messages=both.messages,
        moved=both.moved,
        reduced=both.reduced,
        sent=ceil_log2(p) * n,  # the root, which only receives while reducing
        total=both.total,
    )


@register("all-reduce", "double-tree", source=TWO_TREE, options=("segments",))
def double_tree(n: FloatArray, p: FloatArray, wire: Wire, *, segments: float = 0) -> Terms:
    """Two-tree reduce, then two-tree broadcast: (4h + 2k)(α + n/k·β) + (2h + k)·n/k·γ."""
    return reduce_double_tree(n, p, wire, segments=segments) + broadcast_double_tree(
        n, p, wire, segments=segments
    )


@register("all-reduce", "recursive-doubling", source=f"{TRG}")
def recursive_doubling(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Exchange the whole vector with the rank at distance 1, 2, 4, …: lg p·(α + nβ + nγ).

    Not a power of two: r = p − p' ranks first give their vector to one of the p' that stay
    (α + nβ + nγ) and receive the sum at the end (α + nβ).
    """
    power, rest = power_below(p)
    rounds, some = floor_log2(p), np.where(rest > 0, 1.0, 0.0)
    return Terms(
        messages=rounds + 2 * some,
        moved=(rounds + 2 * some) * n,
        reduced=(rounds + some) * n,
        sent=(rounds + some) * n,
        total=(power * rounds + 2 * rest) * n,
    )


@register("all-reduce", "butterfly", source=f"{CENSUS}; Paleo, ICLR 2017: butterfly all-reduce")
def butterfly(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """In round t send one vector to rank i + w and receive one from i − w: ⌈lg p⌉ rounds, any p.

    A rank keeps the sum of a window of w = ⌈p / 2^(L−t)⌉ ranks that ends with itself. The next
    window is 2w wide (add the neighbour's sum) or 2w − 1 (add the neighbour's sum without its own
    last vector), so a rank keeps both sums and adds twice, but for the first round, where the
    shorter sum is empty, and the last. L = ⌈lg p⌉ rounds: L(α + nβ), and L·nγ for a power of two,
    else (2L − 2)·nγ.
    """
    rounds = ceil_log2(p)
    _, rest = power_below(p)
    return Terms(
        messages=rounds,
        moved=rounds * n,
        reduced=np.where(rest > 0, 2 * rounds - 2, rounds) * n,
        sent=rounds * n,
        total=p * rounds * n,
    )


@register("all-reduce", "rabenseifner", source=f"Rabenseifner, 1997; {TRG}")
def rabenseifner(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Reduce-scatter by recursive halving, all-gather by recursive doubling.

    2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ. Not a power of two: `fold_halves` first, and the sum goes
    back to the r = p − p' others at the end (α + nβ).
    """
    power, rest = power_below(p)
    fold, some = fold_halves(n, rest), np.where(rest > 0, 1.0, 0.0)
    half = (power - 1) / power * n
    return Terms(
        messages=2 * floor_log2(p) + fold.messages + some,
        moved=2 * half + fold.moved + some * n,
        reduced=half + fold.reduced,
        sent=2 * half + fold.sent + some * n,
        total=2 * (power - 1) * n + fold.total + rest * n,
    )


@register(
    "all-reduce",
    "parameter-server",
    source="Li et al., OSDI 2014; Jia et al. (OptCNN), ICML 2018",
    options=("servers", "dedicated"),
)
def parameter_server(
    n: FloatArray, p: FloatArray, wire: Wire, *, servers: float = 1, dedicated: float = False
) -> Terms:
    """Each of k servers owns n/k bytes; workers push their share to each and pull the result.

    Servers among the workers (1 <= k <= p): a server receives p−1 shares and sends p−1, which
    takes at least as long as any worker's own sends, as p−1 >= k unless k = p:
    2(p−1)α + 2(p−1)/k·nβ + (p−1)/k·nγ. k = 1 is `flat`; k = p has the ring's bytes.

    Dedicated servers: p workers push to k machines of their own. A server handles p shares, a
    worker k of them, and either may be the bottleneck:
    2·max(p, k)α + 2·max(1, p/k)·nβ + (p−1)/k·nγ; 2pn bytes in all.
    """
    k = np.full_like(n, servers)
    if servers < 1 or servers != int(servers):
        raise InvalidValueError(f"servers = {servers} has to be a whole number of at least 1")
    if dedicated:
        return Terms(
            messages=2 * np.maximum(p, k),
            moved=2 * np.maximum(1, p / k) * n,
            reduced=(p - 1) / k * n,
            sent=np.maximum(1, p / k) * n,
            total=2 * p * n,
        )
    if np.any(k > p):
        raise InvalidValueError(
            f"servers = {servers:g} is more than the {p.min():g} ranks they run on; "
            "use fewer, or dedicated=True for machines of their own"
        )
    share = (p - 1) / k * n
    return Terms(
        messages=2 * (p - 1),
        moved=2 * share,
        reduced=share,
        sent=share + (k - 1) / k * n,
        total=2 * (p - 1) * n,
    )
