"""One recorded forward pass: on fake tensors, or with real values where the module looks at them.

Weights are never allocated on fake tensors, which have shapes but no data. Where that is not
enough, the module is built for real on the CPU and fed with random values.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import random
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_flatten, tree_map

from traincast.errors import IngestError, UsageError
from traincast.graph import Graph
from traincast.ingest.pytorch.assemble import assemble, prune
from traincast.ingest.pytorch.failures import SizesError, ValuesError, explain, needs_values
from traincast.ingest.pytorch.loss import NoLossError, loss_of
from traincast.ingest.pytorch.recorder import Recorder
from traincast.ingest.pytorch.source import Feed, Point, Source
from traincast.ingest.pytorch.trace import Trace
from traincast.ingest.pytorch.watching import watching
from traincast.units import format_bytes, format_seconds

LARGEST_WEIGHTS = 4 * 2**30
"""Bytes of float32 weights beyond which a module is not built for real."""
LARGEST_PASS = 8 * 2**30
"""Bytes of activations held at a time beyond which no pass with real values is run."""
LONGEST_PASS = 600.0
"""Seconds beyond which none is."""
_SMALL = 2
_BUILDS = (64,)
USED_VALUES = (
    "forward looks at values: those of random data and of untrained weights were used, "
    "and others may run other ops"
)


def build(source: Source) -> torch.nn.Module:
    """Build a module in training mode: without memory where it can be."""
    for device in ("meta", "cpu"):
        try:
            with torch.device(device), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = source.build()
                _settle(source, module)
        except UsageError:
            raise
        except Exception as error:
            # Some builders compute with values (a schedule of drop rates): give them real ones.
            if device == "cpu":
                raise IngestError(explain(source.reference, error, "building it")) from error
            continue
        return module.train()
    raise AssertionError


def _settle(source: Source, module: torch.nn.Module) -> None:
    """Let lazy modules take the sizes of their weights from a first forward pass."""
    tensors = [*module.parameters(), *module.buffers()]
    if any(map(is_lazy, tensors)):
        args, kwargs = source.inputs(_SMALL, source.seq and min(source.seq, *_BUILDS))
        with torch.no_grad():
            module.train()(*args, **kwargs)


def on_fakes(
    source: Source, dtype: torch.dtype, points: list[Point], held: tuple[str, ...]
) -> Graph:
    """Trace on fake tensors at each point."""
    module = build(source)
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with unset_fake_temporarily():
                module = in_type(module.to("meta"), dtype)
            materialise(module)
        except Exception as error:
            doing = "replacing its weights by shapes"
            raise IngestError(explain(source.reference, error, doing)) from error
        return _settled(source, lambda p: _run(source, module, dtype, p), points, held)


def on_values(
    source: Source, dtype: torch.dtype, points: list[Point], held: tuple[str, ...]
) -> Graph:
    """Trace with real values: untrained weights and random inputs, in the CPU's memory."""
    weights = 4 * sum(p.numel() for p in build(source).parameters())
    if weights > LARGEST_WEIGHTS:
        raise IngestError(f"its weights take {format_bytes(weights)}, too much to try with values")
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            with torch.device("cpu"):
                module = source.build()
                _settle(source, module)
            module = in_type(module.train(), dtype)
        except Exception as error:
            raise IngestError(explain(source.reference, error, "building it")) from error

        def run(point: Point) -> Trace:
            try:
                return _run(source, module, dtype, point, real=True)
            except IngestError:  # such as one that takes a gradient within its forward pass
                return _run(source, module, dtype, point, real=True, keep=True)

        batch, seq = points[-1]
        if batch > _SMALL:
            began = time.perf_counter()
            small = run((_SMALL, seq))
            times = batch / _SMALL
            seconds, needed = (time.perf_counter() - began) * times, small.held * times
            if needed > LARGEST_PASS or seconds > LONGEST_PASS:
                raise IngestError(
                    f"at batch {batch} it takes {format_bytes(needed)} and "
                    f"{format_seconds(seconds)}, too much to try with values; give a smaller batch"
                )
        return _settled(source, run, points, held)


def _settled(
    source: Source, run: Callable[[Point], Trace], points: list[Point], held: tuple[str, ...]
) -> Graph:
    """Trace at each point, once more where the passes differ: some fill a cache at first."""
    try:
        return assemble(source, {p: run(p) for p in points}, held)
    except SizesError:
        return assemble(source, {p: run(p) for p in points}, held)


def in_type(module: torch.nn.Module, dtype: torch.dtype) -> torch.nn.Module:
    """Return the module with floating-point tensors in a type; complex ones are left alone."""
    return module._apply(lambda t: t.to(dtype) if t.is_floating_point() else t)


def materialise(module: torch.nn.Module) -> None:
    """Move a module onto fake tensors, keeping tied weights tied."""
    if isinstance(module, torch.jit.ScriptModule):
        raise TypeError("a ScriptModule hides its parts; return the module that it was made from")
    # Not by `to_empty`: it takes five times as long, and fails where two modules share a third.
    made: dict[int, torch.Tensor] = {}

    def like(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in made:
            empty = torch.empty_strided(
                tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu"
            )
            parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = (
                torch.nn.Parameter(empty, tensor.requires_grad) if parameter else empty
            )
        return made[id(tensor)]

    before = [
        (owner, name, tensor)
        for owner in module.modules()
        for name, tensor in [*owner._parameters.items(), *owner._buffers.items()]
        if tensor is not None
    ]
    for owner, name, tensor in before:
        setattr(owner, name, like(tensor))


def _run(
    source: Source,
    module: torch.nn.Module,
    dtype: torch.dtype,
    point: Point,
    *,
    real: bool = False,
    keep: bool = False,
) -> Trace:
    """Record one pass; one with real values keeps none for a backward pass, unless told to."""
    recorder = Recorder(module, dtype)
    notes: list[str] = [USED_VALUES] if real else []
    try:
        args, kwargs = feed(source, point, dtype, real=real)
        for i, (key, value) in enumerate([*enumerate(args), *kwargs.items()]):
            label = key if isinstance(key, str) else "input" if i == 0 else f"input_{i}"
            for tensor in tree_flatten(value)[0]:
                if isinstance(tensor, torch.Tensor):
                    recorder.declare(tensor, label, "input")
        light = _NOTHING_KEPT if real and not keep else contextlib.nullcontext
        plain = torch.jit.optimized_execution(False)  # a scripted function, op by op
        with light(), _same_draws(), plain, _uncompiled(), _unlogged(), watching(recorder):
            loss, note = loss_of(recorder, module(*args, **kwargs))
        notes += note
    except UsageError:
        raise
    except NoLossError:
        raise IngestError(
            f"{source.reference}: forward returns no floating-point tensor to compute a loss on; "
            "return the output, or the loss itself"
        ) from None
    except Exception as error:
        said = explain(source.reference, error, "its forward pass")
        kind = ValuesError if needs_values(error) and not real else IngestError
        raise kind(f"{said}; {source.advice}" if source.advice else said) from error
    trace = recorder.trace
    trace.notes = tuple(notes)
    trace.loss = prune(trace, recorder.name_of(loss))
    return trace


def feed(source: Source, point: Point, dtype: torch.dtype, *, real: bool = False) -> Feed:
    """Return the arguments of forward, numbers in the given type, and drawn where they are real."""

    def made(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        if real and not value.any():
            value = torch.randn(value.shape)
        return value.to(dtype)

    args, kwargs = source.inputs(*point)
    return tree_map(made, args), tree_map(made, kwargs)


@contextlib.contextmanager
def _same_draws() -> Iterator[None]:
    """Let Python's own random numbers be the same at every size, such as those that drop layers."""
    before = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Keep PyTorch from logging the stack of an op that fails: the error says it in a line."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _nothing(_: object) -> Any:
    return None


_NOTHING_KEPT = functools.partial(torch.autograd.graph.saved_tensors_hooks, _nothing, _nothing)
"""For a pass after which no backward pass comes."""


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    """Run as written what the module compiles by itself."""
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):
        return contextlib.nullcontext()
    return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
