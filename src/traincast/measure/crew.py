"""Worker processes, each tied to one logical CPU, that train one network on different images.

They stand for the threads of the models: data-parallel over images, on weights that all of them
read and write without locks, as in CHAOS. Python's threads would mostly wait for each other at the
interpreter's lock, which is no property of the memory; processes with shared weights wait for
nothing but the memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple

from traincast.errors import PredictionError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_LEAD = 0.05
"""Seconds between an order and its start, so that all workers begin together."""
_WAIT = 300.0


class Count(NamedTuple):
    """What one worker did in one order."""

    images: int
    cpu_s: float
    """Seconds that it was on its CPU."""
    wall_s: float
    """Seconds by the clock on the wall."""


class Crew:
    """Workers that stay alive from one network to the next."""

    def __init__(self, cpus: Sequence[int]) -> None:
        import torch.multiprocessing as mp

        self._began = time.monotonic()
        context = mp.get_context("spawn")
        self.counter = context.Value("q", 0)
        self._pipes: list[Connection] = []
        self._processes = []
        for seed, cpu in enumerate(cpus):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(theirs, cpu, seed, self.counter), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pipe in self._pipes:
            pipe.close()  # a worker leaves when its pipe ends
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.terminate()

    def hello(self) -> float:
        """Return the seconds that the workers took to start."""
        self._all(range(len(self._pipes)), ("hello",))
        return time.monotonic() - self._began

    def load(self, reference: str, batch: int) -> float:
        """Build a network in every worker on one set of weights, and return the seconds of it."""
        began = time.monotonic()
        weights = self._all([0], ("load", reference, batch, None))[0]
        self._all(range(1, len(self._pipes)), ("load", reference, batch, weights))
        return time.monotonic() - began

    def window(self, phase: str, workers: Sequence[int], seconds: float) -> list[Count]:
        """Let some workers train or evaluate side by side for a stretch of time."""
        start = time.monotonic() + _LEAD
        return self._all(workers, ("window", phase, start, start + seconds))

    def share(self, phase: str, workers: Sequence[int], images: int, chunk: int) -> list[Count]:
        """Let some workers do so many images between them, each taking a few at a time."""
        self.counter.value = 0
        return self._all(workers, ("share", phase, images, chunk))

    def _all(self, workers: Sequence[int], order: tuple[Any, ...]) -> list[Any]:
        for i in workers:
            self._pipes[i].send(order)
        return [self._answer(i) for i in workers]

    def _answer(self, worker: int) -> Any:
        try:
            if not self._pipes[worker].poll(_WAIT):
                raise PredictionError(f"worker {worker} gave no answer in {_WAIT:.0f} s")
            good, answer = self._pipes[worker].recv()
        except (EOFError, OSError) as error:
            code = self._processes[worker].exitcode
            raise PredictionError(f"worker {worker} ended unasked (status {code})") from error
        if not good:
            raise PredictionError(f"the network cannot be trained here: {answer}")
        return answer


def _work(pipe: Connection, cpu: int, seed: int, counter: Any) -> None:
    """Be a worker: take orders until the pipe ends."""
    import warnings

    import torch

    from traincast.measure.cpu import pin
    from traincast.measure.training import Trainee, source_of, warm_up

    warnings.simplefilter("ignore")
    keep_memory()
    pin(cpu)
    torch.set_num_threads(1)
    trainee: Trainee | None = None
    while True:
        try:
            order = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if order[0] == "load":
                _, reference, batch, weights = order
                trainee = Trainee(source_of(reference), batch, seed)
                if weights is not None:
                    trainee.adopt(weights)
                trainee.train()
                answer: Any = trainee.weights() if weights is None else None
            elif order[0] == "hello":
                warm_up()
                answer = None
            else:
                assert trainee is not None
                step = trainee.train if order[1] == "train" else trainee.evaluate
                if order[0] == "window":
                    answer = _window(step, trainee.batch, *order[2:])
                else:
                    answer = _share(step, trainee.batch, counter, *order[2:])
            pipe.send((True, answer))
        except KeyboardInterrupt:
            return
        except Exception as error:
            pipe.send((False, f"{type(error).__name__}: {str(error)[:300]}"))


def keep_memory() -> None:
    """Keep freed memory for the next image instead of handing it back to the system.

    Whether the C library hands back what an image used, and faults it in again page by page, hangs
    on the accidents of a process's heap: it made one of two equal workers a third slower.
    """
    mmap_threshold, trim_threshold = -3, -1  # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD of glibc
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(mmap_threshold, 32 << 20)
        library.mallopt(trim_threshold, 2**31 - 1)


def _window(step: Any, batch: int, start: float, end: float) -> Count:
    time.sleep(max(0.0, start - time.monotonic()))
    step()  # caches of another phase's data are warmed outside the count
    done, cpu, wall = 0, time.process_time(), time.monotonic()
    while done < 2 * batch or time.monotonic() < end:
        step()
        done += batch
    return Count(done, time.process_time() - cpu, time.monotonic() - wall)


def _share(step: Any, batch: int, counter: Any, images: int, chunk: int) -> Count:
    done, cpu, wall = 0, time.process_time(), time.monotonic()
    while True:
        with counter.get_lock():
            first = counter.value
            counter.value = first + chunk
        if first >= images:
            return Count(done, time.process_time() - cpu, time.monotonic() - wall)
        for _ in range(0, min(chunk, images - first), batch):
            step()
            done += batch
