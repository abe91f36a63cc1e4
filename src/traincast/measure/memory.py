"""Peak memory of a training step on a CPU: the bytes of all tensors that are alive at once.

What PyTorch's GPU allocator reports for a GPU has no counterpart for a CPU, whose allocator is that
of the process. So every tensor that an operation of one step returns is counted while its memory is
alive. Scratch memory inside an operation is not seen.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from traincast.measure.trainer import Trainer


class _Tally(TorchDispatchMode):  # type: ignore[misc]
    """Counts the bytes of storages from when they are first seen until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def see(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        place, size = storage._cdata, storage.nbytes()
        if place in self._alive:
            return

        def freed(_: Any) -> None:
            self.now -= size
            self._alive.pop(place, None)

        self._alive[place] = weakref.ref(storage, freed)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in tree_flatten(out)[0]:
            if isinstance(value, torch.Tensor):
                self.see(value)
        return out


def cpu_peak_bytes(trainer: Trainer) -> int:
    """Train one step, which has to be not the first, and return its peak in bytes."""
    tally = _Tally()
    trainer.optimizer.zero_grad(set_to_none=True)
    states = (v for state in trainer.optimizer.state.values() for v in state.values())
    inputs = tree_flatten(trainer.feed)[0]
    for value in (*trainer.module.parameters(), *trainer.module.buffers(), *states, *inputs,
                  *trainer.loss.targets):  # fmt: skip
        if isinstance(value, torch.Tensor):
            tally.see(value)
    with tally:
        trainer.step(lambda: None)
    return tally.peak
