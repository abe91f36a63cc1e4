"""traincast compare."""

from __future__ import annotations

from typing import Annotated

from traincast.cli.options import Image, Json, Seq, count, load_model, option, rows


def compare(
    model: str,
    /,
    *,
    device: Annotated[str, option("NAME", alias="-d")] = "h200",
    batch: Annotated[str | None, option("N", alias="-b")] = None,
    seq: Seq = None,
    image: Image = None,
    precision: Annotated[str | None, option("NAME", alias="-p")] = None,
    optimizer: Annotated[str, option("NAME")] = "adamw",
    top: Annotated[str, option("N")] = "10",
    json: Json = False,
) -> None:
    """Put all estimators side by side on the same work, and show over which layers they differ.

    Parameters
    ----------
    model
        A model reference as for `traincast predict`.
    device
        A name from `traincast devices`, or your own FILE.toml.
    batch
        Samples in one forward pass; by default the model's.
    seq
        Positions in a sequence; by default the model's.
    image
        Side of square input images, in pixels; by default the model's.
    precision
        As for `traincast predict`; paleo counts fp32 whatever is said.
    optimizer
        As for `traincast predict`; paleo counts plain SGD.
    top
        How many layers to list: a number, or `all`.
    json
        Print JSON with units in the key names instead of tables.
    """
    from traincast.hardware import load_device
    from traincast.report.compare import comparison_dict, comparison_table
    from traincast.report.output import show
    from traincast.simulate.compare import compare as run

    unit, many = load_device(device), rows("--top", top)
    positions = count("--seq", seq)
    size = count("--batch", batch)
    graph = load_model(model, image=count("--image", image), batch=size, seq=positions)
    found = run(
        graph,
        unit,
        batch=size,
        seq=positions,
        precision=precision,
        optimizer=optimizer,
    )
    show(comparison_dict(found, many) if json else comparison_table(found, many))
