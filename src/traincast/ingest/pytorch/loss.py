"""The scalar that training differentiates: the module's own loss, or one on its output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._pytree import tree_flatten

from traincast.ingest.pytorch.recorder import Recorder


class NoLossError(Exception):
    """A forward pass whose output cannot be differentiated."""


def loss_of(recorder: Recorder, out: Any) -> tuple[torch.Tensor, list[str]]:
    """Return the scalar to differentiate, and notes on what was assumed."""
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    if isinstance(own, torch.Tensor) and own.dim() == 0:
        return own, []
    floats = [
        t
        for t in tree_flatten(_plain(out))[0]
        if isinstance(t, torch.Tensor) and t.is_floating_point()
    ]
    if not floats:
        raise NoLossError
    if floats[0].dim() == 0:
        return floats[0], []
    heads = [getattr(out, f) for f in getattr(out, "_fields", ()) if f.startswith("aux")]
    heads = [h for h in heads if isinstance(h, torch.Tensor)]
    loss, notes = _assumed(recorder, floats[0])
    if heads:
        # The weights of the papers: 0.4 for Inception v3's one head, 0.3 for GoogLeNet's two.
        weight = 0.4 if len(heads) == 1 else 0.3
        for head in heads:
            loss = loss + weight * _assumed(recorder, head)[0]
        notes = [f"loss: cross-entropy on the output plus {weight} of that on each auxiliary head"]
    return loss, notes


def _plain(out: Any) -> Any:
    """Return containers that tree_flatten opens: a dataclass-like output as its fields."""
    if isinstance(out, Mapping):
        return out["out"] if "out" in out else list(out.values())
    if is_dataclass(out):
        return [getattr(out, f.name) for f in fields(out)]
    return out


def _assumed(recorder: Recorder, y: torch.Tensor) -> tuple[torch.Tensor, list[str]]:
    shape = tuple(y.shape)
    if y.dim() == 1 or shape[-1] == 1:
        with recorder.whole():
            target = torch.zeros_like(y.detach())
        recorder.declare(target, "target", "input")
        loss = F.binary_cross_entropy_with_logits(y, target)
        return loss, ["loss: binary cross-entropy on the output is assumed"]
    if y.dim() == 3:
        y = y.reshape(-1, shape[-1])
        shape = tuple(y.shape)
    with recorder.whole():
        target = torch.zeros((shape[0], *shape[2:]), dtype=torch.int64)
    recorder.declare(target, "target", "input")
    return F.cross_entropy(y, target), ["loss: cross-entropy on the output is assumed"]
