"""The layers of a network in Paleo's JSON format (Qi, Sparks, Talwalkar, "Paleo", ICLR 2017).

`read_paleo` expands blocks and model-parallel splits into plain layer records, in an order in
which they can run, with shapes as Paleo has them: samples, height, width, channels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from traincast.errors import InputFileError, near_names
from traincast.ingest.builder import are_whole, in_order, is_whole, same_pads

NHWC = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PaleoLayer:
    """One layer after the expansion of blocks and splits."""

    name: str
    """As in the file; `block/inner` in a block, `block/inner@s` in split s."""
    type: str
    """As in the file, such as Convolution."""
    parents: tuple[str, ...]
    """Names of the layers it reads, in order."""
    inputs: tuple[NHWC, ...]
    """Output shape of each parent."""
    output: NHWC
    """[N, H, W, C], or [N, C] once flattened."""
    kernel: tuple[int, int] = (0, 0)
    """Height and width of the window; zeros where there is none."""
    channels: tuple[int, int] = (0, 0)
    """Third and fourth number of the filter, with -1 and splits resolved."""
    strides: tuple[int, int] = (1, 1)
    """Of height and width."""
    padding: str | tuple[int, int] = "VALID"
    """VALID, SAME or a number for each side of height and of width."""
    fields: Mapping[str, Any]
    """Everything that the file says of the layer."""

    @property
    def device(self) -> int | str:
        """Text after `@`, otherwise the integer 0, as Paleo tells devices apart."""
        return self.name.partition("@")[2] or 0

    @property
    def parameters(self) -> int:
        """Weights and biases as Paleo counts them: 0 for all but matrix layers."""
        if self.type == "InnerProduct":
            return (math.prod(self.inputs[0][1:]) + 1) * self.output[1]
        return math.prod((*self.kernel, *self.channels)) + self.channels[1]

    @property
    def pads(self) -> tuple[tuple[int, int], ...]:
        """Zeros before and after, for height and for width."""
        if isinstance(self.padding, tuple):
            return tuple((p, p) for p in self.padding)
        if self.padding == "VALID":
            return ((0, 0), (0, 0))
        wide, narrow = self.inputs[0][1:3], self.output[1:3]
        if self.type == "Deconvolution":
            wide, narrow = narrow, wide
        return tuple(map(same_pads, wide, narrow, self.kernel, self.strides))


class PaleoNet(NamedTuple):
    """A network as layer records, parents first."""

    name: str
    layers: tuple[PaleoLayer, ...]


class _Raw(NamedTuple):
    name: str
    type: str
    parents: tuple[str, ...]
    fields: Mapping[str, Any]


class _LayerError(Exception):
    """What is wrong with one layer; gathered into one InputFileError."""


def is_paleo(data: object) -> bool:
    """Tell whether parsed JSON looks like a network in Paleo's format."""
    return isinstance(data, Mapping) and "format" not in data and "layers" in data


def read_paleo(data: Mapping[str, Any], *, where: str, batch: int | None = None) -> PaleoNet:
    """Return the layers of a network, ordered and checked; all problems are reported at once.

    `batch` takes the place of the batch that the input layer states.
    """
    problems: list[str] = []
    done: dict[str, PaleoLayer] = {}
    for layer in _ordered(_expand(data, problems), problems):
        wrong = _field_problems(layer)
        problems += wrong
        parentless = not layer.parents and layer.type != "Input"
        if wrong or parentless or not all(p in done for p in layer.parents):
            continue
        ins = tuple(done[p].output for p in layer.parents)
        try:
            known = _TYPES[layer.type].shape(layer.fields, ins)
        except _LayerError as error:
            problems.append(f"layer {layer.name!r} ({layer.type}): {error}")
            continue
        if layer.type == "Input" and batch is not None:
            known["output"] = (batch, *known["output"][1:])
        done[layer.name] = PaleoLayer(**layer._asdict(), inputs=ins, **known)
    if problems:
        raise InputFileError(where, problems)
    return PaleoNet(str(data.get("name", where)), tuple(done.values()))


def _expand(data: Mapping[str, Any], problems: list[str]) -> dict[str, _Raw]:
    """Return every layer by its final name, with blocks and splits written out."""
    layers = data.get("layers")
    if not isinstance(layers, Mapping) or not layers:
        problems.append('"layers" must be an object that holds the layers by name')
        return {}
    flat: list[_Raw] = []
    splits: dict[str, int] = {}
    endpoints: dict[str, str] = {}
    for name, entry in layers.items():
        if not _is_layer(name, entry, problems):
            continue
        if entry["type"] not in ("Block", "ModelParallel"):
            flat.append(_Raw(name, entry["type"], tuple(entry["parents"]), entry))
            continue
        if "endpoint" in entry:
            endpoints[name] = f"{name}/{entry['endpoint']}"
        inside = _expand_block(name, entry, problems)
        flat += inside
        splits.update({raw.name.partition("@")[0]: entry.get("splits", 1) for raw in inside})
    found: dict[str, _Raw] = {}
    for raw in flat:
        if raw.name in found:
            problems.append(f"layer {raw.name!r} is defined twice; rename one")
        parents = tuple(q for p in raw.parents for q in _targets(p, splits, endpoints))
        found[raw.name] = raw._replace(parents=parents)
    return found


def _expand_block(block: str, entry: Mapping[str, Any], problems: list[str]) -> list[_Raw]:
    inner, count = entry.get("layers"), entry.get("splits", 1)
    if not isinstance(inner, Mapping) or not inner or not is_whole(count):
        problems.append(f'block {block!r} needs "layers" (an object) and a positive "splits"')
        return []
    marks = [f"@{s}" for s in range(count)] if entry["type"] == "ModelParallel" else [""]
    flat = []
    for name, value in inner.items():
        if not _is_layer(f"{block}/{name}", value, problems):
            continue
        parents = [f"{block}/{p}" for p in value["parents"]] or entry["parents"]
        fields = {**value, "splits": count} if marks[0] else value
        for mark in marks:
            own = tuple(p.replace("@self", mark) for p in parents)
            flat.append(_Raw(f"{block}/{name}{mark}", value["type"], own, fields))
    return flat


def _is_layer(name: str, entry: object, problems: list[str]) -> bool:
    if not isinstance(entry, Mapping):
        problems.append(f"layer {name!r} must be an object")
        return False
    parents, kind = entry.get("parents"), entry.get("type")
    named = isinstance(parents, list) and all(isinstance(p, str) for p in parents)
    if not isinstance(kind, str):
        problems.append(f'layer {name!r} lacks "type"; write one of {", ".join(_TYPES)}')
    if not named:
        problems.append(f'layer {name!r} lacks "parents"; write a list of layer names')
    return named and isinstance(kind, str)


def _targets(parent: str, splits: Mapping[str, int], endpoints: Mapping[str, str]) -> list[str]:
    stem = parent.removesuffix("@all")
    if stem != parent and stem in splits:
        return [f"{stem}@{s}" for s in range(splits[stem])]
    return [endpoints.get(parent, parent)]


def _ordered(raw: Mapping[str, _Raw], problems: list[str]) -> list[_Raw]:
    """Return the layers parents first; report missing parents and cycles."""
    if raw and ("data" not in raw or raw["data"].type != "Input"):
        problems.append('there is no input layer; add one called "data" of the type Input')
    for layer in raw.values():
        problems += [_missing(layer.name, p, raw) for p in layer.parents if p not in raw]
        if not layer.parents and layer.type != "Input":
            problems.append(f'layer {layer.name!r} has no parents; name them in "parents"')
    names, cycle = in_order({name: layer.parents for name, layer in raw.items()})
    if cycle:
        problems.append(f"there is a cycle: {' → '.join(cycle)}; remove one of these parents")
    return [raw[name] for name in names]


def _missing(name: str, parent: str, raw: Mapping[str, _Raw]) -> str:
    text = f"layer {name!r} names the parent {parent!r}, which is not there"
    if f"{parent}@0" in raw:
        return f"{text}; it is split: write {parent}@all, or @self inside the block"
    close = near_names(parent, raw)
    return text + (f"; did you mean {close[0]!r}?" if close else "; add it or remove the name")


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "tensor": (lambda v: are_whole(v, 4), "four positive integers [N, H, W, C]"),
    "filter": (
        lambda v: are_whole(v, 4, -1) and min(v[0], v[1], v[3]) > 0 and v[2] != 0,
        "[kh, kw, cin, cout], with cin -1 to take it from the input",
    ),
    "strides": (lambda v: are_whole(v, 4) and v[0] == v[3] == 1, "[1, sh, sw, 1]"),
    "ksize": (lambda v: are_whole(v, 4) and v[0] == v[3] == 1, "[1, kh, kw, 1]"),
    "padding": (
        lambda v: v in ("VALID", "SAME") or are_whole(v, 2, 0),
        '"VALID", "SAME" or [ph, pw]',
    ),
    "output_shape": (
        lambda v: isinstance(v, list) and len(v) > 1 and all(is_whole(n, -1) and n for n in v),
        "a list of lengths, the first or the last of which may be -1",
    ),
    "dropout_keep_prob": (
        lambda v: isinstance(v, int | float) and 0 < v <= 1,
        "a number above 0 and at most 1",
    ),
    "dim": (lambda v: is_whole(v, 0) and v < 4, "0 to 3, where 3 is the channel"),
    **dict.fromkeys(("num_classes", "num_outputs", "splits"), (is_whole, "a positive integer")),
    "activation_fn": (lambda v: v is None or isinstance(v, str), 'a name such as "relu", or null'),
}


def _field_problems(layer: _Raw) -> list[str]:
    if layer.type not in _TYPES:
        close = near_names(layer.type, _TYPES)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(_TYPES)}"
        return [f"layer {layer.name!r} has the unknown type {layer.type!r}; {hint}"]
    which = f"layer {layer.name!r} ({layer.type})"
    needs = [field for field in _TYPES[layer.type].needs if field not in layer.fields]
    found = [f'{which} lacks "{field}"; add {_CHECKS[field][1]}' for field in needs]
    for field, (fits, form) in _CHECKS.items():
        if field in layer.fields and not fits(layer.fields[field]):
            found.append(f'{which}: "{field}" is {layer.fields[field]!r}; write {form}')
    if len(layer.parents) > 1 and layer.type not in ("Concatenate", "Elementwise"):
        found.append(f"{which} has {len(layer.parents)} parents, takes one")
    return found


Known = dict[str, Any]  # fields of a PaleoLayer that follow from file and inputs


def _window(fields: Mapping[str, Any], x: NHWC, kernel: Sequence[int], channels: int) -> Known:
    strides, padding = fields["strides"][1:3], fields["padding"]
    space = []
    for i, (size, k, s) in enumerate(zip(x[1:3], kernel, strides, strict=True)):
        if padding == "SAME":
            out = -(-size // s)
        else:
            out = (size + (0 if padding == "VALID" else 2 * padding[i]) - k) // s + 1
        if out < 1:
            raise _LayerError(
                f"its window of {k} does not fit the input of {size}; "
                f"make it smaller or the padding ({padding}) larger"
            )
        space.append(out)
    return {
        "output": (x[0], *space, channels),
        "kernel": tuple(kernel),
        "strides": tuple(strides),
        "padding": padding if isinstance(padding, str) else tuple(padding),
    }


def _image(shape: NHWC) -> NHWC:
    if len(shape) != 4:
        raise _LayerError(f"its input {list(shape)} is flat; it needs [N, H, W, C]")
    return shape


def _convolution(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    x = _image(ins[0])
    *kernel, c_in, c_out = fields["filter"]
    if c_in not in (-1, x[3]):
        raise _LayerError(f"its filter takes {c_in} channels, its input has {x[3]}; write {x[3]}")
    splits = fields.get("splits", 1)
    if splits > c_out:
        raise _LayerError(f"its {c_out} output channels cannot be split {splits} times")
    c_out //= splits
    return {**_window(fields, x, kernel, c_out), "channels": (x[3], c_out)}


def _deconvolution(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    """The convolution of the output with the filter must give the input back."""
    x = _image(ins[0])
    out = (x[0], *fields["output_shape"][1:])
    *kernel, c_out, c_in = fields["filter"]
    if len(out) != 4 or c_out not in (-1, out[3]) or c_in != x[3]:
        raise _LayerError(
            f"its filter makes {c_out} channels out of {c_in}, but its input {list(x)} and "
            f"output_shape {fields['output_shape']} have {x[3]} and {out[-1]}"
        )
    back = _window(fields, out, kernel, c_in)
    if back["output"] != x:
        raise _LayerError(
            f"output_shape {list(out)} comes from an input of {list(back['output'])}, "
            f"but the input is {list(x)}; change output_shape, strides or padding"
        )
    return {**back, "output": out, "channels": (out[3], c_in)}


def _pooling(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    x = _image(ins[0])
    return _window(fields, x, fields["ksize"][1:3], x[3])


def _upsampling(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    n, h, w, c = _image(ins[0])
    _, kh, kw, _ = fields["ksize"]
    return {"output": (n, h * kh, w * kw, c), "kernel": (kh, kw)}


def _concatenate(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    dim = fields["dim"]
    rest = {(*x[:dim], *x[dim + 1 :]) for x in ins}
    if len(rest) > 1 or dim >= len(ins[0]):
        raise _LayerError(f"its inputs {_listed(ins)} differ outside dim {dim}")
    return {"output": (*ins[0][:dim], sum(x[dim] for x in ins), *ins[0][dim + 1 :])}


def _same(_: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    if len(set(ins)) > 1:
        raise _LayerError(f"its inputs {_listed(ins)} must have equal shapes")
    return {"output": ins[0]}


def _reshape(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
    x = ins[0]
    shape = list(fields["output_shape"])
    shape[0] = x[0] if shape[0] == -1 else shape[0]
    if shape[-1] == -1:
        shape[-1] = math.prod(x) // math.prod(shape[:-1])
    if min(shape) < 1 or shape[0] != x[0] or math.prod(shape) != math.prod(x):
        raise _LayerError(
            f"{list(x)} cannot become {fields['output_shape']}; "
            "keep the batch first and the number of elements"
        )
    return {"output": tuple(shape)}


def _flat(field: str, default: int | None) -> Callable[[Mapping[str, Any], Any], Known]:
    """Return the rule of a layer that reads one flat row of values a sample."""

    def shape(fields: Mapping[str, Any], ins: tuple[NHWC, ...]) -> Known:
        values = math.prod(ins[0][1:])
        wanted = fields.get(field, default or values)
        if wanted != values:
            raise _LayerError(f"it takes {wanted} values a sample, {list(ins[0])} has {values}")
        return {"output": (ins[0][0], wanted)}

    return shape


def _listed(shapes: Sequence[NHWC]) -> str:
    return " and ".join(str(list(shape)) for shape in shapes)


class _Type(NamedTuple):
    needs: tuple[str, ...]
    """Fields that the file must give."""
    shape: Callable[[Mapping[str, Any], tuple[NHWC, ...]], Known]


_POOL = _Type(("ksize", "strides", "padding"), _pooling)
_FREE = _Type((), _same)

_TYPES: dict[str, _Type] = {
    "Input": _Type(("tensor",), lambda fields, _: {"output": tuple(fields["tensor"])}),
    "Convolution": _Type(("filter", "strides", "padding"), _convolution),
    "Deconvolution": _Type(("filter", "strides", "padding", "output_shape"), _deconvolution),
    "Pooling": _POOL,
    "AvgPool": _POOL,
    "UpSampling2D": _Type(("ksize",), _upsampling),
    "Dropout": _Type(("dropout_keep_prob",), _same),
    "Concatenate": _Type(("dim",), _concatenate),
    "Reshape": _Type(("output_shape",), _reshape),
    "Elementwise": _Type((), _same),
    "Softmax": _Type((), _flat("num_classes", None)),
    "Sigmoid": _Type((), _flat("", 1)),
    "InnerProduct": _Type(
        ("num_outputs",), lambda fields, ins: {"output": (ins[0][0], fields["num_outputs"])}
    ),
    "BatchNorm": _FREE,
    "LRN": _FREE,
    "ReLU": _FREE,
    "Accuracy": _FREE,
}
"""The last four are generic layers of the same shape, which Paleo takes as free."""
