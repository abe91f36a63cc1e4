"""A real training step on this machine, timed.

Each step is zero_grad(set_to_none), forward, loss, backward, update, on random data that lies on
the device. After warm-up steps come timed ones without any synchronisation in between; marks are
CUDA events on a GPU and the wall clock on a CPU. A step's time is the median from the start of one
to the start of the next.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from traincast.errors import IngestError, TraincastError, UnknownNameError
from traincast.measure.breakdown import Breakdown
from traincast.measure.workload import Workload, choose, sized, source_of

if TYPE_CHECKING:
    from traincast.ingest.pytorch.probe import Source
    from traincast.measure.clock import Clock
    from traincast.measure.trainer import Trainer

DEPTHS = ("step", "layer", "op")
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure."""

    warmup: int = 5
    """Steps before the timed ones."""
    least: int = 8
    """Timed steps, whatever time they take."""
    most: int = 40
    """Timed steps at most."""
    seconds: float = 1.5
    """Go on for so long, between `least` and `most`."""

    def enough(self, done: int, spent: float) -> bool:
        """Tell whether so many timed steps in so many seconds will do."""
        return done >= self.most or (done >= self.least and spent >= self.seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The undisturbed steps; seconds."""

    steps: int
    """How many were timed."""
    step_s: float
    """Median from start to start."""
    low_s: float
    """10th percentile."""
    high_s: float
    """90th percentile."""
    wall_s: float
    """Mean by the host's clock."""
    phases_s: tuple[float, float, float]
    """Medians of forward, backward and update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was found; a run that did not fit has an error and no timing."""

    workload: Workload
    """With everything chosen."""
    device: str
    """What the device calls itself."""
    torch: str
    """Version of PyTorch."""
    parameters: int | None = None
    timing: Timing | None = None
    infer_s: float | None = None
    """A forward pass alone, in eval mode without gradients; None for a compiled model."""
    peak_bytes: int | None = None
    """Peak of what PyTorch had allocated; None where that is not known."""
    breakdown: Breakdown | None = None
    notes: tuple[str, ...] = ()
    error: str = ""
    """oom: it did not fit."""


def _quiet(_: str) -> None:
    """Say nothing."""


def measure(
    workload: Workload, *, effort: Effort | None = None, depth: str = "step", say: Say = _quiet
) -> Measured:
    """Measure a training step here; `say` is told what is being done.

    Raises for a model that cannot be built or run. One that does not fit is a result too.
    """
    if depth not in DEPTHS:
        raise UnknownNameError("depth", depth, DEPTHS, f"(known: {', '.join(DEPTHS)})")
    workload = choose(workload)
    from traincast.ingest.pytorch.probe import explain
    from traincast.measure.trainer import out_of_memory, settings

    source = source_of(workload)
    workload = sized(workload, source)
    _free(workload)
    with settings(workload):
        try:
            return _measure(workload, source, effort or Effort(), depth, say)
        except Exception as error:
            if not out_of_memory(error):
                if isinstance(error, TraincastError):
                    raise
                raise IngestError(explain(workload.model, error, "a training step")) from error
    _free(workload)  # only here: the exception held what had been allocated
    device, version = _where(workload)
    return Measured(workload=workload, error="oom", device=device, torch=version)


def _free(workload: Workload) -> None:
    import torch

    gc.collect()
    if workload.unit == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _where(workload: Workload) -> tuple[str, str]:
    """Return what the device calls itself, and the version of PyTorch."""
    import torch

    from traincast.measure.cpu import this_cpu

    gpu = workload.unit == "cuda"
    name = torch.cuda.get_device_name() if gpu else this_cpu().name
    return name, str(torch.__version__)


def _measure(workload: Workload, source: Source, effort: Effort, depth: str, say: Say) -> Measured:
    import torch

    from traincast.measure.clock import clock_of
    from traincast.measure.trainer import Trainer

    assert workload.unit is not None
    clock = clock_of(workload.unit)
    say("building")
    trainer = Trainer(workload, source)
    for i in range(effort.warmup):
        say(f"warming up {i + 1}/{effort.warmup}")
        trainer.step(clock.mark)
    timing = _timed(trainer, clock, effort, say)
    notes = [*trainer.notes]
    if trainer.loss.assumed:
        notes.append("loss: cross-entropy on the output is assumed")
    peak: int | None = None
    if workload.unit == "cuda":
        peak = int(torch.cuda.max_memory_allocated())
    elif not workload.compiled:
        from traincast.measure.memory import cpu_peak_bytes

        say("counting memory")
        peak = cpu_peak_bytes(trainer)
    breakdown = _look_into(trainer, clock, timing, depth, say)
    infer_s = None
    if not workload.compiled:  # it would be compiled once more
        say("forward pass alone")
        infer_s = _infer(trainer, clock, notes)
    device, version = _where(workload)
    return Measured(
        workload=workload, parameters=trainer.parameters, timing=timing, infer_s=infer_s,
        peak_bytes=peak, breakdown=breakdown, notes=tuple(notes), device=device, torch=version,
    )  # fmt: skip


def _timed(trainer: Trainer, clock: Clock, effort: Effort, say: Say) -> Timing:
    clock.wait()
    marks: list[tuple[Any, ...]] = []
    start = time.perf_counter()
    while not effort.enough(len(marks), time.perf_counter() - start):
        marks.append(trainer.step(clock.mark))
        say(f"timing step {len(marks)}")
    clock.wait()
    wall = (time.perf_counter() - start) / len(marks)
    # What follows the last step's update would be the start of the next.
    steps = _gaps([m[0] for m in marks] + [marks[-1][3]], clock)
    forward, backward, update = (
        statistics.median(clock.between(m[i], m[i + 1]) for m in marks) for i in range(3)
    )
    edge = len(steps) // 10
    return Timing(
        steps=len(steps), step_s=statistics.median(steps), low_s=steps[edge],
        high_s=steps[-1 - edge], wall_s=wall, phases_s=(forward, backward, update),
    )  # fmt: skip


def _gaps(marks: Sequence[Any], clock: Clock) -> list[float]:
    """Return the seconds from each mark to the next, shortest first."""
    return sorted(clock.between(a, b) for a, b in pairwise(marks))


def _look_into(
    trainer: Trainer, clock: Clock, timing: Timing, depth: str, say: Say
) -> Breakdown | None:
    if depth == "step":
        return None
    say(f"timing each {depth}")
    steps = max(3, min(10, timing.steps))
    if depth == "layer":
        from traincast.measure.layers import by_layer

        return by_layer(trainer, clock, step_s=timing.step_s, phases_s=timing.phases_s, steps=steps)
    from traincast.measure.ops import by_op

    return by_op(trainer, clock, step_s=timing.step_s, steps=steps)


def _infer(trainer: Trainer, clock: Clock, notes: list[str]) -> float | None:
    """Return the median seconds of a forward pass alone; a module may refuse it."""
    import torch

    from traincast.measure.trainer import out_of_memory

    effort = Effort(warmup=3, least=5, most=40, seconds=0.5)
    trainer.optimizer.zero_grad(set_to_none=True)
    trainer.module.eval()
    marks: list[Any] = []
    try:
        with torch.no_grad():
            for _ in range(effort.warmup):
                trainer.infer()
            clock.wait()
            start = time.perf_counter()
            while not effort.enough(len(marks), time.perf_counter() - start):
                marks.append(clock.mark())
                trainer.infer()
            marks.append(clock.mark())
            clock.wait()
    except Exception as error:
        what = "out of memory" if out_of_memory(error) else type(error).__name__
        notes.append(f"no forward pass alone: it fails in eval mode ({what})")
        return None
    return statistics.median(_gaps(marks, clock))
