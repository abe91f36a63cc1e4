"""traincast plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option
from traincast.errors import InvalidValueError

_WORK = Group("What to train", sort_key=1)
_WHERE = Group("Where", sort_key=2)
_HOW = Group("How", sort_key=3)
_SEARCH = Group("The search", sort_key=4)
_SHOW = Group("Output", sort_key=5)
_FIX = re.compile(r"(.+?):((?:[a-z]+=[0-9]{1,6})(?:,[a-z]+=[0-9]{1,6})*)")
_MOST_SHOWN = 50


def plan(
    model: Annotated[str, Parameter(group=_WORK)],
    /,
    *,
    cluster: Annotated[str, option("SHAPE", group=_WHERE)] = "4xh100",
    network: Annotated[str | None, option("LINK", group=_WHERE)] = None,
    batch: Annotated[str | None, option("N", group=_WORK, alias="-b")] = None,
    seq: Annotated[str | None, option("N", group=_WORK)] = None,
    image: Annotated[str | None, option("PIXELS", group=_WORK)] = None,
    precision: Annotated[str | None, option("NAME", group=_HOW, alias="-p")] = None,
    optimizer: Annotated[str, option("NAME", group=_HOW)] = "adamw",
    layout: Annotated[str, option("NAME", group=_HOW)] = "nchw",
    scheme: Annotated[str | None, option("NAME", group=_HOW)] = None,
    server_bandwidth: Annotated[str | None, option("RATE", group=_HOW)] = None,
    estimator: Annotated[str, option("NAME", group=_HOW)] = "auto",
    step_ms: Annotated[str | None, option("MS", group=_HOW)] = None,
    objective: Annotated[str, option("NAME", group=_SEARCH)] = "overlap",
    degrees: Annotated[str, option("WHICH", group=_SEARCH)] = "powers",
    fix: Annotated[list[str] | None, option("LAYER:DIM=N", group=_SEARCH, negative="")] = None,
    max_memory: Annotated[str | None, option("SIZE", group=_SEARCH)] = None,
    top: Annotated[str, option("N", group=_SEARCH)] = "1",
    output: Annotated[Path | None, option("FILE", group=_SHOW, alias="-o")] = None,
    plot: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Find the best way to split every layer of a model over a cluster.

    Parameters
    ----------
    model
        A model reference as for `traincast predict`.
    cluster
        A shape such as 4x4xp100 (nodes × devices) or 8xh100.
    network
        The link between nodes; by default the device's usual one.
    batch
        Samples for each device; the plan is for as many times the devices.
    seq
        Positions in a sequence; by default the model's.
    image
        Side of square input images, in pixels; by default the model's.
    precision
        As for `traincast predict`.
    optimizer
        As for `traincast predict`.
    layout
        Memory order of images: nchw, or nhwc (channels_last).
    scheme
        How gradients are synchronised: auto (NCCL on GPUs), ring, hierarchical, server (a parameter
        server, as published) and others of `traincast scale`.
    server_bandwidth
        What one parameter server that all share takes and gives in all, such as 2GB/s, with the
        scheme server; by default servers are spread over the devices.
    estimator
        auto, roofline, calibrated or transfer.
    step_ms
        A step that you measured on one device with the same batch: compute is stretched to it.
    objective
        overlap (gradients travel while backward goes on), or published (nothing overlaps, with a
        parameter server: Jia et al., ICML 2018).
    degrees
        powers (of two), or all.
    fix
        Hold a layer at given degrees, such as classifier.3:channel=4; may be given again.
    max_memory
        Most bytes on a device, such as 12GiB; by default what the device has.
    top
        Show so many strategies, best first.
    output
        Save the plan to a FILE that `traincast run`, `predict` and `scale` take.
    plot
        Draw the network with its splits: a FILE ending in .svg, .html or .png.
    json
        Print JSON with units in the key names instead of tables.
    """
    from traincast.parallel.strategy import Strategy
    from traincast.report.charts import check_plot, write_chart
    from traincast.report.files import check_writable, write_text
    from traincast.report.output import show
    from traincast.report.plan import plan_dict, plan_file, plan_table, rival_rows
    from traincast.report.plan_drawing import plan_chart
    from traincast.search.layerwise import make_plan
    from traincast.simulate.terms import Terms, pace_of, setting_for, terms_to_dict

    for path in filter(None, (output, plot)):
        check_writable(path)
    check_plot(plot)
    terms = Terms(
        cluster=cluster,
        network=network,
        precision=precision,
        optimizer=optimizer,
        layout=layout,
        estimator=estimator,
        objective=objective,
        scheme=scheme,
        server_bandwidth=_amount("--server-bandwidth", server_bandwidth, "bytes/s", "2GB/s"),
        degrees=degrees,
    )
    where = terms.place()
    setting = setting_for(terms, where, 1, 0)
    pixels, positions = count("--image", image), count("--seq", seq)
    held = [_fixed(text) for text in fix or ()]
    limit = _amount("--max-memory", max_memory, "bytes", "12GiB") or where.device.available_bytes
    measured, shown = above_zero("--step-ms", step_ms), min(count("--top", top) or 1, _MOST_SHOWN)
    graph = load_model(model, image=pixels, seq=positions)
    samples = (count("--batch", batch) or graph.batch) * where.devices
    length = positions or graph.seq
    setting = replace(setting, plan=replace(setting.plan, batch=samples, seq=length))
    if measured is not None:
        setting = replace(setting, pace=pace_of(graph, setting, measured / 1e3))
    found = make_plan(graph, setting, fixed=held, max_memory=limit, top=shown)
    title = (
        f"{graph.name} on {where.name}: {where.devices} devices, batch {samples}, "
        f"{setting.precision.name}, {setting.estimator.name}"
    )
    strategy = Strategy(
        model=model,
        batch=samples,
        devices=where.devices,
        layers=found.layers,
        seq=length,
        image=pixels,
        source=f"traincast plan, objective {objective}, scheme {setting.scheme}",
    )
    if output is not None:
        write_text(output, plan_file(found, strategy, terms_to_dict(setting, estimator, network)))
    if plot is not None:
        rows = rival_rows(found, samples)
        write_chart(plot, plan_chart(title, found), title=title, rows=rows)
    if json:
        show(plan_dict(found, strategy))
        return
    show(plan_table(title, found, samples, graph.notes))
    for path in filter(None, (output, plot)):
        show(f"Wrote {path}.")


def _amount(name: str, text: str | None, unit: str, example: str) -> float | None:
    """Return a quantity above zero, in SI units."""
    from traincast.units import parse_quantity

    if text is None:
        return None
    value = parse_quantity(text, unit)
    if not value > 0:
        raise InvalidValueError(f"{name} {text!r} has to be above zero; write {example}")
    return value


def _fixed(text: str) -> tuple[str, dict[str, int]]:
    match = _FIX.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(
            f"--fix {text!r} is not of the form LAYER:DIM=N; write classifier.3:channel=4"
        )
    pairs: Sequence[str] = match[2].split(",")
    return match[1], {dim: int(n) for dim, n in (pair.split("=") for pair in pairs)}
