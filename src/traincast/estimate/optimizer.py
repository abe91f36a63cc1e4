"""What an optimizer update costs: passes over memory, arithmetic, state and launches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from traincast.errors import UnknownNameError

_BLOCKS, _CHUNK, _TENSORS = 320, 65_536, 64
"""A multi-tensor launch of PyTorch takes at most this many blocks of so many elements, and about
so many tensors (ATen/native/cuda/MultiTensorApply.cuh)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """An update rule as PyTorch runs it on a GPU: SGD as multi-tensor passes, the others fused."""

    name: str
    state: float
    """State values kept for each parameter, in the parameters' type."""
    traffic: float
    """Values read and written for each parameter."""
    ops: float
    """Arithmetic for each parameter."""
    kernels: int
    """Passes: multi-tensor kernels that each go over all parameters."""
    how: str
    """Derivation of `traffic`, for people."""

    def launches(self, tensors: int, elements: float) -> float:
        """Return the number of launches for so many parameter tensors and elements."""
        each = max(math.ceil(tensors / _TENSORS), math.ceil(elements / (_BLOCKS * _CHUNK)), 1)
        return self.kernels * each


OPTIMIZERS: dict[str, Optimizer] = {
    o.name: o
    for o in (
        Optimizer(
            name="sgd", state=0, traffic=3, ops=2, kernels=1,
            how="p += -lr·g: read p, g; write p",
        ),
        Optimizer(
            name="momentum", state=1, traffic=8, ops=4, kernels=3,
            how="three multi-tensor passes: m *= μ; m += g; p += -lr·m",
        ),
        Optimizer(
            name="adam", state=2, traffic=7, ops=14, kernels=1,
            how="fused: read p, g, m, v; write p, m, v",
        ),
        Optimizer(
            name="adamw", state=2, traffic=7, ops=15, kernels=1,
            how="fused: read p, g, m, v; write p, m, v",
        ),
        Optimizer(
            name="lion", state=1, traffic=5, ops=8, kernels=1,
            how="fused: read p, g, m; write p, m",
        ),
        Optimizer(
            name="adafactor", state=0, traffic=10, ops=14, kernels=6,
            how="g² by row and by column, update, its norm, p; state is one row and one column",
        ),
    )
}  # fmt: skip

ALIASES = {"sgd_momentum": "momentum", "sgdm": "momentum", "adam_w": "adamw"}


def optimizer_named(name: str) -> Optimizer:
    """Return the optimizer of a name; hyphens and case do not matter."""
    key = name.lower().replace("-", "_")
    found = OPTIMIZERS.get(ALIASES.get(key, key))
    if found is None:
        raise UnknownNameError("optimizer", name, OPTIMIZERS, f"(known: {', '.join(OPTIMIZERS)})")
    return found
