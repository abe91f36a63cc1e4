"""traincast models."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App

from traincast.cli.options import Image, Json, Seq, count, load_model, option

if TYPE_CHECKING:
    from traincast.graph import Graph

app = App(
    name="models",
    help="List the built-in models, show one, or export its graph.",
    help_format="markdown",
)


@app.default
def models(*, json: Json = False) -> None:
    """List the built-in models.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    from traincast.ingest.references import zoo_graph
    from traincast.ingest.zoo.entries import ENTRIES
    from traincast.report.models import model_facts, model_table
    from traincast.report.output import show

    if json:
        show([{"name": name, **model_facts(zoo_graph(name), name)} for name in ENTRIES])
        return
    from rich.text import Text

    show(model_table())
    show(
        Text(
            f"\n{len(ENTRIES)} built-in models; `traincast models show NAME` tells more. Any other "
            "is torchvision:NAME, timm:NAME, hf:CONFIG.json, FILE.py:FUNCTION, FILE.onnx or "
            "FILE.json."
        )
    )


@app.command
def show(reference: str, /, *, image: Image = None, seq: Seq = None, json: Json = False) -> None:
    """Show a model: where it is from, its size, and what it is made of.

    Parameters
    ----------
    reference
        A built-in name or any other model reference.
    image
        Side of square input images, in pixels; by default the model's.
    seq
        Positions in a sequence; by default the model's.
    json
        Print JSON instead of a table.
    """
    from traincast.report.models import model_card, model_facts
    from traincast.report.output import show as out

    graph, positions = _load(reference, image, seq)
    facts = model_facts(graph, reference, positions)
    out(facts if json else model_card(facts))


@app.command
def export(
    reference: str,
    /,
    *,
    output: Annotated[Path | None, option("FILE", alias="-o")] = None,
    image: Image = None,
    seq: Seq = None,
) -> None:
    """Write a model's graph as JSON, which serves as a model wherever a name does.

    Parameters
    ----------
    reference
        A built-in name or any other model reference.
    output
        File to write, such as graph.json; standard output by default.
    image
        Side of square input images, in pixels; by default the model's.
    seq
        Sequence length to trace at, for a model that runs other ops at other lengths.
    """
    from traincast.graph import graph_to_json
    from traincast.report.files import check_writable, write_text
    from traincast.report.output import show as out

    if output is not None:
        check_writable(output)
    graph, _ = _load(reference, image, seq)
    text = graph_to_json(graph)
    if output is None:
        out(text.removesuffix("\n"))
        return
    write_text(output, text)
    use = f"; use it as in: traincast predict {output}" if output.suffix == ".json" else ""
    out(f"Wrote {output}{use}")


def _load(reference: str, image: str | None, seq: str | None) -> tuple[Graph, int | None]:
    positions = count("--seq", seq)
    return load_model(reference, image=count("--image", image), seq=positions), positions
