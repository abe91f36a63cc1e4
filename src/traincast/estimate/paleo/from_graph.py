"""A traincast graph as layers that Paleo can price.

Convolutions, deconvolutions, pooling, dense layers, dropout and concatenation become layers of
Paleo's types. Everything else becomes a layer that costs nothing, as Paleo has it for activations
and normalisation, and stays in the list under its own kind. What does matrix work that Paleo has
no formula for (attention, matrix products of activations, recurrent cells) is marked `missing`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from traincast.estimate.paleo.net import Layer, LayerNet, Shape
from traincast.graph import Graph, Op

_MATRIX = frozenset({"conv", "linear", "matmul", "grouped_matmul", "attention", "rnn", "unknown"})


def paleo_from_graph(graph: Graph, *, seq: int | None = None) -> LayerNet:
    """Return the layers of a graph for sequences of `seq` positions, by default the graph's own.

    A bias is counted with every convolution and dense layer, as Paleo does. No other parameters
    are; how many that leaves out is in the notes.
    """
    reader = _Reader(graph, graph.seq if seq is None else seq)
    for op in graph.ops:
        reader.add(op)
    layers = tuple(reader.layers.values())
    net = LayerNet(graph.name, layers, graph.batch, from_graph=True, fixed="batch" in graph.fixed)
    return replace(net, notes=_notes(net, graph, reader.counted))


def _notes(net: LayerNet, graph: Graph, counted: set[str]) -> tuple[str, ...]:
    notes = []
    left = sum(
        math.prod(size.at(1, 1) for size in tensor.shape)
        for tensor in graph.parameters
        if tensor.name not in counted
    )
    if left:
        notes.append(
            f"{left:,} parameters of layers other than convolutions and dense ones are not counted"
        )
    if net.unpriced:
        kinds = ", ".join(sorted({layer.type for layer in net.unpriced}))
        notes.append(
            f"the matrix work of {len(net.unpriced)} ops ({kinds}) is left out: Paleo has no "
            "formula for it, and the step is underestimated"
        )
    return tuple(notes)


class _Reader:
    """A graph on its way to layers."""

    def __init__(self, graph: Graph, seq: int) -> None:
        self.graph = graph
        self.seq = seq
        self.base = graph.batch if "batch" in graph.fixed else 1
        """Batch at which sizes are read."""
        self.layers: dict[str, Layer] = {}
        self.made_by: dict[str, str] = {}
        """Tensor to the layer that makes it."""
        self.counted: set[str] = set()
        """Parameters that a layer was charged for, or a bias that it counts anyway."""
        for tensor in graph.tensors.values():
            if tensor.role == "input":
                name = self._free_name(tensor.name)
                self._put(
                    Layer(
                        name=name,
                        type="Input",
                        parents=(),
                        inputs=(),
                        output=self._sample(tensor.name),
                    ),
                    tensor.name,
                )

    def _free_name(self, name: str) -> str:
        taken = {op.name for op in self.graph.ops}
        while name in taken:
            name += "'"
        return name

    def _put(self, layer: Layer, *tensors: str) -> None:
        self.layers[layer.name] = layer
        self.made_by.update(dict.fromkeys(tensors, layer.name))

    def add(self, op: Op) -> None:
        """Append the layer of an op; one that depends on no input does not run with the data."""
        sources = [name for name in op.inputs if name in self.made_by]
        if not sources:
            return
        parents = tuple(dict.fromkeys(self.made_by[name] for name in sources))
        plain = Layer(
            name=op.name,
            type=op.kind,
            parents=parents,
            inputs=tuple(self.layers[parent].output for parent in parents),
            output=self._sample(op.outputs[0]),
            missing=op.kind in _MATRIX,
        )
        convert = {
            "conv": self._conv,
            "linear": self._linear,
            "pool": self._pool,
            "reduce": self._mean,
            "dropout": self._dropout,
            "concat": self._concat,
        }.get(op.kind)
        layer = convert(op, plain) if convert else None
        self._put(layer or plain, *op.outputs)

    def _shape(self, name: str, batch: int) -> Shape:
        return tuple(size.at(batch, self.seq) for size in self.graph.tensors[name].shape)

    def _rows(self, name: str, row: int) -> int | None:
        """Return the rows of `row` elements that one sample brings; None if it is not so many."""
        base = self.base
        count, rest = divmod(math.prod(self._shape(name, base)), row * base)
        doubled = math.prod(self._shape(name, 2 * base))
        even = self.base > 1 or doubled == 2 * count * row * base
        return count if count and not rest and even else None

    def _sample(self, name: str) -> Shape:
        """Return the shape for one sample: (H, W, C) of an image, otherwise the rest as it is."""
        shape = self._shape(name, self.base)
        if not shape or shape[0] % self.base:
            return shape
        lead, rest = shape[0] // self.base, shape[1:]
        if len(rest) == 3 and lead == 1:
            return (rest[1], rest[2], rest[0])
        return rest if lead == 1 else (lead, *rest)

    def _parameters(self, op: Op, count: int) -> int:
        """Return the parameters of an op, 0 where another op has been charged for the weight."""
        again = op.inputs[1] in self.counted
        self.counted.update(op.inputs[1:])
        return 0 if again else count

    def _conv(self, op: Op, plain: Layer) -> Layer | None:
        x, w = self._shape(op.inputs[0], self.base), self._shape(op.inputs[1], self.base)
        y = self._shape(op.outputs[0], self.base)
        rank = len(w) - 2
        rows = self._rows(op.inputs[0], math.prod(x[1:]))
        pads = _pads(op, w[2:])
        if rank not in (1, 2) or len(x) != len(w) or rows is None or pads is None:
            return None
        kernel, strides = (*w[2:], 1)[:2], (*_numbers(op, "stride"), 1)[:2]
        groups = _numbers(op, "groups")[0]
        transposed = bool(op.attrs.get("transposed"))
        channels = (y[1], x[1]) if transposed else (x[1], y[1])
        weights = math.prod(kernel) * channels[0] * channels[1] // groups
        return replace(
            plain,
            type="Deconvolution" if transposed else "Convolution",
            inputs=(_image(x), *plain.inputs[1:]),
            output=_image(y),
            kernel=(kernel[0], kernel[1]),
            channels=channels,
            strides=(strides[0], strides[1]),
            padding=(pads[0], pads[1] if rank == 2 else 0),
            parameters=self._parameters(op, weights + channels[1]),
            reads_data=op.inputs[0] not in self.graph.needs_grad,
            rows=rows,
            groups=groups,
            missing=False,
        )

    def _linear(self, op: Op, plain: Layer) -> Layer | None:
        wide = self._shape(op.inputs[0], self.base)[-1]
        out = self._shape(op.outputs[0], self.base)[-1]
        rows = self._rows(op.inputs[0], wide)
        if rows is None:
            return None
        return replace(
            plain,
            type="InnerProduct",
            channels=(wide, out),
            parameters=self._parameters(op, (wide + 1) * out),
            rows=rows,
            missing=False,
        )

    def _pool(self, op: Op, plain: Layer) -> Layer | None:
        kernel = (*_numbers(op, "kernel"), 1, 1)
        kind = "AvgPool" if op.attrs.get("op") == "avg" else "Pooling"
        window = (kernel[0], math.prod(kernel[1:]))
        return replace(plain, type=kind, kernel=window, inputs=(self._sample(op.inputs[0]),))

    def _mean(self, op: Op, plain: Layer) -> Layer | None:
        """A mean over all positions of an image is an average pooling."""
        x, y = self._shape(op.inputs[0], self.base), self._shape(op.outputs[0], self.base)
        if op.attrs.get("fn") != "mean" or len(x) != 4 or y[:2] != x[:2] or math.prod(y[2:]) != 1:
            return None
        inputs = (self._sample(op.inputs[0]), *plain.inputs[1:])
        return replace(plain, type="AvgPool", kernel=(x[2], x[3]), inputs=inputs)

    def _dropout(self, _: Op, plain: Layer) -> Layer:
        return replace(plain, type="Dropout")

    def _concat(self, _: Op, plain: Layer) -> Layer:
        return replace(plain, type="Concatenate")


def _image(shape: Shape) -> Shape:
    """Return (H, W, C) of an axis order N, C, H, W; a signal is an image of width 1."""
    _, channels, high, *wide = shape
    return (high, *wide, channels) if wide else (high, 1, channels)


def _numbers(op: Op, name: str) -> tuple[int, ...]:
    value = op.attrs[name]
    return tuple(int(v) for v in value) if isinstance(value, tuple) else (int(value),)


def _pads(op: Op, kernel: Shape) -> tuple[int, ...] | None:
    """Return the pads; a dilated filter becomes the dense one of as many weights.

    Its pads shrink so that the output keeps its size. None where they cannot.
    """
    pads = []
    for p, d, k in zip(_numbers(op, "padding"), _numbers(op, "dilation"), kernel, strict=True):
        less, odd = divmod((k - 1) * (d - 1), 2)
        if odd or less > p:
            return None
        pads.append(p - less)
    return tuple(pads)
