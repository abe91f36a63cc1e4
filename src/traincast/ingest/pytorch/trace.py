"""What one run of a module was seen to do: ops over tensors of concrete lengths."""

from __future__ import annotations

from dataclasses import dataclass, field

from traincast.graph import Attr


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
