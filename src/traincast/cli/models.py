"""traincast models."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import App, Parameter

app = App(name="models", help="List the built-in models, or show one.")
Json = Annotated[bool, Parameter(negative="")]


@app.default
def models(*, json: Json = False) -> None:
    """List the built-in models.

    Parameters
    ----------
    json
        Print JSON instead of a table.
    """
    from traincast.ingest.zoo.entries import ENTRIES
    from traincast.report.output import show
    from traincast.units import format_si

    if json:
        show([{"name": name, **_facts(name)} for name in ENTRIES])
        return
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("name", "title", "family", "parameters", "input"):
        table.add_column(head, justify="right" if head == "parameters" else "left")
    for name, entry in ENTRIES.items():
        size = f"{entry.image} px" if entry.image else f"{entry.seq} tokens" if entry.seq else ""
        count = format_si(entry.parameters, "")
        table.add_row(name, entry.title, entry.family, count, size)
    show(table)
    show(
        f"\n{len(ENTRIES)} built-in models; `traincast models show NAME` tells more. Any other is\n"
        "torchvision:NAME, timm:NAME, hf:CONFIG.json, FILE.py:FUNCTION, FILE.onnx or FILE.json."
    )


@app.command
def show(name: str, *, image: int | None = None, json: Json = False) -> None:
    """Show a model: where it is from, its size, and what it is made of.

    Parameters
    ----------
    name
        A built-in name or any other model reference.
    image
        Side of square input images, in pixels.
    json
        Print JSON instead of a table.
    """
    from traincast.report.output import show as out

    facts = _facts(name, image)
    if json:
        out(facts)
        return
    from rich.table import Table

    from traincast.units import format_bytes, format_si

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    for key in ("title", "family", "source", "citation"):
        if facts.get(key):
            table.add_row(key, str(facts[key]))
    table.add_row("parameters", f"{facts['parameters']:,}")
    sizes = f"batch {facts['batch']}" + (f", seq {facts['seq']}" if facts["seq"] else "")
    table.add_row("by default", sizes)
    table.add_row(
        "FLOP", f"{format_si(facts['forward_flops_per_sample'], 'FLOP')} forward a sample"
    )
    table.add_row(
        "kept", f"{format_bytes(facts['saved_bytes_per_sample'])} a sample for backward, in float32"
    )
    kinds = ", ".join(f"{count} {kind}" for kind, count in facts["ops"].items())
    table.add_row("ops", kinds)
    for note in facts["notes"]:
        table.add_row("note", note)
    out(table)


def _facts(name: str, image: int | None = None) -> dict[str, Any]:
    from collections import Counter
    from dataclasses import asdict

    from traincast.ingest import resolve
    from traincast.ingest.references import zoo_name
    from traincast.ingest.zoo.entries import ENTRIES

    known = ENTRIES.get(zoo_name(name) or "")
    graph = resolve(name, image=image)
    from traincast.simulate.predict import predict

    found = predict(graph, precision="fp32")
    samples = found.step.plan.batch
    about = {} if known is None else {**asdict(known), "published_parameters": known.parameters}
    return about | {
        "source": graph.source,
        "parameters": graph.parameter_count,
        "batch": graph.batch,
        "seq": graph.seq or None,
        "forward_flops_per_sample": found.step.flops[0] / samples,
        "backward_flops_per_sample": found.step.flops[1] / samples,
        "saved_bytes_per_sample": found.memory.activations / samples,
        "ops": dict(Counter(op.kind for op in graph.ops).most_common()),
        "notes": list(graph.notes),
    }
