"""traincast sweep."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import count, flag, option
from traincast.errors import InvalidValueError, PredictionError

if TYPE_CHECKING:
    from traincast.measure.sweep.log import Record
    from traincast.measure.sweep.plan import Plan, Run, Sweep
    from traincast.report.sweep import Standing

_WHAT = Group("What to run", sort_key=1)
_SHOW = Group("Output", sort_key=2)


def sweep(
    file: Annotated[Path, Parameter(group=_WHAT)],
    /,
    *,
    framework: Annotated[
        list[Literal["pytorch", "tensorflow", "mxnet"]] | None,
        Parameter(group=_WHAT, negative=""),
    ] = None,
    limit: Annotated[str | None, option("N", group=_WHAT)] = None,
    again: Annotated[bool, flag(group=_WHAT)] = False,
    dry_run: Annotated[bool, flag(group=_WHAT)] = False,
    output: Annotated[Path | None, option("FOLDER", group=_SHOW, alias="-o")] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Time real training of a small network over many settings, in up to three frameworks.

    A TOML file says what varies: a grid of factors, or a Latin hypercube. Each run trains in
    processes of its own, within a time limit. Results are kept one by one: the same command goes
    on where an earlier one was broken off. The table of each framework, FRAMEWORK.csv, is what
    `traincast fit` reads; FRAMEWORK.jsonl has all that is known of every run.

    Parameters
    ----------
    file
        The sweep: a TOML file with the tables sweep, factors and fixed.
    framework
        Only this one; may be given several times. By default those that the file names.
    limit
        Do at most so many runs now.
    again
        Try failed runs again.
    dry_run
        Show what would be run, and run nothing.
    output
        The folder of the results; by default as the file says.
    json
        Print JSON instead of tables.
    """
    from traincast.measure.sweep.plan import plan_of, read_sweep
    from traincast.measure.sweep.runner import pending
    from traincast.report.output import show

    most = count("--limit", limit)
    asked = read_sweep(file)
    if framework:
        asked = replace(asked, frameworks=tuple(dict.fromkeys(framework)))
    if output is not None:
        asked = replace(asked, output=output)
    plan = plan_of(asked)
    if not plan.runs:
        reasons = ", ".join(plan.left_out)
        raise InvalidValueError(f"{file}: no combination of the factors can be run: {reasons}")
    todo = pending(asked, plan.runs, again=again).runs[:most]
    if not dry_run:
        made = _run(asked, todo)
    from traincast.report.sweep import design_table, sweep_dict, sweep_table

    standings = _standings(asked, plan)
    if json:
        show(sweep_dict(plan, standings))
    else:
        if dry_run:
            show(design_table(asked, plan))
            show("")
        show(sweep_table(plan, standings))
    if dry_run:
        return
    written = [s.path for s in standings if s.records]
    if written and not json:
        show(f"\nWrote {', '.join(written)}.")
    if made and all(record["status"] != "ok" for record in made):
        raise PredictionError(f"all {len(made)} runs failed, first: {made[0]['message']}")


def _standings(sweep: Sweep, plan: Plan) -> list[Standing]:
    from traincast.measure.sweep.runner import log_of
    from traincast.report.sweep import Standing

    return [
        Standing(
            framework=framework,
            runs=[run for run in plan.runs if run.framework == framework],
            records=log_of(sweep, framework).read(),
            path=str(_table_path(sweep, framework)),
        )
        for framework in sweep.frameworks
    ]


def _table_path(sweep: Sweep, framework: str) -> Path:
    return sweep.output / f"{framework}.csv"


def _run(sweep: Sweep, todo: Sequence[Run]) -> list[Record]:
    """Do the runs, keep the tables up to date, and return what came out."""
    from traincast.measure.sweep.plan import columns
    from traincast.measure.sweep.runner import log_of, run_all
    from traincast.report.files import write_text
    from traincast.report.sweep import table_text

    def write(framework: str) -> None:
        records = log_of(sweep, framework).read()
        if records:
            text = table_text(records, columns(sweep))
            write_text(_table_path(sweep, framework), text)

    made: list[Record] = []
    for framework in sweep.frameworks:
        write(framework)
    with _bar(len(todo)) as told:

        def done(run: Run, record: Record) -> None:
            made.append(record)
            write(run.framework)
            told(run, record)

        run_all(sweep, todo, done)
    return made


@contextlib.contextmanager
def _bar(runs: int) -> Iterator[Callable[[Run, Record], None]]:
    """Show on a terminal how many runs are done and the time left; elsewhere a line for each."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as TimeLeft

    console = Console(stderr=True)
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TimeLeft(),
               TextColumn("{task.description}"))  # fmt: skip
    done = 0
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal,
        speed_estimate_period=600,
    ) as bar:  # fmt: skip
        task = bar.add_task("…", total=runs)

        def told(run: Run, record: Record) -> None:
            nonlocal done
            done += 1
            good = record["status"] == "ok"
            said = f"{record['epoch_s']:.3g} s an epoch" if good else record["message"]
            line = f"{run.framework}: {said}"
            bar.update(task, advance=1, description=line)
            if not console.is_terminal:
                print(f"{done} of {runs}: {line}", file=sys.stderr, flush=True)

        try:
            yield told
        except KeyboardInterrupt:
            print(
                f"traincast: {done} new runs are kept; the same command goes on from there",
                file=sys.stderr,
            )
            raise
