"""traincast scale."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option
from traincast.errors import InvalidValueError

MOST = 10**6
"""Devices beyond which no cluster goes."""

_WORK = Group("What to train", sort_key=1)
_WHERE = Group("Where", sort_key=2)
_HOW = Group("How", sort_key=3)
_PALEO = Group("For the estimator paleo", sort_key=4)
_RUN = Group("The whole run", sort_key=5)
_FITTED = Group("Instead of a model: an expression that `traincast fit` wrote", sort_key=6)
_SHOW = Group("Output", sort_key=7)


def scale(
    model: Annotated[str | None, Parameter(group=_WORK)] = None,
    /,
    *,
    device: Annotated[str | None, option("NAME", group=_WHERE, alias="-d")] = None,
    cluster: Annotated[str | None, option("SHAPE", group=_WHERE)] = None,
    network: Annotated[str | None, option("LINK", group=_WHERE)] = None,
    devices: Annotated[str | None, option("N,N,…", group=_WHERE)] = None,
    batch: Annotated[str | None, option("N", group=_WORK, alias="-b")] = None,
    seq: Annotated[str | None, option("N", group=_WORK)] = None,
    image: Annotated[str | None, option("PIXELS", group=_WORK)] = None,
    strategy: Annotated[str | None, option("NAME,…", group=_HOW)] = None,
    scheme: Annotated[str | None, option("NAME,…", group=_HOW)] = None,
    scaling: Annotated[str, option("KIND", group=_HOW)] = "weak",
    precision: Annotated[str | None, option("NAME", group=_HOW, alias="-p")] = None,
    optimizer: Annotated[str | None, option("NAME", group=_HOW)] = None,
    accumulate: Annotated[str, option("N", group=_HOW)] = "1",
    layout: Annotated[str | None, option("NAME", group=_HOW)] = None,
    servers: Annotated[str | None, option("N", group=_HOW)] = None,
    no_overlap: Annotated[bool, flag(group=_HOW)] = False,
    bucket_mb: Annotated[str, option("MB", group=_HOW)] = "26.2144",
    estimator: Annotated[str | None, option("NAME", group=_HOW)] = None,
    step_ms: Annotated[str | None, option("MS", group=_HOW)] = None,
    rules: Annotated[str, option("NAME", group=_PALEO)] = "paper",
    software: Annotated[str | None, option("NAME", group=_PALEO)] = None,
    algorithms: Annotated[str, option("NAME", group=_PALEO)] = "gemm",
    pipeline: Annotated[bool, flag(group=_PALEO)] = False,
    dataset_size: Annotated[str | None, option("SAMPLES", group=_RUN)] = None,
    epochs: Annotated[str | None, option("N", group=_RUN)] = None,
    price_per_hour: Annotated[str | None, option("PRICE", group=_RUN)] = None,
    fitted: Annotated[Path | None, option("FILE", group=_FITTED)] = None,
    over: Annotated[str | None, option("NAME=LOW..HIGH", group=_FITTED)] = None,
    settings: Annotated[str | None, option("NAME=VALUE,…", name="--set", group=_FITTED)] = None,
    csv: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    plot: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Predict how a training step scales over devices, and where more of them stop paying.

    Parameters
    ----------
    model
        A model reference as for `traincast predict`, or a plan that `traincast plan` has saved.
    device
        A name from `traincast devices`, or your own FILE.toml; h200 by default.
    cluster
        A shape such as 16xp100 or 4x8xh100 (nodes × devices), instead of a device.
    network
        The link between nodes; by default the device's usual one.
    devices
        Device counts, such as 1,2,4,8; by default powers of two.
    batch
        Samples on each device in weak scaling, in all in strong scaling.
    seq
        Positions in a sequence; by default the model's.
    image
        Side of square input images, in pixels; by default the model's.
    strategy
        data (the default), model (every layer split by channel), hybrid (dense layers split, the
        rest data parallel), or several of them. With layer-wise among them, the best plan for each
        device count, all are priced as `traincast plan` does.
    scheme
        How gradients are reduced: auto (NCCL on GPUs), ring, double-tree, parameter-server,
        hierarchical and others; for paleo one-to-all, tree, butterfly, butterfly-mixing. One or
        several.
    scaling
        weak (the batch grows with the devices) or strong (it is divided among them).
    precision
        As for `traincast predict`.
    optimizer
        As for `traincast predict`.
    accumulate
        Forward and backward passes before each update.
    layout
        Memory order of images: nchw (the default), or nhwc (channels_last).
    servers
        Parameter servers, with --scheme parameter-server; by default one on each node.
    no_overlap
        Reduce gradients after backward instead of during it.
    bucket_mb
        Size of a gradient bucket in 10^6 bytes.
    estimator
        auto by default, roofline, or a published model: paleo (a whole-step model with schemes and
        networks of its own) or castello.
    step_ms
        A step that you measured on one device: compute is stretched to it, so that only
        communication is predicted.
    rules
        Rule set: paper, or head (the authors' last commit).
    software
        Percent of peak of a framework: caffe, tensorflow, mxnet, cuda-convnet2.
    algorithms
        Convolution algorithms: gemm, fft, fft-tiled or cudnn4.
    pipeline
        Memory traffic runs while a layer computes.
    dataset_size
        Samples in an epoch: adds the time of a whole run.
    epochs
        Epochs of a whole run; 1 by default.
    price_per_hour
        Price of one device for an hour: adds the cost.
    fitted
        A model that `traincast fit` wrote, such as model.json.
    over
        The factor to vary: workers=1..16 (doubling), workers=1..16:1 (in steps), workers=1,2,4; by
        default its workers over their range.
    settings
        Values of its other factors, such as batch=128; others are typical of its runs.
    csv
        Write the rows to a table.
    plot
        Draw the speed-ups: a FILE ending in .svg, .html or .png.
    json
        Print JSON with units in the key names instead of a table.
    """
    if fitted is not None:
        from traincast.cli.fit import alone, scale_fitted

        alone(MODEL=model, device=device, cluster=cluster, devices=devices, batch=batch, csv=csv)
        scale_fitted(fitted, over, settings, plot, json)
        return
    if model is None:
        raise InvalidValueError("MODEL is missing (see `traincast scale --help`)")
    from traincast.report.charts import check_plot, write_chart
    from traincast.report.files import check_writable, write_text
    from traincast.report.output import show
    from traincast.report.scale import Totals, row_dict, scale_chart, scale_csv, scale_dict
    from traincast.report.scale import scale_table as table
    from traincast.simulate.study import Request, study, study_notes
    from traincast.simulate.terms import Terms, is_plan

    for path in filter(None, (csv, plot)):
        check_writable(path)
    check_plot(plot)
    samples, many = count("--dataset-size", dataset_size), above_zero("--epochs", epochs)
    price = above_zero("--price-per-hour", price_per_hour)
    if samples is None and (many is not None or price is not None):
        raise InvalidValueError("--epochs and --price-per-hour need --dataset-size")
    measured = above_zero("--step-ms", step_ms)
    totals = Totals(None if samples is None else samples * (many or 1.0), price)
    request = Request(
        device=device or "h200",
        cluster=cluster,
        network=network,
        devices=tuple(_devices(n) for n in _list("--devices", devices)),
        strategies=tuple(_list("--strategy", strategy)) or ("data",),
        schemes=tuple(_list("--scheme", scheme)),
        scaling=scaling,
        batch=count("--batch", batch),
        seq=count("--seq", seq),
        precision=precision,
        optimizer=optimizer or "adamw",
        accumulate=count("--accumulate", accumulate) or 1,
        layout=layout or "nchw",
        estimator=estimator or "auto",
        overlap=not no_overlap,
        bucket_bytes=(above_zero("--bucket-mb", bucket_mb) or 1) * 1e6,
        rules=rules,
        software=software,
        algorithms=algorithms,
        pipeline=pipeline,
        servers=count("--servers", servers),
        measured_s=None if measured is None else measured / 1e3,
    )
    side = count("--image", image)
    if is_plan(model) or "layer-wise" in request.strategies:
        from traincast.cli.planned import Sizes, refuse, scale_plan

        refuse({
            "--accumulate": request.accumulate != 1, "--servers": servers is not None,
            "--no-overlap": no_overlap, "--software": software is not None,
            "--pipeline": pipeline, "more than one --scheme": len(request.schemes) > 1,
            "--device": is_plan(model) and device is not None,
        })  # fmt: skip
        terms = Terms(
            cluster=cluster, network=network, precision=precision, optimizer=optimizer,
            layout=layout, estimator=estimator, scheme=request.schemes[0] if scheme else None,
        )  # fmt: skip
        sizes = Sizes(request.batch, request.seq, side)
        name, title, rows = scale_plan(model, terms, sizes, request, asked=strategy is not None)
        notes = ["All strategies are priced as `traincast plan` does."]
    else:
        graph = load_model(model, image=side, batch=request.batch, seq=request.seq)
        rows = study(graph, request)
        name = graph.name
        title = f"{name} on {cluster or request.device}, {scaling} scaling, {request.estimator}"
        notes = study_notes(request, rows)
    if csv is not None:
        write_text(csv, scale_csv(rows, totals))
    if plot is not None:
        data = [row_dict(row, totals) for row in rows]
        write_chart(plot, scale_chart(title, rows), title=title, rows=data, notes=notes)
    if json:
        show(scale_dict(name, rows, totals, notes))
        return
    show(table(title, rows, totals, notes))
    for path in filter(None, (csv, plot)):
        show(f"Wrote {path}.")


def _list(name: str, text: str | None) -> list[str]:
    """Split at commas; nothing twice."""
    parts = [part.strip() for part in (text or "").split(",")]
    if text is not None and not all(parts):
        raise InvalidValueError(f"{name} {text!r} has an empty place; write one or several names")
    return list(dict.fromkeys(part for part in parts if part))


def _devices(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST):
        raise InvalidValueError(
            f"--devices {text!r} is not a whole number from 1 to {MOST:,}; write 1,2,4,8"
        )
    return int(text)
