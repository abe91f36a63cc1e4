"""What one run of a module was seen to do: ops over tensors of concrete lengths."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from traincast.graph import Attr

DTYPES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.bfloat16: "bfloat16",
    torch.float16: "float16",
    torch.int64: "int64",
    torch.int32: "int32",
    torch.int16: "int16",
    torch.int8: "int8",
    torch.uint8: "uint8",
    torch.bool: "bool",
    torch.complex64: "complex64",
}
"""Names of types in a graph."""


@dataclass(slots=True)
class RawTensor:
    """A tensor met in a trace, with concrete lengths."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str
    trainable: bool = True


@dataclass(slots=True)
class RawOp:
    """An op met in a trace."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Attr]
    layer: str


@dataclass(slots=True)
class Trace:
    """One run of a module at one batch and sequence length."""

    ops: list[RawOp] = field(default_factory=list)
    tensors: dict[str, RawTensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loss: str = ""
    held: int = 0
    """Most bytes of activations that the module itself held at a time, views counted again."""
