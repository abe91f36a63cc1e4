"""Groups of cases that share their tensors."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from traincast.measure.bench.timing import HERE, Case


@dataclass(frozen=True)
class Group:
    """Cases that share tensors and all keys but one."""

    family: str
    """What runs it."""
    keys: Case
    """The keys that all have, `dtype` among them."""
    vary: str
    """The key that differs: `form` or `op`."""
    values: tuple[str, ...]
    """Its values, one a case."""
    elements: float = 0
    """Elements of all tensors that one case holds."""
    flops: float = 0
    """FLOPs of one case; 0 where memory decides."""

    def cases(self) -> list[Case]:
        """Return the cases as rows without a time."""
        plain = {k: v for k, v in self.keys.items() if k != "dtype"}
        kind = {"dtype": self.keys["dtype"]}
        return [{"family": self.family, **plain, self.vary: v, **kind} for v in self.values]

    @property
    def bytes(self) -> float:
        """Bytes of all tensors."""
        return self.elements * (4 if self.keys["dtype"] in ("fp32", "tf32") else 2)


def product_dtype(draw: random.Random) -> str:
    """Draw the type of a matrix product or convolution."""
    if HERE.device == "cpu":
        return draw.choice(("fp32",) * 9 + ("bf16",))
    return draw.choice(("bf16",) * 4 + ("tf32",) * 3 + ("fp32",) * 2 + ("fp16",))


def memory_dtype(draw: random.Random) -> str:
    """Draw the type of a kernel that does no products: TF32 does not concern it."""
    if HERE.device == "cpu":
        return draw.choice(("fp32",) * 9 + ("bf16",))
    return draw.choice(("bf16",) * 4 + ("fp32",) * 4 + ("fp16",))


def some(draw: random.Random, values: Sequence[str], count: int) -> tuple[str, ...]:
    """Draw a few of many."""
    return tuple(draw.sample(values, min(count, len(values))))
