"""Resizing images: a part takes the whole image of its samples and channels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.execute.layout import Box, whole
from traincast.execute.rules.windows import dims_of
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, rule


@rule("interpolate", "upsample")
def interpolate(session: Session, func: Any, input: Sharded, *args: Any, **kwargs: Any) -> Sharded:  # noqa: A002
    """Resize; a part by height or width computes the whole image and keeps its own positions.

    Where a position comes from depends on the mode and on rounding, so it is left to PyTorch.
    """
    blank = torch.empty(input.lengths, dtype=input.dtype, device="meta")
    out = tuple(F.interpolate(blank, *args, **kwargs).shape)

    def compute(box: Box, tensors: list[torch.Tensor], _: Any) -> torch.Tensor:
        made = F.interpolate(tensors[0], *args, **kwargs)
        return made[(..., *(slice(*r) for r in box[2:]))]

    layout = session.place(
        kind="interpolate",
        label=_label(kwargs.get("mode", args[2] if len(args) > 2 else "nearest"), len(out) - 2),
        shape=out,
        dims=dims_of(len(out) - 2),
        follow=input.near().follow(out, range(len(out))),
    )
    op = Part(
        needs=lambda box: [(*box[:2], *whole(input.lengths[2:]))],
        compute=compute,
    )
    return session.run(op, [input], layout)


def _label(mode: str, space: int) -> str:
    """Return what PyTorch calls the function beneath."""
    exact = "_" if mode == "nearest-exact" else ""
    return f"{exact}upsample_{mode.replace('-', '_')}{space}d"
