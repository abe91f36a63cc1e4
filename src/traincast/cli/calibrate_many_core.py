"""traincast calibrate --many-core: measure the CPU for the many-core models."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.cli.manycore import thread_list
from traincast.cli.options import count
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from traincast.estimate.viebke import Parameters

NETWORKS = ("mnist-small", "mnist-medium", "mnist-large")


def calibrate_many_core(
    networks: tuple[str, ...], threads: str | None, batch: str, quick: bool, again: bool,
    output: Path, as_json: bool,
) -> None:  # fmt: skip
    """Measure the CPU for the many-core models."""
    size = count("--batch", batch) or 1
    counts = thread_list(threads) if threads is not None else None
    from traincast.report.files import check_writable, write_text

    check_writable(output)
    from traincast.estimate.viebke import parameters_to_dict
    from traincast.measure.many_core import QUICK, THOROUGH, measure_networks, need_torch
    from traincast.report.output import show

    need_torch()
    known = None if again else _known(output)
    wanted = _wanted(networks or NETWORKS, known, size)
    found = known
    if wanted:
        with _progress() as say:
            found = measure_networks(
                wanted,
                threads=counts,
                batch=size,
                effort=QUICK if quick else THOROUGH,
                known=known,
                done=lambda p: write_text(output, _text(p)),
                say=say,
            )
    assert found is not None
    show(parameters_to_dict(found) if as_json else _table(found))
    if not as_json:
        kept = "" if wanted else " already had them all; --again measures anew."
        show(f"\n{output}{kept}" if kept else f"\nWrote {output}: use it as --parameters {output}")


def _text(found: Parameters) -> str:
    import json

    from traincast.estimate.viebke import parameters_to_dict

    return json.dumps(parameters_to_dict(found), indent=1) + "\n"


def _known(path: Path) -> Parameters | None:
    """Return what a file already has, if it was measured on this machine and with this PyTorch."""
    if not path.exists():
        return None
    from traincast.estimate.viebke import read_parameters
    from traincast.measure.cpu import this_cpu
    from traincast.measure.many_core import software

    found, cpu = read_parameters(path), this_cpu()
    here = (cpu.name, len(cpu.cores), software()["torch"])
    there = (found.machine.name, found.machine.cores, found.software.get("torch"))
    if here != there:
        raise InvalidValueError(
            f"{path} was measured on {there[0]} with {there[1]} cores and PyTorch {there[2]}, not "
            f"on {here[0]} with {here[1]} and {here[2]}; choose another --output, or --again"
        )
    return found


def _wanted(networks: Sequence[str], known: Parameters | None, batch: int) -> list[str]:
    from traincast.ingest.references import zoo_name

    names = dict.fromkeys(zoo_name(name) or name for name in networks)
    have = {n for n, m in known.networks.items() if m.batch == batch} if known else set()
    return [name for name in names if name not in have]


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Give a function that says on a terminal what goes on."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with contextlib.redirect_stdout(sys.stderr), console.status("") as status:
        yield lambda text: status.update(Text(f"measuring {text} …"))


def _table(found: Parameters) -> RenderableType:
    from rich.console import Group as Lines
    from rich.text import Text

    from traincast.report.fitted import Fitted, add_row, plain_table
    from traincast.units import format_seconds

    counts = sorted({p for m in found.networks.values() for p, _ in m.contention.rows if p > 1})
    heads = ("network", "prepare", "forward", "backward", *(f"+ at {p}" for p in counts), "spread")

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("network",))
        for name, m in found.networks.items():
            cells = (
                name,
                *map(format_seconds, (m.times.prepare, m.times.forward, m.times.backward)),
                *(format_seconds(m.contention.at(p)) for p in counts),
                f"±{m.spread:.1%}",
            )
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    machine = found.machine
    cores = "1 core" if machine.cores == 1 else f"{machine.cores} cores"
    cpi = ", ".join(f"{c:.3g}" for c in machine.cpi)
    head = f"{machine.name} · {cores} · CPI {cpi} by threads on a core"
    said = "Seconds of one image on one thread; + at p: what it takes longer with p threads."
    return Lines(Text(head), Text(""), Fitted(build, ("spread", "prepare")), Text(f"\n{said}"))
