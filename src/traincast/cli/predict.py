"""traincast predict."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, load_model, option, rows
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from traincast.graph import Graph

_WORK = Group("What to train", sort_key=1)
_HOW = Group("How", sort_key=2)
_RUN = Group("The whole run", sort_key=3)
_FITTED = Group("Instead of a model: an expression that `traincast fit` wrote", sort_key=4)
_SHOW = Group("Output", sort_key=5)


def predict(
    model: Annotated[str | None, Parameter(group=_WORK)] = None,
    /,
    *,
    device: Annotated[str | None, option("NAME", group=_WORK, alias="-d")] = None,
    cluster: Annotated[str | None, option("SHAPE", group=_WORK)] = None,
    network: Annotated[str | None, option("LINK", group=_WORK)] = None,
    batch: Annotated[str | None, option("N", group=_WORK, alias="-b")] = None,
    seq: Annotated[str | None, option("N", group=_WORK)] = None,
    image: Annotated[str | None, option("PIXELS", group=_WORK)] = None,
    precision: Annotated[str | None, option("NAME", group=_HOW, alias="-p")] = None,
    optimizer: Annotated[str | None, option("NAME", group=_HOW)] = None,
    accumulate: Annotated[str, option("N", group=_HOW)] = "1",
    recompute: Annotated[bool, flag(group=_HOW)] = False,
    layout: Annotated[str | None, option("ORDER", group=_HOW)] = None,
    compiled: Annotated[bool, flag(name="--compile", group=_HOW)] = False,
    inference: Annotated[bool, flag(group=_HOW)] = False,
    estimator: Annotated[str | None, option("NAME", group=_HOW)] = None,
    profile: Annotated[Path | None, option("FILE", group=_HOW)] = None,
    dataset_size: Annotated[str | None, option("N", group=_RUN)] = None,
    epochs: Annotated[str | None, option("N", group=_RUN)] = None,
    tokens: Annotated[str | None, option("N", group=_RUN)] = None,
    price_per_hour: Annotated[str | None, option("PRICE", group=_RUN)] = None,
    fitted: Annotated[Path | None, option("FILE", group=_FITTED)] = None,
    settings: Annotated[str | None, option("NAME=VALUE,…", name="--set", group=_FITTED)] = None,
    by: Annotated[Literal["layer", "similar", "type", "op"], Parameter(group=_SHOW)] = "similar",
    top: Annotated[str, option("N", group=_SHOW)] = "8",
    trace: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Predict a training step: its time with an interval, memory, and what bounds it.

    Parameters
    ----------
    model
        A built-in name (see `traincast models`), torchvision:NAME, timm:NAME, hf:CONFIG.json,
        FILE.py:FUNCTION, package.module:FUNCTION, FILE.onnx or FILE.json. Arguments of the
        builder follow a question mark: NAME?key=value&key=value. Or a plan that
        `traincast plan` has saved, which is priced on its cluster.
    device
        A name from `traincast devices`, or your own FILE.toml; h200 by default.
    cluster
        For a plan: another cluster of as many devices, such as 4x4xv100.
    network
        For a plan: the link between nodes.
    batch
        Samples in one forward pass, or `max` for the largest that fits; by default the model's.
    seq
        Positions in a sequence; by default the model's.
    image
        Side of square input images, in pixels; by default the model's.
    precision
        fp32, tf32, bf16, fp16, amp_bf16, amp_fp16 or fp8; by default mixed where possible.
    optimizer
        sgd, momentum, adam, adamw (the default), lion or adafactor.
    accumulate
        Forward and backward passes before each update.
    recompute
        Recompute each block's activations in backward instead of keeping them.
    layout
        Memory order of images: nchw (the default), or nhwc (channels_last).
    compiled
        The model is compiled or graph-captured: the host issues nothing op by op.
    inference
        A forward pass alone.
    estimator
        How kernels are priced; auto by default.
    profile
        A profile's file to rest on, as `traincast calibrate` writes it, instead of the device's.
    dataset_size
        Samples in an epoch, such as 1281167 or 1.28M: adds the time of a whole run.
    epochs
        Epochs of a whole run; by default one.
    tokens
        Tokens of a whole run, such as 300B, instead of samples and epochs.
    price_per_hour
        Price of the device for an hour: adds the cost of the run.
    fitted
        A model that `traincast fit` wrote, such as model.json.
    settings
        Values of its factors, such as batch=128,workers=8; others are typical of its runs.
    by
        What the table lists: layers, similar layers together, types of op, or single ops.
    top
        How many rows the table has: a number, or `all`.
    trace
        Write the step as a Chrome trace (JSON) that Perfetto opens.
    json
        Print JSON with SI units in the key names instead of a table.
    """
    if fitted is not None:
        from traincast.cli.fit import alone, predict_fitted

        alone(MODEL=model, device=device, cluster=cluster, batch=batch)
        predict_fitted(fitted, settings, json)
        return
    if model is None:
        raise InvalidValueError("MODEL is missing (see `traincast predict --help`)")
    size, positions, side = _batch(batch), count("--seq", seq), count("--image", image)
    passes, shown = count("--accumulate", accumulate), rows("--top", top)
    run_options = _run_options(dataset_size, epochs, tokens, price_per_hour)
    from traincast.simulate.terms import Terms, is_plan

    if is_plan(model):
        from traincast.cli.planned import Sizes, predict_plan, refuse

        refuse({
            "--device": device is not None, "--accumulate": passes != 1, "--recompute": recompute,
            "--compile": compiled, "--inference": inference, "--trace": trace is not None,
            "--profile": profile is not None,
        })  # fmt: skip
        terms = Terms(
            cluster=cluster, network=network, precision=precision, optimizer=optimizer,
            layout=layout, estimator=estimator,
        )  # fmt: skip
        predict_plan(model, terms, Sizes(size, positions, side), run_options, json)
        return
    if cluster is not None or network is not None:
        raise InvalidValueError(
            "--cluster and --network are for a saved plan; `traincast scale` predicts a model on "
            "many devices"
        )
    device, optimizer = device or "h200", optimizer or "adamw"
    layout, estimator = layout or "nchw", estimator or "auto"
    if inference and (recompute or passes != 1):
        what = "--recompute" if recompute else "--accumulate"
        raise InvalidValueError(f"{what} is for training; leave it out with --inference")
    if trace is not None:
        from traincast.report.files import check_writable

        check_writable(trace)
    from traincast.simulate.predict import predict as run

    _check_names(device, precision, optimizer, layout, estimator, profile)
    graph = load_model(model, image=side, batch=size, seq=positions)
    if tokens is not None:
        _check_tokens(graph)
    found = run(
        graph,
        device,
        batch=size,
        seq=positions,
        precision=precision,
        optimizer=optimizer,
        accumulate=passes or 1,
        recompute=recompute,
        layout=layout,
        compiled=compiled,
        inference=inference,
        estimator=estimator,
        profile=profile,
        **run_options,
    )
    from traincast.report.output import show

    output: Any
    if json:
        output = found.to_dict()
        output["by"] = {"group": by, "rows": [row.to_dict() for row in found.by(by)[:shown]]}
    else:
        from traincast.report.panel import panel

        output = panel(found, by, shown)
    if trace is not None:
        found.to_trace(trace)
    show(output)
    if trace is not None and not json:
        show(f"Wrote {trace}; open it in Perfetto or chrome://tracing.")


def _batch(text: str | None) -> int | str | None:
    if text is not None and text.strip().lower() == "max":
        return "max"
    return count("--batch", text)


def _run_options(
    dataset_size: str | None, epochs: str | None, tokens: str | None, price_per_hour: str | None
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "dataset_size": count("--dataset-size", dataset_size),
        "epochs": above_zero("--epochs", epochs),
        "tokens": count("--tokens", tokens),
        "price_per_hour": above_zero("--price-per-hour", price_per_hour),
    }
    if tokens is not None and (dataset_size is not None or epochs is not None):
        raise InvalidValueError("give either --tokens, or --dataset-size and --epochs, not both")
    if epochs is not None and dataset_size is None:
        raise InvalidValueError("--epochs needs --dataset-size, the number of samples in an epoch")
    if price_per_hour is not None and dataset_size is None and tokens is None:
        raise InvalidValueError("--price-per-hour needs --dataset-size and --epochs, or --tokens")
    return given


def _check_names(
    device: str,
    precision: str | None,
    optimizer: str,
    layout: str,
    estimator: str,
    profile: Path | None,
) -> None:
    """Refuse an unknown name before a model is traced, which may take seconds."""
    from traincast.estimate.optimizer import optimizer_named
    from traincast.estimate.registry import check_estimator, estimator_for
    from traincast.graph.precision import precision_named
    from traincast.hardware import load_device

    unit = load_device(device)
    if precision is not None:
        precision_named(precision)
    optimizer_named(optimizer)
    if layout.lower() not in ("nchw", "nhwc"):
        raise InvalidValueError(f"layout {layout!r} is unknown; use nchw or nhwc")
    check_estimator(estimator)
    if profile is not None:
        estimator_for(estimator, unit, profile)


def _check_tokens(graph: Graph) -> None:
    if not graph.has_sequence and "seq" not in graph.fixed:
        raise InvalidValueError(
            f"{graph.name} has no tokens; give --dataset-size and --epochs instead of --tokens"
        )
