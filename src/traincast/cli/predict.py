"""traincast predict."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

_WORK = Group("What to train", sort_key=1)
_HOW = Group("How", sort_key=2)
_RUN = Group("The whole run", sort_key=3)
_SHOW = Group("Output", sort_key=4)


def predict(
    model: Annotated[str, Parameter(group=_WORK)],
    *,
    device: Annotated[str, Parameter(group=_WORK, alias="-d")] = "h200",
    batch: Annotated[str | None, Parameter(group=_WORK, alias="-b")] = None,
    seq: Annotated[str | None, Parameter(group=_WORK)] = None,
    image: Annotated[str | None, Parameter(group=_WORK)] = None,
    precision: Annotated[str | None, Parameter(group=_HOW, alias="-p")] = None,
    optimizer: Annotated[str, Parameter(group=_HOW)] = "adamw",
    accumulate: Annotated[str, Parameter(group=_HOW)] = "1",
    recompute: Annotated[bool, Parameter(group=_HOW, negative="")] = False,
    layout: Annotated[str, Parameter(group=_HOW)] = "nchw",
    compiled: Annotated[bool, Parameter(name="--compile", group=_HOW, negative="")] = False,
    inference: Annotated[bool, Parameter(group=_HOW, negative="")] = False,
    estimator: Annotated[str, Parameter(group=_HOW)] = "roofline",
    dataset_size: Annotated[str | None, Parameter(group=_RUN)] = None,
    epochs: Annotated[float | None, Parameter(group=_RUN)] = None,
    tokens: Annotated[str | None, Parameter(group=_RUN)] = None,
    price_per_hour: Annotated[float | None, Parameter(group=_RUN)] = None,
    by: Annotated[Literal["layer", "type", "op"], Parameter(group=_SHOW)] = "layer",
    top: Annotated[int, Parameter(group=_SHOW)] = 8,
    trace: Annotated[Path | None, Parameter(group=_SHOW)] = None,
    json: Annotated[bool, Parameter(group=_SHOW, negative="")] = False,
) -> None:
    """Predict a training step: its time with an interval, memory, and what bounds it.

    Parameters
    ----------
    model
        A built-in name (see `traincast models`), torchvision:NAME, timm:NAME, hf:CONFIG.json,
        FILE.py:FUNCTION, package.module:FUNCTION, FILE.onnx or FILE.json.
    device
        A name from `traincast devices`, or your own FILE.toml.
    batch
        Samples in one forward pass, or `max` for the largest that fits.
    seq
        Positions in a sequence.
    image
        Side of square input images, in pixels.
    precision
        fp32, tf32, bf16, fp16, amp_bf16, amp_fp16 or fp8; by default mixed where possible.
    optimizer
        sgd, momentum, adam, adamw, lion or adafactor.
    accumulate
        Forward and backward passes before each update.
    recompute
        Recompute each block's activations in backward instead of keeping them.
    layout
        Memory order of images: nchw, or nhwc (channels_last).
    compiled
        The model is compiled or graph-captured: the host issues nothing op by op.
    inference
        A forward pass alone.
    estimator
        How kernels are priced.
    dataset_size
        Samples in an epoch, such as 1281167 or 1.28M: adds the time of a whole run.
    epochs
        Epochs of a whole run.
    tokens
        Tokens of a whole run, such as 300B, instead of samples and epochs.
    price_per_hour
        Price of the device for an hour: adds the cost of the run.
    by
        What the table lists.
    top
        How many rows the table has.
    trace
        Write the step as a Chrome trace (JSON) that Perfetto opens.
    json
        Print JSON with SI units in the key names instead of a table.
    """
    from traincast.report.output import show
    from traincast.simulate.predict import predict as run
    from traincast.units import parse_count

    found = run(
        model,
        device,
        batch=batch,
        seq=None if seq is None else parse_count(seq, "seq"),
        image=None if image is None else parse_count(image, "image"),
        precision=precision,
        optimizer=optimizer,
        accumulate=parse_count(accumulate, "accumulate"),
        recompute=recompute,
        layout=layout,
        compiled=compiled,
        inference=inference,
        estimator=estimator,
        dataset_size=None if dataset_size is None else parse_count(dataset_size, "dataset-size"),
        epochs=epochs,
        tokens=None if tokens is None else parse_count(tokens, "tokens"),
        price_per_hour=price_per_hour,
    )
    if trace is not None:
        found.to_trace(trace)
    if json:
        data = found.to_dict()
        data["by"] = {"group": by, "rows": [row.to_dict() for row in found.by(by)[: max(top, 0)]]}
        show(data)
        return
    from traincast.report.panel import panel

    show(panel(found, by, top))
    if trace is not None:
        show(f"Wrote {trace}; open it in Perfetto or chrome://tracing.")
