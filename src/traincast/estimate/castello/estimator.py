"""The node model as an estimator of kernels, for predictions of one device.

    t = max(flops / F, w · memops / BW)

at the peaks of the datasheet, with nothing for launches or the host: a lower bound rather than
a forecast. A convolution is the product of its unfolded input and its kernels in all three phases;
on a CPU the unfolded matrix is written (im2col) and folded back (col2im) as well. Kernels that the
authors do not model are charged for the bytes they move.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traincast.estimate.program import FAMILIES, Floats, Kernels
from traincast.estimate.roofline import IDEAL, Efficiency, Pricing, pricing
from traincast.graph.precision import Precision
from traincast.hardware import Device

_MATRIX = np.array([f in ("gemm", "conv", "attention", "rnn") for f in FAMILIES])
_CONV, _GEMM = FAMILIES.index("conv"), FAMILIES.index("gemm")
_CPU = ("cpu", "manycore")
_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}


@dataclass(frozen=True, slots=True)
class Castello:
    """The estimator of Castelló et al.: peaks, each operand moved once, convolutions unfolded."""

    name: str = "castello"
    basis: str = "datasheet"

    def efficiency(self, device: Device) -> Efficiency:
        """Return that the device reaches its datasheet."""
        return IDEAL

    def price(
        self,
        kernels: Kernels,
        device: Device,
        precision: Precision,
        layout: str = "nchw",
        training: bool = True,
    ) -> Pricing:
        """Return seconds for every kernel on a device; layout and phase make no difference."""
        matrix = _MATRIX[kernels.family]
        width = _BYTES[precision.compute]
        traffic = kernels.read + kernels.write
        product = (kernels.family == _CONV) | (kernels.family == _GEMM)
        m, n, k, b = _forward_dims(kernels).T
        traffic = np.where(product, width * b * (m * n + m * k + n * k), traffic)
        work = np.where(matrix, kernels.flops * kernels.done, kernels.ops)
        peak = np.where(matrix, device.peak(precision.peak), device.vector_peak("fp32"))
        compute, memory = work / peak, traffic / device.memory_bandwidth
        if device.tier in _CPU:
            # Before or after the product, not beside it: it adds to whatever bounds that.
            unfolding = _unfolding(kernels, m * k * b * width) / device.memory_bandwidth
            compute, memory = compute + unfolding, memory + unfolding
        return pricing(compute, memory, np.zeros_like(compute))


def _forward_dims(kernels: Kernels) -> Floats:
    """Return the product of each kernel; a convolution's gradients use that of its forward pass."""
    dims = kernels.dims.copy()
    conv = kernels.family == _CONV
    for first in np.flatnonzero(conv & (kernels.phase == 0)):
        dims[conv & (kernels.op_class == kernels.op_class[first])] = kernels.dims[first]
    return dims


def _unfolding(kernels: Kernels, unfolded: Floats) -> Floats:
    """Return the bytes of im2col (forward) and col2im (data gradient) of convolutions."""
    written = (kernels.family == _CONV) & (kernels.phase < 2)
    return np.where(written, unfolded, 0.0)
