"""Transposed convolution, split by sample, channel and every spatial axis.

Output o gets a term from every input i with o = i·stride - padding + j·dilation for a j of the
kernel, so outputs lo to hi need the inputs from ⌈(lo + padding - reach) / stride⌉ on, where reach
is dilation · (kernel - 1), up to ⌊(hi - 1 + padding) / stride⌋.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, Range, whole
from traincast.execute.rules.windows import dims_of, each
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, rule


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def conv_transpose(
    session: Session,
    func: Any,
    x: Sharded,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Sharded:
    """Compute all outputs under the needed inputs without padding, then take the part."""
    if groups != 1:
        raise InvalidValueError(
            f"{session.here()}: a transposed convolution with groups cannot be run split"
        )
    full = session.shapes.get(session.names.get(id(weight), ""), tuple(weight.shape))
    shape = tuple(x.shape)
    space = len(shape) - 2
    run = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[space]
    steps, pads, more, gaps = (each(v, space) for v in (stride, padding, output_padding, dilation))
    reach = tuple(d * (k - 1) for d, k in zip(gaps, full[2:], strict=True))
    axes = zip(shape[2:], steps, pads, more, reach, strict=True)
    out = (shape[0], full[1], *((n - 1) * s - 2 * p + r + m + 1 for n, s, p, m, r in axes))

    def under(box: Box) -> list[Range]:
        found = []
        for (lo, hi), n, s, p, r in zip(box[2:], shape[2:], steps, pads, reach, strict=True):
            first = min(max(-(-(lo + p - r) // s), 0), n - 1)
            found.append((first, max(min((hi - 1 + p) // s + 1, n), first + 1)))
        return found

    def compute(box: Box, tensors: list[torch.Tensor], weights: list[Any]) -> torch.Tensor:
        made = run(tensors[0], weights[0], None, steps, 0, 0, 1, gaps)
        sides: list[int] = []
        for axis, ((lo, hi), (first, _), s, p) in enumerate(
            zip(box[2:], under(box), steps, pads, strict=True), 2
        ):
            start = first * s - p
            sides = [lo * -1 + start, hi - start - made.shape[axis], *sides]
        # Negative sides crop; where no input reaches, there is nothing but the bias.
        part = F.pad(made, sides)
        b = weights[1]
        return part if b is None else part + b.reshape([-1] + [1] * space)

    layout = session.place(
        kind="conv",
        label="convolution",
        shape=out,
        dims=dims_of(space),
        follow=x.near().follow(out, [0, None, *range(2, len(out))]),
    )
    op = Part(
        needs=lambda box: [(box[0], (0, shape[1]), *under(box))],
        compute=compute,
        weights=(
            (weight, lambda b: ((0, full[0]), b[1], *whole(full[2:]))),
            (bias, lambda b: (b[1],)),
        ),
    )
    return session.run(op, [x], layout)
