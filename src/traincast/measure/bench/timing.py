"""Tensors on the device, and the seconds that a call takes there."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

Case = dict[str, Any]
Call = Callable[[], Any]
TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
}
_SLEEP_HZ = 2e9  # cycles a second of a sleeping device, at most
_MALLOC = ((-4, 0), (-1, 2**31 - 1))  # M_MMAP_MAX, M_TRIM_THRESHOLD of glibc's malloc.h


class Place:
    """Where tensors are made: `cuda` (also ROCm) or `cpu`."""

    device = "cpu"


HERE = Place()


def tensor(shape: tuple[int, ...], dtype: str, nhwc: bool = False) -> torch.Tensor:
    """Return random numbers on the device; a 4-D shape is n, c, h, w whatever the layout."""
    if nhwc:
        n, c, h, w = shape
        return tensor((n, h, w, c), dtype).permute(0, 3, 1, 2)
    made = torch.empty(shape, device=HERE.device, dtype=TYPES[dtype])
    if HERE.device == "cuda":
        return made.normal_()
    # Random numbers are slow on a CPU, and its speed does not depend on them: repeat a few.
    flat, few = made.view(-1), torch.randn(1 << 14).to(made.dtype)
    whole = len(flat) // len(few)
    flat[: whole * len(few)].view(whole, len(few)).copy_(few.expand(whole, len(few)))
    flat[whole * len(few) :].copy_(few[: len(flat) - whole * len(few)])
    return made


def indices(high: int, count: int) -> torch.Tensor:
    """Return random whole numbers below `high`."""
    return torch.randint(0, high, (count,), device=HERE.device)


def seconds_of(run: Call, captured: bool = True, many: bool = False) -> tuple[float, float]:
    """Return the median seconds of one call on the device, and its relative spread.

    `captured`: whether the call may be recorded in a CUDA graph. A recording that fails leaves the
    process unusable, so this is for what is known to work. `many`: it has to be, however long.
    """
    times = _cuda_times(run, captured, many) if HERE.device == "cuda" else _cpu_times(run)
    middle = statistics.median(times)
    return middle, (max(times) - min(times)) / middle if middle else 0.0


def _cuda_times(run: Call, captured: bool, many: bool = False) -> list[float]:
    if many:
        run()
        run()
        return _replayed(run, 2)
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    host = time.perf_counter() - start
    torch.cuda.synchronize()
    once = _elapsed(run, 1)
    if once > 20e-3:
        return [once, _elapsed(run, 1), _elapsed(run, 1)]
    if captured and once < 3e-4:
        return _replayed(run, max(5, min(50, int(1e-3 / max(once, 1e-6)))))
    repeats = max(1, min(20, int(2e-3 / max(once, 1e-6))))
    # What cannot be recorded is queued while the device sleeps, so that the host does not count.
    lead = 0.0 if captured else min(0.05, 1.3 * repeats * host + 5e-5)
    return [_elapsed(run, repeats, lead) / repeats for _ in range(5 if once < 3e-3 else 3)]


def _replayed(run: Call, repeats: int) -> list[float]:
    """Time a call from a CUDA graph of `repeats` calls; the current stream is not the default."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    gc.disable()  # nothing of the device may be given back during a recording
    try:
        graph.capture_begin()
        try:
            for _ in range(repeats):
                run()
        finally:
            graph.capture_end()
    finally:
        gc.enable()
    graph.replay()
    return [_elapsed(graph.replay, 1) / repeats for _ in range(5)]


def _elapsed(run: Call, count: int, lead: float = 0.0) -> float:
    """Return the device's seconds for `count` calls, after it slept for `lead` seconds."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if lead:
        torch.cuda._sleep(int(lead * _SLEEP_HZ))
    start.record()
    for _ in range(count):
        run()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end)) / 1e3


def keep_memory() -> None:
    """Let the C library keep what is freed, so that kernels on a CPU wait for no fresh pages.

    Pages that the system hands out anew cost more than the kernels that fill them. How many a step
    takes depends on the whole step; here they would come and go with the order of cases.
    """
    with contextlib.suppress(OSError, AttributeError):
        for parameter, value in _MALLOC:
            ctypes.CDLL(None).mallopt(parameter, value)


def rotating(calls: Sequence[Call]) -> Call:
    """Return a call that runs each of several in turn: caches forget what comes round seldom."""
    turns = itertools.cycle(calls)

    def turn() -> Any:
        return next(turns)()

    return turn


def _cpu_times(run: Call) -> list[float]:
    """Return times of about 30 ms of calls in all; the calmer half of them."""
    first = _wall(run, 1)
    once = _wall(run, 1) if first < 2 else first
    repeats = max(1, min(500, int(3e-3 / max(once, 1e-7))))
    samples = max(3, min(10, int(0.03 / max(once * repeats, 1e-7))))
    if once > 0.3:
        return [once]
    times = sorted(_wall(run, repeats) / repeats for _ in range(samples))
    return times[: math.ceil(len(times) / 2)]


def _wall(run: Call, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        run()
    return time.perf_counter() - start
