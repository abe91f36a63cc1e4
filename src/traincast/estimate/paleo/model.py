"""The model as users call it: layers, one step, a sweep over workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, SupportsIndex

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.paleo.algorithms import Algorithms, Table, algorithms_of
from traincast.estimate.paleo.net import PRICED, LayerNet, layer_net
from traincast.estimate.paleo.pricing import Seconds, net_work, price
from traincast.estimate.paleo.rules import Rules, rules_named
from traincast.estimate.paleo.schemes import scheme_named
from traincast.estimate.paleo.strategies import STRATEGIES, Part, Setting
from traincast.estimate.paleo.tables import (
    PaleoDevice,
    PaleoNetwork,
    Software,
    check_share,
    paleo_device,
    paleo_network,
    software_named,
)
from traincast.graph import Graph
from traincast.hardware import Device, Link
from traincast.ingest.paleo import PaleoNet

NetRef = str | PaleoNet | Mapping[str, Any] | Graph | LayerNet
DeviceRef = str | Device | PaleoDevice
NetworkRef = str | Link | PaleoNetwork

SCALINGS = ("weak", "strong")
FETCHES = ("link", "memory")


class LayerRow(NamedTuple):
    """Seconds of one layer, without remote fetches."""

    layer: str
    type: str
    forward_compute_s: float
    forward_memory_s: float
    data_compute_s: float
    """Gradient of the input."""
    data_memory_s: float
    filter_compute_s: float
    """Gradient of the weights."""
    filter_memory_s: float
    forward_s: float
    backward_s: float
    free: bool
    """Whether Paleo takes layers of this type as costing nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaleoStep:
    """One training step."""

    strategy: str
    scaling: str
    workers: int
    """Devices; in model parallelism, as many as branches or splits run side by side."""
    worker_batch: int
    """Samples that one worker runs."""
    global_batch: int
    """Samples that the step trains on."""
    scheme: str
    forward_s: float
    """At least: in model parallelism, where all branches run side by side."""
    backward_s: float
    update_s: float
    communication_s: float
    upper_forward_s: float
    """At most: where branches run one after another. Same as forward_s but in model parallelism."""
    upper_backward_s: float
    parts: tuple[Part, ...]
    """The data-parallel and the model-parallel part."""

    @property
    def compute_s(self) -> float:
        """Everything but the exchange between workers."""
        return self.forward_s + self.backward_s + self.update_s

    @property
    def total_s(self) -> float:
        """The whole step; nothing overlaps."""
        return self.compute_s + self.communication_s


@dataclass(frozen=True, slots=True)
class PaleoModel:
    """Paleo's performance model (H. Qi, E. R. Sparks, A. Talwalkar, ICLR 2017)."""

    rules: str = "paper"
    """`paper`, behind the publication and the demo, or `head`, the authors' last commit."""
    algorithms: str | Table = "gemm"
    """Of convolutions: gemm, fft, fft-tiled, cudnn4, or a table by layer (and batch)."""
    ppp_compute: float = 1.0
    """Share of the device's peak that the software reaches, above 0 and at most 1."""
    ppp_comm: float = 1.0
    """Share of the network's bandwidth, likewise."""
    pipeline: bool = False
    """Whether a layer's memory traffic runs while it computes: the longer of the two counts."""
    fetch: str = "link"
    """What model-parallel layers fetch over: the network's `link`, or device `memory` as in the
    original, which ignores the network there."""
    _rules: Rules = field(init=False, repr=False, compare=False)
    _algorithms: Algorithms = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_share("ppp_compute", self.ppp_compute)
        check_share("ppp_comm", self.ppp_comm)
        one_of("fetch", self.fetch, FETCHES)
        object.__setattr__(self, "_rules", rules_named(self.rules))
        object.__setattr__(self, "_algorithms", algorithms_of(self.algorithms))

    @classmethod
    def for_software(cls, software: str, **settings: Any) -> PaleoModel:
        """Return the model with the percent of peak that the authors found for a framework."""
        share = software_named(software)
        return cls(ppp_compute=share.compute, ppp_comm=share.communication, **settings)

    def layers(self, net: NetRef, device: DeviceRef, batch: int | None = None) -> list[LayerRow]:
        """Return the seconds of every layer for a batch on one device."""
        network = layer_net(net)
        seconds = self._seconds(network, paleo_device(device), _batch(network, batch))
        forward = seconds.forward(pipeline=self.pipeline)
        backward = seconds.backward(pipeline=self.pipeline)
        return [
            LayerRow(
                layer=layer.name,
                type=layer.type,
                forward_compute_s=float(seconds.compute[i, 0]),
                forward_memory_s=float(seconds.memory[i, 0]),
                data_compute_s=float(seconds.compute[i, 1]),
                data_memory_s=float(seconds.memory[i, 1]),
                filter_compute_s=float(seconds.compute[i, 2]),
                filter_memory_s=float(seconds.memory[i, 2]),
                forward_s=float(forward[i]),
                backward_s=float(backward[i]),
                free=layer.type not in PRICED,
            )
            for i, layer in enumerate(network.layers)
        ]

    def step(
        self,
        net: NetRef,
        device: DeviceRef,
        batch: int | None = None,
        workers: int = 1,
        network: NetworkRef = "ethernet",
        scheme: str = "tree",
        scaling: str = "weak",
        strategy: str = "data",
        *,
        strict: bool = False,
    ) -> PaleoStep:
        """Return the seconds of one training step.

        `batch` is samples a worker in weak scaling and samples in all in strong scaling, where a
        worker runs ⌈batch / workers⌉; `strict` refuses what does not divide. In model parallelism
        all devices work on the same `batch` samples, and the network says how many there are.
        Hybrid parallelism always exchanges over a tree.
        """
        known = layer_net(net)
        one_of("strategy", strategy, STRATEGIES)
        b, workers = _batch(known, batch), whole("workers", workers)
        if strategy == "model":
            workers = _devices(known, workers)
        each, total = share_batch(b, workers, scaling, strategy, strict=strict)
        at = Setting(
            net=known,
            device=paleo_device(device),
            network=paleo_network(network),
            ppp=Software(self.ppp_compute, self.ppp_comm),
            rules=self._rules,
            pipeline=self.pipeline,
            batch=each,
            workers=workers,
            scheme=scheme_named(scheme),
            fetch=self.fetch,
        )
        found = STRATEGIES[strategy](self._seconds(known, at.device, each), at)
        forward = sum(part.forward_s for part in found.parts)
        backward = sum(part.backward_s for part in found.parts)
        return PaleoStep(
            strategy=strategy,
            scaling=scaling,
            workers=workers,
            worker_batch=each,
            global_batch=total,
            scheme="tree" if strategy == "hybrid" else at.scheme,
            forward_s=forward,
            backward_s=backward,
            update_s=sum(part.update_s for part in found.parts),
            communication_s=sum(part.communication_s for part in found.parts),
            upper_forward_s=forward + found.slack_forward_s,
            upper_backward_s=backward + found.slack_backward_s,
            parts=found.parts,
        )

    def _seconds(self, net: LayerNet, device: PaleoDevice, batch: int) -> Seconds:
        work = net_work(net, batch, self._rules, self._algorithms, device.gpu)
        return price(work, device, self.ppp_compute)


def share_batch(
    batch: int, workers: int, scaling: str, strategy: str = "data", *, strict: bool = False
) -> tuple[int, int]:
    """Return the samples of one worker and of the whole step."""
    one_of("scaling", scaling, SCALINGS)
    if strategy == "model":
        return batch, batch
    if scaling == "weak":
        return batch, batch * workers
    if strict and batch % workers:
        why = "is less than" if batch < workers else "is not divisible by"
        raise InvalidValueError(
            f"strong scaling: batch {batch} {why} {workers} workers; "
            f"use a batch of {-(-batch // workers) * workers} or fewer workers"
        )
    return -(-batch // workers), batch


def _devices(net: LayerNet, workers: int) -> int:
    if workers not in (1, net.width):
        raise InvalidValueError(
            f"{net.name} has {net.width} branches or splits to run side by side, "
            f"workers = {workers}; leave workers out, or use a network split {workers} times"
        )
    return net.width


def _batch(net: LayerNet, batch: int | None) -> int:
    return whole("batch", net.batch if batch is None else batch)


def whole(name: str, value: int) -> int:
    """Return a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or value.__index__() < 1:
        raise InvalidValueError(f"{name} = {value!r} has to be a whole number of at least 1")
    return value.__index__()


def one_of(name: str, value: str, known: Iterable[str]) -> None:
    """Refuse a name that is not among the known ones."""
    names: Sequence[str] = tuple(known)
    if value not in names:
        raise UnknownNameError(name, str(value), names, f"use one of {', '.join(names)}")
