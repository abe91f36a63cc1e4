"""The memory order of tensors: strides as PyTorch gives them to the results of its ops.

A stride is the number of elements from one index of an axis to the next. Lengths are concrete
here: an order does not depend on the batch, so any batch tells it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

Shape = tuple[int, ...]
Strides = tuple[int, ...]
_IMAGE = (0, 2, 3, 1)
"""Axes of an image from outermost to innermost, channels last."""


class Laid(NamedTuple):
    """A tensor's lengths and how they lie in memory."""

    shape: Shape
    strides: Strides

    @property
    def contiguous(self) -> bool:
        """Whether elements lie in the order of the axes, without gaps."""
        return _packed(self, range(len(self.shape)))

    @property
    def channels_last(self) -> bool:
        """Whether an image lies with its channels innermost, without gaps."""
        return len(self.shape) == 4 and _packed(self, _IMAGE)

    @property
    def dense(self) -> bool:
        """Whether elements fill a stretch of memory, in whatever order of axes."""
        order = sorted(range(len(self.shape)), key=lambda i: -self.strides[i] * (self.shape[i] > 1))
        return _packed(self, order)

    @property
    def innermost(self) -> int:
        """The axis whose elements lie closest together; of axes of length 1 none is."""
        axes = [i for i, length in enumerate(self.shape) if length > 1]
        return min(axes, key=lambda i: (self.strides[i] or 2**62, -i), default=-1)

    @property
    def prefers_channels_last(self) -> bool:
        """Tell which of the two orders of an image an op would choose for its result.

        As `is_channels_last_strides_2d` of c10/core/MemoryFormat.h: where both fit, such as for
        a single channel, the strides decide.
        """
        if len(self.shape) != 4 or self.strides[1] == 0:
            return False
        least = 0
        for axis in (1, 3, 2, 0):
            if self.strides[axis] < least or (axis == 0 and least == self.strides[1]):
                return False
            least = self.strides[axis] * max(self.shape[axis], 1)
        return True

    def permuted(self, order: Sequence[int]) -> Laid:
        """Return the view with axes in another order."""
        return Laid(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order))

    def expanded(self, shape: Shape) -> Laid:
        """Return the view that repeats axes of length 1, or new ones, without memory."""
        extra = len(shape) - len(self.shape)
        if extra < 0:
            return contiguous(shape)
        strides = (0,) * extra + tuple(
            0 if have == 1 and want != 1 else stride
            for have, want, stride in zip(self.shape, shape[extra:], self.strides, strict=True)
        )
        return Laid(shape, strides)

    def viewed(self, shape: Shape) -> Laid | None:
        """Return the view of another shape; None where the memory has to be copied for it.

        As `computeStride` of ATen/TensorUtils.cpp: axes that lie one inside the other form a
        chunk, and new axes must not cross the border of a chunk.
        """
        if 0 in self.shape or not self.shape:
            return contiguous(shape)
        strides = [0] * len(shape)
        at = len(shape) - 1
        base, have, want = self.strides[-1], 1, 1
        for axis in range(len(self.shape) - 1, -1, -1):
            have *= self.shape[axis]
            outer = axis - 1
            if axis == 0 or (self.shape[outer] != 1 and self.strides[outer] != have * base):
                while at >= 0 and (want < have or shape[at] == 1):
                    strides[at] = want * base
                    want *= shape[at]
                    at -= 1
                if want != have:
                    return None
                if axis > 0:
                    base, have, want = self.strides[outer], 1, 1
        return Laid(shape, tuple(strides)) if at == -1 else None


def _packed(laid: Laid, order: Sequence[int]) -> bool:
    expected = 1
    for axis in reversed(order):
        length = laid.shape[axis]
        if length != 1:
            if laid.strides[axis] != expected:
                return False
            expected *= length
    return True


def ordered(shape: Shape, outer_first: Sequence[int]) -> Laid:
    """Return a tensor without gaps whose axes lie in an order, the outermost first."""
    strides = [0] * len(shape)
    step = 1
    for axis in reversed(outer_first):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return Laid(shape, tuple(strides))


def contiguous(shape: Shape) -> Laid:
    """Return a new tensor in the order of its axes."""
    return ordered(shape, range(len(shape)))


def image(shape: Shape, last: bool) -> Laid:
    """Return a new tensor; an image has its channels last if so wished."""
    return ordered(shape, _IMAGE) if last and len(shape) == 4 else contiguous(shape)


def preserved(laid: Laid) -> Laid:
    """Return a new tensor in the order of another (`torch.preserve_format`)."""
    return laid if laid.dense else elementwise(laid.shape, (laid,))


def alike(first: Laid, *others: Laid) -> bool:
    """Tell whether tensors lie alike without gaps, so that one index serves all of them."""
    if not first.dense:
        return False
    for other in others:
        if other.shape != first.shape:
            return False
        if any(
            a != b
            for a, b, length in zip(first.strides, other.strides, first.shape, strict=True)
            if length > 1
        ):
            return False
    return True


def form(result: Laid, *operands: Laid) -> str:
    """Return how an elementwise kernel goes through its operands: `strided`, `turned` or neither.

    Turned: an operand as large as the result has another axis innermost.
    """
    if alike(result, *operands):
        return ""
    whole = [o for o in operands if o.shape == result.shape and 0 not in o.strides]
    return "turned" if any(o.innermost != result.innermost for o in whole) else "strided"


def elementwise(shape: Shape, operands: Sequence[Laid]) -> Laid:
    """Return the result of an elementwise op.

    As `reorder_dimensions` of ATen/TensorIterator.cpp: axes are sorted by the strides of the
    first operand that tells two of them apart; broadcast axes tell nothing.
    """
    spread = [o if o.shape == shape else o.expanded(shape) for o in operands]
    if all(o.contiguous for o in spread):
        return contiguous(shape)
    if all(o.channels_last for o in spread):
        return image(shape, last=True)
    first = spread[0]
    if first.dense and all(o.strides == first.strides for o in spread):
        return first
    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        at = i
        for before in range(i - 1, -1, -1):
            sign = _outer(order[before], order[at], shape, spread)
            if sign > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif sign < 0:
                break
    return ordered(shape, order[::-1])


def _outer(a: int, b: int, shape: Shape, operands: Sequence[Laid]) -> int:
    """Return 1 where axis a lies outside of axis b, -1 where inside, 0 where nothing tells."""
    for operand in operands:
        one, two = operand.strides[a], operand.strides[b]
        if not one or not two:
            continue
        if one != two:
            return 1 if one > two else -1
        if shape[a] > shape[b]:
            return 1
    return 0
