"""What the axes of a tensor mean to the layer that made it, carried through views.

A layer's output has dims (sample, channel, height, …) of some length. An axis of a tensor that
follows from it is made of factors, the major one first: positions along a dim of that layer. The
axis of 25,088 features behind a flattened 512 × 7 × 7 image is (channel, height, width); an axis of
12 heads cut from 768 channels is a factor of `channel` whose unit is 64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Factor(NamedTuple):
    """A stretch of a layer's dim, or an axis that no dim of it runs along."""

    dim: str
    """Dim of the layer; empty where none is."""
    size: int
    """Positions."""
    start: int = 0
    """Coordinate of the first position in the dim."""
    unit: int = 1
    """Coordinates of the dim in one position; 0 where the factor before counts them already."""


Axis = tuple[Factor, ...]
Axes = tuple[Axis, ...]
Shape = Sequence[int]


class Held(NamedTuple):
    """Where a tensor lies: which layer made it, and what its axes are to that layer."""

    layer: int
    axes: Axes
    pinned: tuple[tuple[str, int, int], ...] = ()
    """Dims of which the tensor has no axis, with the coordinates it was taken from."""


def plain(size: int) -> Axis:
    """Return an axis that no dim runs along."""
    return (Factor("", size),)


def regroup(axes: Axes, shape: Shape) -> Axes | None:
    """Return the axes after a reshape, None where factors do not fall together with them."""
    rest = [f for axis in axes for f in axis if f.size != 1]
    result: list[Axis] = []
    for size in shape:
        axis: list[Factor] = []
        left = size
        while left > 1:
            if not rest:
                return None
            factor = rest.pop(0)
            if left % factor.size == 0:
                axis.append(factor)
                left //= factor.size
            elif factor.size % left == 0:
                minor = factor.size // left
                axis.append(Factor(factor.dim, left, factor.start, factor.unit * minor))
                counted = 0 if factor.dim else 1
                rest.insert(0, Factor("", minor, 0, counted))
                left = 1
            else:
                return None
        result.append(tuple(axis))
    return tuple(result) if not rest else None


def same_axes(held: Held, before: Shape, after: Shape) -> Axes:
    """Return axes position by position; where a length changed, the axis is cut or unnamed."""
    offset = len(after) - len(before)
    result: list[Axis] = []
    for i, size in enumerate(after):
        j = i - offset
        axis = held.axes[j] if 0 <= j < len(before) else ()
        if 0 <= j < len(before) and before[j] == size:
            result.append(axis)
        elif len(axis) == 1 and axis[0].dim and size > 1:
            result.append((axis[0]._replace(size=size),))
        else:
            result.append(plain(size) if size > 1 else ())
    return tuple(result)


def view(fn: str, order: object, held: Held, before: Shape, outs: Sequence[Shape]) -> list[Held]:
    """Return where the outputs of a view lie."""
    if isinstance(order, tuple) and len(order) == len(held.axes):
        return [held._replace(axes=tuple(held.axes[int(i)] for i in order)) for _ in outs]
    if fn in ("select", "unbind"):
        return [_selected(held, before, shape, i) for i, shape in enumerate(outs)]
    if fn in ("slice", "narrow", "split", "chunk"):
        return _cut(held, before, outs)
    after = outs[0]
    if math.prod(before) == math.prod(after):
        axes = regroup(held.axes, after)
        if axes is not None:
            return [held._replace(axes=axes)]
        return [lost(held, after)]
    if len(after) >= len(before):
        return [held._replace(axes=same_axes(held, before, after))]
    return [lost(held, after)]


def lost(held: Held, shape: Shape) -> Held:
    """Return a tensor of whose axes nothing is known: all of what it came from is needed."""
    spans = tuple(
        (f.dim, f.start, f.start + f.size * f.unit) for axis in held.axes for f in axis if f.dim
    )
    return Held(held.layer, tuple(plain(s) if s > 1 else () for s in shape), held.pinned + spans)


def _selected(held: Held, before: Shape, after: Shape, index: int) -> Held:
    axis = next((i for i, size in enumerate(after) if before[i] != size), len(after))
    gone = held.axes[axis]
    if before[axis] == 1 or not gone or not gone[0].dim:
        pins: tuple[tuple[str, int, int], ...] = ()
    else:
        first = gone[0].start + min(index, gone[0].size - 1) * gone[0].unit
        pins = ((gone[0].dim, first, first + max(gone[0].unit, 1)),)
    return Held(held.layer, held.axes[:axis] + held.axes[axis + 1 :], held.pinned + pins)


def _cut(held: Held, before: Shape, outs: Sequence[Shape]) -> list[Held]:
    """Return consecutive parts of one axis; a slice is taken to start where the axis does."""
    result = []
    at = 0
    for shape in outs:
        axes = list(held.axes)
        for i, (whole, size) in enumerate(zip(before, shape, strict=True)):
            if whole == size:
                continue
            axis = held.axes[i]
            minor = math.prod(f.size for f in axis[1:])
            if axis and axis[0].dim and size % minor == 0:
                first, skip = axis[0], at // minor
                head = Factor(first.dim, size // minor, first.start + skip * first.unit, first.unit)
                axes[i] = (head, *axis[1:])
            elif len(axis) == 1:
                # Of what its major factor counts already, a part is taken.
                axes[i] = (axis[0]._replace(size=size),)
            else:
                axes[i] = plain(size)
            at += size
        result.append(held._replace(axes=tuple(axes)))
    return result
