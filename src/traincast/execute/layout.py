"""Which part of a tensor each device holds: boxes, and grids of them.

A `Box` is a half-open range along every axis. A `Layout` cuts every axis at some positions; the
parts of the resulting grid lie on devices 0, 1, … in row-major order over `order`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from traincast.errors import InvalidValueError
from traincast.parallel.strategy import DIMS, LayerSplit, bounds

Range = tuple[int, int]
Box = tuple[Range, ...]
Boxes = tuple[Box | None, ...]
"""One box for every device, None for a device that holds nothing."""
Shape = tuple[int, ...]


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return tuple((0, length) for length in shape)


def shape_of(box: Box) -> Shape:
    """Return the lengths of a box."""
    return tuple(high - low for low, high in box)


def empty(box: Box) -> bool:
    """Tell whether a box holds no element."""
    return any(high <= low for low, high in box)


def overlap(a: Box | None, b: Box | None) -> Box | None:
    """Return the elements that two boxes share, None for none."""
    if a is None or b is None:
        return None
    both = tuple((max(p, q), min(r, s)) for (p, r), (q, s) in zip(a, b, strict=True))
    return None if empty(both) else both


def hull(a: Box | None, b: Box | None) -> Box | None:
    """Return the smallest box around two."""
    if a is None or b is None:
        return b if a is None else a
    return tuple((min(p, q), max(r, s)) for (p, r), (q, s) in zip(a, b, strict=True))


def within(inner: Box, outer: Box) -> tuple[slice, ...]:
    """Return the slices that take a box out of a tensor that holds an outer one."""
    return tuple(
        slice(low - first, high - first)
        for (low, high), (first, _) in zip(inner, outer, strict=True)
    )


def broadcast(box: Box, shape: Sequence[int]) -> Box:
    """Return what an operand of a shape contributes to a box of the broadcast result."""
    ranges = box[len(box) - len(shape) :]
    return tuple((0, 1) if n == 1 else r for n, r in zip(shape, ranges, strict=True))


@dataclass(frozen=True)
class Layout:
    """A grid of parts, one a device."""

    cuts: tuple[tuple[int, ...], ...]
    """For every axis the positions 0, …, length at which it is cut."""
    order: tuple[int, ...]
    """Axes in the order in which parts are counted, the slowest first."""

    @property
    def shape(self) -> Shape:
        """Lengths of the whole tensor."""
        return tuple(c[-1] for c in self.cuts)

    @cached_property
    def parts(self) -> int:
        """Number of parts, those of no element included."""
        return math.prod(len(c) - 1 for c in self.cuts)

    def boxes(self, world: int) -> Boxes:
        """Return what each device holds."""
        found: list[Box | None] = []
        for part in range(world):
            if part >= self.parts:
                found.append(None)
                continue
            rest, box = part, [(0, 0)] * len(self.cuts)
            for axis in reversed(self.order):
                rest, i = divmod(rest, len(self.cuts[axis]) - 1)
                box[axis] = (self.cuts[axis][i], self.cuts[axis][i + 1])
            found.append(None if empty(tuple(box)) else tuple(box))
        return tuple(found)

    def follow(self, shape: Shape, source: Sequence[int | None]) -> Layout:
        """Return a layout of another shape, each axis cut as one of this layout or not at all.

        An axis of another length is cut into as many equal parts, if it has that many positions.
        """
        cuts: list[tuple[int, ...]] = []
        for length, axis in zip(shape, source, strict=True):
            old = self.cuts[axis] if axis is not None else (0, 0)
            if axis is None or len(old) - 1 > length:
                cuts.append((0, length))
            elif old[-1] == length:
                cuts.append(old)
            else:
                cuts.append(even(length, len(old) - 1))
        place: dict[int | None, int] = {axis: i for i, axis in enumerate(self.order)}
        place[None] = len(place)
        order = sorted(range(len(shape)), key=lambda i: place[source[i]])
        return Layout(tuple(cuts), tuple(order))


def even(length: int, parts: int) -> tuple[int, ...]:
    """Return the cuts of an axis into parts that differ by at most one."""
    return (*(bounds(length, parts, i)[0] for i in range(parts)), length)


def unsplit(shape: Sequence[int]) -> Layout:
    """Return the layout that has everything on device 0."""
    return Layout(tuple((0, n) for n in shape), tuple(range(len(shape))))


def by_sample(shape: Sequence[int], world: int) -> Layout:
    """Return the layout that deals the first axis out over all devices, if it is that long."""
    if not shape or shape[0] < world:
        return unsplit(shape)
    return Layout((even(shape[0], world), *((0, n) for n in shape[1:])), tuple(range(len(shape))))


def planned(split: LayerSplit, shape: Shape, dims: Mapping[str, int]) -> Layout:
    """Return the layout that a plan gives a layer's output; `dims` names its axes."""
    cuts: list[tuple[int, ...]] = [(0, n) for n in shape]
    for dim, degree in split.degrees.items():
        if dim not in dims:
            known = ", ".join(d for d in DIMS if d in dims) or "no dim at all"
            raise InvalidValueError(
                f"layer {split.name!r} cannot be split by {dim}: its {split.op or 'op'} can be "
                f"split by {known}; leave {dim} out of the plan"
            )
        axis = dims[dim]
        if degree > shape[axis]:
            raise InvalidValueError(
                f"layer {split.name!r}: {dim} {degree} is more than the {shape[axis]} positions "
                "there are; use fewer parts"
            )
        cuts[axis] = even(shape[axis], degree)
    named = [dims[d] for d in DIMS if d in dims]
    rest = [i for i in range(len(shape)) if i not in named]
    return Layout(tuple(cuts), (*named, *rest))
