"""Kernels as columns: one row for each kernel of each class of ops, for estimators to price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.graph.kinds import Kernel

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


class Kernels(NamedTuple):
    """Every kernel of every class at one size, as columns."""

    op_class: Ints
    phase: Ints
    """0 forward, 1 backward data, 2 backward weight."""
    family: Ints
    """Index into `families`."""
    flops: Floats
    ops: Floats
    read: Floats
    write: Floats
    dims: Floats
    """(kernels, 4): rows, columns, depth, batch; see `Kernel.dims` for each family."""
    launches: Floats
    done: Floats
    fast: Floats
    each: Floats
    """Bytes of one element of the main operand."""
    window: Floats
    """(kernels, 2): height and width of a convolution's or pool's window; 1 elsewhere."""
    stride: Floats
    nhwc: Floats
    """1 where an image has its channels last, else 0."""
    space: Floats
    """Positions of one sample's image; 0 elsewhere."""
    axes: Floats
    """Axes that a window moves along."""
    dilation: Floats
    names: tuple[str, ...]
    extra: Floats
    """For each class: bytes kept for backward beside tensors."""
    workspace: Floats


FAMILIES = (
    "gemm", "conv", "attention", "rnn", "pointwise", "reduction", "norm", "softmax", "pool",
    "copy", "gather", "fill", "sort", "interpolate", "unknown", "concat",
)  # fmt: skip
_FAMILY = {name: i for i, name in enumerate(FAMILIES)}
_EMPTY: Floats = np.zeros(0)


def kernel_table(
    rows: Sequence[tuple[int, int, Kernel]], extra: Floats = _EMPTY, workspace: Floats = _EMPTY
) -> Kernels:
    """Return kernels, each with its class and phase, as columns."""
    flat = [
        (index, phase, _FAMILY[k.family], k.flops, k.ops, k.read, k.write, *k.dims,
         k.launches, k.done, k.fast, k.each, *k.window, k.stride, k.nhwc, k.space, k.axes,
         k.dilation)
        for index, phase, k in rows
    ]  # fmt: skip
    table = np.array(flat, dtype=np.float64).reshape(len(rows), 22)
    whole = table[:, :3].astype(np.int64)
    names = tuple(k.name for _, _, k in rows)
    return Kernels(
        whole[:, 0], whole[:, 1], whole[:, 2], table[:, 3], table[:, 4], table[:, 5], table[:, 6],
        table[:, 7:11], table[:, 11], table[:, 12], table[:, 13], table[:, 14],
        table[:, 15:17], table[:, 17], table[:, 18], table[:, 19], table[:, 20], table[:, 21],
        names, extra, workspace,
    )  # fmt: skip
