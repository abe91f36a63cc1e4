"""What tracing starts from: a module and how to feed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Point = tuple[int, int]
"""A batch and a sequence length."""
Feed = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of forward."""
Inputs = Callable[[int, int], Feed]


@dataclass(frozen=True, kw_only=True)
class Source:
    """A module and how to feed it."""

    name: str
    reference: str
    build: Callable[[], torch.nn.Module]
    inputs: Inputs
    """(batch, seq) to the arguments of forward; fake tensors where fake tensors are in force."""
    batch: int = 32
    """Batch to assume when none is given."""
    seq: int = 0
    """Sequence length to assume when none is given; 0 for a module without one."""
    notes: tuple[str, ...] = ()
    advice: str = ""
    """What a user should know when forward fails, such as an input that was assumed."""
