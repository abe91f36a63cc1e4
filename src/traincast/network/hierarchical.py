"""Collectives in two levels: inside each node over its fast link, and between nodes.

With G ranks in each of N nodes and a vector of n bytes. Where every rank takes part alike, the
ranks with the same place in their nodes form a rail, and G rails work at once on n/G bytes each,
sharing the ports of the node (Cho et al., "BlueConnect", MLSys 2019; Jia et al., arXiv 1807.11205):

    all-reduce      reduce-scatter n inside, all-reduce n/G between, all-gather n inside
    reduce-scatter  reduce-scatter n inside, reduce-scatter n/G between
    all-gather      all-gather n/G between, all-gather n inside
    all-to-all      all-to-all n inside (to the rail of the target), all-to-all n between

Where one rank is the root, one leader in each node talks to the others:

    broadcast, scatter   among the leaders, then inside       (scatter: n, then the node's n/N)
    reduce, gather       inside, then among the leaders       (gather: the node's n/N, then n)

Known inaccuracy: the stages follow one another; libraries that overlap them in pieces come closer
to the slower of the two levels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from traincast.network.placement import Placement, intra_wire, leader_wire, rail_wire
from traincast.network.registry import algorithms, find
from traincast.network.terms import FloatArray, Terms, Wire


@dataclass(frozen=True, slots=True)
class _Stage:
    level: str
    """`node`, `rail` or `leader`: which ranks take part, over which wire."""
    op: str
    share: str = "n"
    """Bytes of the stage's vector: `n`, `n/G` or `n/N`."""


_STAGES: dict[str, tuple[_Stage, ...]] = {
    "all-reduce": (
        _Stage("node", "reduce-scatter"),
        _Stage("rail", "all-reduce", "n/G"),
        _Stage("node", "all-gather"),
    ),
    "reduce-scatter": (_Stage("node", "reduce-scatter"), _Stage("rail", "reduce-scatter", "n/G")),
    "all-gather": (_Stage("rail", "all-gather", "n/G"), _Stage("node", "all-gather")),
    "all-to-all": (_Stage("node", "all-to-all"), _Stage("rail", "all-to-all")),
    "broadcast": (_Stage("leader", "broadcast"), _Stage("node", "broadcast")),
    "scatter": (_Stage("leader", "scatter"), _Stage("node", "scatter", "n/N")),
    "reduce": (_Stage("node", "reduce"), _Stage("leader", "reduce")),
    "gather": (_Stage("node", "gather", "n/N"), _Stage("leader", "gather")),
    "point-to-point": (_Stage("rail", "point-to-point"),),
}
_WIRES: dict[str, Callable[..., Wire]] = {
    "node": intra_wire,
    "rail": rail_wire,
    "leader": leader_wire,
}


def hierarchical(
    op: str, n: FloatArray, placement: Placement, gamma: float, intra: str, inter: str
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds of `op` in two levels, and the bytes that its busiest rank sends.

    `intra` and `inter` name the algorithm inside and between nodes; `auto` takes the fastest.
    """
    seconds, sent = np.zeros_like(n), np.zeros_like(n)
    for stage in _STAGES[op]:
        inside = stage.level == "node"
        ranks = np.minimum(placement.ranks, placement.local) if inside else placement.nodes
        size = {"n": n, "n/G": n / placement.local, "n/N": n / placement.nodes}[stage.share]
        wire = _WIRES[stage.level](placement.cluster, gamma)
        taken, bytes_sent = _stage(stage.op, size, ranks, wire, intra if inside else inter)
        seconds, sent = seconds + taken, sent + bytes_sent
    return seconds, sent


def _stage(
    op: str, n: FloatArray, p: FloatArray, wire: Wire, name: str
) -> tuple[FloatArray, FloatArray]:
    """Return seconds and sent bytes of the algorithm `name`, or of the fastest of each size."""
    names = algorithms(op, candidates=True) if name == "auto" else (find(op, name).name,)
    terms = [evaluate(op, each, n, p, wire) for each in names]
    times = np.stack([t.seconds(wire) for t in terms])
    best = np.argmin(times, axis=0)[np.newaxis]
    sent = np.stack([t.sent for t in terms])
    return np.take_along_axis(times, best, 0)[0], np.take_along_axis(sent, best, 0)[0]


def evaluate(
    op: str, name: str, n: FloatArray, p: FloatArray, wire: Wire, **options: float
) -> Terms:
    """Return the counts of one algorithm; groups of one rank count nothing."""
    terms = find(op, name).terms(n, np.maximum(p, 2), wire, **options)
    alone = p < 2
    return Terms(
        messages=np.where(alone, 0, terms.messages),
        moved=np.where(alone, 0, terms.moved),
        reduced=np.where(alone, 0, terms.reduced),
        sent=np.where(alone, 0, terms.sent),
        total=np.where(alone, 0, terms.total),
    )
