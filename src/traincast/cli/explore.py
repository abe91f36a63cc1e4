"""traincast explore."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from traincast.cli.options import count, flag, load_model, option
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from traincast.search.explore import Axis, Base, Exploration, Floats

_WORK = Group("What to train", sort_key=1)
_BASE = Group("The base point", sort_key=2)
_SWEEP = Group("What varies", sort_key=3)
_COUNT = Group("How it is counted", sort_key=4)
_SHOW = Group("Output", sort_key=5)
_Several = Annotated[list[str] | None, option("NAME=VALUE", name="--set", negative="", group=_BASE)]


def explore(
    model: Annotated[str, Parameter(group=_WORK)],
    /,
    *,
    device: Annotated[str, option("NAME", group=_BASE, alias="-d")] = "h200",
    network: Annotated[str | None, option("LINK", group=_BASE)] = None,
    batch: Annotated[str | None, option("N", group=_BASE, alias="-b")] = None,
    nodes: Annotated[str, option("N", group=_BASE)] = "16",
    seq: Annotated[str | None, option("N", group=_WORK)] = None,
    image: Annotated[str | None, option("PIXELS", group=_WORK)] = None,
    precision: Annotated[str | None, option("NAME", group=_BASE, alias="-p")] = None,
    fix: _Several = None,
    axes: Annotated[str | None, option("NAME,…", group=_SWEEP)] = None,
    axis: Annotated[list[str] | None, option("NAME=RANGE", negative="", group=_SWEEP)] = None,
    apart: Annotated[bool, flag(group=_SWEEP)] = False,
    overlap: Annotated[bool, flag(group=_COUNT)] = False,
    collectives: Annotated[str | None, option("FAMILY", group=_COUNT)] = None,
    charge_others: Annotated[bool, flag(group=_COUNT)] = False,
    compat: Annotated[bool, flag(group=_COUNT)] = False,
    csv: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    plot: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:  # fmt: skip
    """Compare data and model parallelism as batch, node, link and cluster vary.

    Finds where the two cross. The axes are batch (samples in all), flops, memory-bandwidth,
    link-bandwidth and nodes; each is varied around a base point. One axis gives a line, two a map,
    more are varied one at a time.

    Parameters
    ----------
    model
        A model reference as for `traincast predict`, or castello:alexnet or castello:vgg16, the
        networks of the model's authors.
    device
        What each node is: a name from `traincast devices`, or your own FILE.toml.
    network
        Link that each node has: a name from `traincast devices`; by default the device's usual.
    batch
        Samples in all; by default the model's usual number for each node.
    nodes
        Number of nodes.
    seq
        Positions in a sequence; by default the model's.
    image
        Side of square input images, in pixels; by default the model's.
    precision
        fp32, tf32, bf16, fp16, amp_bf16, amp_fp16 or fp8; by default mixed where possible.
    fix
        Another value for the base point: flops=4TFLOP/s, memory-bandwidth=50GB/s,
        link-bandwidth=10Gbit/s or latency=0.5us. May be given several times.
    axes
        Axes to vary over their default ranges; by default all five.
    axis
        An axis and its values: batch=16:1024 (doubling), batch=16:1024:log10 (10 values),
        nodes=2,4,8, flops=0.25x:4x (multiples of the base). May be given several times.
    apart
        Vary two axes one at a time instead of together.
    overlap
        Data parallelism overlaps its all-reduces with the backward pass.
    collectives
        Algorithms: long, short or best; or bta, vdg, the labels of the published code.
    charge_others
        Charge ops that the authors take as free for the bytes they move.
    compat
        Count as the published code does, with its slips.
    csv
        Write every point to a table.
    plot
        Draw it: a FILE ending in .svg, .html or .png.
    json
        Print JSON with SI units in the key names instead of tables.
    """
    size, positions = count("--batch", batch), count("--seq", seq)
    side, many = count("--image", image), count("--nodes", nodes)
    _check_files(csv, plot)
    from traincast.estimate.castello import Rules, published_rules
    from traincast.search.explore import AUTHORS, prepare
    from traincast.search.explore import explore as run

    _check_names(device, network, precision, axes, axis)
    source = model if model.startswith(AUTHORS) else load_model(model, image=side, seq=positions)
    found = prepare(
        source, device, network, batch=size, nodes=many or 1, seq=positions, precision=precision,
        overlap=overlap,
    )  # fmt: skip
    unfold = found.study.rules.unfold
    rules = published_rules(unfold=unfold) if compat else Rules(unfold=unfold)
    rules = replace(
        rules, collectives=collectives or rules.collectives, charge_others=charge_others
    )
    base = _fixed(found.study.base, fix or [])
    found = replace(found, study=replace(found.study, base=base, rules=rules))
    chosen = _axes(axes, axis or [], base)
    found = run(found, chosen, together=len(chosen) == 2 and not apart)
    _show(found, csv, plot, json)


def _check_files(csv: Path | None, plot: Path | None) -> None:
    """Refuse files that cannot be written, before the work whose result goes there."""
    from traincast.report.charts import check_plot
    from traincast.report.files import check_writable

    for path in (csv, plot):
        if path is not None:
            check_writable(path)
    check_plot(plot)


def _check_names(
    device: str,
    network: str | None,
    precision: str | None,
    axes: str | None,
    axis: list[str] | None,
) -> None:
    """Refuse an unknown name before a model is traced, which may take seconds."""
    from traincast.graph.precision import precision_named
    from traincast.hardware import load_device, load_link
    from traincast.search.explore import axis_named

    load_device(device)
    if network is not None:
        load_link(network)
    if precision is not None:
        precision_named(precision)
    for name in [*(axes or "batch").split(","), *(a.partition("=")[0] for a in axis or [])]:
        axis_named(name)


def _fixed(base: Base, given: list[str]) -> Base:
    """Return the base point with some of its values replaced."""
    from traincast.search.explore import axis_named
    from traincast.search.ranges import parse_value
    from traincast.units import parse_quantity

    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise InvalidValueError(f"--set {text!r} has no value; write --set flops=4TFLOP/s")
        if name.strip().lower() == "latency":
            seconds = parse_quantity(value, "s")
            if seconds < 0:
                raise InvalidValueError(f"--set {text}: a latency is zero or more")
            base = replace(base, latency_s=seconds)
            continue
        axis = axis_named(name)
        if axis.whole:
            raise InvalidValueError(f"--set {text}: give --{axis.name} {value} instead")
        base = base.with_value(axis, parse_value(axis, value, base))
    return base


def _axes(axes: str | None, given: list[str], base: Base) -> list[tuple[Axis, Floats]]:
    """Return the axes to vary with their values: those of --axes, else of --axis, else all."""
    from traincast.search.explore import AXES, axis_named
    from traincast.search.ranges import parse_axis

    ranges = [parse_axis(text, base) for text in given]
    values = {axis.name: found for axis, found in ranges}
    if len(values) < len(ranges):
        raise InvalidValueError("--axis names the same axis twice; give each once")
    names = [axis_named(name).name for name in axes.split(",")] if axes else list(values)
    for name in values:
        if name not in names:
            raise InvalidValueError(f"--axis {name} is not among --axes {axes}; add it there")
    if len(set(names)) < len(names):
        raise InvalidValueError(f"--axes {axes} names an axis twice")
    return [
        (AXES[name], values[name] if name in values else base.default_values(AXES[name]))
        for name in names or AXES
    ]


def _show(found: Exploration, csv: Path | None, plot: Path | None, json: bool) -> None:
    from traincast.report import explore as report
    from traincast.report.files import write_text
    from traincast.report.output import show

    if csv is not None:
        write_text(csv, report.to_csv(found))
    if plot is not None:
        if plot.suffix.lower() == ".png":
            from traincast.report.png import write_png

            write_png(plot, report.to_svg(found))
        else:
            html = plot.suffix.lower() == ".html"
            write_text(plot, report.to_html(found) if html else report.to_svg(found))
    show(report.to_dict(found) if json else report.tables(found))
    for path in (csv, plot):
        if path is not None and not json:
            show(f"Wrote {path}.")
