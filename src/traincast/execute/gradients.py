"""Sums gradients over the processes that hold the same slice, while backward goes on.

Only replicated slices are summed: a parameter whose slices differ on all processes sends nothing.
Parameters are put into buckets from the last to the first, which is about the order in which their
gradients are made. A bucket leaves when the gradients in it are there and all buckets before it
have left; so every process sends them in the same order, whatever order its own gradients come in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from traincast.execute.wire import Wire

_BUCKET = 25 << 20
"""Bytes of gradients that are summed together."""


class Bucket:
    """Parameters of one type that the same ranks hold."""

    def __init__(self, ranks: tuple[int, ...], dtype: torch.dtype) -> None:
        self.ranks = ranks
        self.dtype = dtype
        self.parameters: list[torch.nn.Parameter] = []
        self.size = 0
        """Bytes."""
        self.missing = 0
        """Gradients that are not there yet."""
        self.flat: torch.Tensor | None = None
        self.work: Any = None

    def add(self, parameter: torch.nn.Parameter) -> None:
        """Take a parameter in."""
        self.parameters.append(parameter)
        self.size += parameter.numel() * parameter.element_size()

    def leave(self, wire: Wire) -> None:
        """Start summing; a parameter that had no part in the loss adds nothing."""
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.flat = torch.cat([g.reshape(-1) for g in grads])
        self.work = wire.start_sum(self.flat, self.ranks)

    def arrive(self, wire: Wire) -> None:
        """Wait for the sums and put them where the optimizer finds them."""
        assert self.flat is not None
        with wire.waiting():
            self.work.wait()
        at = 0
        for p in self.parameters:
            p.grad = self.flat[at : at + p.numel()].view_as(p)
            at += p.numel()
        self.flat = self.work = None


class Gradients:
    """The buckets of one process, and which of them have left."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, torch.nn.Parameter]],
        sharers: Callable[[str], tuple[int, ...]],
        wire: Wire,
    ) -> None:
        """`sharers` names the ranks that hold the same slice of a parameter as this one."""
        self._wire = wire
        self._left = 0
        self.buckets: list[Bucket] = []
        filling: dict[tuple[tuple[int, ...], torch.dtype], Bucket] = {}
        for name, parameter in reversed(parameters):
            ranks = sharers(name)
            if len(ranks) < 2 or not parameter.requires_grad:
                continue
            key = (ranks, parameter.dtype)
            if key not in filling or filling[key].size >= _BUCKET:
                filling[key] = Bucket(*key)
                self.buckets.append(filling[key])
            bucket = filling[key]
            bucket.add(parameter)
            parameter.register_post_accumulate_grad_hook(lambda _, b=bucket: self._came(b))
        self.begin()

    def begin(self) -> None:
        """Expect the gradients of another step."""
        self._left = 0
        for bucket in self.buckets:
            bucket.missing = len(bucket.parameters)

    def _came(self, bucket: Bucket) -> None:
        bucket.missing -= 1
        while self._left < len(self.buckets) and self.buckets[self._left].missing == 0:
            self._next()

    def _next(self) -> None:
        bucket = self.buckets[self._left]
        self._left += 1
        bucket.leave(self._wire)

    def finish(self) -> None:
        """Send what has not left and wait for all sums."""
        while self._left < len(self.buckets):
            self._next()
        for bucket in self.buckets:
            bucket.arrive(self._wire)
