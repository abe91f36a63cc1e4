"""Models for people and machines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from traincast.graph import Graph
from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.units import format_bytes, format_si


def model_table() -> RenderableType:
    """Return the built-in models."""
    from traincast.ingest.zoo.entries import ENTRIES

    heads = ("name", "title", "family", "parameters", "input")

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("name", "title", "family", "input"))
        for name, e in ENTRIES.items():
            size = f"{e.image} px" if e.image else f"{e.seq} tokens" if e.seq else ""
            cells = (name, e.title, e.family, format_si(e.parameters, ""), size)
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    return Fitted(build, ("title", "family"))


def model_facts(graph: Graph, reference: str, seq: int | None = None) -> dict[str, Any]:
    """Return what is known about a model, for one sample of `seq` positions."""
    from traincast.ingest.references import zoo_name
    from traincast.ingest.zoo.entries import ENTRIES
    from traincast.simulate.predict import predict

    known = ENTRIES.get(zoo_name(reference) or "")
    found = predict(graph, precision="fp32", seq=seq)
    samples = found.step.plan.batch
    about = {} if known is None else {**asdict(known), "published_parameters": known.parameters}
    return about | {
        "source": graph.source,
        "parameters": graph.parameter_count,
        "batch": graph.batch,
        "seq": found.step.plan.seq or None,
        "forward_flops_per_sample": found.step.flops[0] / samples,
        "backward_flops_per_sample": found.step.flops[1] / samples,
        "saved_bytes_per_sample": found.memory.activations / samples,
        "ops": dict(Counter(op.kind for op in graph.ops).most_common()),
        "fixed": list(graph.fixed),
        "notes": list(graph.notes),
    }


def model_card(facts: Mapping[str, Any]) -> RenderableType:
    """Return one model as a table."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key in ("title", "family", "source", "citation"):
        if facts.get(key):
            table.add_row(key, str(facts[key]))
    table.add_row("parameters", f"{facts['parameters']:,}")
    seq = f", seq {facts['seq']}" if facts["seq"] else ""
    table.add_row("sizes", f"batch {facts['batch']} by default{seq}")
    sample = f"a sample of {facts['seq']} positions" if facts["seq"] else "a sample"
    forward, backward = facts["forward_flops_per_sample"], facts["backward_flops_per_sample"]
    table.add_row(
        "FLOP",
        f"{format_si(forward, 'FLOP')} forward, {format_si(backward, 'FLOP')} backward {sample}",
    )
    table.add_row(
        "kept", f"{format_bytes(facts['saved_bytes_per_sample'])} {sample} for backward, in float32"
    )
    table.add_row("ops", ", ".join(f"{count} {kind}" for kind, count in facts["ops"].items()))
    for note in facts["notes"]:
        table.add_row("note", note)
    return table
