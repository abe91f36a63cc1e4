"""The roofline estimator: seconds of a kernel from a device's datasheet and a few efficiencies.

    t = max( FLOPs / (peak · e_c),  bytes / (bandwidth · e_b) ) + gap

peak is the device's dense rate for the precision, on matrix units where it has them. e_c falls
for products too small to fill the device:

    e_c = e_max / (1 + 1 / (2 waves) + 32 / depth + 16 / columns + 16 / rows)

so it rises to e_max without a jump, and a larger product never takes less time: each term of
FLOPs / e_c, such as rows · columns · depth · 16 / rows, grows with every side. `gap` is what each
launch costs on the device. The host issues launches at its own pace; a step is bound by whichever
of the two clocks is later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from traincast.estimate.optimizer import Optimizer
from traincast.estimate.program import FAMILIES, Floats, Ints, Kernels, Program
from traincast.graph.precision import Precision
from traincast.hardware import Device

_MATRIX = np.array([f in ("gemm", "conv", "attention", "rnn") for f in FAMILIES])
_GEMM = FAMILIES.index("gemm")
_CONV = FAMILIES.index("conv")
_ATTENTION = FAMILIES.index("attention")


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """What devices of one tier reach of their datasheet, at best; fractions unless said."""

    gemm: float
    """Large matrix products, of the peak for the precision."""
    conv: float
    """Large convolutions, of the same peak."""
    attention: float
    """Long fused attention, of the same peak."""
    vector: float
    """Arithmetic outside matrix units, of the vector peak."""
    bandwidth: float
    """Long streaming kernels, of memory bandwidth."""
    depthwise: float
    """Depthwise convolutions, which reuse little and coalesce badly, of memory bandwidth."""
    gap_s: float
    """Device time that each launch adds, seconds."""
    dispatch_s: float
    """Host time to issue one forward op eagerly, seconds."""
    backward_dispatch: float
    """Host time of a backward op, as a multiple of `dispatch_s`."""
    overlap: bool = True
    """Whether the host runs ahead of the device."""


TIERS: dict[str, Efficiency] = {
    "datacenter-gpu": Efficiency(
        gemm=0.68, conv=0.505, attention=0.80, vector=0.5, bandwidth=0.545, depthwise=0.043,
        gap_s=4e-6, dispatch_s=38e-6, backward_dispatch=1.37,
    ),
    "consumer-gpu": Efficiency(
        gemm=0.75, conv=0.65, attention=0.65, vector=0.5, bandwidth=0.65, depthwise=0.08,
        gap_s=4e-6, dispatch_s=15e-6, backward_dispatch=1.33,
    ),
    "accelerator": Efficiency(
        gemm=0.65, conv=0.45, attention=0.45, vector=0.4, bandwidth=0.70, depthwise=0.1,
        gap_s=3e-6, dispatch_s=2e-6, backward_dispatch=1.0,
    ),
    "tpu": Efficiency(
        gemm=0.70, conv=0.50, attention=0.45, vector=0.4, bandwidth=0.75, depthwise=0.1,
        gap_s=1e-6, dispatch_s=0.2e-6, backward_dispatch=1.0,
    ),
    "cpu": Efficiency(
        gemm=0.70, conv=0.50, attention=0.35, vector=0.3, bandwidth=0.65, depthwise=0.1,
        gap_s=4e-6, dispatch_s=5e-6, backward_dispatch=1.0, overlap=False,
    ),
    "manycore": Efficiency(
        gemm=0.55, conv=0.35, attention=0.25, vector=0.2, bandwidth=0.45, depthwise=0.1,
        gap_s=15e-6, dispatch_s=20e-6, backward_dispatch=1.0, overlap=False,
    ),
}  # fmt: skip
"""Assumptions, but for the tier datacenter-gpu, whose figures were fitted to measured training
steps on an H200 (see docs/roofline.md)."""

IDEAL = Efficiency(
    gemm=1.0, conv=1.0, attention=1.0, vector=1.0, bandwidth=1.0, depthwise=1.0,
    gap_s=0.0, dispatch_s=0.0, backward_dispatch=1.0, overlap=False,
)  # fmt: skip
"""A device that reaches its datasheet and a host that costs nothing: published models."""

_TILE = 128.0
_SPLIT = 1024.0
"""Depth that one tile works through before a library splits it among several units."""
_NONE = 1e-9
"""Stands for a side of length 0, as kernels have that are no product."""


class Pricing(NamedTuple):
    """Seconds of each kernel, and what bounds it."""

    seconds: Floats
    bound: Ints
    """0 compute, 1 memory traffic, 2 launch."""
    spread: Floats | None = None
    """Standard deviation of the logarithm of each kernel's seconds, where measured; each shape's
    own."""


def pricing(compute: Floats, memory: Floats, gap: Floats) -> Pricing:
    """Return the longer of compute and memory, with what each launch adds."""
    longer = np.maximum(compute, memory)
    bound = np.where(gap > longer, 2, np.where(compute >= memory, 0, 1))
    return Pricing(longer + gap, bound)


class OpTimes(NamedTuple):
    """Seconds of ops from a model that prices whole layers instead of kernels."""

    seconds: Floats
    """(ops, 2): forward and backward."""
    bound: Floats
    """(ops, 3): the same, by what bounds the op."""
    update_s: float
    """Of the optimizer update."""
    notes: tuple[str, ...]


class Estimator(Protocol):
    """What every estimator says of itself; it prices kernels or whole layers."""

    @property
    def name(self) -> str:
        """As users choose it."""

    @property
    def basis(self) -> str:
        """What a prediction rests on: a datasheet, a transferred profile or a calibration."""

    def efficiency(self, device: Device) -> Efficiency:
        """Return what the device reaches of its datasheet."""


@runtime_checkable
class KernelEstimator(Estimator, Protocol):
    """An estimator that prices kernels."""

    def price(
        self,
        kernels: Kernels,
        device: Device,
        precision: Precision,
        layout: str = "nchw",
        training: bool = True,
    ) -> Pricing:
        """Return seconds for every kernel."""


@runtime_checkable
class StepEstimator(KernelEstimator, Protocol):
    """An estimator that also knows what the host takes, and the optimizer."""

    def host(self, program: Program, kernels: Kernels, device: Device, training: bool) -> Floats:
        """Return host seconds to issue each op forward and backward: (ops, 2)."""

    def update(
        self, program: Program, device: Device, optimizer: Optimizer
    ) -> tuple[float, float, float]:
        """Return device seconds, host seconds and bytes moved of one optimizer update."""


@runtime_checkable
class LayerEstimator(Estimator, Protocol):
    """An estimator that prices whole layers."""

    def times(self, program: Program, device: Device, batch: int, seq: int) -> OpTimes:
        """Return the seconds of every op of a program, and of the update."""


@dataclass(frozen=True, slots=True)
class Roofline:
    """The estimator that needs nothing but a datasheet."""

    name: str = "roofline"
    basis: str = "datasheet"

    def efficiency(self, device: Device) -> Efficiency:
        """Return what devices of this one's tier reach."""
        return TIERS[device.tier]

    def price(
        self,
        kernels: Kernels,
        device: Device,
        precision: Precision,
        layout: str = "nchw",
        training: bool = True,
    ) -> Pricing:
        """Return seconds for every kernel on a device; training makes no difference."""
        return price(kernels, device, precision, layout, self.efficiency(device))


def price(
    kernels: Kernels, device: Device, precision: Precision, layout: str, eff: Efficiency
) -> Pricing:
    """Return seconds for every kernel, given what the device reaches of its datasheet."""
    matrix = _MATRIX[kernels.family]
    conv = kernels.family == _CONV
    attention = kernels.family == _ATTENTION
    columns, depth = kernels.dims[:, 1], kernels.dims[:, 2]
    thin = conv & (np.minimum(columns, depth) < 8) & (kernels.dims[:, 3] > 8)
    vector = device.vector_peak("fp32") * eff.vector
    best = np.full(len(matrix), device.peak(precision.peak) * eff.gemm)
    if precision.peak == "fp8":
        best[:] = device.peak("bf16") * eff.gemm
        best[kernels.family == _GEMM] = device.peak("fp8") * eff.gemm
    best[conv] *= eff.conv / eff.gemm
    best[attention] *= eff.attention / eff.gemm
    if precision.compute == "float32":
        # Fused attention in float32 does not use TF32 units.
        best[attention] = device.peak("fp32") * eff.attention
    rate = best * np.where(attention, 1.0, fill(kernels.dims, device.units))
    # A product too thin for matrix units runs no slower than on the ordinary ones.
    rate = np.where(matrix & ~thin, np.maximum(rate, vector * 0.25), vector)
    work = np.where(matrix, kernels.flops * kernels.done, 0.0)
    if precision.peak == "fp32" and "fp32" not in device.matrix_flops:
        # Winograd saves multiplications but adds transforms: worth about half of what it saves.
        work = work * (1.0 + kernels.fast) / 2.0
    compute = (work + kernels.ops * ~matrix) / rate
    traffic = kernels.read + kernels.write
    bandwidth = device.memory_bandwidth * np.where(thin, eff.depthwise, eff.bandwidth)
    memory = traffic / bandwidth
    if layout == "nchw" and precision.peak != "fp32" and device.matrix_flops:
        # Matrix units want channels last: the library converts operands and result each time.
        convert = 2.0 * traffic / (device.memory_bandwidth * eff.bandwidth)
        compute = compute + np.where(conv & ~thin, convert, 0.0)
    return pricing(compute, memory, kernels.launches * eff.gap_s)


def fill(dims: Floats, units: int) -> Floats:
    """Return how far a product of rows × columns × depth × batch fills a device, in (0, 1)."""
    rows, columns, depth, batch = np.maximum(dims.T, _NONE)
    tiles = np.maximum(rows / _TILE, 1.0) * np.maximum(columns / _TILE, 1.0) * batch
    waves = tiles * np.maximum(depth / _SPLIT, 1.0) / units
    filled: Floats = 1.0 / (1.0 + 0.5 / waves + 32.0 / depth + 16.0 / columns + 16.0 / rows)
    return filled
