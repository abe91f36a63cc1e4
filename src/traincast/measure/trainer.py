"""A module on a device with its data and optimizer: trains one step at a time."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from traincast.errors import InvalidValueError, TraincastError, UnknownNameError
from traincast.graph.precision import precision_named
from traincast.ingest.pytorch.probe import Source
from traincast.measure.feed import Loss, draw_indices, on_device
from traincast.measure.workload import Workload

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Trainer:
    """A module that trains on random data: what `traincast measure` times."""

    def __init__(self, workload: Workload, source: Source) -> None:
        """Build the module; everything in `workload` has been chosen."""
        assert workload.unit is not None
        assert workload.precision is not None
        assert workload.batch is not None
        self.workload = workload
        precision = precision_named(workload.precision)
        self.notes = list(source.notes)
        torch.manual_seed(0)
        dtype = _DTYPES[precision.parameters]
        module = _built(source, workload.unit).train().to(device=workload.unit, dtype=dtype)
        self.parameters = sum(p.numel() for p in module.parameters())
        nhwc = workload.layout == "nhwc"
        if nhwc:
            module = module.to(memory_format=torch.channels_last)
        given = source.inputs(workload.batch, workload.seq or 0)
        feed = on_device(given, workload.unit, dtype, nhwc)
        draw_indices(module, feed)
        self.feed = feed
        self._cast: Callable[[], Any] = contextlib.nullcontext
        if precision.autocast:
            compute = _DTYPES[precision.compute]
            self._cast = lambda: torch.autocast(str(workload.unit), dtype=compute)
        self.module = module
        self.loss = Loss()
        self.optimizer = _optimizer(workload.optimizer, module)
        self._run = torch.compile(module) if workload.compiled else module

    def forward(self) -> torch.Tensor:
        """Return the loss of the batch."""
        with self._cast():
            args, kwargs = self.feed
            return self.loss(self._run(*args, **kwargs))

    def infer(self) -> None:
        """Forward pass alone; the caller sets eval mode and turns gradients off.

        A Transformers model is not given its labels, so that it computes no loss; one with a
        decoder makes the decoder's input of them.
        """
        args, kwargs = self.feed
        config = getattr(self.module, "config", None)
        if config is not None and not getattr(config, "is_encoder_decoder", False):
            kwargs = {name: value for name, value in kwargs.items() if name != "labels"}
        with self._cast():
            self._run(*args, **kwargs)

    def step(self, mark: Callable[[], Any]) -> tuple[Any, Any, Any, Any]:
        """Train one step; returns marks at its start and after forward, backward and update."""
        start = mark()
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        forward = mark()
        loss.backward()
        backward = mark()
        self.optimizer.step()
        return start, forward, backward, mark()


def _built(source: Source, unit: str) -> torch.nn.Module:
    """Build on the device itself, where weights are drawn fast; or here, if a builder objects."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if unit != "cpu":
            with contextlib.suppress(RuntimeError, TypeError, ValueError), torch.device(unit):
                return source.build()
        return source.build()


def _optimizer(name: str, module: torch.nn.Module) -> torch.optim.Optimizer:
    trainable = [p for p in module.parameters() if p.requires_grad]
    if not trainable:
        raise InvalidValueError("the model has no parameters to train; nothing can be measured")
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(trainable, lr=1e-4),
        "momentum": lambda: torch.optim.SGD(trainable, lr=1e-4, momentum=0.9),
        "adam": lambda: torch.optim.Adam(trainable, lr=1e-5, fused=True),
        "adamw": lambda: torch.optim.AdamW(trainable, lr=1e-5, fused=True),
        "adafactor": lambda: torch.optim.Adafactor(trainable, lr=1e-5),
    }
    if name not in kinds:
        known = ", ".join(kinds)
        raise UnknownNameError("optimizer to measure", name, (), f"PyTorch has {known}")
    return kinds[name]()


@contextlib.contextmanager
def settings(workload: Workload) -> Iterator[None]:
    """Allow TF32 in products and convolutions for tf32 only; put back what was set before."""
    if workload.unit != "cuda":
        yield
        return
    places = (torch.backends.cuda.matmul, torch.backends.cudnn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = [place.allow_tf32 for place in places]
        for place in places:
            place.allow_tf32 = workload.precision == "tf32"
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.allow_tf32 = value


def out_of_memory(error: BaseException) -> bool:
    """Tell whether the device, or this machine, had too little memory."""
    if isinstance(error, TraincastError):
        # A builder's failure is wrapped; what it says of the allocator is all that is left.
        return error.__cause__ is not None and out_of_memory(error.__cause__)
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator" in said or "CUDA out of memory" in said
    )
