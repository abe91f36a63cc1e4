"""The node: a roofline for each kernel.

    time = max(flops / F, w · memops / BW)

F is the node's peak in FLOP/s, BW its memory bandwidth in bytes/s and w the bytes of an element.
Each operand moves once between memory and the node, so a kernel is taken as perfectly blocked:
nothing is said of caches beyond that.

kernel          flops    memops (elements)
GEMM(m, n, k)   2mnk     mn + mk + nk
im2col(m, n)    0        mn
col2im(m, n)    mn       mn

Worked, F = 4 TFLOP/s and BW = 50 GB/s: GEMM(512, 12544, 4608) has 59.2 GFLOP and takes 14.8 ms;
its 66.6 M elements alone would take 5.3 ms, so it is bound by compute. The published code gives
im2col no time at all, since its speed by the roofline is 0; here it takes w · mn / BW.

Source: github.com/hpca-uji/PyDTNN at a985779 (formulas only).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from traincast.estimate.castello.machine import Floats, Machine


def roofline(flops: ArrayLike, elements: ArrayLike, machine: Machine) -> Floats:
    """Return the seconds of a kernel with so much arithmetic and so many elements moved."""
    compute = np.asarray(flops, dtype=np.float64) / np.asarray(machine.flops, dtype=np.float64)
    moved = np.asarray(elements, dtype=np.float64) * machine.element_bytes
    return np.maximum(compute, moved / np.asarray(machine.memory_bandwidth, dtype=np.float64))


def gemm(m: ArrayLike, n: ArrayLike, k: ArrayLike, machine: Machine) -> Floats:
    """Return the seconds of the product of an m×k and a k×n matrix."""
    m, n, k = (np.asarray(x, dtype=np.float64) for x in (m, n, k))
    return roofline(2 * m * n * k, m * n + m * k + n * k, machine)


def im2col(m: ArrayLike, n: ArrayLike, machine: Machine) -> Floats:
    """Return the seconds to unfold an image into an m×n matrix."""
    return roofline(0.0, np.multiply(m, n, dtype=np.float64), machine)


def col2im(m: ArrayLike, n: ArrayLike, machine: Machine) -> Floats:
    """Return the seconds to add an m×n matrix up into an image."""
    size = np.multiply(m, n, dtype=np.float64)
    return roofline(size, size, machine)
