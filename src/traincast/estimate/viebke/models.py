"""Model A, from operation counts and a clock, and model B, from measured times.

Both give the seconds of a whole training run on p threads, each of which takes images one by one:

    T = sequential + CPI · (training + validation + test) / p + contention(p) · epochs · images / p

A counts operations and turns them into seconds with a factor of instructions per operation and
the clock; B was measured. CPI multiplies the parallel part alone: with it on the sequential part
too, the published predictions do not come out.

Viebke et al. 2019, HPCS, arXiv 1906.01992; the equations as recalled, unverified.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from traincast.errors import InvalidValueError
from traincast.estimate.viebke.machine import Machine, check_threads


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How much is trained."""

    images: int = 60_000
    """Training images of an epoch, >= 1."""
    test_images: int = 10_000
    """Images that each epoch is tested on, >= 0."""
    epochs: float = 70
    """Passes over the training images, > 0."""
    validation_images: int | None = None
    """Images that each epoch is validated on, >= 0; None for the training images, as published."""

    def __post_init__(self) -> None:
        counts = (self.test_images, self.validation_images or 0)
        if self.images < 1 or min(counts) < 0:
            raise InvalidValueError(
                f"{self}: images has to be at least 1, and no count may be negative"
            )
        if not (math.isfinite(self.epochs) and self.epochs > 0):
            raise InvalidValueError(f"epochs {self.epochs} has to be above 0")

    @property
    def validated(self) -> int:
        """Images that each epoch is validated on."""
        return self.images if self.validation_images is None else self.validation_images


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What model A counts."""

    prepare: float
    """Operations before training begins: reading images, building the network."""
    forward: float
    """Operations of one image's forward pass."""
    backward: float
    """Operations of one image's backward pass, with the update of the weights."""
    forward_calls: float = 0
    """Ops that a framework dispatches for one image forward; 0 where there is no framework."""
    backward_calls: float = 0
    """Ops that a framework dispatches for one image backward."""
    written: float = 0
    """Bytes that one image's forward pass writes: what contention is taken in proportion to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """Instructions for each counted operation: the published model has one figure for all."""

    sequential: float = 15.0
    forward: float = 15.0
    backward: float = 15.0
    forward_call: float = 0.0
    """Instructions for each op that a framework dispatches forward."""
    backward_call: float = 0.0
    """Instructions for each op that a framework dispatches backward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What model B measures, with one thread; seconds, >= 0."""

    prepare: float
    """Before training begins."""
    forward: float
    """Forward pass of one image."""
    backward: float
    """Backward pass of one image, with the update of the weights."""


@dataclass(frozen=True, slots=True)
class Contention:
    """Seconds that each image takes longer because other threads use the same memory.

    Between two thread counts of the table it is interpolated linearly in p; outside the table it
    is c·p, with c from the nearest row. From 15 threads on the published tables are close to c·p.
    A single row (1, c) is c·p everywhere.
    """

    rows: tuple[tuple[int, float], ...]
    """(threads, seconds per image), by rising thread count; at least one."""

    def __post_init__(self) -> None:
        counts = [threads for threads, _ in self.rows]
        good = all(math.isfinite(s) and s >= 0 for _, s in self.rows)
        if not counts or counts[0] < 1 or sorted(set(counts)) != counts or not good:
            raise InvalidValueError(
                f"contention {list(self.rows)} has to be rows of threads and seconds, threads "
                "rising from at least 1, seconds at least 0"
            )

    def at(self, threads: int) -> float:
        """Return the seconds per image at a number of threads."""
        check_threads(threads)
        first, last = self.rows[0], self.rows[-1]
        if threads <= first[0] or threads >= last[0]:
            known, seconds = first if threads <= first[0] else last
            return seconds if threads == known else seconds * threads / known
        (low, below), (high, above) = next(
            pair
            for pair in zip(self.rows, self.rows[1:], strict=False)
            if pair[0][0] <= threads <= pair[1][0]
        )
        if threads in (low, high):
            return below if threads == low else above
        return below + (above - below) * (threads - low) / (high - low)

    def origin(self, threads: int) -> str:
        """Return how the figure at a number of threads came about."""
        counts = [known for known, _ in self.rows]
        if threads in counts:
            return "table"
        return "interpolated" if counts[0] < threads < counts[-1] else "extrapolated"


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Seconds of a run by what they are spent on."""

    sequential: float
    training: float
    validation: float
    test: float
    memory: float

    @property
    def total(self) -> float:
        """Seconds of the whole run."""
        return self.sequential + self.training + self.validation + self.test + self.memory


def model_a(
    work: Work,
    factors: Factors,
    machine: Machine,
    contention: Contention,
    run: Run,
    threads: int,
) -> Breakdown:
    """Return the seconds of a run from operation counts.

    >>> # 58,000 and 524,000 operations, 240 threads: 15 · 2 · 582000 / 1.238e9 · 60000/240 · 70
    >>> # = 246.8 s of training
    """
    once = work.prepare + 4 * run.images + 2 * run.test_images + 10 * run.epochs
    forward = factors.forward * work.forward + factors.forward_call * work.forward_calls
    backward = factors.backward * work.backward + factors.backward_call * work.backward_calls
    return _run(
        factors.sequential * once / machine.clock_hz,
        forward / machine.clock_hz,
        backward / machine.clock_hz,
        machine,
        contention,
        run,
        threads,
    )


def model_b(
    times: Times, machine: Machine, contention: Contention, run: Run, threads: int
) -> Breakdown:
    """Return the seconds of a run from the measured times of one image."""
    return _run(times.prepare, times.forward, times.backward, machine, contention, run, threads)


def _run(
    once: float,
    forward: float,
    backward: float,
    machine: Machine,
    contention: Contention,
    run: Run,
    threads: int,
) -> Breakdown:
    cpi = machine.cpi_at(threads)
    passes = run.epochs / threads
    return Breakdown(
        sequential=once,
        training=cpi * (forward + backward) * run.images * passes,
        validation=cpi * forward * run.validated * passes,
        test=cpi * forward * run.test_images * passes,
        memory=contention.at(threads) * run.images * passes,
    )
