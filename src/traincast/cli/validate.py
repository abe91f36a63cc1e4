"""traincast validate."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from traincast.cli.options import Json, flag, option, rows


def validate(
    table: Path,
    /,
    *,
    device: Annotated[str | None, option("DEVICE")] = None,
    estimator: Annotated[str, option("NAME")] = "auto",
    worst: Annotated[str, option("N")] = "10",
    all_rows: Annotated[bool, flag(name="--all")] = False,
    json: Json = False,
) -> None:
    """Compare predictions with measured runs, row by row.

    Parameters
    ----------
    table
        A CSV with one run a row: model, batch, step_ms and, as needed, seq, precision, optimizer
        (sgd means momentum 0.9), layout, image, mode, device, devices, cluster, network, scheme,
        series, fwd_ms, bwd_ms, opt_ms, infer_ms, peak_gib. Files named in it are relative to it.
    device
        The device of rows that name none.
    estimator
        How kernels are priced: roofline, or the published models paleo and castello.
    worst
        How many of the largest errors to list: a number, or `all`.
    all_rows
        List every row, in the order of the table.
    json
        Print JSON: rows and summary.
    """
    from rich.console import Console
    from rich.progress import track

    from traincast.report.output import show
    from traincast.report.validate import validation_dict, validation_table
    from traincast.simulate.validate import read_runs, with_efficiency
    from traincast.simulate.validate import validate as run

    many = rows("--worst", worst)
    runs = read_runs(table)
    console = Console(stderr=True)
    found = with_efficiency(
        track(
            run(runs, device=device, estimator=estimator, root=table.parent),
            "validating",
            total=len(runs),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
    )
    if json:
        show(validation_dict(found))
    else:
        show(validation_table(found, None if all_rows else many))
