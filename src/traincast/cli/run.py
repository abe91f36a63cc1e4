"""traincast run."""

from __future__ import annotations

import contextlib
import json as json_text
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option, rows
from traincast.errors import InvalidValueError, TraincastError

if TYPE_CHECKING:
    from traincast.execute.job import Job, Outcome
    from traincast.parallel.strategy import Strategy
    from traincast.report.executed import Foretold

_TRAIN = Group("Training", sort_key=1)
_WHERE = Group("Processes", sort_key=2)
_SHOW = Group("Output", sort_key=3)


def run(
    plan: Annotated[Path, Parameter(group=_TRAIN)],
    /,
    *,
    steps: Annotated[str, option("N", group=_TRAIN)] = "10",
    warmup: Annotated[str, option("N", group=_TRAIN)] = "2",
    optimizer: Annotated[str, option("NAME", group=_TRAIN)] = "sgd",
    lr: Annotated[str, option("RATE", group=_TRAIN)] = "0.01",
    seed: Annotated[str, option("N", group=_TRAIN)] = "0",
    data: Annotated[Path | None, option("FOLDER", group=_TRAIN)] = None,
    batch: Annotated[str | None, option("N", group=_TRAIN, alias="-b")] = None,
    image: Annotated[str | None, option("PIXELS", group=_TRAIN)] = None,
    precision: Annotated[Literal["fp32", "fp64"], Parameter(group=_TRAIN, alias="-p")] = "fp32",
    backend: Annotated[Literal["gloo", "nccl"], Parameter(group=_WHERE)] = "gloo",
    processes: Annotated[str | None, option("N", group=_WHERE)] = None,
    threads: Annotated[str | None, option("N", group=_WHERE)] = None,
    port: Annotated[str, option("N", group=_WHERE)] = "0",
    timeout: Annotated[str, option("S", group=_WHERE)] = "300",
    calibrate: Annotated[bool, flag(group=_SHOW)] = False,
    check: Annotated[bool, flag(group=_SHOW)] = False,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Train under a layer-wise plan for real, one process a device.

    Starts the processes itself, on this machine; or is started by torchrun in as many processes as
    the plan has devices. The result is that of one device: see `--check`.

    Parameters
    ----------
    plan
        A file that `traincast plan` has written.
    steps
        Training steps.
    warmup
        Steps at the beginning that are not timed.
    optimizer
        sgd, momentum, adam or adamw.
    lr
        Learning rate.
    seed
        Of the first weights, of drawn samples and of dropout.
    data
        A folder with a folder of images for each class; by default samples are drawn.
    batch
        Samples in a step, all devices together; by default the plan's.
    image
        Side of square input images, in pixels; by default the plan's.
    precision
        fp32, or fp64 to tell an error from rounding with `--check`.
    backend
        gloo for CPUs, nccl for GPUs.
    processes
        The most that may be started; by default four a core, at least eight.
    threads
        Of each process; by default the cores of this machine divided by its processes.
    port
        Of the loopback interface, by which the processes find each other; 0 takes a free one.
    timeout
        Seconds without a step after which all processes are ended.
    calibrate
        Measure each process alone and the links between them first, and predict the plan on them.
    check
        Train the same in one process too, and print the largest difference.
    json
        Print JSON instead of a table.
    """
    from traincast.execute.job import Job
    from traincast.execute.launch import check_job, join, launch, most_processes, under_torchrun
    from traincast.report.executed import run_dict, run_panel
    from traincast.report.output import show

    strategy, said = _read(plan, count("--batch", batch), count("--image", image))
    if precision == "fp64":
        said.pop("predicted", None)
        if calibrate:
            raise InvalidValueError("--calibrate predicts fp32; leave out --precision fp64")
    total, first = count("--steps", steps), rows("--warmup", warmup)
    assert total is not None
    most = most_processes() if processes is None else count("--processes", processes)
    rate, patience = above_zero("--lr", lr), above_zero("--timeout", timeout)
    assert most is not None
    assert rate is not None
    assert patience is not None
    if first >= total:
        raise InvalidValueError(f"--warmup {first} leaves none of --steps {total} to time")
    job = Job(
        strategy=strategy, steps=total, warmup=first, optimizer=optimizer.lower(), lr=rate,
        seed=rows("--seed", seed), backend=backend, data=data, check=check, calibrate=calibrate,
        precision=precision,
        threads=count("--threads", threads) or _threads(strategy.devices),
    )  # fmt: skip
    door = rows("--port", port)
    if door > 65535:
        raise InvalidValueError(f"--port {door} is no port; give 0 for a free one, or up to 65535")
    with _progress(f"{strategy.model} in {strategy.devices} processes", total) as tell:
        check_job(job, most)
        outcome = join(job, tell, timeout=patience) if under_torchrun() else launch(
            job, tell, port=door, timeout=patience
        )  # fmt: skip
    if outcome is not None:
        foretold = _foretold(job, outcome, said)
        show(run_dict(job, outcome, foretold) if json else run_panel(job, outcome, foretold))


def _read(plan: Path, batch: int | None, image: int | None) -> tuple[Strategy, dict[str, Any]]:
    """Return the plan's strategy, with other sizes where asked, and all that its file says."""
    from dataclasses import replace

    from traincast.parallel.strategy import read_strategy

    strategy = read_strategy(plan)
    data = json_text.loads(plan.read_text(encoding="utf-8"))
    if batch is not None or image is not None:
        data.pop("predicted", None)
        strategy = replace(strategy, batch=batch or strategy.batch, image=image or strategy.image)
    return strategy, data


def _foretold(job: Job, outcome: Outcome, said: dict[str, Any]) -> Foretold:
    """Return what was predicted of the run: by the plan, and for these very processes."""
    from traincast.execute.here import device_here, predict_here
    from traincast.execute.launch import under_torchrun
    from traincast.hardware import load_cluster
    from traincast.report.executed import Foretold

    ours, predicted, cluster = device_here(job.backend), said.get("predicted"), said.get("cluster")
    same = False
    # Processes that are started here share one CPU; a plan gives each a whole one.
    apart = job.backend == "nccl" or job.strategy.devices == 1 or under_torchrun()
    with contextlib.suppress(TraincastError):  # a file written by hand may name any cluster
        same = apart and isinstance(cluster, str) and load_cluster(cluster).device.name == ours
    here = None
    if outcome.probe is not None:
        strategy = job.strategy
        graph = load_model(strategy.model, image=strategy.image, seq=strategy.seq or None)
        here = predict_here(graph, job, outcome.probe)
    return Foretold(
        plan=predicted if isinstance(predicted, dict) else {},
        cluster=cluster if isinstance(cluster, str) else None,
        same=same,
        device=_device(job, ours),
        here=here,
    )


def _device(job: Job, known: str | None) -> str:
    """Return what the processes run on, for people."""
    if job.backend == "nccl":
        import torch

        return known or str(torch.cuda.get_device_name())
    from traincast.measure.cpu import this_cpu

    threads = "1 thread" if job.threads == 1 else f"{job.threads} threads"
    return f"{this_cpu().name}, {threads} a process"


def _threads(processes: int) -> int:
    import os

    from traincast.measure.cpu import this_cpu

    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    return max(1, len(this_cpu().cores) // (int(local) if local.isdigit() else processes))


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[int, float, float], None]]:
    """Give a function that shows on a terminal how far the training is."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda *_: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=total, note="starting …")

        def tell(step: int, loss: float, seconds: float) -> None:
            note = f"{step + 1} of {total} · loss {loss:.4g} · {seconds * 1e3:.0f} ms"
            bar.update(task, completed=step + 1, note=note)

        yield tell
