"""What an optimizer update costs: passes over memory, arithmetic, state and launches.

PyTorch goes over all parameters with few launches (ATen/native/cuda/MultiTensorApply.cuh): it cuts
every tensor into chunks, gives each chunk to one block, and launches as soon as so many blocks or
so many tensors have come together. A launch lasts at least as long as one block needs for its
chunk, however little the others have to do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traincast.errors import UnknownNameError

BLOCKS, CHUNK = 320, 65_536
"""Blocks of a launch, and elements of a block, at most."""
_TENSORS = (110, 64, 48, 36, 30)
"""Tensors of each list in a launch, at most, by the number of lists."""
_VECTOR = 4
"""Elements that a thread reads at once, where a tensor's size is a multiple of them."""


class Pass(NamedTuple):
    """One multi-tensor kernel over all parameters."""

    lists: int
    """Lists of tensors that go in: parameters, gradients, each kind of state."""
    traffic: float
    """Values read and written for each parameter."""
    scalars: bool = False
    """It counts steps instead: one value for each tensor."""


class Launch(NamedTuple):
    """Launches of the same kind, and their elements: in tensors read by vectors, and in others."""

    times: int
    even: int
    odd: int
    largest_even: int
    """Elements of the largest block."""
    largest_odd: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An update rule as PyTorch runs it on a GPU: SGD as multi-tensor passes, the others fused."""

    name: str
    state: float
    """State values kept for each parameter, in the parameters' type."""
    ops: float
    """Arithmetic for each parameter."""
    passes: tuple[Pass, ...]
    how: str
    """Derivation of the passes, for people."""

    @property
    def traffic(self) -> float:
        """Values read and written for each parameter."""
        return sum(one.traffic for one in self.passes)

    def launches(self, sizes: tuple[int, ...]) -> list[NDArray[np.int64]]:
        """Return the launches of each pass over tensors of these sizes, as rows of `Launch`."""
        return [
            launches(tuple(1 for _ in sizes) if one.scalars else sizes, one.lists)
            for one in self.passes
        ]


_STEPS = Pass(lists=1, traffic=0, scalars=True)

OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer(
            name="sgd", state=0, ops=2, passes=(Pass(2, 3),),
            how="p += -lr·g: read p, g; write p",
        ),
        Optimizer(
            name="momentum", state=1, ops=4, passes=(Pass(1, 2), Pass(2, 3), Pass(2, 3)),
            how="three multi-tensor passes: m *= μ; m += g; p += -lr·m",
        ),
        Optimizer(
            name="adam", state=2, ops=14, passes=(_STEPS, Pass(4, 7)),
            how="count steps; fused: read p, g, m, v; write p, m, v",
        ),
        Optimizer(
            name="adamw", state=2, ops=15, passes=(_STEPS, Pass(4, 7)),
            how="count steps; fused: read p, g, m, v; write p, m, v",
        ),
        Optimizer(
            name="lion", state=1, ops=8, passes=(Pass(3, 5),),
            how="fused: read p, g, m; write p, m",
        ),
        Optimizer(
            name="adafactor", state=0, ops=14,
            passes=(Pass(1, 1), Pass(1, 1), Pass(2, 3), Pass(1, 1), Pass(1, 1), Pass(2, 3)),
            how="g² by row and by column, update, its norm, p; state is one row and one column",
        ),
    )
}  # fmt: skip


@lru_cache(maxsize=512)
def launches(sizes: tuple[int, ...], lists: int) -> NDArray[np.int64]:
    """Return the launches over tensors of these sizes in order, as rows of `Launch`."""
    most = _TENSORS[lists - 1]
    found: list[Launch] = []
    tensors = blocks = 0
    elements, largest = [0, 0], [0, 0]

    def launch() -> None:
        nonlocal blocks
        found.append(Launch(1, *elements, *largest))
        blocks, elements[:], largest[:] = 0, (0, 0), (0, 0)

    def add(count: int, part: int, odd: bool) -> None:
        nonlocal blocks
        blocks += count
        elements[odd] += part
        largest[odd] = max(largest[odd], min(part, CHUNK))

    for size in sizes:
        if not size:
            continue
        odd, tensors, left = size % _VECTOR != 0, tensors + 1, math.ceil(size / CHUNK)
        if blocks + left > BLOCKS:
            # Fill this launch, then as many whole ones as there are; the rest begins another.
            first = BLOCKS - blocks
            add(first, first * CHUNK, odd)
            launch()
            whole, left = divmod(left - first, BLOCKS)
            if whole and not left:
                whole, left = whole - 1, BLOCKS
            if whole:
                full = BLOCKS * CHUNK
                parts = (0, full, 0, CHUNK) if odd else (full, 0, CHUNK, 0)
                found.append(Launch(whole, *parts))
            size -= (first + whole * BLOCKS) * CHUNK  # noqa: PLW2901
            tensors = 1
        add(left, size, odd)
        if blocks == BLOCKS or tensors == most:
            launch()
            tensors = 0
    if blocks:
        launch()
    return np.array(found, dtype=np.int64).reshape(len(found), len(Launch._fields))


def launch_count(optimizer: Optimizer, sizes: Sequence[int]) -> int:
    """Return the number of launches of an update of tensors of these sizes."""
    return sum(int(rows[:, 0].sum()) for rows in optimizer.launches(tuple(sizes)))


ALIASES = {"sgd_momentum": "momentum", "sgdm": "momentum", "adam_w": "adamw"}


def optimizer_named(name: str) -> Optimizer:
    """Return the optimizer of a name; hyphens and case do not matter."""
    key = name.lower().replace("-", "_")
    found = OPTIMIZERS.get(ALIASES.get(key, key))
    if found is None:
        raise UnknownNameError("optimizer", name, OPTIMIZERS, f"(known: {', '.join(OPTIMIZERS)})")
    return found
