"""Where the ranks of a group sit in a cluster, and which wire each algorithm then sees."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traincast.errors import InvalidValueError
from traincast.hardware import Cluster
from traincast.network.terms import FloatArray, Wire, wire_of


@dataclass(frozen=True, slots=True)
class Placement:
    """Groups of ranks on the nodes of a cluster, `local` in each node that a group uses."""

    cluster: Cluster
    """The machine."""
    local: int
    """Ranks of a group in one node, 1 to the devices of a node."""
    ranks: FloatArray
    """Ranks of each group."""
    nodes: FloatArray
    """Nodes that each group uses: ⌈ranks / local⌉. A last node that is not full counts as full."""

    @property
    def leaves_node(self) -> bool:
        """Whether any group uses more than one node."""
        return bool(np.any(self.nodes > 1))


def place(cluster: Cluster, ranks: FloatArray, per_node: int | None) -> Placement:
    """Put groups of `ranks` on `cluster`, `per_node` in each node; None fills a node first."""
    local = cluster.devices_per_node if per_node is None else per_node
    if not 1 <= local <= cluster.devices_per_node:
        raise InvalidValueError(
            f"per_node = {local} has to be from 1 to {cluster.devices_per_node}, "
            f"the devices of a node of {cluster.name!r}"
        )
    nodes = np.ceil(ranks / local)
    if np.any(nodes > cluster.nodes):
        raise InvalidValueError(
            f"{ranks.max():g} ranks, {local} in a node, need {nodes.max():g} nodes; "
            f"cluster {cluster.name!r} has {cluster.nodes} of {cluster.devices_per_node} devices"
        )
    return Placement(cluster, local, ranks, nodes)


def intra_wire(cluster: Cluster, gamma: float) -> Wire:
    """Return the wire between two devices of one node."""
    return wire_of(cluster.intra_link, gamma)


def rail_wire(cluster: Cluster, gamma: float) -> Wire:
    """Return the wire to other nodes when all devices of a node send: each has its share."""
    return Wire(alpha=cluster.inter_link.latency_s, beta=1 / cluster.inter_bandwidth, gamma=gamma)


def leader_wire(cluster: Cluster, gamma: float) -> Wire:
    """Return the wire to other nodes when one device of each node sends: a whole port at least."""
    bandwidth = max(cluster.inter_link.bandwidth, cluster.inter_bandwidth)
    return Wire(alpha=cluster.inter_link.latency_s, beta=1 / bandwidth, gamma=gamma)


def flat_wire(cluster: Cluster, local: int, gamma: float, *, neighbours: bool) -> Wire:
    """Return what a rank sees in an algorithm that takes no note of nodes.

    Its slowest hop leaves the node. Where ranks talk to neighbours only, one of the `local` ranks
    does, with the share of all of them (as many rings as ports: Patarasuk and Yuan, 2009, embed one
    in any tree of switches); otherwise all do at once.
    """
    share = cluster.inter_bandwidth * (local if neighbours else 1)
    bandwidth = min(share, cluster.intra_link.bandwidth) if local > 1 else share
    latency = cluster.inter_link.latency_s
    if local > 1:
        latency = max(latency, cluster.intra_link.latency_s)
    return Wire(alpha=latency, beta=1 / bandwidth, gamma=gamma)
