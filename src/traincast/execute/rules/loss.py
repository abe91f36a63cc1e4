"""Cross-entropy: each part sums over its samples, device 0 adds up and divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, Layout, unsplit, whole
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, is_sharded, rule


@rule("cross_entropy")
def cross_entropy(
    session: Session,
    func: Any,
    input: Sharded,  # noqa: A002
    target: Any,
    weight: Any = None,
    size_average: Any = None,
    ignore_index: int = -100,
    reduce: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Sharded:
    """Mean over all positions that are not ignored; the classes of a position are not split."""
    if weight is not None or reduction != "mean" or not is_sharded(target) or (
        size_average is not None or reduce is not None
    ):  # fmt: skip
        raise InvalidValueError(
            f"{session.here()}: cross-entropy is run split with reduction='mean', without class "
            "weights, on targets that are an input"
        )
    x = input.unmerged()
    if x is not input:
        target = target.unmerged()
        x = x.transpose(1, 2)  # classes come second
    space = {3: ("sequence",), 4: ("height", "width")}.get(x.dim(), ())
    positions = tuple(target.shape)
    places = session.place(
        kind="cross_entropy",
        label="cross_entropy",
        shape=positions,
        dims={"sample": 0} | {dim: i for i, dim in enumerate(space, 1)},
        follow=x.near().follow(positions, [0, *range(2, x.dim())]),
    )
    parts = places.parts
    boxes = places.boxes(parts)

    def needs(box: Box) -> list[Box | None]:
        mine = boxes[box[0][0]]
        assert mine is not None
        return [(mine[0], (0, x.shape[1]), *mine[1:]), mine]

    def compute(_: Box, tensors: list[torch.Tensor], __: Any) -> torch.Tensor:
        logits, labels = tensors
        total = F.cross_entropy(
            logits, labels, ignore_index=ignore_index, reduction="sum",
            label_smoothing=label_smoothing,
        )  # fmt: skip
        valid = (labels != ignore_index).sum().to(total.dtype)
        return torch.stack([total, valid]).unsqueeze(0)

    rows = Layout((tuple(range(parts + 1)), (0, 2)), (0, 1))
    sums = Part(needs=needs, compute=compute)
    partial = session.run(sums, [x, target], rows)
    added = Part(
        needs=lambda _: [whole((parts, 2))],
        compute=lambda _, tensors, __: tensors[0][:, 0].sum() / tensors[0][:, 1].sum(),
    )
    return session.run(added, [partial], unsplit(()))
