"""Graphs of networks in Paleo's JSON format (Qi, Sparks, Talwalkar, "Paleo", ICLR 2017).

The layer records of `paleo_spec` become ops, with channels second as everywhere else in traincast.
What Paleo takes as free (bias, activation, normalisation) is in the graph all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from traincast.errors import UnknownNameError
from traincast.graph import Attr, Graph
from traincast.ingest.builder import BATCH, GraphBuilder, Shape, json_object, sizes
from traincast.ingest.paleo_spec import NHWC, PaleoLayer, PaleoNet, is_paleo, read_paleo

__all__ = [
    "PaleoLayer",
    "PaleoNet",
    "is_paleo",
    "load_paleo",
    "paleo_from_json",
    "paleo_net",
    "paleo_net_names",
    "read_paleo",
]


def paleo_net_names() -> list[str]:
    """Return the names of the publication's networks that come with traincast."""
    nets = files("traincast.ingest") / "paleo_nets"
    return sorted(p.name.removesuffix(".json") for p in nets.iterdir() if p.name.endswith(".json"))


def paleo_net(name: str) -> dict[str, Any]:
    """Return the specification of one of these networks."""
    if name not in paleo_net_names():
        raise UnknownNameError("Paleo network", name, paleo_net_names())
    path = files("traincast.ingest") / "paleo_nets" / f"{name}.json"
    return json_object(path.read_text(encoding="utf-8"), where=name)


def paleo_from_json(text: str, *, where: str = "network") -> Graph:
    """Read the JSON text of a network in Paleo's format."""
    return load_paleo(json_object(text, where=where), where=where)


def load_paleo(data: Mapping[str, Any], *, where: str) -> Graph:
    """Turn a network in Paleo's format into a graph; its batch is that of the input layer."""
    net = read_paleo(data, where=where)
    builder = GraphBuilder(net.name, f"Paleo network {where}")
    made: dict[str, str] = {}
    for layer in net.layers:
        if layer.type in _LEFT_OUT:
            builder.note(f"{layer.name} ({layer.type}) is left out: it has no part in training")
            continue
        ins = [made[parent] for parent in layer.parents]
        made[layer.name] = _OPS[layer.type](builder, layer, ins)
    read = {
        parent for layer in net.layers if layer.type not in _LEFT_OUT for parent in layer.parents
    }
    builder.end_in_loss([tensor for name, tensor in made.items() if name not in read])
    return builder.build(batch=net.layers[0].output[0])


_LEFT_OUT = frozenset({"Accuracy"})


def _nchw(shape: NHWC) -> Shape:
    if len(shape) == 4:
        _, h, w, c = shape
        return sizes(BATCH, c, h, w)
    return sizes(BATCH, *shape[1:])


def _input(builder: GraphBuilder, layer: PaleoLayer, _: list[str]) -> str:
    return builder.tensor(layer.name, _nchw(layer.output), role="input")


def _convolution(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
    """SAME may need one zero more after than before; that one is padded by a copy, as in TF."""
    x = ins[0]
    odd = tuple(after - before for before, after in layer.pads)
    if any(odd):
        n, c, h, w = builder.shape(x)
        padded = sizes(n, c, h.constant + odd[0], w.constant + odd[1])
        x = _part(builder, layer, "pad", "copy", [x], padded, {"fn": "pad"})
    c_in, c_out = layer.channels
    attrs: dict[str, Attr] = {
        "stride": layer.strides,
        "padding": tuple(before for before, _ in layer.pads),
        "dilation": (1, 1),
        "groups": 1,
    }
    return _weighted(builder, layer, x, "conv", (c_out, c_in, *layer.kernel), c_out, attrs)


def _deconvolution(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
    """The filter is that of the convolution from output to input: [kh, kw, out, in]."""
    c_out, c_in = layer.channels
    padding = tuple(after for _, after in layer.pads)
    extra = tuple(
        layer.output[1 + i]
        - ((layer.inputs[0][1 + i] - 1) * layer.strides[i] + layer.kernel[i] - 2 * padding[i])
        for i in (0, 1)
    )
    attrs: dict[str, Attr] = {
        "stride": layer.strides,
        "padding": padding,
        "dilation": (1, 1),
        "groups": 1,
        "transposed": True,
        "output_padding": extra,
    }
    return _weighted(builder, layer, ins[0], "conv", (c_in, c_out, *layer.kernel), c_out, attrs)


def _inner_product(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
    x = _flat(builder, layer, ins[0])
    wide, out = math.prod(layer.inputs[0][1:]), layer.output[1]
    return _weighted(builder, layer, x, "linear", (out, wide), out, {})


def _weighted(
    builder: GraphBuilder,
    layer: PaleoLayer,
    x: str,
    kind: str,
    weight: tuple[int, ...],
    bias: int,
    attrs: Mapping[str, Attr],
) -> str:
    ins = [
        x,
        builder.parameter(f"{layer.name}.weight", *weight),
        builder.parameter(f"{layer.name}.bias", bias),
    ]
    y = builder.op(kind, layer.name, ins, _nchw(layer.output), attrs=attrs, layer=layer.name)
    fn = layer.fields.get("activation_fn", "relu" if kind == "conv" else None)
    if not fn or fn == "linear":
        return y
    return _part(builder, layer, str(fn), "pointwise", [y], _nchw(layer.output), {"fn": str(fn)})


def _part(
    builder: GraphBuilder,
    layer: PaleoLayer,
    suffix: str,
    kind: str,
    ins: list[str],
    shape: Shape,
    attrs: Mapping[str, Attr],
) -> str:
    name = f"{layer.name}/{suffix}"
    return builder.op(kind, name, ins, shape, attrs=attrs, layer=layer.name)


def _flat(builder: GraphBuilder, layer: PaleoLayer, x: str) -> str:
    shape = sizes(BATCH, math.prod(layer.inputs[0][1:]))
    if builder.shape(x) == shape:
        return x
    return _part(builder, layer, "flatten", "view", [x], shape, {"fn": "reshape"})


def _pool(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
    """Training keeps the positions of the maxima, as a second output."""
    shape = _nchw(layer.output)
    outs = [builder.tensor(layer.name, shape)]
    if layer.type == "Pooling":
        outs.append(builder.tensor(f"{layer.name}.indices", shape, dtype="int64"))
    attrs: dict[str, Attr] = {
        "op": "avg" if layer.type == "AvgPool" else "max",
        "kernel": layer.kernel,
        "stride": layer.strides,
        "padding": tuple(before for before, _ in layer.pads),
    }
    builder.add("pool", layer.name, ins, outs, attrs=attrs, layer=layer.name)
    return outs[0]


def _elementwise(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
    total = ins[0]
    for other in ins[1:]:
        attrs = {"fn": "add"}
        total = builder.op(
            "pointwise", layer.name, [total, other], _nchw(layer.output), attrs=attrs
        )
    return total


def _on_flat(kind: str, **attrs: Attr) -> Callable[[GraphBuilder, PaleoLayer, list[str]], str]:
    def convert(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
        return _plain(kind, lambda _: attrs)(builder, layer, [_flat(builder, layer, ins[0])])

    return convert


def _plain(
    kind: str, attrs: Callable[[PaleoLayer], Mapping[str, Attr]]
) -> Callable[[GraphBuilder, PaleoLayer, list[str]], str]:
    def convert(builder: GraphBuilder, layer: PaleoLayer, ins: list[str]) -> str:
        return builder.op(
            kind, layer.name, ins, _nchw(layer.output), attrs=attrs(layer), layer=layer.name
        )

    return convert


def _concat_axis(layer: PaleoLayer) -> Mapping[str, Attr]:
    dim = int(layer.fields["dim"])
    return {"axis": (0, 2, 3, 1)[dim] if len(layer.output) == 4 else dim}


_OPS: dict[str, Callable[[GraphBuilder, PaleoLayer, list[str]], str]] = {
    "Input": _input,
    "Convolution": _convolution,
    "Deconvolution": _deconvolution,
    "InnerProduct": _inner_product,
    "Pooling": _pool,
    "AvgPool": _pool,
    "UpSampling2D": _plain("interpolate", lambda _: {"fn": "upsample_nearest2d"}),
    "Dropout": _plain("dropout", lambda layer: {"p": 1 - layer.fields["dropout_keep_prob"]}),
    "Concatenate": _plain("concat", _concat_axis),
    "Reshape": _plain("view", lambda _: {"fn": "reshape"}),
    "Elementwise": _elementwise,
    "Softmax": _on_flat("softmax", axis=1),
    "Sigmoid": _on_flat("pointwise", fn="sigmoid"),
    "BatchNorm": _plain("batch_norm", lambda _: {}),
    "LRN": _plain("unknown", lambda _: {"fn": "paleo.LRN"}),
    "ReLU": _plain("pointwise", lambda _: {"fn": "relu"}),
}
