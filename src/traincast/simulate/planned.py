"""A given layer-wise strategy priced: its step, where the time goes, memory on every device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from traincast.errors import InvalidValueError
from traincast.graph import Graph
from traincast.parallel.layers import Network, network_of
from traincast.parallel.strategy import LayerSplit, Strategy
from traincast.simulate.layerwise import Outcome, Setting, Tables, build_tables, evaluate


@dataclass(frozen=True, eq=False, kw_only=True)
class Priced:
    """A strategy on a cluster; seconds and bytes."""

    strategy: Strategy
    tables: Tables
    """Of the strategy's own configuration of each layer."""
    outcome: Outcome

    @property
    def setting(self) -> Setting:
        """Where and how it is priced."""
        return self.tables.setting

    @property
    def samples_per_s(self) -> float:
        """Samples of all devices in a second."""
        return self.strategy.batch / self.outcome.step_s

    @property
    def phases_s(self) -> dict[str, float]:
        """Where the time of a step goes; the sum is the step."""
        shards, o = self.tables.shards, self.outcome
        forward = sum(float(t[0]) for t in shards.forward) + shards.elsewhere
        return {
            "forward": forward,
            "backward": o.compute_s - forward,
            "transfers": o.transfer_s,
            "gradients": o.exposed_s,
            "update": o.update_s,
        }

    @property
    def bound_by(self) -> str:
        """What takes the larger part of a step."""
        phases = self.phases_s
        waits = {k: phases[k] for k in ("transfers", "gradients")}
        if sum(waits.values()) <= self.outcome.step_s / 2:
            return "compute"
        return max(waits, key=lambda k: waits[k])

    @property
    def memory_bytes(self) -> tuple[float, ...]:
        """Bytes on each device: a layer lies on as many of the first as it has parts."""
        pairs = zip(self.tables.configs, self.tables.memory, strict=True)
        held = [(int(configs.parts[0]), float(memory[0])) for configs, memory in pairs]
        return tuple(
            sum(size for parts, size in held if device < parts)
            for device in range(self.setting.cluster.devices)
        )

    @property
    def fits(self) -> bool:
        """Whether every device has room."""
        return max(self.memory_bytes) <= self.setting.cluster.device.available_bytes


def price_strategy(graph: Graph, strategy: Strategy, setting: Setting) -> Priced:
    """Return what a strategy takes; raise where it is not one of this graph or cluster."""
    if strategy.devices != setting.cluster.devices:
        raise InvalidValueError(
            f"the plan is for {strategy.devices} devices, and {setting.cluster.name} has "
            f"{setting.cluster.devices}; give a cluster of {strategy.devices}, or plan again: "
            f"traincast plan {strategy.model} --cluster {setting.cluster.name}"
        )
    check_layers(network_of(graph, setting.plan.batch, setting.plan.seq), strategy)
    tables = build_tables(graph, setting, {x.name: x.degrees for x in strategy.layers})
    return Priced(
        strategy=strategy, tables=tables, outcome=evaluate(tables, (0,) * len(tables.configs))
    )


def data_parallel(priced: Priced) -> Priced:
    """Return what the same batch takes where every layer is split by sample alone."""
    tables, devices = priced.tables, priced.strategy.devices
    layers = tuple(
        LayerSplit(x.name, x.kind, {"sample": devices if x.copies else min(devices, size)})
        for x in tables.network.layers
        for size in [x.most.get("sample", x.dims.get("sample", 1))]
    )
    strategy = replace(priced.strategy, layers=layers, source="data parallelism")
    return price_strategy(tables.network.graph, strategy, priced.setting)


def check_layers(network: Network, strategy: Strategy) -> None:
    """Raise where a strategy lists other layers than a network has."""
    have = [layer.name for layer in network.layers]
    said = [layer.name for layer in strategy.layers]
    for what, names in (
        ("lists layers that {} does not have", [n for n in said if n not in set(have)]),
        ("says nothing of layers of {}", [n for n in have if n not in set(said)]),
    ):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if names[3:] else "")
            raise InvalidValueError(
                f"the plan {what.format(network.graph.name)} ({shown}): it is a plan of another "
                f"model; plan again: traincast plan {strategy.model}"
            )
