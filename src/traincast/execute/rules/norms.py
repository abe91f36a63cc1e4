"""Normalisation: batch norm over the whole batch, layer and group norm over what is not split."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.execute.layout import Box, Boxes, Range, whole
from traincast.execute.rules.dense import rows_dims
from traincast.execute.rules.windows import dims_of
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, rule
from traincast.execute.wire import Wire


class BatchNorm(torch.autograd.Function):  # type: ignore[misc]
    """Batch norm of a part with the statistics of all parts of the same channels.

    Forward, the parts' counts, means and squared deviations are gathered and combined. Backward,
    with x̂ = (x - μ) / σ and N values a channel,
    dx = γ / σ · (dy - Σdy / N - x̂ · Σ(dy·x̂) / N), the sums being those of all parts.
    """

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, x: Any, weight: Any, bias: Any, eps: float, wire: Wire, ranks: tuple[int, ...]
    ) -> Any:
        axes = [i for i in range(x.dim()) if i != 1]
        count = x.numel() // x.shape[1]
        var, mean = torch.var_mean(x, axes, correction=0)
        gathered = torch.stack(wire.all_gather(torch.stack([mean, var]), ranks))
        counts = wire.all_gather(x.new_tensor([float(count)]), ranks)
        shares = torch.stack(counts).reshape(-1, 1)
        n = shares.sum()
        means, variances = gathered[:, 0], gathered[:, 1]
        mean = (means * shares).sum(0) / n
        var = ((variances + (means - mean) ** 2) * shares).sum(0) / n
        scale = (var + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, scale, n)
        ctx.across = wire, ranks, bias is not None
        ctx.mark_non_differentiable(mean, var, n)
        return F.batch_norm(x, mean, var, weight, bias, False, 0.0, eps), mean, var, n

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, *_: Any) -> Any:  # noqa: D102
        x, weight, mean, scale, n = ctx.saved_tensors
        wire, ranks, has_bias = ctx.across
        axes = [i for i in range(x.dim()) if i != 1]
        column = [1, -1] + [1] * (x.dim() - 2)
        normal = (x - mean.reshape(column)) * scale.reshape(column)
        sums = torch.stack([dy.sum(axes), (dy * normal).sum(axes)])
        own = sums.clone()
        wire.all_sum(sums, ranks)
        along, across = (sums / n).reshape(2, *column)
        gamma = scale if weight is None else scale * weight
        dx = (dy - along - normal * across) * gamma.reshape(column)
        return (
            dx, None if weight is None else own[1], own[0] if has_bias else None, None, None, None
        )  # fmt: skip


@rule("batch_norm")
def batch_norm(
    session: Session,
    func: Any,
    x: Sharded,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Sharded:
    """Normalise each channel over the whole batch, and keep the running statistics."""
    shape = tuple(x.shape)
    dims = dims_of(len(shape) - 2) if len(shape) > 2 else rows_dims(2)
    sharers: dict[Range, list[int]] = {}

    def prepare(boxes: Boxes) -> None:
        for rank, box in enumerate(boxes):
            if box is not None:
                sharers.setdefault(box[1], []).append(rank)
        if training:
            for ranks in sharers.values():
                session.together(ranks)

    def compute(box: Box, tensors: list[torch.Tensor], weights: list[Any]) -> torch.Tensor:
        data, (mean, var, w, b) = tensors[0], weights
        if not training:
            return F.batch_norm(data, mean, var, w, b, False, 0.0, eps)
        ranks = tuple(sharers[box[1]])
        if len(ranks) == 1:
            if session.laying_out:
                return data
            return F.batch_norm(data, mean, var, w, b, True, momentum, eps)
        out, found, spread, n = BatchNorm.apply(data, w, b, eps, session.wire, ranks)
        if mean is not None and not session.laying_out:
            mean.mul_(1 - momentum).add_(found, alpha=momentum)
            var.mul_(1 - momentum).add_(spread * (n / (n - 1)), alpha=momentum)
        return out

    def channels(box: Box) -> Box:
        return (box[1],)

    layout = session.place(
        kind="batch_norm",
        label="batch_norm",
        shape=shape,
        dims=dims,
        follow=x.near(),
    )
    op = Part(
        needs=lambda box: [box],
        compute=compute,
        prepare=prepare,
        weights=tuple((t, channels) for t in (running_mean, running_var, weight, bias)),
    )
    return session.run(op, [x], layout, x)


@rule("layer_norm", "rms_norm")
def layer_norm(
    session: Session,
    func: Any,
    x: Sharded,
    normalized_shape: Any,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float | None = 1e-5,
) -> Sharded:
    """Normalise over the last axes, which are not split."""
    shape, kept = tuple(x.shape), x.dim() - len(normalized_shape)
    rms = getattr(func, "__name__", "") == "rms_norm"
    dims = {k: i for k, i in rows_dims(len(shape)).items() if i < kept}

    def compute(_: Box, tensors: list[torch.Tensor], weights: list[Any]) -> torch.Tensor:
        if rms:
            return F.rms_norm(tensors[0], list(normalized_shape), weights[0], eps)
        return F.layer_norm(tensors[0], list(normalized_shape), weights[0], weights[1], eps or 0.0)

    layout = session.place(
        kind="rms_norm" if rms else "layer_norm",
        label="rms_norm" if rms else "layer_norm",
        shape=shape,
        dims=dims,
        follow=x.near().follow(shape, [*range(kept), *[None] * len(normalized_shape)]),
    )
    op = Part(
        needs=lambda box: [box],
        compute=compute,
        weights=tuple((t, lambda _: whole(normalized_shape)) for t in (weight, bias)),
    )
    return session.run(op, [x], layout)


@rule("group_norm")
def group_norm(
    session: Session,
    func: Any,
    x: Sharded,
    num_groups: int,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
) -> Sharded:
    """Normalise each sample and group of channels; a part takes the groups that it touches."""
    shape = tuple(x.shape)
    size = shape[1] // num_groups
    source = [0, 1, *[None] * (len(shape) - 2)]

    def groups(box: Box) -> Range:
        return box[1][0] // size * size, -(-box[1][1] // size) * size

    def compute(box: Box, tensors: list[torch.Tensor], weights: list[Any]) -> torch.Tensor:
        low, high = groups(box)
        out = F.group_norm(tensors[0], (high - low) // size, eps=eps)
        out = out.narrow(1, box[1][0] - low, box[1][1] - box[1][0])
        column = [-1] + [1] * (len(shape) - 2)
        if weights[0] is not None:
            out = out * weights[0].reshape(column)
        return out if weights[1] is None else out + weights[1].reshape(column)

    layout = session.place(
        kind="group_norm",
        label="group_norm",
        shape=shape,
        dims={"sample": 0, "channel": 1},
        follow=x.near().follow(shape, source),
    )
    op = Part(
        needs=lambda box: [(box[0], groups(box), *whole(shape[2:]))],
        compute=compute,
        weights=tuple((t, lambda b: (b[1],)) for t in (weight, bias)),
    )
    return session.run(op, [x], layout, x)
