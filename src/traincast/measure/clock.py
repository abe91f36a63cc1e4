"""Marks in time, on a GPU's stream or on this machine's clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """How time is told: marks are set while work is issued and read when it is done."""

    mark: Callable[[], Any]
    """Return the present: on a GPU, when it gets to this point of its stream."""
    between: Callable[[Any, Any], float]
    """Return the seconds from one mark to a later one, after `wait`."""
    wait: Callable[[], None]
    """Return when all work that was issued is done."""


def clock_of(unit: str) -> Clock:
    """Return CUDA events for `cuda`, the wall clock for `cpu`, which does its work at once."""
    if unit == "cpu":
        return Clock(mark=time.perf_counter, between=lambda a, b: float(b - a), wait=lambda: None)

    def mark() -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return Clock(
        mark=mark,
        between=lambda a, b: float(a.elapsed_time(b)) / 1e3,
        wait=torch.cuda.synchronize,
    )
