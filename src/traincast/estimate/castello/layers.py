"""A network as the model sees it: matrix products, unfoldings, weights and outputs.

Forward, weight gradient and data gradient of a layer are three products of the same three
matrices, so they have the same flops and move the same elements:

    fully connected ci → co        GEMM(b, co, ci)      columns = co, depth = ci, sites = 1
    convolution ci → co on ho×wo   GEMM(co, b·ho·wo, ci·kh·kw)
                                   columns = co, depth = ci·kh·kw, sites = ho·wo

A grouped convolution, a mixture of experts and the heads of attention are `groups` products side
by side; then `columns` counts those of all groups and `depth` that of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from traincast.estimate.castello.machine import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer; sizes are numbers of elements, for one sample unless said."""

    name: str
    kind: str
    """conv, dense, product (of two activations), pool or other."""
    columns: float = 0.0
    """co: columns of the product, all groups together; 0 for none."""
    depth: float = 0.0
    """Multiply-adds for each element of the result."""
    sites: float = 0.0
    """Rows of the product."""
    groups: float = 1.0
    """Products side by side that share no operand."""
    units: float = 0.0
    """Kernels or neurons, what model parallelism shares out; 0 for what it does not split."""
    shared: bool = True
    """Whether all samples meet the same second operand: a weight."""
    unfolded: float = 0.0
    """Elements of the unfolded input (im2col)."""
    transposed: bool = False
    """A transposed convolution: it folds its result instead of unfolding its input."""
    weights: float = 0.0
    """Trainable parameters, biases too, whose gradient is complete after this layer's backward."""
    outputs: float = 0.0
    """N_l, elements that the processes of a split layer gather."""
    inputs: float = 0.0
    """N_(l−1), elements of the input's gradient, partial on each process of a split layer."""
    data_gradient: bool = True
    """Whether the input needs a gradient: not in the first layer."""
    weight_gradient: bool = True
    """Whether the weight needs one."""
    moved: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    """Bytes in memory of a layer without a formula: forward for no sample, forward for each
    further one, backward likewise."""

    @property
    def macs(self) -> float:
        """Multiply-adds of the forward pass."""
        return self.columns * self.depth * self.sites

    @property
    def model_below(self) -> float:
        """Batch below which model parallelism sends less than data parallelism for this layer.

        By bandwidth alone: 2·W against B·(N_l + 2·N_(l−1)), both times (p − 1)/p.
        """
        sent = self.outputs + 2 * self.inputs
        return 2 * self.weights / sent if sent else np.inf


@dataclass(frozen=True, eq=False)
class Network:
    """Layers in forward order."""

    name: str
    layers: tuple[Layer, ...]
    free: tuple[tuple[str, int], ...] = ()
    """Kinds of op that the model takes as free, with how often they occur."""
    assumed: tuple[str, ...] = ()
    """What was assumed about ops that the authors do not cover."""

    @property
    def parameters(self) -> int:
        """Trainable parameters."""
        return int(sum(layer.weights for layer in self.layers))

    @property
    def flops(self) -> float:
        """FLOPs of the forward pass for one sample; a multiply-add is 2."""
        return 2 * sum(layer.macs for layer in self.layers)

    @cached_property
    def table(self) -> Table:
        """The layers as columns."""
        return Table(self.layers)

    @cached_property
    def charged(self) -> Table:
        """The layers that take time or send something when the authors' free ones are free."""
        return Table(tuple(x for x in self.layers if x.kind != "other" or x.weights))

    def __repr__(self) -> str:
        return f"Network({self.name!r}, {len(self.layers)} layers, {self.parameters:,} parameters)"


class Table:
    """A network's layers as columns of numbers."""

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        def column(name: str) -> Floats:
            return np.array([getattr(layer, name) for layer in layers], dtype=np.float64)

        self.columns, self.depth, self.sites = column("columns"), column("depth"), column("sites")
        self.groups, self.units = column("groups"), column("units")
        self.unfolded, self.weights = column("unfolded"), column("weights")
        self.outputs, self.inputs = column("outputs"), column("inputs")
        self.moved = np.array([layer.moved for layer in layers], dtype=np.float64).reshape(-1, 4)
        self.shared = column("shared").astype(bool)
        self.transposed = column("transposed").astype(bool)
        self.data_gradient = column("data_gradient").astype(bool)
        self.weight_gradient = column("weight_gradient").astype(bool)
        self.conv = np.array([layer.kind == "conv" for layer in layers], dtype=bool)
        self.dense = np.array([layer.kind == "dense" for layer in layers], dtype=bool)
        self.pool = np.array([layer.kind == "pool" for layer in layers], dtype=bool)
        self.split = self.units > 0
        """Layers that model parallelism shares out."""


def conv_layer(
    name: str,
    kernel: tuple[int, int],
    channels: tuple[int, int],
    size: tuple[int, int],
    before: int,
) -> Layer:
    """Return a convolution (kh, kw), ci → co on an output of ho × wo, after `before` outputs."""
    (c_in, c_out), (high, wide) = channels, size
    depth = c_in * kernel[0] * kernel[1]
    sites = high * wide
    return Layer(
        name=name, kind="conv", columns=c_out, depth=depth, sites=sites, units=c_out,
        unfolded=depth * sites, weights=c_out * (depth + 1), outputs=c_out * sites, inputs=before,
    )  # fmt: skip


def dense_layer(name: str, c_in: int, c_out: int, before: int) -> Layer:
    """Return a fully connected layer after a layer of `before` outputs."""
    return Layer(
        name=name, kind="dense", columns=c_out, depth=c_in, sites=1, units=c_out,
        weights=c_out * (c_in + 1), outputs=c_out, inputs=before,
    )  # fmt: skip
