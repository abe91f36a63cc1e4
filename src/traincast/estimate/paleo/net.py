"""The layers that Paleo prices: what its JSON format says, or what a traincast graph holds.

Shapes are those of one sample, height, width, channels; the batch is a number apart. So one record
serves every batch, and strong scaling needs no second reading.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.paleo.nested import Nested, flatten, nested, width
from traincast.graph import Graph
from traincast.ingest.paleo import PaleoLayer, PaleoNet, paleo_net, paleo_net_names, read_paleo

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One layer, for any batch."""

    name: str
    type: str
    """Paleo's name of the type; for a free op of a graph, the kind of the op."""
    parents: tuple[str, ...]
    inputs: tuple[Shape, ...]
    """Output of each parent for one sample: (H, W, C) or (C,)."""
    output: Shape
    """For one sample."""
    kernel: tuple[int, int] = (0, 0)
    channels: tuple[int, int] = (0, 0)
    """In and out; of a deconvolution, those of the convolution it turns round."""
    strides: tuple[int, int] = (1, 1)
    padding: str | tuple[int, int] = "VALID"
    parameters: int = 0
    """Weights and biases; a bias is always counted."""
    device: int | str = 0
    """The split it belongs to as text, otherwise the integer 0: the two never compare equal."""
    reads_data: bool = False
    """Whether no gradient has to flow into its input; only a convolution cares."""
    rows: int = 1
    """Rows that one sample brings: positions of a sequence, windows of an image."""
    groups: int = 1
    """Equal convolutions that channels are divided among; Paleo itself has none above 1."""
    missing: bool = False
    """Whether it does matrix work that Paleo has no formula for."""


@dataclass(frozen=True, eq=False)
class LayerNet:
    """A network ready to be priced."""

    name: str
    layers: tuple[Layer, ...]
    """Parents first."""
    batch: int
    """Batch to assume when none is given; samples."""
    from_graph: bool = False
    """Whether it comes from a graph, which may hold what Paleo's format cannot say."""
    fixed: bool = False
    """Whether it holds for that batch only."""
    notes: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Layer]:
        """Layers by name."""
        return {layer.name: layer for layer in self.layers}

    @cached_property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def weight_bytes(self) -> int:
        """Bytes that workers exchange: all parameters in fp32."""
        return 4 * self.parameters

    def activation_bytes(self, batch: int | None = None) -> int:
        """Return the bytes of every layer's output, the input's included."""
        return 4 * (batch or self.batch) * sum(math.prod(layer.output) for layer in self.layers)

    @cached_property
    def nested(self) -> Nested:
        """Layers in a row, and tuples of branches."""
        return nested({layer.name: layer.parents for layer in self.layers})

    @cached_property
    def order(self) -> list[str]:
        """Names in the order of Paleo's walk."""
        return flatten(self.nested)

    @cached_property
    def splits(self) -> int:
        """Devices that the model-parallel layers are split over; 0 where there are none."""
        return max((int(layer.device) + 1 for layer in self.layers if is_split(layer)), default=0)

    @cached_property
    def width(self) -> int:
        """Devices that model parallelism can use: the most branches that cost something."""
        return max(width(self.nested, lambda name: self.by_name[name].type in PRICED), 1)

    @property
    def free(self) -> tuple[Layer, ...]:
        """Layers that Paleo takes as costing nothing."""
        return tuple(layer for layer in self.layers if layer.type not in PRICED)

    @property
    def unpriced(self) -> tuple[Layer, ...]:
        """Layers whose matrix work is left out because Paleo has no formula for it."""
        return tuple(layer for layer in self.layers if layer.missing)

    def __repr__(self) -> str:
        return f"LayerNet({self.name!r}, {len(self.layers)} layers, {self.parameters:,} parameters)"


PRICED = frozenset(
    {"Convolution", "Deconvolution", "Pooling", "AvgPool", "Dropout", "InnerProduct"}
)
"""Types with a cost. Bias, activation, normalisation, concatenation and softmax have none."""


def is_split(layer: Layer) -> bool:
    """Tell whether a layer is one of several model-parallel parts."""
    return isinstance(layer.device, str)


def layer_net(ref: str | PaleoNet | Mapping[str, Any] | Graph | LayerNet) -> LayerNet:
    """Return the layers of a network.

    `ref` names one of the publication's networks, or is a graph, what `read_paleo` returned, or a
    parsed file in Paleo's format.
    """
    if isinstance(ref, LayerNet):
        return ref
    if isinstance(ref, Graph):
        from traincast.estimate.paleo.from_graph import paleo_from_graph

        return paleo_from_graph(ref)
    if isinstance(ref, str):
        return _published(ref)
    if isinstance(ref, PaleoNet):
        return _from_records(ref)
    if isinstance(ref, Mapping):
        return _from_records(read_paleo(ref, where=str(ref.get("name", "network"))))
    raise InvalidValueError(
        f"{ref!r} is no network; give the name of one of Paleo's, a graph or parsed JSON"
    )


@lru_cache(maxsize=32)
def _published(name: str) -> LayerNet:
    if name not in paleo_net_names():
        hint = "for any other network, pass its graph"
        raise UnknownNameError("Paleo network", name, paleo_net_names(), hint)
    return _from_records(read_paleo(paleo_net(name), where=name)._replace(name=name))


def _from_records(net: PaleoNet) -> LayerNet:
    layers = tuple(_from_record(record) for record in net.layers)
    return LayerNet(net.name, layers, batch=net.layers[0].output[0])


def _from_record(record: PaleoLayer) -> Layer:
    return Layer(
        name=record.name,
        type=record.type,
        parents=record.parents,
        inputs=tuple(shape[1:] for shape in record.inputs),
        output=record.output[1:],
        kernel=record.kernel,
        channels=record.channels,
        strides=record.strides,
        padding=record.padding,
        parameters=record.parameters,
        device=record.device,
        reads_data="data" in record.parents,
    )
