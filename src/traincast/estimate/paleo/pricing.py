"""Seconds of a network's work on a device.

Quirks that published numbers rest on, in both rule sets: memory time is divided by the *compute*
percent of peak; the device's GB/s are taken as GiB/s, while a network's are decimal; moving
nothing takes one clock cycle; the weight update knows no percent of peak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from traincast.errors import InvalidValueError
from traincast.estimate.paleo.algorithms import GEMM_ONLY, Algorithms
from traincast.estimate.paleo.net import Layer, LayerNet
from traincast.estimate.paleo.rules import Rules
from traincast.estimate.paleo.tables import PaleoDevice
from traincast.estimate.paleo.work import Passes, Piece, check_types, layer_work

Floats = npt.NDArray[np.float64]

_GIB_PER_GB = 2.0**30 / 1e9


class _Pieces:
    """Pieces of work of many layers and passes, as arrays."""

    def __init__(self, groups: Sequence[Sequence[Piece]]) -> None:
        flat = [(row, *piece) for row, group in enumerate(groups) for piece in group]
        table = np.array(flat, dtype=np.float64).reshape(-1, 3)
        self.groups = len(groups)
        self.row = table[:, 0].astype(np.intp)
        self.times = table[:, 1]
        self.amount = table[:, 2]

    def seconds(self, rate: float, least: float, *, nothing: float) -> Floats:
        """Return the seconds of each group at `rate`, a piece taking `least` or more.

        A piece of no work at all takes `nothing`.
        """
        each = np.maximum(self.amount / rate, least)
        each[self.amount == 0] = nothing
        total = np.bincount(self.row, each * self.times, minlength=self.groups)
        return np.asarray(total, dtype=np.float64)


@dataclass(frozen=True, eq=False)
class NetWork:
    """The work of all layers of a network for one batch: layers × (forward, data, filter)."""

    compute: _Pieces
    memory: _Pieces


@dataclass(frozen=True, slots=True)
class Seconds:
    """Seconds of layers on a device, each an array of layers × (forward, data, filter)."""

    compute: Floats
    memory: Floats

    def forward(self, fetch: Floats | float = 0.0, *, pipeline: bool = False) -> Floats:
        """Return the seconds of each layer's forward pass; a remote fetch is memory time."""
        return _joined(self.compute[:, 0], self.memory[:, 0] + fetch, pipeline)

    def backward(self, fetch: Floats | float = 0.0, *, pipeline: bool = False) -> Floats:
        """Return the seconds of each layer's backward pass, both gradients together."""
        compute = self.compute[:, 1] + self.compute[:, 2]
        return _joined(compute, self.memory[:, 1] + self.memory[:, 2] + fetch, pipeline)


def _joined(compute: Floats, memory: Floats, pipeline: bool) -> Floats:
    return np.maximum(compute, memory) if pipeline else compute + memory


@lru_cache(maxsize=256)
def net_work(net: LayerNet, batch: int, rules: Rules, algorithms: Algorithms, gpu: bool) -> NetWork:
    """Return the work of a network for a batch on one worker."""
    if net.fixed and batch != net.batch:
        raise InvalidValueError(
            f"{net.name} holds for a batch of {net.batch} only, not for {batch} on one worker"
        )
    check_types(net, rules)
    chosen = algorithms.of_net(net, batch, gpu=gpu)
    passes: list[Passes] = [
        layer_work(layer, batch, rules, chosen.get(layer.name, GEMM_ONLY)) for layer in net.layers
    ]
    works = [work for layer in passes for work in layer]
    return NetWork(_Pieces([w.compute for w in works]), _Pieces([w.memory for w in works]))


def price(work: NetWork, device: PaleoDevice, ppp: float) -> Seconds:
    """Return the seconds of a network's work, `ppp` the compute percent of peak."""
    cycle = device.cycle_s
    compute = work.compute.seconds(device.peak_flops * ppp, cycle, nothing=0.0)
    memory = work.memory.seconds(device.bandwidth * _GIB_PER_GB * ppp, cycle, nothing=cycle)
    return Seconds(compute.reshape(-1, 3), memory.reshape(-1, 3))


def update_seconds(device: PaleoDevice, weight_bytes: int, *, pipeline: bool = False) -> float:
    """Return the seconds of plain SGD: 2 FLOPs a weight, three passes over them, no PPP."""
    flops = 2 * (weight_bytes // 4)
    compute = max(flops / device.peak_flops, device.cycle_s) if flops else 0.0
    memory = 3 * max(weight_bytes / (device.bandwidth * _GIB_PER_GB), device.cycle_s)
    return max(compute, memory) if pipeline else compute + memory


def fetch_seconds(
    net: LayerNet, batch: int, device: PaleoDevice, bandwidth: float, ppp: float
) -> Floats:
    """Return the seconds in which each layer fetches what other devices hold.

    `bandwidth` is bytes/s of what joins the devices, `ppp` the communication percent of peak.
    """
    rows = [
        sum(
            max(4 * batch * math.prod(shape) / (rate * _GIB_PER_GB * ppp), device.cycle_s)
            for shape, rate in _fetched(layer, net, bandwidth)
        )
        for layer in net.layers
    ]
    return np.array(rows, dtype=np.float64)


def _fetched(layer: Layer, net: LayerNet, bandwidth: float) -> list[tuple[tuple[int, ...], float]]:
    """Return the shapes that a layer fetches, each with the bandwidth it comes at.

    Kept from the original: split 0 (the text "0") and an unsplit layer (the integer 0) count as
    different devices; among several parents, each one in another group of four devices halves the
    bandwidth, for itself and for those that follow.
    """
    found = []
    for parent, shape in zip(layer.parents, layer.inputs, strict=True):
        other = net.by_name[parent].device
        if other == layer.device:
            continue
        if len(layer.parents) > 1 and int(other) // 4 != int(layer.device) // 4:
            bandwidth /= 2
        found.append((shape, bandwidth))
    return found
