"""Splitting ops over K devices: what each op's part is, and what it has to send.

`channel`: every layer with weights computes 1/K of its output channels from the whole input; the
parts are gathered for whoever reads them, and the input's gradient is summed over the devices.
`dense`: linear layers do so for the batch of all K devices together, everything else is data
parallel ("one weird trick", Krizhevsky, arXiv 1404.5997): their inputs are gathered over the
batch, and the gradients scattered back.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from traincast.estimate.program import OpClass, Program, Spec
from traincast.graph import DTYPE_BYTES, Size, elements


class Traffic(NamedTuple):
    """One collective that an op waits for; bytes are those of the whole vector."""

    collective: str
    spec: Spec
    """The tensor that is gathered, summed or scattered."""
    copies: int
    """How many times the tensor's size the vector has: K where each device holds a part of it."""
    backward: bool

    def bytes_at(self, batch: int, seq: int) -> float:
        """Return the bytes of the whole vector."""
        each = DTYPE_BYTES[self.spec.dtype]
        return elements(self.spec.shape, batch, seq) * each * self.copies


class Sharded(NamedTuple):
    """A program for one of K devices."""

    program: Program
    traffic: tuple[tuple[Traffic, ...], ...]
    """For each class of ops, what each of its ops sends."""
    split: frozenset[int]
    """Classes whose parameters are divided among the devices."""


def shard_program(program: Program, strategy: str, devices: int) -> Sharded:
    """Return what one device runs under `data`, `model` (channel) or `hybrid` (dense) splitting."""
    parts = [_part(c, strategy, devices) for c in program.classes]
    return Sharded(
        replace(program, classes=tuple(p[0] for p in parts)),
        tuple(p[1] for p in parts),
        frozenset(i for i, p in enumerate(parts) if p[2]),
    )


def _part(c: OpClass, strategy: str, k: int) -> tuple[OpClass, tuple[Traffic, ...], bool]:
    if k == 1 or strategy == "data":
        return c, (), False
    if strategy == "hybrid":
        return _dense(c, k) if c.kind == "linear" else (c, (), False)
    if c.kind in ("linear", "conv", "embedding", "grouped_matmul"):
        return _channel(c, k)
    if c.kind == "attention":
        return _heads(c, k)
    return c, (), False


def _over(size: Size, k: int) -> Size:
    """Return the largest part of a length split k ways."""
    if size.is_constant and size.divisor == 1:
        return Size(math.ceil(size.constant / k))
    return Size(size.constant, size.batch, size.sequence, size.both, size.divisor * k)


def _axis(spec: Spec, axis: int, k: int) -> Spec:
    shape = list(spec.shape)
    shape[axis] = _over(shape[axis], k)
    return spec._replace(shape=tuple(shape))


def _weights(c: OpClass, k: int) -> tuple[Spec, ...]:
    """Return the inputs after the first with the output channels of weights and biases split."""
    attrs = dict(c.attrs)
    out = []
    for spec in c.ins[1:]:
        if len(spec.shape) == 1:
            out.append(_axis(spec, 0, k))
        elif c.kind == "conv":
            out.append(_axis(spec, 1 if attrs.get("transposed") else 0, k))
        elif c.kind == "grouped_matmul":
            out.append(_axis(spec, 1 if attrs.get("transposed") else 2, k))
        else:
            out.append(_axis(spec, 1 if attrs.get("transposed") else 0, k))
    return tuple(out)


def _channel(c: OpClass, k: int) -> tuple[OpClass, tuple[Traffic, ...], bool]:
    x, y = c.ins[0], c.outs[0]
    attrs = dict(c.attrs)
    groups = attrs.get("groups", 1)
    if c.kind == "embedding":
        part = c._replace(ins=(_axis(x, 1, k), *c.ins[1:]), outs=(_axis(y, -1, k), *c.outs[1:]))
        return part, (Traffic("all-gather", y, 1, False),), True
    channel = 1 if c.kind == "conv" else -1
    ins: tuple[Spec, ...] = (x, *_weights(c, k))
    if isinstance(groups, int) and groups > 1:
        # A group's outputs need that group's inputs alone: the groups are dealt out.
        attrs["groups"] = math.ceil(groups / k)
        ins = (_axis(x, 1, k), *_weights(c, k))
    part = OpClass(c.kind, tuple(attrs.items()), ins, (_axis(y, channel, k), *c.outs[1:]))
    sent = [Traffic("all-gather", y, 1, False)]
    if x.grad:
        sent.append(Traffic("all-reduce", x, 1, True))
    return part, tuple(sent), True


def _heads(c: OpClass, k: int) -> tuple[OpClass, tuple[Traffic, ...], bool]:
    if len(c.ins[0].shape) != 4:
        return c, (), False
    ins = tuple(_axis(s, 1, k) if i < 3 else s for i, s in enumerate(c.ins))
    part = c._replace(ins=ins, outs=(_axis(c.outs[0], 1, k), *c.outs[1:]))
    sent = [Traffic("all-gather", c.outs[0], 1, False)]
    sent += [Traffic("all-gather", s, 1, True) for s in c.ins[:3] if s.grad]
    return part, tuple(sent), False


def _dense(c: OpClass, k: int) -> tuple[OpClass, tuple[Traffic, ...], bool]:
    x, y = c.ins[0], c.outs[0]
    part = c._replace(
        ins=(_whole_batch(x, k), *_weights(c, k)),
        outs=(_axis(_whole_batch(y, k), -1, k), *c.outs[1:]),
    )
    sent = [Traffic("all-gather", x, k, False)]
    if x.grad:
        sent.append(Traffic("reduce-scatter", x, k, True))
    return part, tuple(sent), True


def _whole_batch(spec: Spec, k: int) -> Spec:
    """Return a tensor over the samples of all k devices."""
    shape = tuple(
        Size(s.constant, s.batch * k, s.sequence, s.both * k, s.divisor) if s.batch or s.both else s
        for s in spec.shape
    )
    return spec._replace(shape=shape)
