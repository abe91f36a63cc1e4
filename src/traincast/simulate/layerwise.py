"""Costs of layer-wise strategies: tables for a search, and the step that a choice makes.

Two objectives. `published` (Jia et al., ICML 2018, Eq. 1) adds everything up and hides nothing:

    Σ layers [ compute + synchronisation ] + Σ edges transfer

with each transfer taking its turn: bytes / bandwidth of the link between its two devices, added up
over all pairs, as the authors' simulator does. `overlap`, ours, lets all devices send at once, so
that the busiest port counts, with the link's latency; gradients are synchronised while backward
goes on, one layer after the other, and the step ends when both have; the update is counted.

Synchronisation of s bytes held by r devices: `server`, the parameter server of the published model,
moves 2·s·r bytes: every device sends its gradients to their owner and gets the new values back. The
owners are spread evenly over the r devices, so each port carries 2·s·(r − 1)/r; or one server takes
all 2·s·r bytes at a given bandwidth, as in the paper's figure 3. Otherwise it is an all-reduce of s
bytes by any algorithm of `network`, among devices where they sit.

Known inaccuracy: layers run one after the other, also where branches could run at once on devices
of their own; the host's work is not counted; layers that share a weight bear equal parts of its
costs, also where they are split differently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.host import update_seconds
from traincast.estimate.program import Program
from traincast.estimate.roofline import Estimator, StepEstimator
from traincast.graph import DTYPE_BYTES, Graph
from traincast.graph.precision import Precision
from traincast.hardware import Cluster
from traincast.parallel.configurations import Configurations, configuration, configurations
from traincast.parallel.layers import Network, network_of
from traincast.parallel.overlap import Traffic, traffic
from traincast.simulate.shards import Shards, price_shards
from traincast.simulate.step import Plan, program_for
from traincast.simulate.sync import SERVER, Sync, check_scheme

Floats = NDArray[np.float64]
OBJECTIVES = ("overlap", "published")
_DIRECT = frozenset({"nvlink1", "nvlink2"})
"""Links that join devices pair by pair: those of a device are shared out among its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and how a network is to be trained."""

    cluster: Cluster
    estimator: Estimator
    precision: Precision
    plan: Plan
    """`batch` is that of all devices together; it has an optimizer."""
    objective: str = "overlap"
    scheme: str = "auto"
    """server, ring, hierarchical, auto or any algorithm of an all-reduce."""
    server_bandwidth: float | None = None
    """Bytes/s of the one parameter server of the scheme `server`; None spreads servers over all."""
    degrees: str = "powers"
    pace: float = 1.0
    """Factor on predicted compute and update, such as from a measured step on one device."""


@dataclass(frozen=True, eq=False)
class Passing:
    """What passes between two layers, over (configurations of one, of the other)."""

    seconds: Floats
    """Forward and backward together."""
    back: float
    """Part of it that is backward."""
    moved: Floats
    """Bytes, both ways."""


@dataclass(frozen=True, eq=False)
class Tables:
    """Costs of every configuration of every layer and of every pair along an edge."""

    setting: Setting
    network: Network
    configs: tuple[Configurations, ...]
    shards: Shards
    sync: tuple[Floats, ...]
    """Seconds of each layer's synchronisation."""
    synced: tuple[Floats, ...]
    """Bytes that it moves."""
    update: tuple[Floats, ...]
    """Seconds of each layer's part of the optimizer update."""
    memory: tuple[Floats, ...]
    """Bytes on a device that holds a part: weights, gradients, optimizer state, what is kept."""
    edges: Mapping[tuple[int, int], Passing]

    @property
    def published(self) -> bool:
        """Whether nothing overlaps."""
        return self.setting.objective == "published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One training step under a choice of configurations; seconds and bytes."""

    choice: tuple[int, ...]
    step_s: float
    compute_s: float
    transfer_s: float
    """Activations and their gradients between layers."""
    sync_s: float
    """Gradients of replicated weights, hidden or not."""
    exposed_s: float
    """Part of it that backward does not hide."""
    update_s: float
    transfer_bytes: float
    sync_bytes: float
    memory_bytes: float
    """On device 0, which holds a part of every layer."""

    @property
    def communication_bytes(self) -> float:
        """Bytes that all devices send in a step."""
        return self.transfer_bytes + self.sync_bytes


def build_tables(
    graph: Graph, setting: Setting, only: Mapping[str, Mapping[str, int]] | None = None
) -> Tables:
    """Return the costs of every configuration of a graph's layers.

    With `only`, degrees of every layer by name, of that one configuration of each.
    """
    if setting.objective not in OBJECTIVES:
        raise UnknownNameError("objective", setting.objective, OBJECTIVES, "(overlap, published)")
    check_scheme(setting.scheme)
    if setting.server_bandwidth is not None and setting.scheme != SERVER:
        raise InvalidValueError(
            f"a server's bandwidth is for the scheme {SERVER}, not {setting.scheme}"
        )
    plan, cluster = setting.plan, setting.cluster
    network = network_of(graph, plan.batch, plan.seq)
    configs = tuple(
        configurations(layer, cluster.devices, setting.degrees)
        if only is None
        else configuration(layer, only[layer.name], cluster.devices)
        for layer in network.layers
    )
    program = program_for(graph, setting.precision, cluster.device, setting.estimator, plan)
    shards = price_shards(network, configs, program, cluster.device, setting.estimator, plan.layout)
    if setting.pace != 1.0:
        shards = shards.paced(setting.pace)
    each = DTYPE_BYTES[setting.precision.parameters]
    sync = Sync(cluster, setting.scheme, setting.server_bandwidth)
    done = [sync.layer(x, c, each) for x, c in zip(network.layers, configs, strict=True)]
    held = [d.held for d in done]
    rate = _update_rate(program, setting) * setting.pace / each
    state = plan.optimizer.state if plan.optimizer else 0.0
    return Tables(
        setting=setting,
        network=network,
        configs=configs,
        shards=shards,
        sync=tuple(d.seconds for d in done),
        synced=tuple(d.moved for d in done),
        update=tuple(h * rate for h in held),
        memory=tuple(h * (2 + state) + k for h, k in zip(held, shards.kept, strict=True)),
        edges=_edges(network, configs, program, setting),
    )


def _update_rate(program: Program, setting: Setting) -> float:
    """Return the seconds of an optimizer update for each parameter."""
    optimizer, estimator = setting.plan.optimizer, setting.estimator
    count = sum(
        np.prod([s.at(1, 1) for s in t.shape]) for t in program.graph.parameters if t.trainable
    )
    if optimizer is None or not count or setting.objective == "published":
        return 0.0
    device = setting.cluster.device
    if isinstance(estimator, StepEstimator):
        return float(estimator.update(program, device, optimizer)[0] / count)
    return float(
        update_seconds(program, device, estimator.efficiency(device), optimizer)[0] / count
    )


def _edges(
    network: Network, configs: Sequence[Configurations], program: Program, setting: Setting
) -> dict[tuple[int, int], Passing]:
    bytes_of = _element_bytes(program)
    known: dict[tuple[object, ...], Passing] = {}
    result: dict[tuple[int, int], Passing] = {}
    for edge in network.edges:
        u, v = edge.source, edge.target
        each = bytes_of.get(edge.tensor, DTYPE_BYTES[setting.precision.compute])
        key = (id(configs[u]), id(configs[v]), edge.needs, each, edge.grad)
        passing = known.get(key)
        if passing is None:
            dims = network.layers[u].dims, network.layers[v].dims
            moved = traffic(edge, configs[u], configs[v], dims, setting.cluster.devices_per_node)
            passing = known[key] = _passing(moved, each, edge.grad, setting)
        old = result.get((u, v))
        result[u, v] = passing if old is None else _sum(old, passing)
    return result


def _sum(a: Passing, b: Passing) -> Passing:
    return Passing(a.seconds + b.seconds, max(a.back, b.back), a.moved + b.moved)


def _element_bytes(program: Program) -> dict[str, float]:
    """Return the bytes of an element of each tensor that an op writes."""
    outputs = {op.name: op.outputs for op in program.graph.ops}
    result = {}
    for name, index in zip(program.names, program.op_class, strict=True):
        for tensor, spec in zip(
            outputs.get(name, ()), program.classes[int(index)].outs, strict=False
        ):
            result[tensor] = DTYPE_BYTES[spec.dtype]
    return result


def _passing(moved: Traffic, each: float, grad: bool, setting: Setting) -> Passing:
    cluster = setting.cluster
    ways = 2 if grad else 1
    intra, inter = cluster.intra_link, cluster.inter_link
    if setting.objective == "published":
        seconds = moved.near * each / pair_bandwidth(cluster) + moved.far * each / inter.bandwidth
    else:
        port = moved.port * each / intra.bandwidth
        node = moved.node * each / (inter.bandwidth * cluster.ports_per_node)
        wait = np.where(moved.far > 0, inter.latency_s, (moved.near > 0) * intra.latency_s)
        seconds = np.maximum(port, node) + wait
    return Passing(seconds * ways, (ways - 1) / ways, (moved.near + moved.far) * (each * ways))


def pair_bandwidth(cluster: Cluster) -> float:
    """Return bytes/s between two devices of a node that alone exchange something."""
    link, peers = cluster.intra_link, cluster.devices_per_node - 1
    return link.bandwidth / peers if link.name in _DIRECT and peers > 1 else link.bandwidth


def evaluate(tables: Tables, choice: Sequence[int]) -> Outcome:
    """Return the step that a choice of configurations makes."""
    shards = tables.shards
    forward = sum(float(t[c]) for t, c in zip(shards.forward, choice, strict=True))
    back = [float(t[c]) for t, c in zip(shards.backward, choice, strict=True)]
    sync = [float(t[c]) for t, c in zip(tables.sync, choice, strict=True)]
    update = sum(float(t[c]) for t, c in zip(tables.update, choice, strict=True))
    transfer = moved = 0.0
    returned = [0.0] * len(choice)
    for (u, v), passing in tables.edges.items():
        seconds = float(passing.seconds[choice[u], choice[v]])
        transfer += seconds
        returned[v] += seconds * passing.back
        moved += float(passing.moved[choice[u], choice[v]])
    compute = forward + sum(back) + shards.elsewhere
    exposed = sum(sync)
    if not tables.published:
        exposed = _exposed(back, returned, sync)
    return Outcome(
        choice=tuple(choice),
        step_s=compute + transfer + exposed + update,
        compute_s=compute,
        transfer_s=transfer,
        sync_s=sum(sync),
        exposed_s=exposed,
        update_s=update,
        transfer_bytes=moved,
        sync_bytes=sum(float(t[c]) for t, c in zip(tables.synced, choice, strict=True)),
        memory_bytes=sum(float(t[c]) for t, c in zip(tables.memory, choice, strict=True)),
    )


def _exposed(back: Sequence[float], returned: Sequence[float], sync: Sequence[float]) -> float:
    """Return how long after backward the last gradients are there.

    Backward goes through the layers in reverse; a layer's gradients are sent once it is through,
    after those before them.
    """
    now = sent = 0.0
    for layer in reversed(range(len(back))):
        now += back[layer]
        if sync[layer]:
            sent = max(sent, now) + sync[layer]
        now += returned[layer]
    return max(0.0, sent - now)
