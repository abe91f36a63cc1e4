"""Dropout masks that depend on the position in the whole tensor, not on how it is split."""

from __future__ import annotations

import math
from typing import Protocol

import torch

from traincast.execute.layout import Box, Shape, shape_of


class Seeded(Protocol):
    """What a mask is drawn for."""

    seed: int
    step: int


def keep_mask(
    run: Seeded, call: int, shape: Shape, box: Box, p: float, like: torch.Tensor
) -> torch.Tensor:
    """Return 0 or 1 / (1 - p) for every element of a box of a tensor.

    The position, the run's seed, the step and the number of the dropout in the step are hashed by
    two rounds of multiply and shift on 31 bits, so that any process finds the same value.
    """
    index = torch.zeros((), dtype=torch.int64, device=like.device)
    stride = math.prod(shape)
    for axis, ((low, high), length) in enumerate(zip(box, shape, strict=True)):
        stride //= max(length, 1)
        along = torch.arange(low, high, device=like.device) * stride
        index = index + along.reshape([-1 if i == axis else 1 for i in range(len(shape))])
    salt = (run.seed * 1_000_003 + run.step * 7919 + call * 104_729) % (1 << 31)
    mixed = (index + salt) & 0x7FFFFFFF
    for factor in (0x45D9F3B, 0x119DE1F3):
        mixed = ((mixed ^ (mixed >> 16)) * factor) & 0x7FFFFFFF
    mixed = mixed ^ (mixed >> 15)
    keep = mixed >= int(p * (1 << 31))
    assert tuple(keep.shape) == shape_of(box)
    return keep.to(like.dtype) / (1 - p) if p < 1 else torch.zeros_like(keep, dtype=like.dtype)
