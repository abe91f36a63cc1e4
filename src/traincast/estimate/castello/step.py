"""A training step under data parallelism and under model parallelism.

Data parallelism: each node holds the whole network and B/p samples, and all-reduces gradients.

    blocking     T = Σ forward + Σ backward + Σ AR
    overlapped   an all-reduce starts when its gradient is ready and the one before it is done

Model parallelism: each node holds 1/p of every layer's kernels or neurons and all B samples.

    forward      im2col of the whole input on every node, GEMM of co/p kernels; all-gather(N_l·B)
    backward     GEMM of co/p kernels for weights and, but in the first layer, for data, with a
                 whole col2im; all-reduce(N_(l−1)·B)
    T = Σ compute + Σ communication     nothing overlaps: each layer waits for its input

Shares are whole: of N kernels on p nodes the slowest has ceil(N/p), of B samples ceil(B/p). A layer
with fewer kernels than nodes runs on as many nodes as it has kernels; messages go among the larger
of a layer's own group of nodes and that of the layer it exchanges them with.

Sources: data parallelism, github.com/hpca-uji/PyDTNN at a985779; model parallelism, our completion
of github.com/adcastel/model_parallelism at 399b407. Formulas only.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from traincast.errors import InvalidValueError
from traincast.estimate.castello.collectives import collective
from traincast.estimate.castello.layers import Network, Table
from traincast.estimate.castello.machine import Floats, Machine, Rules

_CHUNK = 1 << 17
"""Points times layers that are evaluated at once: larger temporaries fall out of the cache."""


class Step(NamedTuple):
    """Seconds of a training step, as arrays of the shape that the axes broadcast to."""

    step: Floats
    """What a step takes; less than the sum of the other two where they overlap."""
    compute: Floats
    """Arithmetic and memory traffic on the slowest node."""
    communication: Floats
    """All collectives, one after the other."""


class LayerTimes(NamedTuple):
    """Seconds of each layer: arrays with the layers along the last axis."""

    forward: Floats
    backward: Floats
    gather: Floats
    """Collectives of the forward pass."""
    reduce: Floats
    """Collectives of the backward pass."""


class _Points(NamedTuple):
    flops: Floats
    memory: Floats
    link: Floats
    latency: Floats
    batch: Floats
    nodes: Floats


def data_parallel(
    network: Network,
    machine: Machine,
    *,
    batch: ArrayLike,
    nodes: ArrayLike,
    overlap: bool = False,
    rules: Rules | None = None,
) -> Step:
    """Return a step of `batch` samples in all, shared out among `nodes` that hold the network."""
    return _evaluate(network, machine, batch, nodes, rules or Rules(), False, overlap)


def model_parallel(
    network: Network,
    machine: Machine,
    *,
    batch: ArrayLike,
    nodes: ArrayLike,
    rules: Rules | None = None,
) -> Step:
    """Return a step of `batch` samples, every layer shared out among `nodes`."""
    return _evaluate(network, machine, batch, nodes, rules or Rules(), True, False)


def layer_times(
    network: Network,
    machine: Machine,
    *,
    batch: ArrayLike,
    nodes: ArrayLike,
    model: bool,
    rules: Rules | None = None,
) -> LayerTimes:
    """Return the seconds of every layer under model parallelism, or data parallelism if not."""
    points, shape = _points(machine, batch, nodes)
    found = _layers(network.table, points, machine, rules or Rules(), model)
    return LayerTimes(*(part.reshape(*shape, -1) for part in found))


def _points(
    machine: Machine, batch: ArrayLike, nodes: ArrayLike
) -> tuple[_Points, tuple[int, ...]]:
    """Return the axes as columns of equal length, and the shape that they broadcast to."""
    for name, given in (("batch", batch), ("nodes", nodes)):
        values = np.asarray(given, dtype=np.float64)
        if not ((values >= 1) & (values == np.floor(values)) & np.isfinite(values)).all():
            raise InvalidValueError(f"{name} = {given!r} has to be whole and at least 1")
    arrays = np.broadcast_arrays(
        *(
            np.asarray(x, dtype=np.float64)
            for x in (
                machine.flops,
                machine.memory_bandwidth,
                machine.link_bandwidth,
                machine.latency_s,
                batch,
                nodes,
            )
        )
    )
    return _Points(*(a.reshape(-1, 1) for a in arrays)), arrays[0].shape


def _evaluate(
    network: Network,
    machine: Machine,
    batch: ArrayLike,
    nodes: ArrayLike,
    rules: Rules,
    model: bool,
    overlap: bool,
) -> Step:
    points, shape = _points(machine, batch, nodes)
    total = len(points.batch)
    found = np.empty((3, total))
    table = network.table if rules.charge_others else network.charged
    many = max(1, _CHUNK // max(1, len(table.units)))
    for start in range(0, total, many):
        part = slice(start, start + many)
        chunk = _Points(*(column[part] for column in points))
        layers = _layers(table, chunk, machine, rules, model)
        compute = (layers.forward + layers.backward).sum(axis=1)
        communication = (layers.gather + layers.reduce).sum(axis=1)
        step = _overlapped(layers) if overlap else compute + communication
        found[:, part] = step, compute, communication
    return Step(*(row.reshape(shape) for row in found))


def _overlapped(layers: LayerTimes) -> Floats:
    """Return the end of the last backward pass or all-reduce, one all-reduce at a time.

    r = max(t_l, r) + AR_l from the last layer to the first unrolls to the largest of
    t_l + Σ AR of l and of every layer before it, t_l being when the backward pass of l ends.
    """
    ends = layers.backward[:, ::-1].cumsum(axis=1)[:, ::-1]
    ends = ends + layers.forward.sum(axis=1, keepdims=True)
    rest = layers.reduce.cumsum(axis=1)
    last = np.where(layers.reduce > 0, ends + rest, 0.0)
    latest: Floats = np.maximum(ends[:, 0], last.max(axis=1))
    return latest


def _layers(
    table: Table, points: _Points, machine: Machine, rules: Rules, model: bool
) -> LayerTimes:
    nodes, width = points.nodes, machine.element_bytes
    if model:
        samples = points.batch
        least = np.where(table.conv, rules.least_kernels, 1.0)
        least = np.where(table.dense, rules.least_neurons, least)
        parts = np.where(table.split, np.minimum(nodes, np.ceil(table.units / least)), 1.0)
    else:
        samples = np.ceil(points.batch / nodes)
        parts = np.ones((1, len(table.units)))
    forward, backward = _compute(table, points, width, rules, samples, parts)
    if model:
        gather, reduce = _exchanges(table, points, width, rules, parts)
    else:
        gather = np.zeros_like(forward)
        sent = machine.gradient_bytes or width
        reduce = _collective("all-reduce", table.weights, nodes, points, sent, rules)
        reduce = np.broadcast_to(reduce, forward.shape)
        reduce = np.where(table.weights > 0, reduce, 0.0)
    found = LayerTimes(forward, backward, gather, reduce)
    if rules.compat:
        single = (part.astype(np.float32).astype(np.float64) for part in found)
        return LayerTimes(*single)
    return found


def _compute(
    table: Table, points: _Points, width: float, rules: Rules, samples: Floats, parts: Floats
) -> tuple[Floats, Floats]:
    """Return forward and backward seconds of every layer on the slowest node."""
    speed, bandwidth = points.flops, points.memory
    units = np.maximum(table.units, 1.0)
    share = np.ceil(units / parts) / units
    touched = np.ceil(table.groups * share) / table.groups
    columns = table.columns * share
    flops = 2 * columns * table.depth * table.sites * samples
    matrix = columns * table.depth * np.where(table.shared, 1.0, samples)
    rows = table.groups * table.depth * table.sites * samples * touched
    elements = matrix + rows + columns * table.sites * samples
    product = np.maximum(flops / speed, width * elements / bandwidth)

    unfolded = table.unfolded * samples * np.where(table.transposed, share, touched)
    unfold = width * unfolded / bandwidth
    fold = np.maximum(unfolded / speed, unfold)
    if not rules.unfold:
        unfold, fold = unfold * table.pool, fold * table.pool
    back, weight = table.data_gradient, table.weight_gradient
    if rules.compat:
        return _published(table, rules, product, fold)
    forward = product + np.where(table.transposed, fold, unfold)
    backward = product * weight + (product + np.where(table.transposed, unfold, fold)) * back
    if rules.charge_others:
        moved = table.moved
        forward = forward + (moved[:, 0] + moved[:, 1] * samples) / bandwidth
        backward = backward + (moved[:, 2] + moved[:, 3] * samples) / bandwidth
    return forward, backward


def _published(table: Table, rules: Rules, product: Floats, fold: Floats) -> tuple[Floats, Floats]:
    """Return what the published code counts.

    Unfolding is free. A convolution on a CPU folds only where no data gradient is needed, which
    is where it should not; elsewhere a layer that needs no data gradient has no backward pass.
    """
    back = table.data_gradient
    otherwise = np.where(table.conv & rules.unfold, product + fold, 0.0)
    backward = np.where(back, 2 * product, otherwise)
    return product, np.where(table.pool, fold * back, backward)


def _exchanges(
    table: Table, points: _Points, width: float, rules: Rules, parts: Floats
) -> tuple[Floats, Floats]:
    """Return the seconds of each split layer's all-gather and all-reduce."""
    shape = np.broadcast_shapes(parts.shape, points.batch.shape)
    gather, reduce = np.zeros(shape), np.zeros(shape)
    split = np.flatnonzero(table.split)
    if not len(split):
        return gather, reduce
    own = np.broadcast_to(parts, shape)[:, split]
    after = np.maximum(own, np.concatenate([own[:, 1:], own[:, -1:]], axis=1))
    before = np.maximum(own, np.concatenate([own[:, :1], own[:, :-1]], axis=1))
    sent = table.outputs[split] * points.batch
    gather[:, split] = _collective("all-gather", sent, after, points, width, rules)
    back = table.inputs[split] * points.batch
    # What a product of two activations gives back is whole on each process: nothing is summed.
    summed = _collective("all-reduce", back, before, points, width, rules)
    whole = _collective("all-gather", back, before, points, width, rules)
    needed = table.data_gradient[split] & (table.inputs[split] > 0)
    reduce[:, split] = np.where(needed, np.where(table.shared[split], summed, whole), 0.0)
    return gather, reduce


def _collective(
    operation: str, elements: Floats, nodes: Floats, points: _Points, width: float, rules: Rules
) -> Floats:
    return collective(
        operation,
        elements,
        nodes,
        latency_s=points.latency,
        send_s=width / points.link,
        add_s=1 / points.flops,
        family=rules.collectives,
        natural_log=rules.compat,
    )
