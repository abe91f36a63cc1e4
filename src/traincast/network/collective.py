"""Seconds and bytes of a collective by any algorithm, on a link or on a cluster.

`message_bytes` is always the whole vector n: what each rank has before an all-reduce, a
reduce-scatter or an all-to-all, what each has after an all-gather, and what the root has of a
broadcast, reduce, gather or scatter. nccl-tests counts all-gather and reduce-scatter the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError
from traincast.hardware import Cluster, Link
from traincast.network import nccl
from traincast.network.hierarchical import evaluate, hierarchical
from traincast.network.placement import flat_wire, intra_wire, place
from traincast.network.registry import Algorithm, algorithms, find, resolve_op
from traincast.network.terms import FloatArray, Wire, wire_of

Many: TypeAlias = Sequence[float] | NDArray[np.float64] | NDArray[np.int64]
"""Several numbers: message sizes in bytes, or numbers of ranks."""
_MOST_RANKS = 2**40


@dataclass(frozen=True, slots=True)
class Fastest:
    """The best algorithm for a message, and its time; arrays where the request had arrays."""

    algorithm: str | NDArray[np.str_]
    """Name of the algorithm, `hierarchical` for two levels."""
    seconds: float | FloatArray
    """Its time in seconds."""


@overload
def collective_seconds(
    op: str,
    message_bytes: float,
    ranks: int,
    where: Link | Cluster,
    *,
    algorithm: str = ...,
    gamma: float = ...,
    per_node: int | None = ...,
    intra: str = ...,
    inter: str = ...,
    **options: float,
) -> float: ...
@overload
def collective_seconds(
    op: str,
    message_bytes: float | Many,
    ranks: int | Many,
    where: Link | Cluster,
    *,
    algorithm: str = ...,
    gamma: float = ...,
    per_node: int | None = ...,
    intra: str = ...,
    inter: str = ...,
    **options: float,
) -> float | FloatArray: ...
def collective_seconds(
    op: str,
    message_bytes: float | Many,
    ranks: int | Many,
    where: Link | Cluster,
    *,
    algorithm: str = "auto",
    gamma: float = 0.0,
    per_node: int | None = None,
    intra: str = "auto",
    inter: str = "auto",
    **options: float,
) -> float | FloatArray:
    """Return the seconds that `op` on `message_bytes` takes among `ranks`; one rank takes none.

    `where` is a link that joins every pair of ranks, or a cluster: ranks then fill one node after
    the other, or `per_node` of them sit in each (1 for data parallelism across nodes), and all
    devices of a node are taken to use its ports at the same time.

    `algorithm` is a name from `algorithms(op)`; `hierarchical` (clusters only; `intra` and `inter`
    name its two algorithms); `nccl`, what NCCL was measured to take; `fastest`; or `auto`: `nccl`
    on a cluster of GPUs, else `fastest`. `gamma` is the time in seconds to add one received byte,
    which measured times contain; `options` go to the named algorithm: `servers` and `dedicated` of
    a parameter server, `segments` of a double tree or chain.
    """
    op = resolve_op(op)
    n, p, scalar = check_sizes(message_bytes, ranks)
    name = algorithm.strip().lower().replace("_", "-")
    if name == "auto":
        name = "nccl" if isinstance(where, Cluster) and _has_gpus(where) else "fastest"
    if name == "nccl":
        _no_options(options, algorithm)
        seconds = _nccl(op, n, p, where, per_node)
    elif name == "fastest":
        _no_options(options, algorithm)
        seconds = _fastest(op, n, p, where, gamma, per_node)[1]
    elif name == "hierarchical":
        _no_options(options, algorithm)
        seconds = _two_levels(op, n, p, where, gamma, per_node, intra, inter)
    else:
        found = find(op, name)
        _check_options(found, options)
        seconds = _flat(found, n, p, where, gamma, per_node, options)
    return shaped(seconds, scalar)


def fastest(
    op: str,
    message_bytes: float | Many,
    ranks: int | Many,
    where: Link | Cluster,
    *,
    gamma: float = 0.0,
    per_node: int | None = None,
) -> Fastest:
    """Return the algorithm with the lowest time for each message, and that time.

    Tries every algorithm of `algorithms(op, candidates=True)`, and two levels on several nodes.
    """
    op = resolve_op(op)
    n, p, scalar = check_sizes(message_bytes, ranks)
    names, seconds = _fastest(op, n, p, where, gamma, per_node)
    if scalar:
        return Fastest(str(names.item()), float(seconds.item()))
    return Fastest(names, seconds)


def nccl_seconds(
    op: str,
    message_bytes: float | Many,
    ranks: int | Many,
    where: Link | Cluster,
    *,
    per_node: int | None = None,
) -> float | FloatArray:
    """Return the seconds that NCCL takes, by curves fitted to published measurements.

    On a link of a node all ranks share a node; on a network link each has a node of its own.
    `nccl_basis` says which measurements stand behind the answer and whether they are of this link.
    """
    n, p, scalar = check_sizes(message_bytes, ranks)
    return shaped(_nccl(resolve_op(op), n, p, where, per_node), scalar)


def bytes_sent(
    op: str,
    message_bytes: float | Many,
    ranks: int | Many,
    algorithm: str = "ring",
    *,
    every_rank: bool = False,
    cluster: Cluster | None = None,
    per_node: int | None = None,
    **options: float,
) -> float | FloatArray:
    """Return the bytes that the busiest rank puts on its wire, or all ranks with `every_rank`.

    For `nccl` those of its rings; `hierarchical` needs the `cluster`, and counts both levels of the
    busiest rank.
    """
    op = resolve_op(op)
    n, p, scalar = check_sizes(message_bytes, ranks)
    name = algorithm.strip().lower().replace("_", "-")
    if name in ("nccl", "hierarchical"):
        _no_options(options, algorithm)
        if every_rank:
            raise InvalidValueError(f"every_rank is not counted for algorithm {algorithm!r}")
        if name == "nccl":
            return shaped(np.where(p > 1, nccl.volume(op, n, p), 0.0), scalar)
        if cluster is None:
            raise InvalidValueError("bytes_sent by 'hierarchical' needs cluster=…")
        placement = place(cluster, p, per_node)
        return shaped(hierarchical(op, n, placement, 0.0, "auto", "auto")[1], scalar)
    found = find(op, name)
    _check_options(found, options)
    terms = evaluate(op, found.name, n, p, Wire(alpha=1e-6, beta=1e-9), **options)
    return shaped(terms.total if every_rank else terms.sent, scalar)


def check_sizes(
    message_bytes: float | Many, ranks: int | Many
) -> tuple[FloatArray, FloatArray, bool]:
    """Return both as arrays of one shape of at least one dim, and whether both were numbers."""
    n = np.asarray(message_bytes, dtype=np.float64)
    p = np.asarray(ranks, dtype=np.float64)
    bad = n[~(np.isfinite(n) & (n > 0))]
    if bad.size:
        raise InvalidValueError(
            f"message_bytes = {bad.flat[0]:g} has to be a finite number above zero"
        )
    bad = p[~((p >= 1) & (p <= _MOST_RANKS) & (p == np.floor(p)))]
    if bad.size:
        raise InvalidValueError(f"ranks = {bad.flat[0]:g} has to be a whole number of at least 1")
    try:
        n, p = np.broadcast_arrays(n, p)
    except ValueError:
        raise InvalidValueError(
            f"message_bytes of shape {n.shape} and ranks of shape {p.shape} do not go together; "
            "give one number, equal shapes, or shapes that broadcast"
        ) from None
    return np.atleast_1d(n), np.atleast_1d(p), n.ndim == 0


def shaped(values: FloatArray, scalar: bool) -> float | FloatArray:
    """Return a float where the request had numbers only."""
    return float(values.item()) if scalar else values


def _fastest(
    op: str,
    n: FloatArray,
    p: FloatArray,
    where: Link | Cluster,
    gamma: float,
    per_node: int | None,
) -> tuple[NDArray[np.str_], FloatArray]:
    names = list(algorithms(op, candidates=True))
    times = [_flat(find(op, name), n, p, where, gamma, per_node, {}) for name in names]
    if isinstance(where, Cluster) and place(where, p, per_node).leaves_node:
        names.append("hierarchical")
        times.append(_two_levels(op, n, p, where, gamma, per_node, "auto", "auto"))
    stacked = np.stack(times)
    best = np.argmin(stacked, axis=0)
    return np.asarray(names)[best], np.take_along_axis(stacked, best[np.newaxis], 0)[0]


def _flat(
    algorithm: Algorithm,
    n: FloatArray,
    p: FloatArray,
    where: Link | Cluster,
    gamma: float,
    per_node: int | None,
    options: dict[str, float],
) -> FloatArray:
    """Return the seconds of an algorithm that takes no note of nodes."""

    def on(wire: Wire) -> FloatArray:
        return evaluate(algorithm.op, algorithm.name, n, p, wire, **options).seconds(wire)

    if isinstance(where, Link):
        _no_placement(per_node)
        return on(wire_of(where, gamma))
    placement = place(where, p, per_node)
    inside = on(intra_wire(where, gamma))
    if not placement.leaves_node:
        return inside
    wire = flat_wire(where, placement.local, gamma, neighbours=algorithm.neighbours)
    return np.where(placement.nodes > 1, on(wire), inside)


def _two_levels(
    op: str,
    n: FloatArray,
    p: FloatArray,
    where: Link | Cluster,
    gamma: float,
    per_node: int | None,
    intra: str,
    inter: str,
) -> FloatArray:
    """Return the seconds in two levels, or in one where a group has one node."""
    if isinstance(where, Link):
        raise InvalidValueError(
            f"algorithm 'hierarchical' needs a cluster, and {where.name!r} is a link; "
            "give a cluster such as 4x8xh100, or name another algorithm"
        )
    placement = place(where, p, per_node)
    one = placement.nodes <= 1
    seconds = np.zeros_like(n)
    if placement.leaves_node:
        seconds = hierarchical(op, n, placement, gamma, intra, inter)[0]
    if np.any(one):
        group = np.minimum(p, placement.local)
        if intra == "auto":
            alone = _fastest(op, n, group, where, gamma, per_node)[1]
        else:
            alone = _flat(find(op, intra), n, group, where, gamma, per_node, {})
        seconds = np.where(one, alone, seconds)
    return seconds


def _nccl(
    op: str, n: FloatArray, p: FloatArray, where: Link | Cluster, per_node: int | None
) -> FloatArray:
    if isinstance(where, Link):
        _no_placement(per_node)
    return nccl.nccl_times(op, n, p, where, per_node)


def _has_gpus(cluster: Cluster) -> bool:
    return cluster.device.is_gpu


def _no_options(options: dict[str, float], algorithm: str) -> None:
    if options:
        raise InvalidValueError(
            f"{', '.join(sorted(options))} cannot be given with algorithm {algorithm!r}; "
            "name the algorithm they belong to"
        )


def _check_options(algorithm: Algorithm, options: dict[str, float]) -> None:
    strange = sorted(set(options) - algorithm.options)
    if strange:
        known = ", ".join(sorted(algorithm.options)) or "none"
        raise InvalidValueError(
            f"{algorithm.op} algorithm {algorithm.name!r} has no option "
            f"{', '.join(strange)}; it has {known}"
        )


def _no_placement(per_node: int | None) -> None:
    if per_node is not None:
        raise InvalidValueError("per_node needs a cluster; a link has no nodes")
