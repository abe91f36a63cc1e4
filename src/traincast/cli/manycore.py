"""traincast manycore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traincast.estimate.viebke import Forecast, Machine, Run

_WORK = Group("What to train", sort_key=1)
_WHERE = Group("On what", sort_key=2)
_HOW = Group("How", sort_key=3)
_SHOW = Group("Output", sort_key=4)


def manycore(
    network: Annotated[str, Parameter(group=_WORK)],
    /,
    *,
    epochs: Annotated[str | None, option("N", group=_WORK)] = None,
    images: Annotated[str | None, option("N", group=_WORK)] = None,
    validation_images: Annotated[str | None, option("N", group=_WORK)] = None,
    test_images: Annotated[str | None, option("N", group=_WORK)] = None,
    threads: Annotated[str, option("N,N,…", group=_WHERE)] = "1,15,30,60,120,240,480",
    device: Annotated[str | None, option("NAME", group=_WHERE, alias="-d")] = None,
    parameters: Annotated[Path | None, option("FILE", group=_WHERE)] = None,
    cores: Annotated[str | None, option("N", group=_WHERE)] = None,
    threads_per_core: Annotated[str | None, option("N", group=_WHERE)] = None,
    issue_rate: Annotated[str | None, option("X", group=_WHERE)] = None,
    clock: Annotated[str | None, option("HZ", group=_WHERE)] = None,
    model: Annotated[Literal["a", "b"], Parameter(group=_HOW)] = "a",
    operation_factor: Annotated[str | None, option("X", group=_HOW)] = None,
    contention: Annotated[str | None, option("SECONDS", group=_HOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
    csv: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Predict a whole training run on a many-core CPU, by number of threads.

    Each thread trains on images of its own. After Viebke et al. 2019: model a counts operations,
    model b uses measured times. mnist-small, mnist-medium and mnist-large have published
    parameters on the Xeon Phi; any other network has model a, and model b once it is measured.

    Parameters
    ----------
    network
        A built-in name such as mnist-small (see `traincast models`), or any model reference.
    epochs
        Passes over the images; by default as published: 70, or 15 for mnist-large.
    images
        Training images of an epoch; by default 60000.
    validation_images
        Images that each epoch is validated on; by default the training images, as published.
    test_images
        Images that each epoch is tested on; by default 10000.
    threads
        Thread counts, separated by commas.
    device
        A CPU from `traincast devices`; by default the Xeon Phi 7120P of the publication.
    parameters
        What `traincast calibrate --many-core` measured, instead of a device.
    cores
        Cores that do the work, instead of the catalog's.
    threads_per_core
        Threads that a core runs at once; by default 1, and 4 on the Xeon Phi.
    issue_rate
        How many threads' work a core does at once: t threads on it take max(1, t / rate).
    clock
        Clock, such as 2.4GHz, instead of the catalog's.
    model
        a: operation counts and a clock. b: measured times.
    operation_factor
        Instructions for each operation of model a, instead of the fitted ones.
    contention
        Seconds that an image takes longer for each thread, instead of the table.
    json
        Print JSON with SI units in the key names instead of a table.
    csv
        Print comma-separated values, seconds.
    """
    from traincast.estimate.viebke import forecast

    if json and csv:
        raise InvalidValueError("give either --json or --csv, not both")
    counts = thread_list(threads)
    factor = above_zero("--operation-factor", operation_factor)
    waits = above_zero("--contention", contention)
    run = _run(network, epochs, images, validation_images, test_images)
    machine: Machine | None = None
    measured = None
    if parameters is not None:
        if device or cores or threads_per_core or issue_rate or clock:
            raise InvalidValueError(
                "--parameters are of one machine; leave out --device and what describes a machine"
            )
        from traincast.estimate.viebke import read_parameters

        measured = read_parameters(parameters)
    else:
        machine = _machine(device, cores, threads_per_core, issue_rate, clock)
    from traincast.estimate.viebke import PUBLISHED
    from traincast.ingest.references import zoo_name

    known = zoo_name(network) in PUBLISHED.networks
    graph = None if known else load_model(network)
    found = forecast(
        network,
        model=model,
        threads=counts,
        run=run,
        device=device,
        machine=machine,
        parameters=measured,
        graph=graph,
        operation_factor=factor,
        contention=waits,
    )
    from traincast.report.output import show

    show(found.to_dict() if json else as_csv(found) if csv else _table(found))


def thread_list(text: str) -> list[int]:
    """Read thread counts separated by commas."""
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit() and 0 < int(part[:12]) <= 10**9):
            raise InvalidValueError(
                f"--threads {text!r}: {part!r} is not a whole number of at least 1; write 1,15,60"
            )
    return [int(part) for part in parts]


def _run(
    network: str,
    epochs: str | None,
    images: str | None,
    validation_images: str | None,
    test_images: str | None,
) -> Run:
    from dataclasses import replace

    from traincast.estimate.viebke import default_run

    given: dict[str, Any] = {
        "epochs": above_zero("--epochs", epochs),
        "images": count("--images", images),
        "validation_images": _or_none("--validation-images", validation_images),
        "test_images": _or_none("--test-images", test_images),
    }
    return replace(default_run(network), **{k: v for k, v in given.items() if v is not None})


def _or_none(name: str, text: str | None) -> int | None:
    return 0 if text is not None and text.strip() == "0" else count(name, text)


def _machine(
    device: str | None,
    cores: str | None,
    threads_per_core: str | None,
    issue_rate: str | None,
    clock: str | None,
) -> Machine | None:
    from traincast.estimate.viebke import PUBLISHED, machine_of
    from traincast.units import parse_quantity

    return machine_of(
        device or PUBLISHED.machine.name,
        cores=count("--cores", cores),
        threads_per_core=count("--threads-per-core", threads_per_core),
        issue_rate=above_zero("--issue-rate", issue_rate),
        clock_hz=parse_quantity(clock, "Hz") if clock else None,
    )


def as_csv(found: Forecast) -> str:
    """Return one line a thread count, seconds in the columns whose names say so."""
    import csv
    import io

    whole = found.to_dict()
    shared = {key: whole[key] for key in ("network", "model", "images", "test_images", "epochs")}
    shared["machine"] = found.machine.name
    rows = []
    for row in whole["rows"]:
        low, high = row.pop("interval_s") or ("", "")
        rows.append(shared | row | {"low_s": low, "high_s": high})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().rstrip("\n")


def _table(found: Forecast) -> RenderableType:
    from rich.console import Group as Lines
    from rich.table import Table
    from rich.text import Text

    from traincast.report.fitted import Fitted, add_row, plain_table

    parts = ("sequential", "training", "validation", "test", "memory")
    heads = ("threads", "minutes", "90 % of runs", "speed-up", "CPI", *parts)

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=())
        for row in found.rows:
            between = found.interval(row)
            cells = (
                f"{row.threads}{'*' if row.beyond else ''}",
                _minutes(row.seconds.total),
                f"{_minutes(between[0])} to {_minutes(between[1])}" if between else "not known",
                f"{row.speedup:.1f}×",
                f"{row.cpi:g}",
                *(_minutes(getattr(row.seconds, part)) for part in parts),
            )
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    run = found.run
    head = (
        f"{found.network} · {found.machine.name} · model {found.model} · {run.images:,} images, "
        f"{run.test_images:,} for testing, {run.epochs:g} epoch{'s' * (run.epochs != 1)}"
    )
    notes = [f"Minutes of the whole run. Rests on {found.basis}."]
    notes += [f"{'* ' if 'beyond' in n[:7] else ''}{n[0].upper()}{n[1:]}." for n in found.notes]
    drop = ("test", "validation", "CPI", "sequential", "90 % of runs", "memory", "training")
    body = Fitted(build, drop)
    return Lines(Text(head), Text(""), body, Text(""), Text("\n".join(notes), style="dim"))


def _minutes(seconds: float) -> str:
    value = seconds / 60
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"
