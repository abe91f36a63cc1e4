"""traincast scale."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option

_WORK = Group("What to train", sort_key=1)
_WHERE = Group("Where", sort_key=2)
_HOW = Group("How", sort_key=3)
_PALEO = Group("For the estimator paleo", sort_key=4)
_RUN = Group("The whole run", sort_key=5)
_SHOW = Group("Output", sort_key=6)


def scale(
    model: Annotated[str, Parameter(group=_WORK)],
    /,
    *,
    device: Annotated[str, option("NAME", group=_WHERE, alias="-d")] = "h200",
    cluster: Annotated[str | None, option("SHAPE", group=_WHERE)] = None,
    network: Annotated[str | None, option("LINK", group=_WHERE)] = None,
    devices: Annotated[str | None, option("N,N,…", group=_WHERE)] = None,
    batch: Annotated[str | None, option("N", group=_WORK, alias="-b")] = None,
    seq: Annotated[str | None, option("N", group=_WORK)] = None,
    image: Annotated[str | None, option("PIXELS", group=_WORK)] = None,
    strategy: Annotated[str, option("NAME,…", group=_HOW)] = "data",
    scheme: Annotated[str | None, option("NAME,…", group=_HOW)] = None,
    scaling: Annotated[str, option("KIND", group=_HOW)] = "weak",
    precision: Annotated[str | None, option("NAME", group=_HOW, alias="-p")] = None,
    optimizer: Annotated[str, option("NAME", group=_HOW)] = "adamw",
    accumulate: Annotated[str, option("N", group=_HOW)] = "1",
    layout: Annotated[str, option("NAME", group=_HOW)] = "nchw",
    no_overlap: Annotated[bool, flag(group=_HOW)] = False,
    bucket_mb: Annotated[str, option("MB", group=_HOW)] = "26.2144",
    estimator: Annotated[str, option("NAME", group=_HOW)] = "roofline",
    rules: Annotated[str, option("NAME", group=_PALEO)] = "paper",
    software: Annotated[str | None, option("NAME", group=_PALEO)] = None,
    algorithms: Annotated[str, option("NAME", group=_PALEO)] = "gemm",
    pipeline: Annotated[bool, flag(group=_PALEO)] = False,
    dataset_size: Annotated[str | None, option("SAMPLES", group=_RUN)] = None,
    epochs: Annotated[str | None, option("N", group=_RUN)] = None,
    price_per_hour: Annotated[str | None, option("PRICE", group=_RUN)] = None,
    csv: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    plot: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Predict how a training step scales over devices, and where more of them stop paying.

    Parameters
    ----------
    model
        A model reference as for `traincast predict`.
    device
        A name from `traincast devices`, or your own FILE.toml.
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
        data, model (every layer split by channel), hybrid (dense layers split, the rest data
        parallel), or several of them.
    scheme
        How gradients are reduced: auto, ring, double-tree, parameter-server, nccl and others; for
        paleo one-to-all, tree, butterfly, butterfly-mixing. One or several.
    scaling
        weak (the batch grows with the devices) or strong (it is divided among them).
    precision
        As for `traincast predict`.
    optimizer
        As for `traincast predict`.
    accumulate
        Forward and backward passes before each update.
    layout
        Memory order of images: nchw, or nhwc (channels_last).
    no_overlap
        Reduce gradients after backward instead of during it.
    bucket_mb
        Size of a gradient bucket in 10^6 bytes.
    estimator
        roofline, or the published model paleo.
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
    csv
        Write the rows to a table.
    plot
        Draw the speed-ups: a FILE ending in .svg, .html or .png.
    json
        Print JSON with units in the key names instead of a table.
    """
    from traincast.errors import InvalidValueError
    from traincast.report.charts import check_plot, write_chart
    from traincast.report.files import write_text
    from traincast.report.output import show
    from traincast.report.scale import Totals, row_dict, scale_chart, scale_csv, scale_dict
    from traincast.report.scale import scale_table as table
    from traincast.simulate.study import Request, study

    check_plot(plot)
    samples, many = count("--dataset-size", dataset_size), above_zero("--epochs", epochs)
    price = above_zero("--price-per-hour", price_per_hour)
    if samples is None and (many is not None or price is not None):
        raise InvalidValueError("--epochs and --price-per-hour need --dataset-size")
    request = Request(
        device=device,
        cluster=cluster,
        network=network,
        devices=tuple(count("--devices", n) or 1 for n in _list(devices)),
        strategies=tuple(_list(strategy)),
        schemes=tuple(_list(scheme)),
        scaling=scaling,
        batch=count("--batch", batch),
        seq=count("--seq", seq),
        precision=precision,
        optimizer=optimizer,
        accumulate=count("--accumulate", accumulate) or 1,
        layout=layout,
        estimator=estimator,
        overlap=not no_overlap,
        bucket_bytes=(above_zero("--bucket-mb", bucket_mb) or 1) * 1e6,
        rules=rules,
        software=software,
        algorithms=algorithms,
        pipeline=pipeline,
    )
    graph = load_model(model, image=count("--image", image), seq=request.seq)
    rows = study(graph, request)
    totals = Totals(None if samples is None else samples * (many or 1.0), price)
    title = f"{graph.name} on {cluster or device}, {scaling} scaling, {estimator}"
    if csv is not None:
        write_text(csv, scale_csv(rows, totals))
    if plot is not None:
        data = [row_dict(row, totals) for row in rows]
        write_chart(plot, scale_chart(title, rows), title=title, rows=data)
    if json:
        show(scale_dict(graph.name, rows, totals))
        return
    show(table(title, rows, totals))
    for path in filter(None, (csv, plot)):
        show(f"Wrote {path}.")


def _list(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]
