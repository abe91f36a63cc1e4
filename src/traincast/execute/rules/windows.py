"""Convolution and pooling, split by sample, channel and every spatial axis.

A part needs the input under its windows: its own range and a halo. Positions beyond the tensor are
padded here, so that a window at the border of a part sees what it would see in the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, Range, Shape, whole
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, rule

_SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}


def dims_of(space: int) -> dict[str, int]:
    """Return the axes of an image tensor by name."""
    return {"sample": 0, "channel": 1} | {d: i + 2 for i, d in enumerate(_SPACE[space])}


def each(value: Any, space: int) -> tuple[int, ...]:
    """Return a setting for every spatial axis."""
    return (int(value),) * space if isinstance(value, int) else tuple(int(v) for v in value)


class Window:
    """A window that slides along one axis."""

    def __init__(self, length: int, kernel: int, stride: int, padding: Range, dilation: int):
        self.length = length
        self.kernel = kernel
        self.stride = stride
        self.padding = padding
        self.dilation = dilation
        self.reach = dilation * (kernel - 1) + 1

    def outputs(self, ceil: bool = False) -> int:
        """Return the number of positions; the last window starts within the left-padded input."""
        room = self.length + sum(self.padding) - self.reach
        count = (-(-room // self.stride) if ceil else room // self.stride) + 1
        if ceil and (count - 1) * self.stride >= self.length + self.padding[0]:
            count -= 1
        return count

    def inputs(self, low: int, high: int) -> tuple[Range, Range]:
        """Return the input range under some outputs, and the padding before and behind it."""
        first = low * self.stride - self.padding[0]
        last = (high - 1) * self.stride - self.padding[0] + self.reach
        inside = min(max(first, 0), self.length), max(min(last, self.length), 0)
        inside = (inside[0], max(inside))
        return inside, (inside[0] - first, last - inside[1])


def _padded(x: torch.Tensor, sides: Sequence[Range], value: float) -> torch.Tensor:
    flat = [n for pair in reversed(sides) for n in pair]
    return F.pad(x, flat, value=value) if any(flat) else x


def _same_padding(kernel: int, dilation: int) -> Range:
    total = dilation * (kernel - 1)
    return total // 2, total - total // 2


def _windows(
    shape: Shape, kernel: Any, stride: Any, padding: Any, dilation: Any
) -> tuple[Window, ...]:
    space = len(shape) - 2
    sizes, steps, gaps = each(kernel, space), each(stride, space), each(dilation, space)
    if padding == "same":
        pads = [_same_padding(k, d) for k, d in zip(sizes, gaps, strict=True)]
    else:
        pads = [(p, p) for p in each(0 if padding == "valid" else padding, space)]
    axes = zip(shape[2:], sizes, steps, pads, gaps, strict=True)
    return tuple(Window(*axis) for axis in axes)


@rule("conv1d", "conv2d", "conv3d")
def convolve(
    session: Session,
    func: Any,
    x: Sharded,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Sharded:
    """Convolution; each group of channels that a part touches is a convolution of its own."""
    full = session.shapes.get(session.names.get(id(weight), ""), tuple(weight.shape))
    shape = tuple(x.shape)
    space = len(shape) - 2
    run = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[space]
    windows = _windows(shape, full[2:], stride, padding, dilation)
    out = (shape[0], full[0], *(w.outputs() for w in windows))
    made, taken = full[0] // groups, shape[1] // groups
    steps, gaps = each(stride, space), each(dilation, space)

    def under(box: Box) -> list[tuple[Range, Range]]:
        return [w.inputs(*r) for w, r in zip(windows, box[2:], strict=True)]

    def needs(box: Box) -> list[Box]:
        low, high = box[1]
        channels = (low // made * taken, -(-high // made) * taken)
        return [(box[0], channels, *(r for r, _ in under(box)))]

    def compute(box: Box, tensors: list[torch.Tensor], weights: list[Any]) -> torch.Tensor:
        (data,), (w, b) = tensors, weights
        data = _padded(data, [side for _, side in under(box)], 0.0)
        low, high = box[1]
        if groups == 1:
            return run(data, w, b, steps, 0, gaps)
        pieces = []
        at = low
        while at < high:  # a part of a group, whole groups, a part of a group
            group = at // made
            whole_ones = (high - at) // made if at % made == 0 else 0
            end = at + whole_ones * made if whole_ones else min((group + 1) * made, high)
            count = max(whole_ones, 1)
            first = (group - low // made) * taken
            pieces.append(
                run(
                    data[:, first : first + count * taken], w[at - low : end - low],
                    None if b is None else b[at - low : end - low], steps, 0, gaps, count,
                )
            )  # fmt: skip
            at = end
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)

    layout = session.place(
        kind="conv",
        label="convolution",
        shape=out,
        dims=dims_of(space),
        follow=x.near().follow(out, range(len(out))),
    )
    op = Part(
        needs=needs,
        compute=compute,
        weights=((weight, lambda b: (b[1], *whole(full[1:]))), (bias, lambda b: (b[1],))),
    )
    return session.run(op, [x], layout)


def _pool(
    session: Session,
    x: Sharded,
    out: Shape,
    label: str,
    under: Any,
    local: Any,
    kind: str = "pool",
) -> Sharded:
    space = len(out) - 2
    layout = session.place(
        kind=kind,
        label=label,
        shape=out,
        dims=dims_of(space),
        follow=x.near().follow(out, range(len(out))),
    )
    op = Part(
        needs=lambda box: [(*box[:2], *(r for r, _ in under(box)))],
        compute=lambda box, tensors, _: local(box, tensors[0]),
    )
    return session.run(op, [x], layout)


@rule("max_pool1d", "max_pool2d", "max_pool3d")
def max_pool(
    session: Session,
    func: Any,
    x: Sharded,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Sharded:
    """Largest value of each window."""
    if return_indices:
        raise InvalidValueError(f"{session.here()}: max pooling that returns indices cannot be run")
    shape = tuple(x.shape)
    space = len(shape) - 2
    run = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[space]
    steps = kernel_size if stride is None or stride == [] else stride
    windows = _windows(shape, kernel_size, steps, padding, dilation)
    out = (*shape[:2], *(w.outputs(ceil_mode) for w in windows))

    def under(box: Box) -> list[tuple[Range, Range]]:
        return [w.inputs(*r) for w, r in zip(windows, box[2:], strict=True)]

    def local(box: Box, data: torch.Tensor) -> torch.Tensor:
        padded = _padded(data, [side for _, side in under(box)], float("-inf"))
        sizes, gaps = each(kernel_size, space), each(dilation, space)
        return run(padded, sizes, each(steps, space), 0, gaps)

    return _pool(session, x, out, "max_pool", under, local)


@rule("avg_pool1d", "avg_pool2d", "avg_pool3d")
def avg_pool(
    session: Session,
    func: Any,
    x: Sharded,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Sharded:
    """Mean of each window; how many values it counts depends on where it lies in the whole."""
    shape = tuple(x.shape)
    space = len(shape) - 2
    steps = kernel_size if stride is None or stride == [] else stride
    windows = _windows(shape, kernel_size, steps, padding, 1)
    out = (*shape[:2], *(w.outputs(ceil_mode) for w in windows))

    def under(box: Box) -> list[tuple[Range, Range]]:
        return [w.inputs(*r) for w, r in zip(windows, box[2:], strict=True)]

    def counts(window: Window, low: int, high: int) -> list[int]:
        found = []
        for at in range(low, high):
            first = at * window.stride - window.padding[0]
            last = min(first + window.kernel, window.length + window.padding[1])
            if not count_include_pad:
                first, last = max(first, 0), min(last, window.length)
            found.append(last - first)
        return found

    def local(box: Box, data: torch.Tensor) -> torch.Tensor:
        padded = _padded(data, [side for _, side in under(box)], 0.0)
        if space == 3:
            sums = F.avg_pool3d(padded, kernel_size, steps, divisor_override=1)
        elif space == 2:
            sums = F.avg_pool2d(padded, kernel_size, steps, divisor_override=1)
        else:
            sums = F.avg_pool1d(padded, kernel_size, steps) * each(kernel_size, 1)[0]
        if divisor_override:
            return sums / divisor_override
        for axis, (window, r) in enumerate(zip(windows, box[2:], strict=True), 2):
            divisor = torch.tensor(counts(window, *r), dtype=data.dtype, device=data.device)
            sums = sums / divisor.reshape([-1 if i == axis else 1 for i in range(space + 2)])
        return sums

    return _pool(session, x, out, "avg_pool", under, local)


@rule("adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d")
def adaptive_avg_pool(session: Session, func: Any, x: Sharded, output_size: Any) -> Sharded:
    """Mean of windows that divide the input evenly: output i covers [i·L // n, ⌈(i+1)·L / n⌉)."""
    shape = tuple(x.shape)
    space = len(shape) - 2
    given = (output_size,) * space if isinstance(output_size, int | None) else output_size
    sizes = tuple(n if s is None else int(s) for s, n in zip(given, shape[2:], strict=True))
    out = (*shape[:2], *sizes)

    def span(length: int, size: int, r: Range) -> Range:
        return r[0] * length // size, -(-r[1] * length // size)

    def under(box: Box) -> list[tuple[Range, Range]]:
        axes = zip(shape[2:], sizes, box[2:], strict=True)
        return [(span(*axis), (0, 0)) for axis in axes]

    def local(box: Box, data: torch.Tensor) -> torch.Tensor:
        for axis, (length, size, r) in enumerate(zip(shape[2:], sizes, box[2:], strict=True), 2):
            if length == size:
                continue
            first = span(length, size, r)[0]
            parts = []
            for at in range(*r):
                low, high = span(length, size, (at, at + 1))
                parts.append(data.narrow(axis, low - first, high - low).mean(axis, keepdim=True))
            data = torch.cat(parts, axis) if len(parts) > 1 else parts[0]
        return data

    if set(sizes) == {1}:  # PyTorch takes the mean of all positions then, and so does the graph
        return _pool(session, x, out, "mean", under, local, kind="reduce")
    return _pool(session, x, out, "adaptive_avg_pool", under, local)
