"""traincast calibrate."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, flag, option
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from traincast.measure.adjust import Adjustment
    from traincast.measure.bench.results import Results
    from traincast.measure.bench.session import Told

_WHAT = Group("What to measure", sort_key=1)
_FROM = Group("Instead of measuring", sort_key=2)
_HOW = Group("How", sort_key=3)
_SHOW = Group("Output", sort_key=4)
_MANY_CORE = Path("many-core.json")


def calibrate(
    *networks: Annotated[str, Parameter(group=_WHAT)],
    device: Annotated[Literal["cuda", "cpu"] | None, Parameter(group=_WHAT)] = None,
    many_core: Annotated[bool, flag(group=_WHAT)] = False,
    results: Annotated[
        list[Path] | None, option("FILE", group=_FROM, name="--from", negative="")
    ] = None,
    runs: Annotated[Path | None, option("FILE.csv", group=_FROM, name="--from-runs")] = None,
    profile: Annotated[Path | None, option("FILE", group=_FROM)] = None,
    emit_script: Annotated[bool, flag(group=_FROM)] = False,
    minutes: Annotated[str | None, option("N", group=_HOW)] = None,
    quick: Annotated[bool, flag(group=_HOW)] = False,
    again: Annotated[bool, flag(group=_HOW)] = False,
    threads: Annotated[str | None, option("N,N,…", group=_HOW)] = None,
    batch: Annotated[str, option("N", group=_HOW)] = "1",
    name: Annotated[str | None, option("NAME", group=_SHOW)] = None,
    output: Annotated[Path | None, option("FILE", group=_SHOW, alias="-o")] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Measure this machine's device, and keep what was found as its profile.

    Times thousands of single kernels and the host's cost of launching them, with PyTorch.
    Predictions for the device use its profile from then on. Rows are kept one by one: a run that
    was broken off goes on where it was, and another run adds to the same rows.

    A node where traincast cannot be installed: `--emit-script` prints one file that needs PyTorch
    alone, and `--from` turns the results that it writes into a profile.

    With --many-core: the times of one image on this machine's CPU, and how threads get in each
    other's way, for `traincast manycore --parameters FILE`.

    Parameters
    ----------
    networks
        With --many-core: networks to measure; by default mnist-small, mnist-medium, mnist-large.
    device
        cuda (also ROCm) or cpu; by default cuda where there is one.
    many_core
        Measure the CPU for the many-core models instead.
    results
        Make the profile from results of the script, plain or .gz; may be given several times.
    runs
        Adjust a profile to measured training steps, a table as `traincast validate` reads.
    profile
        The profile to adjust; by default that of the device.
    emit_script
        Print the measuring script.
    minutes
        How long to measure; by default 10, with --quick 2.
    quick
        The most valuable cases alone: minutes instead of ten, and less exact.
    again
        Measure everything anew, whatever is there.
    threads
        With --many-core: thread counts, separated by commas; by default powers of two.
    batch
        With --many-core: images that a thread takes at a time.
    name
        The device's name in the catalog, where it is not recognised.
    output
        The file to write; by default NAME.json among this user's profiles, where predictions
        look, or many-core.json.
    json
        Print JSON instead of a table.
    """
    if many_core:
        _refuse("--many-core", {"--device": device, "--from": results, "--from-runs": runs,
                                "--profile": profile, "--emit-script": emit_script,
                                "--minutes": minutes, "--name": name})  # fmt: skip
        from traincast.cli.calibrate_many_core import calibrate_many_core

        calibrate_many_core(networks, threads, batch, quick, again, output or _MANY_CORE, json)
        return
    _refuse("calibrate without --many-core", {"networks": networks, "--threads": threads})
    if emit_script:
        from traincast.measure.bench.emit import emit

        print(emit(), end="")
        return
    if runs is not None:
        _refuse("--from-runs", {"--from": results, "--device": device, "--minutes": minutes})
        _adjust(runs, profile, name, output, json)
        return
    _refuse("calibrate without --from-runs", {"--profile": profile})
    if name is not None:
        from traincast.hardware import load_device

        name = load_device(name).name
    if output is not None:
        from traincast.report.files import check_writable

        check_writable(output)
    if results:
        _refuse("--from", {"--device": device, "--minutes": minutes, "--quick": quick,
                           "--again": again})  # fmt: skip
        from traincast.measure.bench.results import read_results

        _write_profile(read_results(results), name, output, json)
        return
    long = above_zero("--minutes", minutes) or (2.0 if quick else 10.0)
    from traincast.measure.bench.session import measure_here

    with _bar(long) as told:
        found = measure_here(device=device, minutes=long, again=again, told=told)
    _write_profile(found.results, name, output, json, new=found.new, problem=found.problem)


def _refuse(what: str, given: dict[str, object]) -> None:
    """Refuse options that mean nothing beside another."""
    named = [name for name, value in given.items() if value]
    if named:
        raise InvalidValueError(f"{named[0]} means nothing for {what}; leave it out")


def _write_profile(
    results: Results, name: str | None, output: Path | None, as_json: bool, *,
    new: int | None = None, problem: str = "",
) -> None:  # fmt: skip
    """Fit the profile of results, write it, and say so."""
    from traincast.estimate.calibrated.profile import profile_to_json
    from traincast.hardware.files import profiles_folder
    from traincast.measure.bench.naming import device_file, device_name, own_name
    from traincast.measure.calibration import profile_from_results
    from traincast.report.files import write_text
    from traincast.report.output import show

    known = name or device_name(results.header)
    path = output or profiles_folder() / f"{known or own_name(results.header)}.json"
    described = path.with_suffix(".toml")
    reference = known or str(described)
    with tempfile.TemporaryDirectory() as folder:
        device = known or str(Path(folder) / described.name)
        if known is None:
            write_text(Path(device), device_file(results))
        found = profile_from_results(results.header, results.rows, device=device)
    if output is None:
        path.parent.mkdir(parents=True, exist_ok=True)
    if known is None:
        write_text(described, device_file(results))
    write_text(path, profile_to_json(found))
    if as_json:
        show({
            "profile": str(path),
            "device": found.device,
            "device_file": None if known else reference,
            "rows": len(results.rows),
            "new_rows": new,
            "errors": results.errors,
            "families": results.families,
            "problem": problem or None,
            "header": dict(results.header),
        })  # fmt: skip
    else:
        show(_families(results))
        used = f"; predictions with --device {found.device} use it" if output is None else ""
        show(f"\nWrote {path}{used}.")
    if problem:
        print(f"traincast: it ended early: {problem}", file=sys.stderr)


def _families(results: Results) -> RenderableType:
    from rich.console import Group as Lines
    from rich.text import Text

    from traincast.report.fitted import Fitted, add_row, plain_table

    heads = ("family", "rows", "errors", "spread")

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("family",))
        for family in dict.fromkeys(str(row["family"]) for row in results.rows):
            own = [row for row in results.rows if row["family"] == family]
            spreads = sorted(row["spread"] for row in own if "spread" in row)
            middle = f"±{spreads[len(spreads) // 2] / 2:.1%}" if spreads else "–"
            cells = (family, len(own), sum("error" in row for row in own), middle)
            add_row(table, list(zip(heads, map(str, cells), strict=True)))
        return table

    h = results.header
    head = f"{h['device']} · PyTorch {h.get('torch')} · {len(results.rows)} rows"
    return Lines(Text(head), Text(""), Fitted(build, ("spread",)))


def _adjust(
    runs: Path, profile: Path | None, name: str | None, output: Path | None, as_json: bool
) -> None:
    """Adjust a profile to measured training steps."""
    from traincast.estimate.calibrated.library import profile_for
    from traincast.estimate.calibrated.profile import Profile, profile_to_json, read_profile
    from traincast.hardware import load_device
    from traincast.hardware.files import profiles_folder
    from traincast.report.files import check_writable, write_text
    from traincast.report.output import show

    if profile is not None:
        start = read_profile(profile)
    elif name is not None:
        unit = load_device(name)
        # A device that nobody measured starts from a similar one's kernels, carried over.
        start = profile_for(unit) or Profile(device=unit.name, models={}, host=None)
    else:
        raise InvalidValueError(
            "--from-runs needs the profile to adjust: give --profile FILE, or --name DEVICE"
        )
    path = output or profile or profiles_folder() / f"{start.device}.json"
    check_writable(path)
    from traincast.measure.adjust import adjust_to_runs

    with _counting("predicting runs") as progress:
        found = adjust_to_runs(start, runs, device=name, progress=progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, profile_to_json(found.profile))
    if as_json:
        show({"profile": str(path), **found.to_dict()})
        return
    show(_adjusted_table(found))
    show(f"\n{found.verdict}\nWrote {path}")


def _adjusted_table(found: Adjustment) -> RenderableType:
    from rich.console import Group as Lines
    from rich.text import Text

    from traincast.report.fitted import add_row, plain_table

    heads = ("group", "factor", "95 % between")
    table = plain_table(heads, frozenset(), left=("group",))
    for group, (factor, error) in sorted(found.factors.items()):
        wide = math.exp(1.96 * error)
        cells = (group, f"{factor:.3f}", f"{factor / wide:.3f} and {factor * wide:.3f}")
        add_row(table, list(zip(heads, cells, strict=True)))
    lines = [
        f"{kind}: MAPE {e.mape:.1%}, p90 {e.p90:.1%}, bias {e.bias:+.1%}, rank {e.rank:.3f}"
        for kind, e in (("As it was", found.before), ("Networks left out", found.after))
    ]
    refused = [f"Not adjusted: {group}, {why}" for group, why in sorted(found.refused.items())]
    head = f"{found.profile.device}: {found.rows} runs of {found.networks} networks"
    return Lines(Text(head), *map(Text, lines), Text(""), table, *map(Text, refused))


@contextlib.contextmanager
def _counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many of how many are done."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextlib.contextmanager
def _bar(minutes: float) -> Iterator[Told]:
    """Show on a terminal how much time is left, how many rows there are, and what runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    begun = time.monotonic()
    columns = (TextColumn("measuring {task.description}"), BarColumn(), TimeRemainingColumn(),
               TextColumn("{task.fields[rows]} rows"))  # fmt: skip
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("…", total=60 * minutes, rows=0)
        counted = 0

        def told(rows: int, family: str) -> None:
            nonlocal counted
            counted = rows
            bar.update(task, completed=time.monotonic() - begun, description=family, rows=rows)

        try:
            yield told
        except KeyboardInterrupt:
            print(f"traincast: {counted} new rows are kept; the same command goes on from there",
                  file=sys.stderr)  # fmt: skip
            raise
