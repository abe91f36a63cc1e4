"""All-gather, reduce-scatter, all-to-all and point-to-point: what every rank does alike.

n is the whole vector: what each rank holds after an all-gather, before a reduce-scatter, and before
and after an all-to-all. A block is n/p bytes. Sources: TRG is Thakur, Rabenseifner and Gropp,
IJHPCA 19(1), 2005; Bruck is Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997.
"""

from __future__ import annotations

import numpy as np

from traincast.network.registry import register
from traincast.network.terms import (
    FloatArray,
    Terms,
    Wire,
    ceil_log2,
    floor_log2,
    power_below,
    set_bits,
)

TRG = "Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005"
BRUCK = "Bruck, Ho, Kipnis, Upfal and Weathersby, IEEE TPDS 8(11), 1997"


@register("point-to-point", "direct", source="Hockney, Parallel Computing 20(3), 1994")
def send(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """One message from one rank to another; the other ranks do nothing: α + nβ."""
    one = np.ones_like(n)
    return Terms(messages=one, moved=n, reduced=0 * n, sent=n, total=n)


@register("all-gather", "ring", source=f"{TRG}", neighbours=True)
def all_gather_ring(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """p−1 times, pass the block that came last on to the next: (p−1)α + (p−1)/p·nβ."""
    moved = (p - 1) / p * n
    return Terms(messages=p - 1, moved=moved, reduced=0 * n, sent=moved, total=(p - 1) * n)


@register("all-gather", "bruck", source=f"{BRUCK}; {TRG}")
def all_gather_bruck(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Double what one holds each round, from rank i + 2^k; the last round fetches what is missing.

    ⌈lg p⌉α + (p−1)/p·nβ for any p. The final rotation in memory is not charged.
    """
    moved = (p - 1) / p * n
    return Terms(messages=ceil_log2(p), moved=moved, reduced=0 * n, sent=moved, total=(p - 1) * n)


@register("all-gather", "recursive-doubling", source=f"{TRG}")
def all_gather_doubling(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Exchange all one holds with the rank at distance 1, 2, 4, …: lg p·α + (p−1)/p·nβ.

    Not a power of two: with p' the power below and r = p − p', each of r ranks first gives its
    block to one of the p' (α, 1 block) and at the end receives the p−1 others (α, p−1 blocks).
    """
    power, rest = power_below(p)
    block = n / p
    moved = _uneven_rounds(p) * block + np.where(rest > 0, p * block, 0)
    return Terms(
        messages=floor_log2(p) + np.where(rest > 0, 2, 0),
        moved=moved,
        reduced=0 * n,
        sent=_uneven_rounds(p) * block + np.where(rest > 0, (p - 1) * block, 0),
        total=(power - 1) * n + rest * p * block,
    )


@register("all-gather", "binomial", source=f"{TRG}: binomial gather, then binomial broadcast")
def all_gather_binomial(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Gather to one rank and broadcast: 2⌈lg p⌉α + ((p−1)/p + ⌈lg p⌉)·nβ."""
    depth = ceil_log2(p)
    return Terms(
        messages=2 * depth,
        moved=((p - 1) / p + depth) * n,
        reduced=0 * n,
        sent=depth * n,
        total=set_bits(p) * n / p + (p - 1) * n,
    )


@register("reduce-scatter", "ring", source="Patarasuk and Yuan, JPDC 69(2), 2009", neighbours=True)
def reduce_scatter_ring(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """p−1 times, add one's block to what came last and pass it on: (p−1)α + (p−1)/p·n(β + γ)."""
    moved = (p - 1) / p * n
    return Terms(messages=p - 1, moved=moved, reduced=moved, sent=moved, total=(p - 1) * n)


@register("reduce-scatter", "pairwise", source=f"{TRG}")
def reduce_scatter_pairwise(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """In step k send rank i+k its block and add what rank i−k sends: (p−1)α + (p−1)/p·n(β + γ)."""
    return reduce_scatter_ring(n, p, wire)


@register("reduce-scatter", "recursive-halving", source=f"{TRG}")
def reduce_scatter_halving(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Exchange half of the vector, then a quarter, …: lg p·α + (p−1)/p·n(β + γ).

    Not a power of two: r = p − p' ranks first give their whole vector to one of the p'
    (α + nβ + nγ) and at the end receive their block (α + n/p·β).
    """
    power, rest = power_below(p)
    block = n / p
    rounds = _uneven_rounds(p) * block
    return Terms(
        messages=floor_log2(p) + np.where(rest > 0, 2, 0),
        moved=rounds + np.where(rest > 0, n + block, 0),
        reduced=rounds + np.where(rest > 0, n, 0),
        sent=np.where(rest > 0, n, (p - 1) * block),
        total=(power - 1) * n + rest * (n + block),
    )


def _uneven_rounds(p: FloatArray) -> FloatArray:
    """Return the blocks of the largest message of every doubling round among p' ranks, summed.

    The first r = p − p' ranks hold two blocks, the others one. In the round at distance 2^i the
    fullest group has 2^i ranks and so 2^i + min(r, 2^i) blocks, which its partners wait for. With
    q = ⌈lg r⌉ the minimum is 2^i for i < q and r from there on:

        Σ_i 2^i + Σ_i min(r, 2^i) = p' − 1 + (2^q − 1) + (lg p' − q)·r          (r = 0: p − 1)
    """
    power, rest = power_below(p)
    q = np.where(rest > 1, ceil_log2(np.maximum(rest, 2)), 0)
    extra = np.exp2(q) - 1 + (floor_log2(p) - q) * rest
    return power - 1 + np.where(rest > 0, extra, 0)


@register("all-to-all", "pairwise", source=f"{TRG}")
def all_to_all_pairwise(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """In step k exchange a block with ranks i ± k: (p−1)α + (p−1)/p·nβ."""
    moved = (p - 1) / p * n
    return Terms(messages=p - 1, moved=moved, reduced=0 * n, sent=moved, total=(p - 1) * n)


@register("all-to-all", "bruck", source=f"{BRUCK}; {TRG}")
def all_to_all_bruck(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """In round k send rank i + 2^k all blocks whose remaining distance has bit k set.

    ⌈lg p⌉ messages; the blocks are the one bits of 0 … p−1, which is p/2·lg p for a power of two:
    ⌈lg p⌉α + n/2·lg p·β.
    """
    moved = set_bits(p) * n / p
    return Terms(messages=ceil_log2(p), moved=moved, reduced=0 * n, sent=moved, total=p * moved)


@register(
    "all-to-all",
    "ring",
    source="our derivation: pairwise exchange where only neighbours are joined",
    neighbours=True,
)
def all_to_all_ring(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Pass everything on to the next rank, who keeps what is his: p−1, p−2, …, 1 blocks.

    (p−1)α + (p−1)/2·nβ. One direction only; a ring used both ways needs half of the bytes.
    """
    moved = (p - 1) / 2 * n
    return Terms(messages=p - 1, moved=moved, reduced=0 * n, sent=moved, total=p * moved)
