"""Broadcast, reduce, gather and scatter: one rank has, or gets, the whole vector of n bytes.

Sources: TRG is Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; two-tree is Sanders, Speck and
Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing
35(12), 2009.
"""

from __future__ import annotations

import numpy as np

from traincast.network.exchange import TRG, all_gather_doubling, all_gather_ring
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

TWO_TREE = "Sanders, Speck and Träff, Parallel Computing 35(12), 2009"
ONE_TO_ALL = "Qi, Sparks and Talwalkar (Paleo), ICLR 2017: one to all"


@register("broadcast", "flat", source=ONE_TO_ALL)
def broadcast_flat(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """The root sends the vector to every other rank in turn: (p−1)(α + nβ)."""
    moved = (p - 1) * n
    return Terms(messages=p - 1, moved=moved, reduced=0 * n, sent=moved, total=moved)


@register("broadcast", "binomial", source=f"{TRG}")
def broadcast_binomial(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Each round, every rank that has the vector sends it to one that has not: ⌈lg p⌉(α + nβ)."""
    depth = ceil_log2(p)
    return Terms(messages=depth, moved=depth * n, reduced=0 * n, sent=depth * n, total=(p - 1) * n)


@register("broadcast", "van-de-geijn", source=f"Barnett et al., 1994; {TRG}")
def broadcast_van_de_geijn(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Scatter, then ring all-gather: (⌈lg p⌉ + p − 1)α + 2(p−1)/p·nβ."""
    return scatter_binomial(n, p, wire) + all_gather_ring(n, p, wire)


@register("broadcast", "recursive-doubling", source=f"{TRG}: medium messages")
def broadcast_doubling(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Scatter, then all-gather by recursive doubling: 2 lg p·α + 2(p−1)/p·nβ."""
    return scatter_binomial(n, p, wire) + all_gather_doubling(n, p, wire)


@register("broadcast", "double-tree", source=TWO_TREE, options=("segments",))
def broadcast_double_tree(
    n: FloatArray, p: FloatArray, wire: Wire, *, segments: float = 0
) -> Terms:
    """Half of the vector down each of two binary trees, a leaf of one being inside the other.

    An inner rank sends each piece of its tree twice, so either tree moves a piece every second
    step, and both together one piece a step. The first piece needs 2 steps for each of the
    h = ⌈lg p⌉ levels. In k pieces, k even: (2h + k)(α + n/k·β). The best k is √(2h·nβ/α):
    (√(nβ) + √(2hα))². `segments` sets k; 0 takes the best.
    """
    depth = 2 * ceil_log2(p)
    pieces = _pieces(segments, depth, n, wire)
    steps = depth + pieces
    return Terms(messages=steps, moved=steps * n / pieces, reduced=0 * n, sent=n, total=(p - 1) * n)


@register(
    "broadcast",
    "chain",
    source="Barnett et al., 1994: pipelined chain",
    options=("segments",),
    neighbours=True,
)
def broadcast_chain(n: FloatArray, p: FloatArray, wire: Wire, *, segments: float = 0) -> Terms:
    """Pass pieces from rank to rank; the last sees the first of k after p−1 steps.

    (p − 2 + k)(α + n/k·β), best with k = √((p−2)·nβ/α). `segments` sets k; 0 takes the best.
    """
    pieces = _pieces(segments, p - 2, n, wire)
    steps = p - 2 + pieces
    return Terms(messages=steps, moved=steps * n / pieces, reduced=0 * n, sent=n, total=(p - 1) * n)


def _pieces(segments: float, fill: FloatArray, n: FloatArray, wire: Wire) -> FloatArray:
    """Return how many pieces minimise (fill + k)(α + n/k·β), unless the caller says how many.

    The derivative is zero at k = √(fill·nβ/α). k is not rounded, and lies between one piece and
    pieces of one byte.
    """
    if segments:
        return np.full_like(n, segments)
    if wire.alpha == 0:
        return np.maximum(n, 1)
    return np.clip(np.sqrt(fill * n * wire.beta / wire.alpha), 1, np.maximum(n, 1))


def _adding(wire: Wire) -> Wire:
    """Return the wire that picks pieces for a reduction, where a byte costs β + γ."""
    return Wire(alpha=wire.alpha, beta=wire.beta + wire.gamma)


@register("reduce", "flat", source=ONE_TO_ALL)
def reduce_flat(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """The root receives and adds the vector of every other rank in turn: (p−1)(α + nβ + nγ)."""
    moved = (p - 1) * n
    return Terms(messages=p - 1, moved=moved, reduced=moved, sent=n, total=moved)


@register("reduce", "binomial", source=f"{TRG}")
def reduce_binomial(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """The broadcast backwards, adding: ⌈lg p⌉(α + nβ + nγ)."""
    depth = ceil_log2(p)
    return Terms(messages=depth, moved=depth * n, reduced=depth * n, sent=n, total=(p - 1) * n)


@register("reduce", "rabenseifner", source=f"Rabenseifner, 1997; {TRG}")
def reduce_rabenseifner(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Reduce-scatter by recursive halving, then binomial gather.

    2 lg p·α + 2(p−1)/p·nβ + (p−1)/p·nγ. Not a power of two: `fold_halves` first; the root is one of
    the p' ranks that stay.
    """
    power, rest = power_below(p)
    fold = fold_halves(n, rest)
    halving = (power - 1) / power * n
    gather = gather_binomial(n, power, wire)
    return Terms(
        messages=2 * floor_log2(p) + fold.messages,
        moved=2 * halving + fold.moved,
        reduced=halving + fold.reduced,
        sent=halving + gather.sent + fold.sent,
        total=(power - 1) * n + gather.total + fold.total,
    )


def fold_halves(n: FloatArray, rest: FloatArray) -> Terms:
    """Bring r = p − p' vectors into the p' ranks that stay, as Rabenseifner does.

    In each of r pairs the ranks exchange halves of their vectors and add (α + n/2·β + n/2·γ), then
    one gives its half of the sum to the other (α + n/2·β). Nothing where r = 0.
    """
    some = np.where(rest > 0, 1.0, 0.0)
    return Terms(
        messages=2 * some,
        moved=some * n,
        reduced=some * n / 2,
        sent=some * n / 2,
        total=rest * 1.5 * n,
    )


@register("reduce", "double-tree", source=TWO_TREE, options=("segments",))
def reduce_double_tree(n: FloatArray, p: FloatArray, wire: Wire, *, segments: float = 0) -> Terms:
    """The two-tree broadcast backwards, adding each piece: (2h + k)(α + n/k·(β + γ))."""
    down = broadcast_double_tree(n, p, _adding(wire), segments=segments)
    return Terms(
        messages=down.messages, moved=down.moved, reduced=down.moved, sent=n, total=down.total
    )


@register(
    "reduce",
    "chain",
    source="Barnett et al., 1994: pipelined chain",
    options=("segments",),
    neighbours=True,
)
def reduce_chain(n: FloatArray, p: FloatArray, wire: Wire, *, segments: float = 0) -> Terms:
    """The chain broadcast backwards, adding each piece: (p − 2 + k)(α + n/k·(β + γ))."""
    down = broadcast_chain(n, p, _adding(wire), segments=segments)
    return Terms(
        messages=down.messages, moved=down.moved, reduced=down.moved, sent=n, total=down.total
    )


@register("scatter", "flat", source=ONE_TO_ALL)
def scatter_flat(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """The root sends every other rank its block: (p−1)(α + n/p·β)."""
    moved = (p - 1) / p * n
    return Terms(messages=p - 1, moved=moved, reduced=0 * n, sent=moved, total=moved)


@register("scatter", "binomial", source=f"{TRG}")
def scatter_binomial(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """Give a child all blocks of its subtree, the largest subtree first: ⌈lg p⌉α + (p−1)/p·nβ.

    Rank j is as deep as its number has one bits, and its block is sent once for each level.
    """
    moved = (p - 1) / p * n
    return Terms(
        messages=ceil_log2(p), moved=moved, reduced=0 * n, sent=moved, total=set_bits(p) * n / p
    )


@register("gather", "flat", source=ONE_TO_ALL)
def gather_flat(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """The root receives every other rank's block in turn: (p−1)(α + n/p·β)."""
    moved = (p - 1) / p * n
    return Terms(messages=p - 1, moved=moved, reduced=0 * n, sent=n / p, total=moved)


@register("gather", "binomial", source=f"{TRG}")
def gather_binomial(n: FloatArray, p: FloatArray, wire: Wire) -> Terms:
    """The scatter backwards: ⌈lg p⌉α + (p−1)/p·nβ.

    The root's children have subtrees of 2^k ranks, cut short for the last; the largest is the
    busiest sender.
    """
    depth = ceil_log2(p)
    last = p - np.exp2(depth - 1)
    largest = np.maximum(last, np.where(depth >= 2, np.exp2(depth - 2), 1))
    moved = (p - 1) / p * n
    return Terms(
        messages=depth,
        moved=moved,
        reduced=0 * n,
        sent=largest * n / p,
        total=set_bits(p) * n / p,
    )
