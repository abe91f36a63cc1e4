"""What one device is, as its maker documents it. What it achieves is a profile's business."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from traincast.errors import InvalidValueError, UnknownNameError

PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
TIERS = ("datacenter-gpu", "consumer-gpu", "accelerator", "tpu", "cpu", "manycore")

# Where a matrix product of each precision can run, best first: (unit, precision of its rate).
# A precision that the matrix units lack is computed in the next wider one that the device has:
# bf16 on a V100 runs on its fp32 units, although its fp16 matrix units are faster.
_MATRIX_ROUTES: dict[str, tuple[tuple[str, str], ...]] = {
    "fp64": (("matrix", "fp64"), ("vector", "fp64")),
    "fp32": (("matrix", "fp32"), ("vector", "fp32")),
    "tf32": (("matrix", "tf32"), ("matrix", "fp32"), ("vector", "fp32")),
    "bf16": (("matrix", "bf16"), ("vector", "bf16"), ("matrix", "fp32"), ("vector", "fp32")),
    "fp16": (("matrix", "fp16"), ("vector", "fp16"), ("matrix", "fp32"), ("vector", "fp32")),
}
_MATRIX_ROUTES["fp8"] = (("matrix", "fp8"), ("matrix", "fp16"), *_MATRIX_ROUTES["bf16"])
_MATRIX_ROUTES["int8"] = (("matrix", "int8"), ("matrix", "fp16"), *_MATRIX_ROUTES["bf16"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device that computes: a GPU, one die of a multi-die board, a TPU chip, a CPU socket.

    Every peak is dense. The doubled figures for 2:4 structured sparsity are never used.
    """

    name: str
    """Catalog id in kebab case, such as `h200`; for a user's file, the file's stem."""
    title: str
    """Name for people, such as `NVIDIA H200 SXM`."""
    vendor: str
    """Maker, such as `NVIDIA`."""
    tier: str
    """Kind of device, one of `TIERS`."""
    architecture: str
    """Maker's name of the generation in lower case, such as `hopper`."""
    year: int
    """Year of release; 0 when unknown."""
    memory_bytes: float
    """Capacity in bytes as sold, > 0. A program gets less: see `usable_bytes`."""
    memory_bandwidth: float
    """Peak bandwidth to that memory in bytes/s, > 0."""
    matrix_flops: Mapping[str, float] = field(hash=False)
    """Dense peak of the matrix units in FLOP/s by precision; empty when there are none.

    With fp32 accumulation for fp16 and bf16, which is what training uses.
    """
    vector_flops: Mapping[str, float] = field(hash=False)
    """Peak of the ordinary units in FLOP/s by precision (a multiply-add is 2)."""
    units: int
    """Multiprocessors, compute units or cores, >= 1."""
    clock_hz: float
    """Clock in Hz for which the peaks hold, > 0: a GPU's boost clock, a CPU's base clock."""
    usable_bytes: float | None = None
    """Memory in bytes that the driver offers to programs; None where no figure is known."""
    l2_bytes: float | None = None
    """Last-level on-chip cache in bytes, shared by all units; None when unknown or absent."""
    power_w: float | None = None
    """Thermal design power in W; None when unknown."""
    link: str | None = None
    """Link to its peers in a node: a name in the link catalog; None when it has none of its own."""
    host_link: str | None = None
    """Link to its host: a name in the link catalog; None for a CPU."""
    network: str = "ethernet-10g"
    """Link between nodes in the usual cluster of such devices: a name in the link catalog."""
    network_ports: int = 1
    """Network ports of the usual node, >= 1; a node's traffic shares them."""
    node_devices: int = 1
    """Devices that `link` joins in the usual node, >= 1: a server, or an NVLink or ICI domain."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Citation of each figure, keyed by field (`memory_bytes`) or peak (`matrix_flops.bf16`)."""
    aliases: tuple[str, ...] = ()
    """Other names it is found under."""
    notes: str = field(default="", repr=False)
    """What a reader of the figures has to know."""

    def __post_init__(self) -> None:
        problems = [*_range_problems(self), *_peak_problems(self)]
        if self.tier not in TIERS:
            problems.append(f"tier {self.tier!r} is not one of {', '.join(TIERS)}")
        if problems:
            raise InvalidValueError(f"device {self.name!r}: " + "; ".join(problems))

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU, for a data center or not."""
        return self.tier in ("datacenter-gpu", "consumer-gpu")

    @property
    def available_bytes(self) -> float:
        """Bytes that a program can hope to allocate: `usable_bytes` where known, else all."""
        return self.usable_bytes if self.usable_bytes is not None else self.memory_bytes

    def peak(self, precision: str) -> float:
        """Return the best dense FLOP/s that a matrix product of `precision` can reach.

        The matrix units where they take that precision. Otherwise tf32 falls back on fp32; bf16 and
        fp16 on the ordinary units at their own rate or at fp32's, whichever is faster; fp8 and int8
        on the 16-bit matrix units; fp64 on the ordinary fp64 units.
        """
        if precision not in _MATRIX_ROUTES:
            raise UnknownNameError("precision", precision, PRECISIONS, _known(PRECISIONS))
        units = {"matrix": self.matrix_flops, "vector": self.vector_flops}
        reachable = [
            (unit, units[unit][rate])
            for unit, rate in _MATRIX_ROUTES[precision]
            if rate in units[unit]
        ]
        if not reachable:
            raise InvalidValueError(
                f"{self.name} has no {precision} arithmetic; "
                f"it has {', '.join(self.precisions()) or 'none at all'}"
            )
        unit, rate = reachable[0]
        # Half precision on the ordinary units can be documented yet useless (1/64 of fp32 on the
        # consumer Pascals); libraries then convert and compute in fp32.
        return rate if unit == "matrix" else max(rate for _, rate in reachable)

    def takes(self, precision: str) -> bool:
        """Return whether matrix products of a precision run faster than fp32's, or are fp32's.

        Where none do, libraries convert operands and compute in fp32: fp16 on a TITAN Xp, bf16 on
        a V100, TF32 on either.
        """
        fast = precision in self.matrix_flops or self.peak(precision) > self.peak("fp32")
        return fast or precision == "fp32"

    def vector_peak(self, precision: str = "fp32") -> float:
        """Return the FLOP/s of elementwise work: the ordinary units, at fp32 where not faster."""
        if precision not in PRECISIONS:
            raise UnknownNameError("precision", precision, PRECISIONS, _known(PRECISIONS))
        own = self.vector_flops.get(precision)
        if precision == "fp64":
            return own if own is not None else self.peak("fp64")
        rates = [r for r in (own, self.vector_flops.get("fp32")) if r is not None]
        return max(rates) if rates else self.peak("fp32")

    def precisions(self) -> tuple[str, ...]:
        """Return the precisions that some unit of the device computes natively."""
        return tuple(p for p in PRECISIONS if p in self.matrix_flops or p in self.vector_flops)

    def ridge(self, precision: str) -> float:
        """Return the FLOPs per byte above which a matrix product is bound by compute."""
        return self.peak(precision) / self.memory_bandwidth


def _known(names: tuple[str, ...]) -> str:
    return "known: " + ", ".join(names)


def _range_problems(device: Device) -> list[str]:
    positive = {
        "memory_bytes": device.memory_bytes,
        "memory_bandwidth": device.memory_bandwidth,
        "units": device.units,
        "clock_hz": device.clock_hz,
        "usable_bytes": device.usable_bytes,
        "l2_bytes": device.l2_bytes,
        "power_w": device.power_w,
        "network_ports": device.network_ports,
        "node_devices": device.node_devices,
    }
    return [
        f"{name} = {value} has to be a finite number above zero"
        for name, value in positive.items()
        if value is not None and not (math.isfinite(value) and value > 0)
    ]


def _peak_problems(device: Device) -> list[str]:
    if not device.matrix_flops and not device.vector_flops:
        return ["needs at least one peak in matrix_flops or vector_flops"]
    problems = []
    for table, peaks in (("matrix", device.matrix_flops), ("vector", device.vector_flops)):
        for precision, rate in peaks.items():
            if precision not in PRECISIONS:
                problems.append(f"{table}_flops has {precision!r}; {_known(PRECISIONS)}")
            elif not (math.isfinite(rate) and rate > 0):
                problems.append(f"{table}_flops.{precision} = {rate} has to be above zero")
    return problems
