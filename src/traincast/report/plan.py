"""Plans for people and machines: table, reasons, JSON, the file that is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from traincast.parallel.strategy import LayerSplit, Strategy, layers_to_list, strategy_to_json
from traincast.report.fitted import add_row, plain_table
from traincast.search.layerwise import Plan, splits
from traincast.simulate.layerwise import Outcome
from traincast.units import format_bytes, format_seconds

_WHAT = {
    "layer-wise": "this plan",
    "data": "samples dealt out, every weight everywhere",
    "model": "every layer split by channel",
    "hybrid": "dense layers by channel, the rest by sample",
    "uniform": "one split for all layers, the best",
}
_NEXT = {
    True: "Next best, with no other strategy between them (proven):",
    False: "Next best found, perhaps not all of them:",
}


class Block(NamedTuple):
    """Consecutive layers that are split alike."""

    first: int
    """Index of its first layer."""
    layers: tuple[LayerSplit, ...]

    @property
    def name(self) -> str:
        """Return the first and the last layer."""
        ends = [self.layers[0].name, self.layers[-1].name]
        return ends[0] if len(self.layers) == 1 else " … ".join(ends)

    @property
    def ops(self) -> str:
        """Return what the layers are, with numbers."""
        kinds: dict[str, int] = {}
        for layer in self.layers:
            kinds[layer.op] = kinds.get(layer.op, 0) + 1
        return ", ".join(f"{n} {kind}" if n > 1 else kind for kind, n in kinds.items())

    @property
    def indices(self) -> range:
        """Return the places of its layers."""
        return range(self.first, self.first + len(self.layers))


def blocks(layers: Sequence[LayerSplit]) -> list[Block]:
    """Fold consecutive layers with equal degrees."""
    result, at = [], 0
    for _, group in groupby(layers, key=lambda x: tuple(x.degrees.items())):
        members = tuple(group)
        result.append(Block(at, members))
        at += len(members)
    return result


def outcomes(plan: Plan) -> dict[str, Outcome]:
    """Return the plan and what it competes with, by name."""
    return {"layer-wise": plan.best, **plan.baselines}


def plan_dict(plan: Plan, strategy: Strategy) -> dict[str, Any]:
    """Return a plan as plain data, units in the keys."""
    return {
        "model": strategy.model,
        "cluster": plan.tables.setting.cluster.name,
        "devices": strategy.devices,
        "batch": strategy.batch,
        "objective": plan.tables.setting.objective,
        "scheme": plan.tables.setting.scheme,
        "strategies": {name: _outcome(o, strategy.batch) for name, o in outcomes(plan).items()},
        "layers": layers_to_list(plan.layers),
        "optimal": plan.optimal,
        "bound_ms": plan.bound_s * 1e3,
        "search_s": plan.search_s,
        "reasons": reasons(plan),
        "others_proven": plan.ranked,
        "others": [{"step_ms": o.step_s * 1e3, "changes": changes(plan, o)} for o in plan.others],
        "notes": list(plan.notes),
    }


def _outcome(o: Outcome, batch: int) -> dict[str, float]:
    return {
        "step_ms": o.step_s * 1e3,
        "samples_per_s": batch / o.step_s,
        "compute_ms": o.compute_s * 1e3,
        "transfer_ms": o.transfer_s * 1e3,
        "synchronisation_ms": o.sync_s * 1e3,
        "exposed_ms": o.exposed_s * 1e3,
        "update_ms": o.update_s * 1e3,
        "communication_bytes": o.communication_bytes,
        "memory_bytes": o.memory_bytes,
    }


def plan_file(plan: Plan, strategy: Strategy, setting: Mapping[str, Any]) -> str:
    """Return the text of a saved plan: the strategy, its terms, and what was predicted of it."""
    data = plan_dict(plan, strategy)
    extra = {
        "setting": dict(setting),
        "predicted": data["strategies"]["layer-wise"],
        "cluster": data["cluster"],
        "strategies": data["strategies"],
        "optimal": data["optimal"],
        "bound_ms": data["bound_ms"],
        "search_s": data["search_s"],
    }
    return strategy_to_json(strategy, extra)


def changes(plan: Plan, other: Outcome) -> list[str]:
    """Return in what a strategy differs from the plan."""
    theirs = splits(plan.tables, other.choice)
    return [f"{b.name}: {b}" for a, b in zip(plan.layers, theirs, strict=True) if a != b]


def reasons(plan: Plan, most: int = 6) -> list[str]:
    """Say what the plan does other than data parallelism, and what that is good for."""
    tables, data = plan.tables, plan.baselines["data"]
    found: list[tuple[float, str]] = []
    for block in blocks(plan.layers):
        changed = [i for i in block.indices if plan.best.choice[i] != data.choice[i]]
        if not changed:
            continue
        here = sum(_layer_s(plan, i, plan.best.choice) for i in changed)
        there = sum(_layer_s(plan, i, data.choice) for i in changed)
        saved = sum(
            float(tables.synced[i][data.choice[i]] - tables.synced[i][plan.best.choice[i]])
            for i in changed
        )
        moved = sum(
            float(p.moved[plan.best.choice[u], plan.best.choice[v]])
            for (u, v), p in tables.edges.items()
            if u in changed or v in changed
        )
        text = f"{block.name}: {block.layers[0]}"
        if saved >= 1:
            text += f", saves {format_bytes(saved)} of gradient traffic a step"
            text += f" for {format_bytes(moved)} of activations" if moved >= 1 else ""
        elif here < there:
            text += f", takes {format_seconds(there - here)} less on parts of that shape"
            text += f" for {format_bytes(moved)} of activations" if moved >= 1 else ""
        else:
            text += ", as its neighbours want it"
        found.append((there - here, text))
    found.sort(key=lambda entry: -entry[0])
    return [text for _, text in found[:most]]


def _layer_s(plan: Plan, i: int, choice: Sequence[int]) -> float:
    shards, c = plan.tables.shards, choice[i]
    own = shards.forward[i][c] + shards.backward[i][c] + plan.tables.update[i][c]
    return float(own + plan.tables.sync[i][c])


def plan_table(title: str, plan: Plan, batch: int, notes: Sequence[str] = ()) -> RenderableType:
    """Return a plan as tables: its layers, what it competes with, and why."""
    layers = plain_table(
        ["layers", "ops", "split", "devices"], frozenset(), ("layers", "ops", "split")
    )
    for block in blocks(plan.layers):
        first = block.layers[0]
        cells = (block.name, block.ops, str(first), str(first.parts))
        add_row(layers, list(zip(("layers", "ops", "split", "devices"), cells, strict=True)))
    heads = ["strategy", "step", "samples/s", "compute", "transfers", "gradients", "sent", "memory"]
    rivals = plain_table(heads, frozenset(), ("strategy",))
    for name, o in outcomes(plan).items():
        add_row(rivals, list(zip(heads, _cells(name, o, batch), strict=True)))
    parts: list[RenderableType] = [Text(title, style="bold"), layers, Text(""), rivals, Text("")]
    why = reasons(plan)
    if why:
        parts += [Text("Beside data parallelism:"), *(Text(f"  {line}") for line in why), Text("")]
    if plan.others:
        parts.append(Text(_NEXT[plan.ranked]))
        for o in plan.others:
            differs = changes(plan, o)
            more = f"; and {len(differs) - 3} more" if differs[3:] else ""
            text = f"  {format_seconds(o.step_s, 5)}  {'; '.join(differs[:3])}{more}"
            parts.append(Text(text))
        parts.append(Text(""))
    parts += [Text(line, style="dim") for line in (proof_line(plan), *plan.notes, *notes)]
    return Group(*parts)


def _cells(name: str, o: Outcome, batch: int) -> tuple[str, ...]:
    hidden = o.sync_s > 0 and o.exposed_s < o.sync_s
    gradients = format_seconds(o.sync_s) if o.sync_s else "–"
    if hidden:
        gradients += f", {1 - o.exposed_s / o.sync_s:.0%} hidden"
    return (
        name,
        format_seconds(o.step_s, 4),
        f"{batch / o.step_s:,.0f}" if batch / o.step_s >= 100 else f"{batch / o.step_s:.3g}",
        format_seconds(o.compute_s),
        format_seconds(o.transfer_s) if o.transfer_s else "–",
        gradients,
        format_bytes(o.communication_bytes) if o.communication_bytes else "–",
        format_bytes(o.memory_bytes),
    )


def proof_line(plan: Plan) -> str:
    """Return how sure the search is, as a sentence."""
    took = f"Tables and search took {format_seconds(plan.search_s)}."
    if plan.optimal:
        return f"No strategy of this space is better: proven. {took}"
    gap = plan.best.step_s / plan.bound_s - 1 if plan.bound_s > 0 else float("inf")
    return (
        f"No strategy takes less than {format_seconds(plan.bound_s, 4)}; this one is within "
        f"{gap:.2%} of that. {took}"
    )


def rival_rows(plan: Plan, batch: int) -> list[Mapping[str, Any]]:
    """Return the strategies as rows of data, for beside a chart."""
    return [
        {"strategy": name, "what": _WHAT[name], **_outcome(o, batch)}
        for name, o in outcomes(plan).items()
    ]
