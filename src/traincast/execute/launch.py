"""Starts the processes of a run, watches them, and ends them all whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from traincast.errors import InvalidValueError, MissingExtraError, PredictionError, TraincastError
from traincast.execute.job import Job, Outcome

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from traincast.execute.worker import Tell

_GRACE = 3.0
"""Seconds in which other processes may say what went wrong, and in which they may end."""
_PER_CORE = 4


def most_processes() -> int:
    """Return how many processes a run may start by default: four a core, at least eight."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(_PER_CORE * (cores or 1), 8)


def under_torchrun() -> bool:
    """Tell whether another launcher has started this process as one of several."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def check_job(job: Job, limit: int) -> None:
    """Refuse a job that cannot run here, before any process is started."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "running a plan") from error
    devices = job.strategy.devices
    if devices > limit and not under_torchrun():
        raise InvalidValueError(
            f"the plan is for {devices} devices, but at most {limit} processes may be started "
            f"here; allow them with --processes {devices}, or make a plan for fewer"
        )
    if job.backend == "nccl" and not under_torchrun() and torch.cuda.device_count() < devices:
        raise InvalidValueError(
            f"the plan needs {devices} GPUs, PyTorch finds {torch.cuda.device_count()} here; "
            "use --backend gloo, or start it with torchrun on several machines"
        )
    from traincast.execute.worker import lay_out

    lay_out(job)


def join(job: Job, tell: Tell, *, timeout: float = 300.0) -> Outcome | None:
    """Be one process of a run that torchrun started; device 0 returns the outcome."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    import torch.distributed as dist

    from traincast.execute.worker import train

    world = int(os.environ["WORLD_SIZE"])
    if world != job.strategy.devices:
        raise InvalidValueError(
            f"the plan is for {job.strategy.devices} devices, torchrun started {world} processes; "
            f"use --nproc-per-node so that there are {job.strategy.devices}"
        )
    dist.init_process_group(job.backend, timeout=timedelta(seconds=timeout))
    try:
        return train(job, dist.get_rank(), world, tell)
    except RuntimeError as error:
        said = str(error).strip().splitlines()
        raise PredictionError(
            f"process {os.environ['RANK']} of {world} failed: {said[0][:300] if said else ''}"
        ) from error
    finally:
        dist.destroy_process_group()


def launch(job: Job, tell: Tell, *, port: int = 0, timeout: float = 300.0) -> Outcome:
    """Run a job in processes of this machine, which talk over the loopback interface."""
    import torch.distributed as dist
    import torch.multiprocessing as mp

    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    except RuntimeError as error:
        raise InvalidValueError(
            f"port {port} cannot be used ({_reason(error)}); choose another with --port, or leave "
            "it out for a free one"
        ) from error
    context = mp.get_context("spawn")
    crew: list[tuple[BaseProcess, Connection]] = []
    try:
        for rank in range(job.strategy.devices):
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_work, args=(job, rank, store.port, theirs, timeout, os.getpid()),
                daemon=True,
            )  # fmt: skip
            process.start()
            theirs.close()
            crew.append((process, ours))
        return _watch(crew, tell, timeout)
    finally:
        _end(crew)


def _reason(error: RuntimeError) -> str:
    said = str(error)
    return "it is in use" if "EADDRINUSE" in said or "in use" in said else said.splitlines()[0]


def _watch(crew: list[tuple[BaseProcess, Connection]], tell: Tell, timeout: float) -> Outcome:
    pipes = {pipe: rank for rank, (_, pipe) in enumerate(crew)}
    outcome: Outcome | None = None
    done: set[int] = set()
    heard = time.monotonic()
    while pipes:
        ready = wait(list(pipes), timeout=max(0.0, heard + timeout - time.monotonic()))
        if not ready:
            raise PredictionError(
                f"no process took a step for {timeout:.0f} s, so all were ended; "
                "allow more with --timeout, or run a smaller batch"
            )
        for pipe in (p for p in list(pipes) if p in ready):
            rank = pipes[pipe]
            try:
                kind, *what = pipe.recv()
            except (EOFError, OSError):
                del pipes[pipe]
                if rank not in done:
                    raise _failure(crew, {}) from None
                continue
            if kind == "failed":
                raise _failure(crew, {rank: what[0]})
            heard = time.monotonic()
            if kind == "step":
                tell(*what)
            elif kind == "done":
                done.add(rank)
                outcome = what[0] or outcome
    if outcome is None:
        raise PredictionError("the processes ended without a result")
    return outcome


def _failure(
    crew: list[tuple[BaseProcess, Connection]], known: dict[int, BaseException | str]
) -> TraincastError:
    """Return the cause when something failed: a process that died, or the first error told.

    Where one process is gone the others fail too, for want of it; so they are heard first.
    """
    until = time.monotonic() + _GRACE
    while time.monotonic() < until and all(p.exitcode is None for p, _ in crew):
        time.sleep(0.02)
    for rank, (process, pipe) in enumerate(crew):
        with contextlib.suppress(EOFError, OSError):
            while rank not in known and pipe.poll(0):
                kind, *what = pipe.recv()
                if kind == "failed":
                    known[rank] = what[0]
        code = process.exitcode
        if code is not None and code != 0 and rank not in known:
            return PredictionError(
                f"process {rank} of {len(crew)} {_ended(code)}; the others were ended"
            )
    for error in known.values():
        if isinstance(error, TraincastError):
            return error
    for rank, told in known.items():
        return PredictionError(f"process {rank} of {len(crew)} failed: {told}")
    return PredictionError("a process ended without a word; the others were ended")


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with status {code}"
    name = signal.Signals(-code).name
    hint = ", perhaps for want of memory" if -code == signal.SIGKILL else ""
    return f"was ended by {name}{hint}"


def _end(crew: list[tuple[BaseProcess, Connection]]) -> None:
    """End every process that this run started, by its own handle."""
    for process, _ in crew:
        if process.is_alive():
            process.terminate()
    until = time.monotonic() + _GRACE
    for process, pipe in crew:
        process.join(max(0.0, until - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()
        pipe.close()


def _work(job: Job, rank: int, port: int, pipe: Any, timeout: float, parent: int) -> None:
    """Be one process of a run."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a model prints spoils no output
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        import warnings

        import torch.distributed as dist

        from traincast.execute.worker import train

        warnings.simplefilter("ignore")
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        dist.init_process_group(
            job.backend, store=store, rank=rank, world_size=job.strategy.devices,
            timeout=timedelta(seconds=timeout),
        )  # fmt: skip
        outcome = train(job, rank, job.strategy.devices, lambda *step: pipe.send(("step", *step)))
        pipe.send(("done", outcome))
        dist.destroy_process_group()
    except TraincastError as error:
        pipe.send(("failed", error))
        os._exit(1)
    except BaseException as error:
        if os.environ.get("TRAINCAST_DEBUG"):
            traceback.print_exc()
        said = str(error).strip().splitlines()
        pipe.send(("failed", f"{type(error).__name__}: {said[0][:300] if said else ''}"))
        os._exit(1)


def _die_with(parent: int) -> None:
    """Ask Linux to end this process with the one that started it."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
