"""What a module is fed with in a real run, and the loss on what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._pytree import tree_flatten, tree_map

_VALUES = 1000
"""Whole numbers are drawn below this, or below the rows of the table that they index."""
_FEW_HEADS, _MORE_HEADS = 0.4, 0.3
"""Weight of an auxiliary head's loss: of one (Inception v3), of each of several (GoogLeNet)."""

Feed = tuple[tuple[Any, ...], dict[str, Any]]


def on_device(feed: Feed, unit: str, dtype: torch.dtype, channels_last: bool) -> Feed:
    """Return random values in the place of the numbers, and zeros in the place of the indices."""

    def moved(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if not value.is_floating_point():
            return value.to(unit)
        made = torch.randn(value.shape, device=unit, dtype=dtype)
        if channels_last and made.dim() == 4:
            made = made.contiguous(memory_format=torch.channels_last)
        return made

    args, kwargs = feed
    return tuple(tree_map(moved, a) for a in args), {
        k: tree_map(moved, v) for k, v in kwargs.items()
    }


def draw_indices(module: torch.nn.Module, feed: Feed) -> None:
    """Replace zeros that index an embedding by random rows of it: equal ones would be slower.

    One forward pass tells which inputs are looked up, and how many rows there are. The labels of a
    Transformers model are drawn like its words.
    """
    args, kwargs = feed
    wholes = {
        t.untyped_storage().data_ptr(): t
        for t in tree_flatten((args, kwargs))[0]
        if isinstance(t, torch.Tensor) and t.dtype in (torch.int64, torch.int32) and t.numel()
    }
    rows: dict[int, int] = {}

    def look(embedding: Any, given: tuple[Any, ...]) -> None:
        if given and isinstance(given[0], torch.Tensor):
            place = given[0].untyped_storage().data_ptr()
            rows[place] = min(rows.get(place, _VALUES), embedding.num_embeddings)

    hooks = [
        m.register_forward_pre_hook(look)
        for m in module.modules()
        if isinstance(m, torch.nn.Embedding | torch.nn.EmbeddingBag)
    ]
    if not (hooks and wholes):
        return
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    finally:
        for hook in hooks:
            hook.remove()
    labels, config = kwargs.get("labels"), getattr(module, "config", None)
    if isinstance(labels, torch.Tensor) and config is not None:
        known = config.vocab_size if labels.dim() > 1 else config.num_labels
        rows[labels.untyped_storage().data_ptr()] = min(int(known), _VALUES)
    for place, tensor in wholes.items():
        if rows.get(place, 0) > 1:
            tensor.random_(0, rows[place])


class Loss:
    """The module's own loss, or cross-entropy on its output with targets that are drawn once."""

    def __init__(self) -> None:
        self.assumed = False
        """Whether the module returned no loss of its own."""
        self._targets: dict[tuple[int, ...], torch.Tensor] = {}

    @property
    def targets(self) -> list[torch.Tensor]:
        """The targets that were drawn so far."""
        return list(self._targets.values())

    def __call__(self, out: Any) -> torch.Tensor:
        """Return the loss of what a forward pass returned."""
        own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
        if isinstance(own, torch.Tensor) and own.dim() == 0:
            return own
        y = _first(out)
        if y.dim() == 0:
            return y
        self.assumed = True
        fields = [f for f in getattr(out, "_fields", ()) if f.startswith("aux")]
        heads = [h for f in fields if isinstance(h := getattr(out, f), torch.Tensor)]
        loss = self._entropy(y)
        for head in heads:
            loss = loss + (_FEW_HEADS if len(heads) == 1 else _MORE_HEADS) * self._entropy(head)
        return loss

    def _entropy(self, y: torch.Tensor) -> torch.Tensor:
        if y.dim() == 1 or y.shape[-1] == 1:
            return F.binary_cross_entropy_with_logits(y, self._target(y.shape, y))
        if y.dim() == 3:
            y = y.reshape(-1, y.shape[-1])
        return F.cross_entropy(y, self._target((y.shape[0], *y.shape[2:]), y))

    def _target(self, shape: tuple[int, ...], y: torch.Tensor) -> torch.Tensor:
        key = (*shape, -1, *y.shape)
        if key not in self._targets:
            if tuple(shape) == tuple(y.shape):
                self._targets[key] = torch.zeros_like(y.detach())
            else:
                self._targets[key] = torch.randint(0, y.shape[1], shape, device=y.device)
        return self._targets[key]


def _first(out: Any) -> torch.Tensor:
    if isinstance(out, Mapping):
        out = out["out"] if "out" in out else list(out.values())
    for value in tree_flatten(out)[0]:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            return value
    raise TypeError(
        "forward returns no floating-point tensor to compute a loss on; return the output, or "
        "the loss itself"
    )
