"""Views of a distributed tensor: kept as steps until someone needs a box of the result.

Each step says which box of its input a box of its output comes from (`back`), makes the one from
the other (`apply`), and what becomes of a layout (`push`). A flatten behind a layer that is split
by height therefore moves nothing by itself: the dense layer that follows gets its input from where
it lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch

from traincast.execute.layout import Box, Layout, Shape, shape_of, within


class Step(Protocol):
    """One view."""

    @property
    def elementwise(self) -> bool:
        """Whether an elementwise function may as well run before the view."""
        ...

    def back(self, box: Box) -> Box:
        """Return the box of the input that holds what a box of the output shows."""
        ...

    def apply(self, tensor: torch.Tensor, source: Box, box: Box) -> torch.Tensor:
        """Return a box of the output from the box of the input that `back` names."""
        ...

    def push(self, layout: Layout) -> Layout:
        """Return the layout of the output that is nearest to one of the input."""
        ...


@dataclass(frozen=True)
class Permute:
    """Axes in another order."""

    order: tuple[int, ...]
    elementwise = True

    def back(self, box: Box) -> Box:
        """Return the box of the input that holds what a box of the output shows."""
        ranges = dict(zip(self.order, box, strict=True))
        return tuple(ranges[i] for i in range(len(box)))

    def apply(self, tensor: torch.Tensor, source: Box, box: Box) -> torch.Tensor:
        """Return a box of the output from the box of the input that `back` names."""
        return tensor.permute(self.order)

    def push(self, layout: Layout) -> Layout:
        """Return the layout of the output that is nearest to one of the input."""
        now = {axis: i for i, axis in enumerate(self.order)}
        return Layout(
            tuple(layout.cuts[i] for i in self.order), tuple(now[i] for i in layout.order)
        )


@dataclass(frozen=True)
class Narrow:
    """A range of positions of one axis."""

    axis: int
    first: int
    length: int
    elementwise = False

    def back(self, box: Box) -> Box:
        """Return the box of the input that holds what a box of the output shows."""
        low, high = box[self.axis]
        moved = (low + self.first, high + self.first)
        return (*box[: self.axis], moved, *box[self.axis + 1 :])

    def apply(self, tensor: torch.Tensor, source: Box, box: Box) -> torch.Tensor:
        """Return a box of the output from the box of the input that `back` names."""
        return tensor

    def push(self, layout: Layout) -> Layout:
        """Return the layout of the output that is nearest to one of the input."""
        cuts = list(layout.cuts)
        old = cuts[self.axis]
        clipped = tuple(min(max(c - self.first, 0), self.length) for c in old)
        cuts[self.axis] = (0, *clipped[1:-1], self.length)
        return Layout(tuple(cuts), layout.order)


@dataclass(frozen=True)
class Expand:
    """Axes of length 1 repeated."""

    source: Shape
    shape: Shape
    """As many axes as `source`."""
    elementwise = False

    def back(self, box: Box) -> Box:
        """Return the box of the input that holds what a box of the output shows."""
        pairs = zip(box, self.source, self.shape, strict=True)
        return tuple((0, 1) if was == 1 and now != 1 else r for r, was, now in pairs)

    def apply(self, tensor: torch.Tensor, source: Box, box: Box) -> torch.Tensor:
        """Return a box of the output from the box of the input that `back` names."""
        return tensor.expand(shape_of(box))

    def push(self, layout: Layout) -> Layout:
        """Return the layout of the output that is nearest to one of the input."""
        pairs = zip(layout.cuts, self.source, self.shape, strict=True)
        return Layout(tuple((0, now) if was != now else c for c, was, now in pairs), layout.order)


@dataclass(frozen=True)
class Reshape:
    """The same elements, in the same order, in another shape."""

    source: Shape
    shape: Shape
    elementwise = True

    @cached_property
    def groups(self) -> list[tuple[list[int], list[int]]]:
        """Axes of the input and of the output that hold the same elements; no axis of length 1."""
        old = [i for i, n in enumerate(self.source) if n != 1]
        new = [i for i, n in enumerate(self.shape) if n != 1]
        found = []
        while old and new:
            a, b = [old.pop(0)], [new.pop(0)]
            while (p := _count(self.source, a)) != (q := _count(self.shape, b)):
                if p < q:
                    a.append(old.pop(0))
                else:
                    b.append(new.pop(0))
            found.append((a, b))
        return found

    def _rows(self, box: Box) -> tuple[Box, Box]:
        """Return the boxes of input and output that hold a box, whole behind the first axes."""
        source = [(0, n) for n in self.source]
        shape = [(0, n) for n in self.shape]
        for a, b in self.groups:
            if len(a) == len(b) == 1:
                source[a[0]] = shape[b[0]] = box[b[0]]
                continue
            low, high = box[b[0]]
            shape[b[0]] = (low, high)
            inner, outer = _count(self.shape, b[1:]), _count(self.source, a[1:])
            source[a[0]] = (low * inner // outer, -(-high * inner // outer))
        return tuple(source), tuple(shape)

    def back(self, box: Box) -> Box:
        """Return the box of the input that holds what a box of the output shows."""
        return self._rows(box)[0]

    def apply(self, tensor: torch.Tensor, source: Box, box: Box) -> torch.Tensor:
        """Return a box of the output from the box of the input that `back` names."""
        rows = self._rows(box)[1]
        flat = tensor.reshape([_count(shape_of(source), a) for a, _ in self.groups])
        for i, (a, b) in enumerate(self.groups):
            inner, outer = _count(self.shape, b[1:]), _count(self.source, a[1:])
            length = _count(shape_of(rows), b)
            if flat.shape[i] != length:
                flat = flat.narrow(i, rows[b[0]][0] * inner - source[a[0]][0] * outer, length)
        shaped = flat.reshape(shape_of(rows))
        return shaped if rows == box else shaped[within(box, rows)]

    def push(self, layout: Layout) -> Layout:
        """Return the layout of the output that is nearest to one of the input.

        A group of axes stays cut if only its first axis is, at positions that are cuts of the
        first axis of its counterpart too; otherwise its cuts are given up.
        """
        cuts: list[tuple[int, ...]] = [(0, n) for n in self.shape]
        place = {}
        for a, b in self.groups:
            inner, outer = _count(self.shape, b[1:]), _count(self.source, a[1:])
            marks = [c * outer for c in layout.cuts[a[0]]]
            place[b[0]] = layout.order.index(a[0])
            if all(len(layout.cuts[i]) == 2 for i in a[1:]) and not any(m % inner for m in marks):
                cuts[b[0]] = tuple(m // inner for m in marks)
        order = sorted(range(len(cuts)), key=lambda i: place.get(i, len(self.source)))
        return Layout(tuple(cuts), tuple(order))


def _count(shape: Sequence[int], axes: Sequence[int]) -> int:
    return math.prod(shape[i] for i in axes)
