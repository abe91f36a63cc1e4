"""Measuring what model B needs, and a real run to judge both models by.

Every figure is a median over windows in which the workers run side by side. Times are seconds on
the CPU rather than on the wall: waiting for memory counts, being put aside for another program does
not. Other programs still slow the memory, so only the half of the windows counts in which the
workers were put aside least; on an idle machine that choice is no choice.

    forward      a forward pass without gradients, one worker
    backward     what a training image takes beyond that: gradients and the update
    CPI(t)       how much longer an image takes when t workers share one core
    contention   seconds that training and validating an image take longer with p workers, beyond
                 what CPI(p) explains
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import NamedTuple

from traincast import __version__
from traincast.errors import InvalidValueError, MissingExtraError, PredictionError
from traincast.estimate.viebke import (
    Contention,
    Machine,
    Measured,
    Parameters,
    Run,
    Times,
    work_of,
)
from traincast.ingest import resolve
from traincast.measure.cpu import Cpu, this_cpu, thread_counts
from traincast.measure.crew import Count, Crew

Say = Callable[[str], None]
PHASES = ("evaluate", "train")


class Effort(NamedTuple):
    """How long to measure."""

    seconds: float
    """Budget of one network."""
    repeats: int
    """Windows of each kind, of which the median is taken."""

    def window(self, kinds: int) -> float:
        """Return the seconds of one window."""
        return min(max(self.seconds / (kinds * self.repeats), 0.1), 1.5)


THOROUGH = Effort(40.0, 20)
QUICK = Effort(6.0, 6)


def need_torch() -> str:
    """Return the version of PyTorch, or say how to install it."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "measuring this machine") from error
    return str(torch.__version__)


def software() -> dict[str, str]:
    """Return the versions that measured times hold for."""
    return {"torch": need_torch(), "python": platform.python_version(), "traincast": __version__}


def machine_here(cpu: Cpu, cpi: tuple[float, ...] = (1.0,)) -> Machine:
    """Return the machine at hand; a clock that is not told counts as 1 GHz in model A's factors."""
    return Machine(name=cpu.name, clock_hz=cpu.clock_hz or 1e9, cores=len(cpu.cores), cpi=cpi)


def measure_networks(
    references: Sequence[str],
    *,
    threads: Sequence[int] | None = None,
    batch: int = 1,
    effort: Effort = THOROUGH,
    known: Parameters | None = None,
    done: Callable[[Parameters], None] = lambda _: None,
    say: Say = lambda _: None,
) -> Parameters:
    """Measure networks on this machine, one after another.

    `threads` are the numbers of workers, by default powers of two up to all logical CPUs. `known`
    are parameters to add to, of this very machine. `done` is given the parameters after each
    network, so that nothing is lost if a later one fails.
    """
    versions, cpu = software(), this_cpu()
    counts = check_counts(cpu, threads or thread_counts(cpu))
    work = {name: work_of(resolve(name), batch=batch)[0] for name in references}
    parameters = known
    siblings = cpu.cores[0]
    cpus = [*cpu.order[: counts[-1]]]
    cpus += [c for c in siblings if c not in cpus]
    with Crew(cpus) as crew:
        say(f"starting {_number(len(cpus), 'worker')}")
        started = crew.hello()
        for name in references:
            say(f"{name}: building")
            prepare = started + crew.load(name, batch)
            if parameters is None:
                on = [cpus.index(c) for c in siblings]
                cpi = measure_cpi(crew, on, effort, say)
                machine = machine_here(cpu, cpi)
            else:
                machine = parameters.machine
            times, contention, spread = _measure(crew, machine, counts, effort, say, name)
            measured = Measured(
                times=replace(times, prepare=prepare),
                contention=contention,
                work=work[name],
                batch=batch,
                spread=spread,
                measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            )
            networks = {**(parameters.networks if parameters else {}), name: measured}
            parameters = Parameters(machine=machine, networks=networks, software=versions)
            done(parameters)
    if parameters is None:
        raise PredictionError("no network is named; name at least one, such as mnist-small")
    return parameters


def check_counts(cpu: Cpu, threads: Sequence[int]) -> tuple[int, ...]:
    """Return thread counts in order, with 1 among them, if this process has the CPUs for them."""
    counts = tuple(sorted({1, *threads}))
    if counts[0] < 1 or counts[-1] > len(cpu.order):
        raise InvalidValueError(
            f"threads {', '.join(map(str, threads))} cannot be measured here: this process has "
            f"{_number(len(cpu.order), 'CPU')}; give counts from 1 to {len(cpu.order)}"
        )
    return counts


def measure_cpi(crew: Crew, siblings: Sequence[int], effort: Effort, say: Say) -> tuple[float, ...]:
    """Return how much longer an image takes by workers on one core; 1 for a worker alone."""
    found = [1.0]
    if len(siblings) == 1:
        return (1.0,)
    kinds = range(1, len(siblings) + 1)
    window = effort.window(2 * len(siblings))
    seen: dict[int, list[list[Count]]] = {t: [] for t in kinds}
    for repeat in range(effort.repeats):
        say(f"CPI of threads on one core, {repeat + 1} of {effort.repeats}")
        for t in kinds:
            seen[t].append(crew.window("train", siblings[:t], window))
    base = statistics.median(undisturbed(seen[1]))
    for t in kinds[1:]:
        found.append(max(statistics.median(undisturbed(seen[t])) / base, found[-1]))
    return tuple(found)


def _measure(
    crew: Crew, machine: Machine, counts: tuple[int, ...], effort: Effort, say: Say, name: str
) -> tuple[Times, Contention, float]:
    window = effort.window(len(PHASES) * len(counts))
    seen: dict[tuple[str, int], list[list[Count]]] = {(f, p): [] for f in PHASES for p in counts}
    for repeat in range(effort.repeats):
        say(f"{name}: {_number(counts[-1], 'thread')}, {repeat + 1} of {effort.repeats}")
        for (phase, p), values in seen.items():
            values.append(crew.window(phase, range(p), window))
    quiet = {key: undisturbed(values) for key, values in seen.items()}
    middle = {key: statistics.median(values) for key, values in quiet.items()}
    forward, train = middle["evaluate", 1], middle["train", 1]
    rows = []
    for p in counts:
        both = middle["evaluate", p] + middle["train", p]
        rows.append((p, max(both - machine.cpi_at(p) * (forward + train), 0.0)))
    ones = quiet["train", 1]
    times = Times(prepare=0.0, forward=forward, backward=max(train - forward, 1e-9))
    return times, Contention(tuple(rows)), (max(ones) - min(ones)) / 2 / train


def undisturbed(windows: Sequence[Sequence[Count]]) -> list[float]:
    """Return the seconds of an image in that half of the windows which was interrupted least."""
    ranked = sorted(windows, key=lambda counts: -min(c.cpu_s / c.wall_s for c in counts))
    return [per_image(counts) for counts in ranked[: (len(ranked) + 1) // 2]]


def per_image(counts: Sequence[Count]) -> float:
    """Return the seconds of one image on each of several workers that share out the images."""
    return len(counts) / sum(c.images / c.cpu_s for c in counts)


class RealRun(NamedTuple):
    """A run as it went, in seconds."""

    prepare: float
    """Starting the workers and building the network, by the clock on the wall."""
    training: float
    """On the CPU, the mean over the workers; likewise the next two."""
    validation: float
    test: float
    wall: float
    """Training, validation and test by the clock on the wall."""

    @property
    def parallel(self) -> float:
        """Seconds of what the workers share, on the CPU."""
        return self.training + self.validation + self.test


def run_for_real(reference: str, run: Run, threads: int, batch: int = 1) -> RealRun:
    """Train a network as the models picture it: each epoch trains, validates and tests."""
    need_torch()
    cpu = this_cpu()
    check_counts(cpu, [threads])
    everyone = range(threads)
    spent = dict.fromkeys(("training", "validation", "test"), 0.0)
    with Crew(cpu.order[:threads]) as crew:
        prepare = crew.hello() + crew.load(reference, batch)
        began = time.monotonic()
        for _ in range(max(round(run.epochs), 1)):
            for phase, step, images in (
                ("training", "train", run.images),
                ("validation", "evaluate", run.validated),
                ("test", "evaluate", run.test_images),
            ):
                chunk = batch * max(1, images // (64 * threads * batch))
                done = crew.share(step, everyone, images, chunk)
                spent[phase] += sum(c.cpu_s for c in done) / threads
        wall = time.monotonic() - began
    return RealRun(prepare, spent["training"], spent["validation"], spent["test"], wall)


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
