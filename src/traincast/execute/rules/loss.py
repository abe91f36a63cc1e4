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
    """Mean over all samples that are not ignored, with the classes of a sample on one device."""
    if weight is not None or reduction != "mean" or not is_sharded(target) or (
        size_average is not None or reduce is not None
    ):  # fmt: skip
        raise InvalidValueError(
            f"{session.here()}: cross-entropy is run split with reduction='mean', without class "
            "weights, on targets that are an input"
        )
    samples = input.shape[0]
    cuts = session.place(
        kind="cross_entropy", label="cross_entropy", shape=(samples,), dims={"sample": 0},
        follow=input.near().follow((samples,), [0]),
    ).cuts[0]  # fmt: skip
    parts = len(cuts) - 1

    def needs(box: Box) -> list[Box]:
        mine = (cuts[box[0][0]], cuts[box[0][1]])
        return [(mine, *whole(input.shape[1:])), (mine, *whole(target.shape[1:]))]

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
    partial = session.run(sums, [input, target], rows)
    added = Part(
        needs=lambda _: [whole((parts, 2))],
        compute=lambda _, tensors, __: tensors[0][:, 0].sum() / tensors[0][:, 1].sum(),
    )
    return session.run(added, [partial], unsplit(()))
