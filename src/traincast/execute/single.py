"""The same training in one process without any splitting: what a plan is checked against."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._pytree import tree_flatten, tree_unflatten

from traincast.execute.engine import Arguments, Loss, optimizer_of
from traincast.execute.layout import whole
from traincast.execute.masks import keep_mask
from traincast.execute.rules.dense import dropped_attention


@dataclass
class _Masks:
    seed: int
    step: int = 0
    calls: int = 0


class Single:
    """A module that trains as PyTorch runs it; dropout alone draws the masks of the plan."""

    def __init__(
        self,
        module: torch.nn.Module,
        arguments: Arguments,
        *,
        optimizer: str = "sgd",
        lr: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.module = module
        self.loss = Loss()
        self._leaves, self._form = tree_flatten(arguments)
        self._masks = _Masks(seed)
        trained = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = optimizer_of(optimizer, trained, lr)

    def step(self, data: Sequence[torch.Tensor]) -> float:
        """Train on one whole batch and return its loss."""
        self.optimizer.zero_grad(set_to_none=True)
        leaves, inputs = list(self._leaves), iter(data)
        for i, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor) and leaf.dim():
                leaves[i] = next(inputs)
        args, kwargs = tree_unflatten(leaves, self._form)
        self._masks.calls = 0
        with _dropping(self._masks):
            loss = self.loss(self.module(*args, **kwargs), lambda _: data[-1])
        loss.backward()
        self.optimizer.step()
        self._masks.step += 1
        return float(loss.detach())


@contextlib.contextmanager
def _dropping(masks: _Masks) -> Iterator[None]:
    plain_dropout, plain_attention = F.dropout, F.scaled_dot_product_attention

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        if not training or p == 0:
            return x
        call, masks.calls = masks.calls, masks.calls + 1
        keep = keep_mask(masks, call, tuple(x.shape), whole(x.shape), p, x)
        return x.mul_(keep) if inplace else x * keep

    def attention(
        q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: Any = None, **more: Any,
    ) -> Any:  # fmt: skip
        if not dropout_p:
            return plain_attention(q, k, v, attn_mask, 0.0, is_causal, scale=scale, **more)
        call, masks.calls = masks.calls, masks.calls + 1
        shape = (*q.shape[:3], k.shape[2])
        if is_causal:
            attn_mask = torch.ones(shape[2:], dtype=torch.bool, device=q.device).tril()
        share = q.shape[1] // k.shape[1]
        k, v = (t.repeat_interleave(share, 1) for t in (k, v))
        keep = keep_mask(masks, call, shape, whole(shape), dropout_p, q)
        return dropped_attention(q, k, v, attn_mask, scale, keep)

    functional: Any = F
    functional.dropout, functional.scaled_dot_product_attention = dropout, attention
    try:
        yield
    finally:
        functional.dropout = plain_dropout
        functional.scaled_dot_product_attention = plain_attention
