"""A network that trains on this machine's CPU, image by image: what one worker does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from traincast.ingest.pytorch.probe import Source

_POOL = 32
"""Batches that a worker goes round: no image is repeated at once."""
_RATE = 1e-4
"""Small enough that random images do not drive the weights to infinity."""


def source_of(reference: str) -> Source:
    """Return what builds a network for real: a built-in name, or any reference to a module."""
    from pathlib import Path

    from traincast.ingest.pytorch import sources
    from traincast.ingest.references import resolve, split_reference, zoo_name
    from traincast.ingest.zoo import module_source

    name, options = split_reference(reference)
    built_in = zoo_name(name)
    if built_in is not None:
        return module_source(built_in, options=options)
    prefix, _, rest = name.partition(":")
    if prefix == "torchvision" and rest:
        return sources.torchvision_source(rest, options, None)
    if prefix == "timm" and rest:
        return sources.timm_source(rest, options, None)
    if prefix == "hf" and rest:
        return sources.hf_source(Path(rest), options, None)
    if ":" in name:
        target, _, function = name.rpartition(":")
        return sources.function_source(target, function, options, None)
    resolve(reference)  # says what is wrong with the reference, if anything is
    raise InvalidValueError(f"{reference} is a graph and cannot be run; give a PyTorch module")


def warm_up() -> None:
    """Load what PyTorch and the importers load at first use, so that no network pays for it."""
    import traincast.ingest.pytorch.sources
    import traincast.ingest.zoo  # noqa: F401

    module = torch.nn.Linear(1, 2)
    optimizer = torch.optim.SGD(module.parameters(), lr=_RATE)
    loss_of(module(torch.zeros(1, 1))).backward()
    optimizer.step()


class Trainee:
    """A module, images and an optimizer: trains or evaluates one batch at a time."""

    def __init__(self, source: Source, batch: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.module = source.build()
        self.batch = batch
        seq = source.seq
        self._pool = [_filled(source.inputs(batch, seq)) for _ in range(_POOL)]
        self._optimizer: torch.optim.Optimizer | None = None
        self._at = 0

    def weights(self) -> dict[str, torch.Tensor]:
        """Return parameters and buffers in memory that other processes can map."""
        self.module.share_memory()
        return dict(self.module.state_dict(keep_vars=True))

    def adopt(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Use another worker's weights, as they are: both read and write the same memory."""
        for name, parameter in self.module.named_parameters():
            parameter.data = weights[name].data

    def train(self) -> None:
        """Forward, backward and update of the next batch."""
        if self._optimizer is None:
            trainable = [p for p in self.module.parameters() if p.requires_grad]
            self._optimizer = torch.optim.SGD(trainable, lr=_RATE)
        self.module.train()
        self._optimizer.zero_grad(set_to_none=True)
        self._loss().backward()
        self._optimizer.step()

    def evaluate(self) -> None:
        """Forward pass of the next batch, without keeping anything for backward."""
        self.module.eval()
        with torch.no_grad():
            self._loss()

    def _loss(self) -> torch.Tensor:
        args, kwargs = self._pool[self._at]
        self._at = (self._at + 1) % len(self._pool)
        return loss_of(self.module(*args, **kwargs))


def _filled(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> tuple[tuple[Any, ...], Any]:
    """Replace zeros by random values where that is safe: whole numbers may be indices."""
    args, kwargs = inputs
    return tuple(map(_random, args)), {key: _random(value) for key, value in kwargs.items()}


def _random(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return torch.rand_like(value)
    return value


def loss_of(out: Any) -> torch.Tensor:
    """Return a module's own loss, or cross-entropy on its output."""
    own = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    if isinstance(own, torch.Tensor):
        return own
    if isinstance(out, Mapping):
        out = next(iter(out.values()))
    y = out if isinstance(out, torch.Tensor) else out[0]
    if y.dim() == 0:
        return y
    if y.dim() == 1 or y.shape[-1] == 1:
        return F.binary_cross_entropy_with_logits(y, torch.zeros_like(y))
    if y.dim() == 3:
        y = y.reshape(-1, y.shape[-1])
    target = torch.zeros((y.shape[0], *y.shape[2:]), dtype=torch.int64)
    return F.cross_entropy(y, target)
