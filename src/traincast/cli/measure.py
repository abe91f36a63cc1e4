"""traincast measure."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, option, rows
from traincast.errors import InvalidValueError, PredictionError, TraincastError

if TYPE_CHECKING:
    from traincast.measure.steps import Effort, Measured
    from traincast.measure.workload import Workload
    from traincast.simulate.prediction import Prediction

_WORK = Group("What to train", sort_key=1)
_HOW = Group("How", sort_key=2)
_LONG = Group("How long", sort_key=3)
_SHOW = Group("Output", sort_key=4)
_MEMORY_FIX = "use a smaller --batch, a lower --precision or a leaner --optimizer"


def measure(
    model: Annotated[str, Parameter(group=_WORK)],
    /,
    *,
    device: Annotated[Literal["cuda", "cpu"] | None, Parameter(group=_WORK, alias="-d")] = None,
    as_device: Annotated[str | None, option("NAME", group=_WORK, name="--as")] = None,
    batch: Annotated[str | None, option("N", group=_WORK, alias="-b")] = None,
    seq: Annotated[str | None, option("N", group=_WORK)] = None,
    image: Annotated[str | None, option("PIXELS", group=_WORK)] = None,
    precision: Annotated[str | None, option("NAME", group=_HOW, alias="-p")] = None,
    optimizer: Annotated[str, option("NAME", group=_HOW)] = "adamw",
    layout: Annotated[str, option("ORDER", group=_HOW)] = "nchw",
    compiled: Annotated[bool, flag(name="--compile", group=_HOW)] = False,
    depth: Annotated[Literal["step", "layer", "op"], Parameter(group=_HOW)] = "step",
    warmup: Annotated[str, option("N", group=_LONG)] = "5",
    repeats: Annotated[str | None, option("N", group=_LONG)] = None,
    seconds: Annotated[str | None, option("S", group=_LONG)] = None,
    by: Annotated[Literal["layer", "similar"], Parameter(group=_SHOW)] = "similar",
    top: Annotated[str, option("N", group=_SHOW)] = "12",
    csv: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    no_store: Annotated[bool, flag(group=_SHOW)] = False,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Measure a real training step on this machine, with PyTorch.

    Random data on the device; forward, loss, backward, update; warm-up, then timed steps without
    synchronisation in between. What is found is kept in the store, which `traincast validate
    --store` compares with predictions.

    Parameters
    ----------
    model
        A built-in name, torchvision:NAME, timm:NAME, hf:CONFIG.json, FILE.py:FUNCTION or
        package.module:FUNCTION, with builder arguments behind a question mark.
    device
        cuda or cpu; by default cuda where there is one.
    as_device
        The device of the catalog that this one is, where it is not recognised.
    batch
        Samples; by default the model's.
    seq
        Positions in a sequence; by default the model's.
    image
        Side of square input images, in pixels; by default the model's.
    precision
        fp32, tf32, bf16, fp16, amp_bf16 or amp_fp16; by default mixed on a GPU, fp32 on a CPU.
    optimizer
        sgd, momentum, adam, adamw or adafactor.
    layout
        Memory order of images: nchw, or nhwc (channels_last).
    compiled
        Run through torch.compile.
    depth
        What is timed: the step alone, or each layer or operator of it too.
    warmup
        Steps before the timed ones.
    repeats
        Timed steps; by default 8 to 40 in 1.5 seconds.
    seconds
        Time steps for so long instead, at least 3.
    by
        What the table of layers lists: single layers, or similar ones together.
    top
        How many layers or operators to list: a number, or `all`.
    csv
        Add the run to a table for `traincast validate`.
    no_store
        Do not keep the run in the store.
    json
        Print JSON instead of a table.
    """
    from traincast.report.output import show
    from traincast.report.runs import append_run, check_table

    effort, shown = _effort(warmup, repeats, seconds), rows("--top", top)
    size, positions, side = (
        count("--batch", batch), count("--seq", seq), count("--image", image)
    )  # fmt: skip
    if csv is not None:
        check_table(csv)
    if as_device is not None:
        from traincast.hardware import load_device

        load_device(as_device)
    from traincast.estimate.optimizer import optimizer_named
    from traincast.measure.table import run_columns, table_row
    from traincast.measure.workload import Workload, located

    wanted = Workload(
        model=model, batch=size, seq=positions, image=side, precision=precision,
        optimizer=optimizer_named(optimizer).name, layout=layout.lower(), compiled=compiled,
        unit=device,
    )  # fmt: skip
    if not no_store:
        check_store()
    with progress() as say:
        found = run(wanted, effort, depth, lambda text: say(f"{model}: {text}"))
    name = known_as(found, as_device)
    columns = run_columns(found, name or found.device)
    if not no_store:
        keep(columns)
    if csv is not None:
        append_run(csv, table_row(columns | {"model": located(found.workload, csv.parent)}))
    predicted, why = beside(found, name)
    found = replace(found, notes=(*found.notes, *why))
    from traincast.report.measured import measured_dict, measured_panel

    if json:
        show(measured_dict(found, name or found.device, predicted))
    elif not found.error:
        show(measured_panel(found, predicted, shown, by == "similar"))
    if found.error:
        raise PredictionError(did_not_fit(found, predicted))


def _effort(warmup: str, repeats: str | None, seconds: str | None) -> Effort:
    from traincast.measure.steps import Effort

    if repeats is not None and seconds is not None:
        raise InvalidValueError("give either --repeats or --seconds, not both")
    first = rows("--warmup", warmup)
    times, budget = count("--repeats", repeats), above_zero("--seconds", seconds)
    if times is not None:
        return Effort(warmup=first, least=times, most=times)
    if budget is not None:
        return Effort(warmup=first, least=3, most=sys.maxsize, seconds=budget)
    return Effort(warmup=first)


def run(
    wanted: Workload, effort: Effort | None, depth: str, say: Callable[[str], None]
) -> Measured:
    """Measure, with whatever a model prints where it spoils no output."""
    from traincast.measure.steps import measure as run_steps

    with contextlib.redirect_stdout(sys.stderr):
        return run_steps(wanted, effort=effort, depth=depth, say=say)


def known_as(found: Measured, as_device: str | None) -> str | None:
    """Return the catalog's name of the device: as given, or as it is recognised."""
    from traincast.measure.machine import catalog_name

    assert found.workload.unit is not None
    return as_device or catalog_name(found.workload.unit, found.device)


def check_store() -> None:
    """Raise where the store cannot be opened, before anything is measured."""
    from traincast.measure.store import open_store

    with open_store():
        pass


def keep(columns: dict[str, Any]) -> None:
    """Add a run to the store."""
    from traincast.measure.store import add_run, open_store

    with open_store() as store:
        add_run(store, **columns)


def beside(found: Measured, name: str | None) -> tuple[Prediction | None, list[str]]:
    """Return what is predicted for a measured step, or why nothing is."""
    from traincast.simulate.predict import predict

    if name is None:
        how = "say --as DEVICE" if found.workload.unit != "cpu" else "run `traincast calibrate`"
        return None, [f"no prediction: {found.device} is not in the catalog; {how}"]
    w = found.workload
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return predict(
                w.model, name, batch=w.batch, seq=w.seq, image=w.image, precision=w.precision,
                optimizer=w.optimizer, layout=w.layout, compiled=w.compiled, root=w.root,
            ), []  # fmt: skip
    except TraincastError as error:
        return None, [f"no prediction: {str(error).splitlines()[0].rstrip('.')}"]


def did_not_fit(found: Measured, predicted: Prediction | None) -> str:
    """Say that there was too little memory, and what was predicted."""
    from traincast.units import format_bytes

    w = found.workload
    seq = f", seq {w.seq}" if w.seq else ""
    said = f"{w.model} at batch {w.batch}{seq} ran out of memory on {found.device}"
    if predicted is not None:
        said += f" (predicted: {format_bytes(predicted.memory.peak)})"
    return f"{said}; {_MEMORY_FIX}"


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Give a function that says on a terminal what goes on."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda text: status.update(Text(f"{text} …"))
