"""A saved plan priced anew, for people and machines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from traincast.parallel.strategy import layers_to_list
from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.report.plan import blocks
from traincast.simulate.planned import Priced
from traincast.units import format_bytes, format_seconds

_BOUND = {
    "compute": "compute: kernels take longest",
    "transfers": "transfers: activations between differently split layers take longest",
    "gradients": "gradients: synchronising them takes longest",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A whole training run; 0 samples for none."""

    samples: float = 0.0
    price_per_hour: float | None = None
    """Price of one device for an hour."""

    def seconds(self, found: Priced) -> float | None:
        """Return how long the run takes."""
        return self.samples / found.samples_per_s if self.samples else None

    def cost(self, found: Priced) -> float | None:
        """Return what all devices cost for so long."""
        seconds = self.seconds(found)
        if seconds is None or self.price_per_hour is None:
            return None
        return seconds / 3600 * self.price_per_hour * found.strategy.devices


def priced_dict(found: Priced, data: Priced, run: Run) -> dict[str, Any]:
    """Return a priced plan as plain data, units in the keys; `data` is data parallelism."""
    strategy, setting, o = found.strategy, found.setting, found.outcome
    optimizer = setting.plan.optimizer
    return {
        "model": strategy.model,
        "cluster": setting.cluster.name,
        "devices": strategy.devices,
        "batch": strategy.batch,
        "seq": strategy.seq or None,
        "precision": setting.precision.name,
        "optimizer": optimizer.name if optimizer else None,
        "estimator": setting.estimator.name,
        "objective": setting.objective,
        "scheme": setting.scheme,
        "step_ms": o.step_s * 1e3,
        "samples_per_s": found.samples_per_s,
        "phases_ms": {name: s * 1e3 for name, s in found.phases_s.items()},
        "synchronisation_ms": o.sync_s * 1e3,
        "bound_by": found.bound_by,
        "communication_bytes": {
            "activations": o.transfer_bytes,
            "gradients": o.sync_bytes,
            "total": o.communication_bytes,
        },
        "memory_bytes": list(found.memory_bytes),
        "available_bytes": setting.cluster.device.available_bytes,
        "fits": found.fits,
        "data_parallel": {
            "step_ms": data.outcome.step_s * 1e3,
            "communication_bytes": data.outcome.communication_bytes,
        },
        "run_s": run.seconds(found),
        "cost": run.cost(found),
        "layers": layers_to_list(strategy.layers),
    }


def priced_panel(found: Priced, data: Priced, run: Run) -> RenderableType:
    """Return a priced plan as a panel."""
    parts: list[RenderableType] = [_facts(found, data, run), _phases(found), _layers(found)]
    if found.tables.network.graph.notes:
        parts.append(Text("\n".join(found.tables.network.graph.notes), style="dim"))
    spaced = [part if i == 0 else Padding(part, (1, 0, 0, 0)) for i, part in enumerate(parts)]
    title = Text(f"{found.strategy.model} · {found.setting.cluster.name}")
    return Panel(Group(*spaced), title=title, title_align="left", expand=False, padding=(1, 2))


def _facts(found: Priced, data: Priced, run: Run) -> RenderableType:
    strategy, setting, o = found.strategy, found.setting, found.outcome
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    split = sum(layer.parts > 1 for layer in strategy.layers)
    optimizer = setting.plan.optimizer
    terms = [f"batch {strategy.batch} on {strategy.devices} devices"]
    terms += [f"seq {strategy.seq}"] if strategy.seq else []
    terms += [setting.precision.name, optimizer.name if optimizer else "inference"]
    table.add_row("Run", " · ".join(terms))
    table.add_row("Plan", f"{split} of {len(strategy.layers)} layers split")
    ratio = data.outcome.step_s / o.step_s
    table.add_row(
        "Step",
        Text(format_seconds(o.step_s, 4), style="bold green")
        + Text(
            f"   data parallelism: {format_seconds(data.outcome.step_s, 4)}, "
            f"{ratio:.3g} times as long",
            style="not bold dim",
        ),
    )
    table.add_row("Throughput", f"{found.samples_per_s:,.4g} samples/s")
    table.add_row("Bound by", _BOUND[found.bound_by])
    hidden = f", {1 - o.exposed_s / o.sync_s:.0%} hidden" if o.exposed_s < o.sync_s else ""
    table.add_row(
        "Sent a step",
        f"{format_bytes(o.communication_bytes)}   activations {format_bytes(o.transfer_bytes)}, "
        f"gradients {format_bytes(o.sync_bytes)}{hidden}",
    )
    table.add_row("Memory", _memory(found))
    seconds, cost = run.seconds(found), run.cost(found)
    if seconds is not None:
        text = format_seconds(seconds)
        table.add_row("Whole run", text if cost is None else f"{text}, cost {cost:,.2f}")
    return table


def _memory(found: Priced) -> Text:
    most, least = max(found.memory_bytes), min(found.memory_bytes)
    room = found.setting.cluster.device.available_bytes
    text = Text(f"{format_bytes(most)} of {format_bytes(room)} on device 0 ({most / room:.0%})")
    if least < most:
        text.append(f", {format_bytes(least)} on device {found.strategy.devices - 1}")
    text.append("" if found.fits else "  DOES NOT FIT", style="bold red")
    return text


def _phases(found: Priced) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for phase, seconds in found.phases_s.items():
        if seconds:
            share = f"{seconds / found.outcome.step_s:.0%}"
            table.add_row(phase, format_seconds(seconds), share)
    return table


def _layers(found: Priced) -> RenderableType:
    tables = found.tables
    came: dict[int, float] = {}
    for (_, v), passing in tables.edges.items():
        came[v] = came.get(v, 0.0) + float(passing.seconds[0, 0])
    heads = ("layers", "split", "devices", "compute", "transfers in", "gradients")

    def build(without: frozenset[str]) -> Table:
        table = plain_table(list(heads), without, ("layers", "split"))
        for block in blocks(found.strategy.layers):
            at, first = block.indices, block.layers[0]
            compute = sum(float(tables.shards.forward[i][0]) for i in at)
            compute += sum(float(tables.shards.backward[i][0]) for i in at)
            waits = sum(came.get(i, 0.0) for i in at)
            synced = sum(float(tables.sync[i][0]) for i in at)
            cells = (
                block.name, str(first), str(first.parts), format_seconds(compute),
                format_seconds(waits) if waits else "–", format_seconds(synced) if synced else "–",
            )  # fmt: skip
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    return Fitted(build, ("devices", "gradients", "transfers in"))
