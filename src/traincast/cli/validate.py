"""traincast validate."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import flag, option, rows
from traincast.errors import InvalidValueError, TraincastError

_WHAT = Group("What to compare", sort_key=1)
_HOW = Group("How", sort_key=2)
_SHOW = Group("Output", sort_key=3)

Rows = list[dict[str, str]]


def validate(
    *runs: Annotated[str, Parameter(group=_WHAT)],
    store: Annotated[bool, flag(group=_WHAT)] = False,
    measure: Annotated[bool, flag(group=_WHAT)] = False,
    model: Annotated[str | None, option("MODEL", group=_WHAT)] = None,
    device: Annotated[str | None, option("DEVICE", group=_HOW)] = None,
    estimator: Annotated[str, option("NAME", group=_HOW)] = "auto",
    profile: Annotated[Path | None, option("FILE", group=_HOW)] = None,
    by: Annotated[
        Literal["model", "precision", "layout", "batch", "mode", "device", "bound"] | None,
        Parameter(group=_SHOW),
    ] = None,
    plot: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    worst: Annotated[str, option("N", group=_SHOW)] = "10",
    all_rows: Annotated[bool, flag(name="--all", group=_SHOW)] = False,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Compare predictions with measured runs, row by row.

    Parameters
    ----------
    runs
        A CSV with one run a row: model, batch, step_ms and, as needed, seq, precision, optimizer
        (sgd means momentum 0.9), layout, image, mode, device, devices, cluster, network, scheme,
        series, fwd_ms, bwd_ms, opt_ms, infer_ms, peak_gib. Files named in it are relative to it.
        With --measure also names of models.
    store
        Compare the runs that `traincast measure` kept.
    measure
        Measure every row, or the models named, here and now.
    model
        Only runs of this model.
    device
        The device of rows that name none; with --measure, what this machine's is.
    estimator
        How kernels are priced: auto, calibrated, transfer, roofline, or the published models paleo
        and castello.
    profile
        A profile's file, for what `traincast calibrate` measured.
    by
        Also give the errors of the step by group.
    plot
        Draw predicted against measured steps: FILE.svg, .html or .png.
    worst
        How many of the largest errors to list: a number, or `all`.
    all_rows
        List every row, in the order of the table.
    json
        Print JSON: rows and summary.
    """
    from rich.console import Console
    from rich.progress import track

    from traincast.report.charts import check_plot
    from traincast.report.files import check_writable
    from traincast.report.output import show
    from traincast.report.validate import validation_dict, validation_table
    from traincast.simulate.validate import validate as run
    from traincast.simulate.validate import with_efficiency

    many = rows("--worst", worst)
    check_plot(plot)
    if plot is not None:
        check_writable(plot)
    table, root = _table(runs, store, measure, model)
    # What is wrong with the options is said before anything is measured.
    options: dict[str, Any] = {
        "device": device,
        "estimator": estimator,
        "profile": profile,
        "root": root,
    }
    run((), **options)
    if measure:
        table = _measured(table, root, device)
    console = Console(stderr=True)
    with contextlib.redirect_stdout(sys.stderr):  # where what a model prints spoils nothing
        found = with_efficiency(
            track(
                run(table, **options),
                "validating",
                total=len(table),
                console=console,
                transient=True,
                disable=not console.is_terminal,
            )
        )
    if json:
        show(validation_dict(found, by))
    else:
        show(validation_table(found, None if all_rows else many, by))
    if plot is not None:
        from traincast.report.charts import write_chart
        from traincast.report.scatter import scatter_chart, scatter_rows

        title = "Predicted against measured steps"
        write_chart(plot, scatter_chart(found, by or "precision"), title=title,
                    rows=scatter_rows(found))  # fmt: skip
        if not json:
            show(f"\nWrote {plot}.")


def _table(
    runs: Sequence[str], store: bool, measure: bool, model: str | None
) -> tuple[Rows, Path | None]:
    """Return the rows to compare, or to measure first, and where their files start."""
    from traincast.simulate.validate import read_runs

    root: Path | None = None
    if store:
        if runs or measure:
            raise InvalidValueError("--store compares what is in the store; give it alone")
        found = _stored()
    elif len(runs) == 1 and not (measure and not _is_table(runs[0])):
        root = Path(runs[0]).parent
        found = read_runs(Path(runs[0]), measured=not measure)
    elif measure and runs and not any(map(_is_table, runs)):
        found = [{"model": name} for name in runs]
    elif not runs:
        raise InvalidValueError(
            "name a table of runs (a CSV), or give --store, or --measure and models"
        )
    else:
        fix = "give one CSV, or with --measure models alone"
        raise InvalidValueError(f"{' '.join(runs)} are not one table; {fix}")
    if model is not None:
        found = [row for row in found if row.get("model") == model]
        if not found:
            raise InvalidValueError(f"no run is of the model {model!r}; leave out --model")
    return found, root


def _is_table(name: str) -> bool:
    return name.lower().endswith(".csv")


def _stored() -> Rows:
    from traincast.measure.store import open_store
    from traincast.measure.store import runs as stored
    from traincast.measure.table import table_row

    with open_store() as store:
        found = [table_row(run) for run in stored(store)]
        if not found:
            raise InvalidValueError(
                f"{store.path} has no runs; make some with `traincast measure MODEL`"
            )
    return found


def _measured(table: Rows, root: Path | None, device: str | None) -> Rows:
    """Measure every row; what cannot be measured says so in its column `error`."""
    from traincast.cli.measure import check_store, progress

    check_store()
    with progress() as say:
        return list(_each(table, root, device, say))


def _each(
    table: Rows, root: Path | None, device: str | None, say: Callable[[str], None]
) -> Iterator[dict[str, str]]:
    from traincast.cli.measure import keep, known_as, run
    from traincast.measure.table import run_columns, table_row, workload_of

    for place, row in enumerate(table, 1):
        head = f"{place}/{len(table)} {row.get('model', '')}"
        try:
            wanted = workload_of(row, unit=None, root=root)
            found = run(wanted, None, "step", partial(_tell, say, head))
        except TraincastError as error:
            yield _plain(row) | {"error": str(error)}
            continue
        columns = run_columns(found, known_as(found, device) or found.device)
        keep(columns)
        yield _plain(row) | table_row(columns) | {"model": row["model"]}


def _tell(say: Callable[[str], None], head: str, text: str) -> None:
    say(f"{head}: {text}")


def _plain(row: Mapping[str, str]) -> dict[str, str]:
    """Return a row without what had been measured before."""
    from traincast.simulate.validate import COLUMNS

    return {name: value for name, value in row.items() if name not in COLUMNS}
