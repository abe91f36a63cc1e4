"""Times of a step by operator, through PyTorch's profiler.

On a GPU the time of an operator is that of its kernels, which profiling does not change; what is
left of the step, the GPU waited. On a CPU it is the operator's own time; what is left is Python and
the autograd engine.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from traincast.measure.breakdown import Breakdown, Part, undisturbed
from traincast.measure.clock import Clock
from traincast.measure.trainer import Trainer

WAITING = "(the GPU waits for the host)"
OUTSIDE = "(outside operators: Python, autograd)"


def by_op(trainer: Trainer, clock: Clock, *, step_s: float, steps: int) -> Breakdown:
    """Return the times of a step by operator; `step_s` is the undisturbed one."""
    gpu = trainer.workload.unit == "cuda"
    _profiled(trainer, clock, gpu, 1)  # the first use of the profiler takes long
    events, seen_s = _profiled(trainer, clock, gpu, steps)
    names, calls, seconds = [], [], []
    for event in events:
        spent = _device_us(event) if gpu else event.self_cpu_time_total
        if "::" in event.key and not event.key.startswith("autograd::") and spent > 0:
            names.append(event.key)
            calls.append(event.count / steps)
            seconds.append(spent * 1e-6 / steps)
    total = sum(seconds)
    rest = max(seen_s - total, 0.0)
    if gpu:
        rest = max(step_s - total, 0.0)
        lean = undisturbed([*seconds, rest], [0.0] * len(names) + [1.0], step_s)
    else:
        outside = sum(e.count for e in events if "::" not in e.key) / steps
        lean = undisturbed([*seconds, rest], [*calls, max(outside, 1.0)], step_s)
    names.append(WAITING if gpu else OUTSIDE)
    parts = [
        Part(name=n, calls=c, seconds=s) for n, c, s in zip(names, [*calls, 1.0], lean, strict=True)
    ]
    parts.sort(key=lambda part: -part.seconds)
    return Breakdown(depth="op", parts=tuple(parts), overhead_s=seen_s - step_s, step_s=step_s)


def _profiled(trainer: Trainer, clock: Clock, gpu: bool, steps: int) -> tuple[list[Any], float]:
    """Return the profiler's averages of operators, and the seconds of a step under it."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would tell standard error of each start
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    with warnings.catch_warnings(), profile(activities=activities) as watch:
        warnings.simplefilter("ignore")  # that of cycles, of which there is one
        clock.wait()
        start = time.perf_counter()
        for _ in range(steps):
            trainer.step(lambda: None)
        clock.wait()
        seconds = (time.perf_counter() - start) / steps
    cpu = torch.autograd.DeviceType.CPU
    return [e for e in watch.key_averages() if e.device_type == cpu], seconds


def _device_us(event: Any) -> float:
    """Return the microseconds of an operator's own kernels; older PyTorch has another name."""
    for name in ("self_device_time_total", "self_cuda_time_total"):
        if hasattr(event, name):
            return float(getattr(event, name))
    return 0.0
