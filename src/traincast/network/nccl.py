"""What NCCL achieves: two straight lines for each link and operation, fitted to published tables.

NCCL sends small messages by a protocol with little latency and a low rate (LL, LL128) and large
ones by one with more of both (Simple), and picks by its own estimate. With V the bytes that the
busiest rank sends in a ring (nccl-tests calls V/t the bus bandwidth), s the steps of that ring, B
the link's bandwidth in one direction and p ranks in one node:

    small  a0 + a1·s + V / (e_small·B)
    large  b0 + b1·s + V / (e(p)·B)        e(p) between the fitted p on a line in logarithms
    switch c0 + n·(p + 1)/p / (e_switch·B) all-reduce inside an NVSwitch (NVLS), p > 4: a rank sends
                                           its vector to the switch once and 1/p of the sum back

and the time is the least of them. Between nodes the slower of the two levels bounds the bandwidth,
and latencies add up along the ring, or along a tree for an all-reduce (as in NCCL's own
src/graph/tuning.cc): `between_seconds`. The constants, what they were fitted on and how far off
they are on other rows stand in `nccl.toml`, which `benchmarks/fit_nccl.py` makes.

Known inaccuracy: measured on idle machines without computation beside it; the bump where NCCL
changes protocol a little late is cut off; more than 8 ranks in a node are extrapolated.
"""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from traincast.hardware import Cluster, Link
from traincast.network.placement import Placement, place
from traincast.network.registry import resolve_op
from traincast.network.terms import FloatArray

CONSTANTS = Path(__file__).parent / "nccl.toml"
NETWORK_KINDS = ("ethernet", "infiniband")
_SWITCH_RANKS = 5
_NEAREST_KIND = {"fabric": "nvlink", "ici": "nvlink", "socket": "pcie"}

# Operations that no table holds take the curve of the kernel that NCCL runs them with: broadcast
# and reduce are the pipelined ring of an all-gather, the others are plain sends and receives.
CURVE_OF = {
    "all-reduce": "all-reduce",
    "all-gather": "all-gather",
    "reduce-scatter": "reduce-scatter",
    "all-to-all": "all-to-all",
    "broadcast": "all-gather",
    "reduce": "reduce-scatter",
    "gather": "all-to-all",
    "scatter": "all-to-all",
    "point-to-point": "all-to-all",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One operation inside a node, on one kind of link."""

    small_base_s: float
    """a0, seconds."""
    small_step_s: float
    """a1, seconds a step."""
    small_efficiency: float
    """e_small, fraction of the link's bandwidth."""
    base_s: float
    """b0, seconds."""
    step_s: float
    """b1, seconds a step."""
    ranks: tuple[int, ...]
    """Rank counts that e was fitted at, rising."""
    efficiency: tuple[float, ...]
    """e at those, fractions of the link's bandwidth."""
    switch_base_s: float = 0.0
    """c0, seconds."""
    switch_efficiency: float = 0.0
    """e_switch; 0 where the link has no switch that adds."""

    def large_efficiency(self, p: FloatArray) -> FloatArray:
        """Return e(p); beyond the fitted rank counts that of the nearest."""
        return np.exp(np.interp(np.log(p), np.log(self.ranks), np.log(self.efficiency)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """A link inside nodes and its curves."""

    link: str
    """Name of the link in the catalog."""
    kind: str
    """Its family."""
    bandwidth: float
    """Its bandwidth in bytes/s."""
    devices: tuple[str, ...]
    """Devices that it holds for; empty for all."""
    curves: dict[str, Curve]
    """By operation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Between:
    """A network between nodes, for all operations."""

    name: str
    """What was measured."""
    kind: str
    """Family of its links."""
    fitted: bool
    """False where latencies are NCCL's own constants and only the efficiency was measured."""
    from_bandwidth: float
    """Bytes/s of a port from which on it stands for its kind."""
    up_to_bandwidth: float
    """Bytes/s of a port up to which it does."""
    small_base_s: float
    """Seconds, small messages."""
    small_hop_s: float
    """Seconds for each node that a small message passes."""
    small_efficiency: float
    """Fraction of the bandwidth for small messages."""
    base_s: float
    """Seconds, large messages."""
    hop_s: float
    """Seconds for each node that a large message passes in a ring."""
    tree_hop_s: float
    """Seconds for each node that a large message passes in a tree."""
    efficiency: float
    """Fraction of the bandwidth for large messages."""


@dataclass(frozen=True, slots=True)
class NcclBasis:
    """What a time of NCCL rests on."""

    text: str
    """For people: the tables behind it."""
    transferred: bool
    """True when any part was measured on another link or operation, or is NCCL's own constant."""


def nccl_basis(op: str, where: Link | Cluster) -> NcclBasis:
    """Return which measurements `nccl_seconds` uses for `op` on `where`."""
    op = resolve_op(op)
    inside, between, ours = _tables(where)
    parts, transferred = [], not ours
    if inside is not None:
        parts.append(
            f"inside a node: {inside.link}"
            + (f" of {', '.join(inside.devices)}" if inside.devices else "")
        )
    if between is not None:
        parts.append(f"between nodes: {between.name}")
    used = CURVE_OF[op]
    if inside is not None and used not in inside.curves:
        used = "all-reduce"
    if used != op:
        transferred = True
        parts.append(f"{op} from {used}")
    return NcclBasis("; ".join(parts), transferred)


def nccl_times(
    op: str, n: FloatArray, p: FloatArray, where: Link | Cluster, per_node: int | None
) -> FloatArray:
    """Return the seconds that NCCL takes; arrays of one shape, already checked."""
    inside, between, _ = _tables(where)
    if isinstance(where, Link):
        if between is not None:
            return np.where(p > 1, between_seconds(op, n, p, None, where, between, None), 0.0)
        assert inside is not None
        return np.where(p > 1, inside_seconds(curve_of(inside, op), where.bandwidth, op, n, p), 0.0)
    assert inside is not None
    placement = place(where, p, per_node)
    curve = curve_of(inside, op)
    seconds = inside_seconds(
        curve, where.intra_link.bandwidth, op, n, np.minimum(p, placement.local)
    )
    if placement.leaves_node:
        assert between is not None
        apart = between_seconds(op, n, p, placement, where.inter_link, between, curve)
        seconds = np.where(placement.nodes > 1, apart, seconds)
    return np.where(p > 1, seconds, 0.0)


def curve_of(inside: Inside, op: str) -> Curve:
    """Return the curve for `op`: its own, or the all-reduce's where only that was measured."""
    return inside.curves.get(CURVE_OF[op], inside.curves["all-reduce"])


def volume(op: str, n: FloatArray, p: FloatArray) -> FloatArray:
    """Return V, the bytes that the busiest rank sends in NCCL's rings."""
    if op == "all-reduce":
        return 2 * (p - 1) / p * n
    if op in ("broadcast", "reduce", "point-to-point"):
        return n
    return (p - 1) / p * n


def steps(op: str, p: FloatArray) -> FloatArray:
    """Return s, the steps of the ring."""
    return (2 if op == "all-reduce" else 1) * (p - 1)


def inside_seconds(c: Curve, bandwidth: float, op: str, n: FloatArray, p: FloatArray) -> FloatArray:
    """Return the time in one node: the least of the lines at the top of this file."""
    p = np.maximum(p, 2)
    if op == "point-to-point":
        p = np.full_like(p, 2)
    moved, s = volume(op, n, p), steps(op, p)
    small = c.small_base_s + c.small_step_s * s + moved / (c.small_efficiency * bandwidth)
    large = c.base_s + c.step_s * s + moved / (c.large_efficiency(p) * bandwidth)
    best = np.minimum(small, large)
    if c.switch_efficiency and op == "all-reduce":
        switch = c.switch_base_s + n * (p + 1) / p / (c.switch_efficiency * bandwidth)
        best = np.where(p >= _SWITCH_RANKS, np.minimum(best, switch), best)
    return best


def between_seconds(
    op: str,
    n: FloatArray,
    p: FloatArray,
    placement: Placement | None,
    link: Link,
    net: Between,
    curve: Curve | None,
) -> FloatArray:
    """Return the time across nodes, with N nodes of g ranks each.

    A ring passes N−1 network hops and p−N inside nodes, twice that for an all-reduce; a tree 2·lg N
    and 2(g−1), which only an all-reduce uses. A ring leaves a node once with the share of its g
    ranks; in an all-to-all every rank sends (p−g)/p·n out of the node over its own share.
    """
    nodes = placement.nodes if placement else p
    local = placement.local if placement else 1
    share = placement.cluster.inter_bandwidth if placement else link.bandwidth
    inner = placement.cluster.intra_link.bandwidth if placement and local > 1 else math.inf
    p = np.maximum(p, 2)
    nodes = np.maximum(nodes, 2)
    sides = []
    for small in (True, False):
        hops = (net.small_hop_s,) * 2 if small else (net.hop_s, net.tree_hop_s)
        base = net.small_base_s if small else net.base_s
        rate = share * (net.small_efficiency if small else net.efficiency)
        step, inside_rate = 0.0, math.inf
        if curve is not None and local > 1:
            step = curve.small_step_s if small else curve.step_s
            base += curve.small_base_s if small else curve.base_s
            at = np.asarray([float(local)])
            part = curve.small_efficiency if small else float(curve.large_efficiency(at)[0])
            inside_rate = inner * part
        sides.append(
            base
            + _latency(op, p, nodes, local, hops, step)
            + _transfer(op, n, p, local, rate, inside_rate)
        )
    return np.minimum(sides[0], sides[1])


def _latency(
    op: str, p: FloatArray, nodes: FloatArray, local: int, hops: tuple[float, float], step: float
) -> FloatArray:
    if CURVE_OF[op] == "all-to-all":
        return hops[0] + (0 if op == "point-to-point" else 1) * (p - 2) * step
    ring = (nodes - 1) * hops[0] + np.maximum(p - nodes, 0) * step
    if op != "all-reduce":
        return ring
    tree = np.ceil(np.log2(nodes)) * hops[1] + (local - 1) * step
    return 2 * np.minimum(ring, tree)


def _transfer(
    op: str, n: FloatArray, p: FloatArray, local: int, rate: float, inside_rate: float
) -> FloatArray:
    if CURVE_OF[op] == "all-to-all":
        out = n if op == "point-to-point" else np.maximum(p - local, 1) / p * n
        return np.maximum(out / rate, volume(op, n, p) / inside_rate)
    return volume(op, n, p) / min(rate * local, inside_rate)


def _tables(where: Link | Cluster) -> tuple[Inside | None, Between | None, bool]:
    """Return the entries for `where`, and whether they were measured on it and not on its like."""
    if isinstance(where, Link):
        if where.kind in NETWORK_KINDS:
            between, ours = _find_between(where)
            return None, between, ours
        inside, ours = _find_inside(where, "")
        return inside, None, ours
    inside, ours = _find_inside(where.intra_link, where.device.name)
    if where.nodes == 1:
        return inside, None, ours
    between, theirs = _find_between(where.inter_link)
    return inside, between, ours and theirs


def _find_inside(link: Link, device: str) -> tuple[Inside, bool]:
    """Return the entry of this link and device, of this link, or of the nearest of its kind."""
    entries, _ = load_constants()
    exact = [e for e in entries if e.link == link.name and device in e.devices]
    exact += [e for e in entries if e.link == link.name and not e.devices]
    if exact:
        return exact[0], True
    kind = _NEAREST_KIND.get(link.kind, "pcie" if link.kind in NETWORK_KINDS else link.kind)
    alike = [e for e in entries if e.kind == kind and not e.devices]
    return min(alike, key=lambda e: abs(math.log(e.bandwidth / link.bandwidth))), False


def _find_between(link: Link) -> tuple[Between, bool]:
    """Return the entry of this kind and speed of network; InfiniBand's for what is no network."""
    _, entries = load_constants()
    for e in entries:
        if e.kind == link.kind and e.from_bandwidth <= link.bandwidth < e.up_to_bandwidth:
            return e, e.fitted
    return next(e for e in entries if e.kind == "infiniband"), False


@functools.cache
def load_constants(path: Path = CONSTANTS) -> tuple[tuple[Inside, ...], tuple[Between, ...]]:
    """Read the fitted constants."""
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return (
        tuple(_read_inside(entry) for entry in table["inside"]),
        tuple(
            Between(**{k: v for k, v in e.items() if k != "provenance"}) for e in table["between"]
        ),
    )


def _read_inside(entry: dict[str, Any]) -> Inside:
    curves = {
        op: Curve(**curve | {k: tuple(curve[k]) for k in ("ranks", "efficiency")})
        for op, curve in entry["curves"].items()
    }
    return Inside(
        link=entry["link"],
        kind=entry["kind"],
        bandwidth=entry["bandwidth"],
        devices=tuple(entry.get("devices", ())),
        curves=curves,
    )
