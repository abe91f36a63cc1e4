"""traincast plan."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from traincast.graph import Graph
    from traincast.simulate.layerwise import Setting

_WORK = Group("What to train", sort_key=1)
_WHERE = Group("Where", sort_key=2)
_HOW = Group("How", sort_key=3)
_SEARCH = Group("The search", sort_key=4)
_SHOW = Group("Output", sort_key=5)
_FIX = re.compile(r"(.+?):((?:[a-z]+=[0-9]{1,6})(?:,[a-z]+=[0-9]{1,6})*)")
_MOST_DEVICES = 64


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
        Save the plan to a FILE that `traincast run` takes.
    plot
        Draw the network with its splits: a FILE ending in .svg, .html or .png.
    json
        Print JSON with units in the key names instead of tables.
    """
    from traincast.estimate.optimizer import optimizer_named
    from traincast.estimate.registry import estimator_for
    from traincast.graph.precision import precision_named
    from traincast.hardware import load_cluster
    from traincast.parallel.strategy import Strategy
    from traincast.report.charts import check_plot, write_chart
    from traincast.report.files import check_writable, write_text
    from traincast.report.output import show
    from traincast.report.plan import plan_dict, plan_file, plan_table, rival_rows
    from traincast.report.plan_drawing import plan_chart
    from traincast.search.layerwise import make_plan
    from traincast.simulate.fit import default_precision
    from traincast.simulate.layerwise import Setting
    from traincast.simulate.step import Plan as Step

    for path in filter(None, (output, plot)):
        check_writable(path)
    check_plot(plot)
    where = load_cluster(cluster, network)
    _check(where.devices, layout)
    chosen = precision_named(precision) if precision else default_precision(where.device)
    pixels, positions = count("--image", image), count("--seq", seq)
    held = [_fixed(text) for text in fix or ()]
    limit = _memory(max_memory) or where.device.available_bytes
    rule = optimizer_named(optimizer)
    priced = estimator_for(estimator, where.device)
    graph = load_model(model, image=pixels, seq=positions)
    samples = (count("--batch", batch) or graph.batch) * where.devices
    setting = Setting(
        cluster=where,
        estimator=priced,
        precision=chosen,
        plan=Step(batch=samples, seq=positions or graph.seq, optimizer=rule, layout=layout),
        objective=objective,
        scheme=scheme or ("server" if objective == "published" else "auto"),
        degrees=degrees,
    )
    measured = above_zero("--step-ms", step_ms)
    if measured is not None:
        setting = replace(setting, pace=_pace(graph, setting, measured / 1e3))
    found = make_plan(
        graph, setting, fixed=held, max_memory=limit, top=min(count("--top", top) or 1, 50)
    )
    title = (
        f"{graph.name} on {where.name}: {where.devices} devices, batch {samples}, {chosen.name}, "
        f"{priced.name}"
    )
    strategy = Strategy(
        model=model,
        batch=samples,
        devices=where.devices,
        layers=found.layers,
        seq=positions or graph.seq,
        image=pixels,
        source=f"traincast plan, objective {objective}, scheme {setting.scheme}",
    )
    if output is not None:
        write_text(output, plan_file(found, strategy, where.name))
    if plot is not None:
        rows = rival_rows(found, samples)
        write_chart(plot, plan_chart(title, found), title=title, rows=rows)
    if json:
        show(plan_dict(found, strategy, where.name))
        return
    show(plan_table(title, found, samples, graph.notes))
    for path in filter(None, (output, plot)):
        show(f"Wrote {path}.")


def _check(devices: int, layout: str) -> None:
    if devices > _MOST_DEVICES:
        raise InvalidValueError(
            f"{devices} devices: a layer-wise plan is searched for up to {_MOST_DEVICES}; "
            "`traincast scale` takes more"
        )
    if layout not in ("nchw", "nhwc"):
        raise InvalidValueError(f"--layout {layout!r} is unknown; write nchw or nhwc")


def _pace(graph: Graph, setting: Setting, measured: float) -> float:
    """Return how much longer a step on one device takes than predicted."""
    from traincast.simulate.step import program_for, simulate_step

    device = setting.cluster.device
    alone = replace(setting.plan, batch=setting.plan.batch // setting.cluster.devices)
    program = program_for(graph, setting.precision, device, setting.estimator, alone)
    step = simulate_step(program, device, setting.estimator, alone)
    return measured / sum(step.device_s.values())


def _memory(text: str | None) -> float | None:
    from traincast.units import parse_quantity

    if text is None:
        return None
    value = parse_quantity(text, "bytes")
    if not value > 0:
        raise InvalidValueError(f"--max-memory {text!r} has to be above zero; write 12GiB")
    return value


def _fixed(text: str) -> tuple[str, dict[str, int]]:
    match = _FIX.fullmatch(text.strip())
    if match is None:
        raise InvalidValueError(
            f"--fix {text!r} is not of the form LAYER:DIM=N; write classifier.3:channel=4"
        )
    pairs: Sequence[str] = match[2].split(",")
    return match[1], {dim: int(n) for dim, n in (pair.split("=") for pair in pairs)}
