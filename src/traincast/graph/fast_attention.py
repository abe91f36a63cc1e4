"""The short way that `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` take in evaluation.

Where no gradient is wanted and autocast is off, both hand the whole of self-attention, or of the
layer, to one call of C++ (`torch._native_multi_head_attention`, `_transformer_encoder_layer_fwd`):
queries, keys and values are projected as they lie, samples first, and split without a copy; and
the layer's first linear layer applies the activation itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from traincast.graph.graph import Attr, Op, Tensor
from traincast.graph.size import Size

_SWAP = (1, 0, 2)
_HEADS = (0, 2, 1, 3)
_WIDTH = 8
"""A head's width must be a multiple of this for a fused kernel."""
_ACTIVATIONS = ("relu", "gelu")


def shortened(ops: Iterable[Op], tensors: dict[str, Tensor]) -> list[Op]:
    """Return the ops with those of self-attention and encoder layers as evaluation runs them.

    Tensors that only the short way has are added to `tensors`.
    """
    found: list[Op] = []
    changed: set[str] = set()
    for layer, group in groupby(ops, key=lambda op: op.layer):
        own = list(group)
        if _takes(own, tensors):
            own = _native(own, tensors)
            changed.add(layer)
        found += own
    layers = {name.removesuffix(".self_attn") for name in changed if _encodes(name, tensors)}
    return _whole(found, layers)


def _takes(ops: Sequence[Op], tensors: dict[str, Tensor]) -> bool:
    """Tell whether a module's ops are packed self-attention with samples first, unmasked."""
    layer, used = ops[0].layer, [op for op in ops if op.kind in ("linear", "attention")]
    if [op.kind for op in used] != ["linear", "attention", "linear"]:
        return False
    project, attention, out = used
    shape = tensors[attention.inputs[0]].shape
    return (
        project.inputs[1:] == (f"{layer}.in_proj_weight", f"{layer}.in_proj_bias")
        and out.inputs[1:2] == (f"{layer}.out_proj.weight",)
        and all(op.attrs.get("order") == _SWAP for op in (ops[0], ops[-1]))
        and project.inputs[0] == ops[0].outputs[0]
        and len(attention.inputs) == 3
        and not attention.attrs.get("causal")
        and len(shape) == 4
        and shape[1].constant % 2 == 0
        and shape[3].constant % _WIDTH == 0
    )


def _native(ops: Sequence[Op], tensors: dict[str, Tensor]) -> list[Op]:
    """Return what the call from C++ issues for a module's ops."""
    layer = ops[0].layer
    project, attention, out = (op for op in ops if op.kind in ("linear", "attention"))
    batch, heads, length, width = tensors[attention.inputs[0]].shape
    packed, wide = tensors[project.outputs[0]].shape[2], tensors[ops[-1].outputs[0]].shape[2]
    found: list[Op] = []

    def issue(kind: str, inputs: tuple[str, ...], outputs: tuple[str, ...], **attrs: Attr) -> None:
        inner: dict[str, Attr] = {"inner": True} if found else {}
        name = f"{layer}.native_{len(found)}"
        made = Op(name=name, kind=kind, inputs=inputs, outputs=outputs, attrs={**attrs, **inner},
                  layer=layer)  # fmt: skip
        found.append(made)

    def tensor(*shape: Size) -> str:
        name = f"{layer}.native_{len(found)}_{len(tensors)}:out"
        tensors[name] = Tensor(name=name, shape=shape)
        return name

    joint = tensor(batch, length, packed)
    issue("linear", (ops[0].inputs[0], *project.inputs[1:]), (joint,))
    parts = tuple(tensor(batch, length, wide) for _ in range(3))
    issue("view", (joint,), parts, fn="split")
    for part, name in zip(parts, attention.inputs, strict=True):
        split = tensor(batch, length, heads, width)
        issue("view", (part,), (split,), fn="reshape")
        issue("view", (split,), (name,), fn="permute", order=_HEADS)
    issue("attention", attention.inputs, attention.outputs, causal=False)
    turned = tensor(batch, length, heads, width)
    issue("view", attention.outputs, (turned,), fn="permute", order=_HEADS)
    joined = tensor(batch, length, wide)
    issue("view", (turned,), (joined,), fn="reshape")
    issue("linear", (joined, *out.inputs[1:]), ops[-1].outputs)
    return found


def _encodes(attention: str, tensors: dict[str, Tensor]) -> bool:
    """Tell whether self-attention is that of a layer of PyTorch's own encoder."""
    layer = attention.removesuffix(".self_attn")
    names = ("linear1.bias", "linear2.bias", "norm1.weight", "norm2.weight")
    return (
        layer != attention
        and all(f"{layer}.{name}" in tensors for name in names)
        and f"{layer}.multihead_attn.in_proj_weight" not in tensors
    )


def _whole(ops: Sequence[Op], layers: set[str]) -> list[Op]:
    """Return the ops with each of the layers as one call, its activation part of a product.

    A layer with another activation is not one call.
    """
    widened = {
        op.outputs[0]: op.layer.removesuffix(".linear1") for op in ops if op.kind == "linear"
    }
    activations = {
        op.outputs[0]: op
        for op in ops
        if op.attrs.get("fn") in _ACTIVATIONS and widened.get(op.inputs[0]) in layers
    }
    calls = {widened[op.inputs[0]] for op in activations.values()}
    begun: set[str] = set()
    found = []
    for op in ops:
        if op.outputs[0] in activations:
            continue
        layer = op.layer if op.layer in calls else op.layer.rpartition(".")[0]
        attrs = {**op.attrs, "inner": True} if layer in begun else op.attrs
        begun.update({layer} & calls)
        inputs = tuple(activations[n].inputs[0] if n in activations else n for n in op.inputs)
        found.append(replace(op, inputs=inputs, attrs=attrs))
    return found
