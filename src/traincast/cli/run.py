"""traincast run."""

from __future__ import annotations

import contextlib
import json as json_text
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, option, rows
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traincast.execute.job import Job, Outcome

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
    backend: Annotated[Literal["gloo", "nccl"], Parameter(group=_WHERE)] = "gloo",
    processes: Annotated[str | None, option("N", group=_WHERE)] = None,
    port: Annotated[str, option("N", group=_WHERE)] = "0",
    timeout: Annotated[str, option("S", group=_WHERE)] = "300",
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
    backend
        gloo for CPUs, nccl for GPUs.
    processes
        The most that may be started; by default four a core, at least eight.
    port
        Of the loopback interface, by which the processes find each other; 0 takes a free one.
    timeout
        Seconds without a step after which all processes are ended.
    check
        Train the same in one process too, and print the largest difference.
    json
        Print JSON instead of a table.
    """
    from traincast.execute.job import Job
    from traincast.execute.launch import check_job, join, launch, most_processes, under_torchrun
    from traincast.report.output import show

    strategy, predicted = _read(plan, count("--batch", batch), count("--image", image))
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
        seed=rows("--seed", seed), backend=backend, data=data, check=check,
        threads=_threads(strategy.devices),
    )  # fmt: skip
    door = rows("--port", port)
    if door > 65535:
        raise InvalidValueError(f"--port {door} is no port; give 0 for a free one, or up to 65535")
    with _progress(f"{strategy.model} in {strategy.devices} processes", total) as tell:
        check_job(job, most)
        outcome = join(job, tell) if under_torchrun() else launch(
            job, tell, port=door, timeout=patience
        )  # fmt: skip
    if outcome is not None:
        show(_dict(job, outcome, predicted) if json else _panel(job, outcome, predicted))


def _read(plan: Path, batch: int | None, image: int | None) -> tuple[Any, dict[str, Any]]:
    """Return the plan's strategy, with other sizes where asked, and what the plan predicts."""
    from dataclasses import replace

    from traincast.parallel.strategy import read_strategy

    strategy = read_strategy(plan)
    data = json_text.loads(plan.read_text(encoding="utf-8"))
    predicted = data.get("predicted")
    if batch is not None or image is not None:
        predicted = None
        strategy = replace(strategy, batch=batch or strategy.batch, image=image or strategy.image)
    if not isinstance(predicted, dict):
        return strategy, {}
    return strategy, predicted | {"cluster": data.get("cluster")}


def _threads(processes: int) -> int:
    import os

    return max(1, (os.cpu_count() or 1) // processes)


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


def _dict(job: Job, outcome: Outcome, predicted: dict[str, Any]) -> dict[str, Any]:
    times = [s * 1e3 for s in outcome.steps_s]
    found = outcome.check
    return {
        "model": job.strategy.model,
        "devices": job.strategy.devices,
        "batch": job.strategy.batch,
        "backend": job.backend,
        "optimizer": job.optimizer,
        "losses": list(outcome.losses),
        "steps": len(times),
        "step_ms": statistics.median(times),
        "step_min_ms": min(times),
        "step_max_ms": max(times),
        "load_ms": statistics.median(outcome.load_s) * 1e3,
        "samples_per_s": job.strategy.batch / statistics.median(times) * 1e3,
        "communication_bytes": outcome.moved_bytes + outcome.summed_bytes,
        "activation_bytes": outcome.moved_bytes,
        "gradient_bytes": outcome.summed_bytes,
        "parameter_bytes": list(outcome.held_bytes),
        "predicted": predicted or None,
        "check": None
        if found is None
        else {
            "loss": found.loss,
            "weight": found.weight,
            "weight_name": found.name,
            "weight_relative": found.relative,
        },
    }


def _panel(job: Job, outcome: Outcome, predicted: dict[str, Any]) -> RenderableType:
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from traincast.units import format_bytes, format_seconds

    strategy, times = job.strategy, outcome.steps_s
    table = Table.grid(padding=(0, 2))
    middle = statistics.median(times)
    spread = f"{format_seconds(min(times))} to {format_seconds(max(times))}; {len(times)} timed"
    split = sum(layer.parts > 1 for layer in strategy.layers)
    table.add_row(
        "Plan", f"batch {strategy.batch} · {split} of {len(strategy.layers)} layers split"
    )
    table.add_row("Step", f"{format_seconds(middle)}   {spread}")
    if isinstance(predicted.get("step_ms"), int | float):
        where = f" on {predicted['cluster']}" if predicted.get("cluster") else ""
        table.add_row("Predicted", f"{format_seconds(predicted['step_ms'] / 1e3)}{where}")
    table.add_row("Throughput", f"{strategy.batch / middle:,.4g} samples/s")
    table.add_row("Loading", f"{format_seconds(statistics.median(outcome.load_s))} a batch")
    table.add_row("Loss", f"{outcome.losses[0]:.5g} to {outcome.losses[-1]:.5g}")
    expected = predicted.get("communication_bytes")
    foretold = f"; predicted {format_bytes(expected)}" if isinstance(expected, int | float) else ""
    table.add_row(
        "Sent a step",
        f"{format_bytes(outcome.moved_bytes + outcome.summed_bytes)}   activations "
        f"{format_bytes(outcome.moved_bytes)}, gradients {format_bytes(outcome.summed_bytes)}"
        + foretold,
    )
    held = " · ".join(format_bytes(h) for h in outcome.held_bytes)
    table.add_row("Parameters", f"{held} by process")
    if outcome.check is not None:
        c = outcome.check
        table.add_row(
            "One process",
            f"losses within {c.loss:.2g}, weights within {c.weight:.2g} ({c.name}, "
            f"{c.relative:.1g} of its largest value)",
        )
    title = Text(f"{strategy.model} · {strategy.devices} processes over {job.backend}")
    return Panel(table, title=title, title_align="left", expand=False, padding=(1, 2))
