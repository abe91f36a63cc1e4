"""What moves between processes: boxes from whoever holds them to whoever needs them, and sums.

Every process runs the same program, so each knows what all others hold and need, and no message
describes another. Backward, autograd runs nodes strictly in the reverse order of their making, on
every process alike; so do the messages in them, and none waits for one that comes later. For that
a process without a part holds an empty tensor that hangs in the graph like a real one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from traincast.execute.layout import Box, Boxes, overlap, shape_of, within


class Wire:
    """One process's connection to the others; counts what it sends."""

    def __init__(self, rank: int, world: int, *, connected: bool = True) -> None:
        self.rank = rank
        self.world = world
        self.connected = connected
        """False while a plan is only laid out: nothing is sent and no data is there."""
        self.sent = 0
        """Bytes of activations and their gradients that this process sent."""
        self.summed = 0
        """Bytes that it sent to sum gradients and statistics, as a ring all-reduce would."""
        self.waited = 0.0
        """Seconds spent waiting for others, or for what is on its way to them."""
        self._groups: dict[tuple[int, ...], Any] = {tuple(range(world)): None}
        self._apart: dict[tuple[int, ...], Any] = {}

    def counts(self) -> tuple[float, float, float]:
        """Return bytes moved, bytes summed and seconds waited so far."""
        return self.sent, self.summed, self.waited

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time until this ends as waiting."""
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began

    def group(self, ranks: Sequence[int]) -> Any:
        """Return the process group of some ranks; made at once by all processes (`prepare`)."""
        return self._groups[tuple(ranks)]

    def prepare(self, sets: Iterable[tuple[int, ...]]) -> None:
        """Make the process groups that a plan needs; every process calls it with the same."""
        for ranks in sorted(set(sets)):
            if len(ranks) > 1:
                self._apart[ranks] = dist.new_group(list(ranks))
                if ranks not in self._groups:
                    self._groups[ranks] = dist.new_group(list(ranks))

    def all_sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        """Sum a tensor over some ranks, in place."""
        if len(ranks) > 1 and self.connected:
            with self.waiting():
                dist.all_reduce(tensor, group=self.group(ranks))
            self._count(tensor, ranks)

    def start_sum(self, tensor: torch.Tensor, ranks: Sequence[int]) -> Any:
        """Begin to sum a tensor over some ranks, in place; return what to wait for.

        It goes by a group of its own, so that it may pass other sums of the same ranks.
        """
        self._count(tensor, ranks)
        return dist.all_reduce(tensor, group=self._apart[tuple(ranks)], async_op=True)

    def _count(self, tensor: torch.Tensor, ranks: Sequence[int]) -> None:
        size = tensor.numel() * tensor.element_size()
        self.summed += 2 * size * (len(ranks) - 1) // len(ranks)

    def all_gather(self, tensor: torch.Tensor, ranks: Sequence[int]) -> list[torch.Tensor]:
        """Return the tensors of some ranks, in their order."""
        if len(ranks) == 1 or not self.connected:
            return [tensor] * len(ranks)
        parts = [torch.empty_like(tensor) for _ in ranks]
        with self.waiting():
            dist.all_gather(parts, tensor, group=self.group(ranks))
        self.summed += tensor.numel() * tensor.element_size() * (len(ranks) - 1)
        return parts

    def move(
        self, tensor: torch.Tensor, held: Boxes, wanted: Boxes, *, add: bool = False
    ) -> torch.Tensor:
        """Return this rank's wanted box, put together from what all ranks hold.

        Held boxes may not overlap unless they are to be added up.
        """
        own, want = held[self.rank], wanted[self.rank]
        result = (torch.zeros if add else torch.empty)(
            shape_of(want) if want is not None else (0,), dtype=tensor.dtype, device=tensor.device
        )
        if not self.connected:
            return result
        calls, arriving = [], []
        for peer in range(self.world):
            if peer == self.rank:
                continue
            leaving = overlap(own, wanted[peer])
            if leaving is not None and own is not None:
                part = tensor[within(leaving, own)].contiguous()
                self.sent += part.numel() * part.element_size()
                calls.append(dist.P2POp(dist.isend, part, peer))
            coming = overlap(held[peer], want)
            if coming is not None:
                part = torch.empty(shape_of(coming), dtype=tensor.dtype, device=tensor.device)
                calls.append(dist.P2POp(dist.irecv, part, peer))
                arriving.append((peer, coming, part))
        works = dist.batch_isend_irecv(calls) if calls else []
        mine = overlap(own, want)
        if mine is not None and own is not None:
            arriving.append((self.rank, mine, tensor[within(mine, own)]))
        with self.waiting():
            for work in works:
                work.wait()
        for _, box, part in sorted(arriving, key=lambda a: a[0]):
            assert want is not None
            place = result[within(box, want)]
            if add:
                place += part
            else:
                place.copy_(part)
        return result


class Move(torch.autograd.Function):  # type: ignore[misc]
    """Redistribution. Backward, gradients go the other way and copies of an element add up."""

    @staticmethod
    def forward(  # noqa: D102
        ctx: Any, tensor: torch.Tensor, wire: Wire, held: Boxes, wanted: Boxes
    ) -> torch.Tensor:
        ctx.plan = wire, held, wanted
        return wire.move(tensor, held, wanted)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # noqa: D102
        wire, held, wanted = ctx.plan
        return wire.move(gradient, wanted, held, add=True), None, None, None


class Tie(torch.autograd.Function):  # type: ignore[misc]
    """Hangs empty tensors onto a value, so that what made them has its turn in backward."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *_ties: torch.Tensor) -> torch.Tensor:  # noqa: D102
        ctx.kinds = [(t.dtype, t.device) for t in _ties]
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:  # noqa: D102
        zeros = (torch.zeros(0, dtype=dtype, device=device) for dtype, device in ctx.kinds)
        return gradient, *zeros


def nothing(like: torch.Tensor, inputs: Sequence[torch.Tensor], grad: bool) -> torch.Tensor:
    """Return what a rank without a part has in place of a result."""
    token = torch.zeros(0, dtype=like.dtype, device=like.device)
    if not grad:
        return token
    ties = [t for t in inputs if t.requires_grad]
    return Tie.apply(token, *ties) if ties else token.requires_grad_()


def fetch(wire: Wire, tensor: torch.Tensor, held: Boxes, wanted: Boxes) -> torch.Tensor:
    """Return this rank's wanted box of a tensor, differentiably."""
    return tensor if held == wanted else Move.apply(tensor, wire, held, wanted)


def part(tensor: torch.Tensor, inner: Box, outer: Box) -> torch.Tensor:
    """Return a box of a tensor that holds an outer one."""
    return tensor if inner == outer else tensor[within(inner, outer)]
