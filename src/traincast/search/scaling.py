"""Layer-wise strategies over device counts: a saved plan, plans for each count, and their rivals.

All rows are priced by the same tables, those of `traincast plan`, so that they can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.graph import Graph
from traincast.hardware import Cluster
from traincast.parallel.strategy import Strategy
from traincast.search.layerwise import BASELINES, baselines, make_plan
from traincast.simulate.layerwise import Outcome, Setting, build_tables
from traincast.simulate.planned import price_strategy
from traincast.simulate.scale import SCALINGS, ScaleRow
from traincast.simulate.terms import Terms, pace_of, setting_for

SAVED = "plan"
"""The strategy of a saved plan, at its own device count."""
SEARCHED = "layer-wise"
"""The best strategy, searched for each device count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to price on how many devices."""

    terms: Terms
    batch: int
    """Samples on each device in weak scaling, in all in strong scaling."""
    seq: int
    counts: tuple[int, ...] = ()
    """Device counts; by default powers of two, and the whole cluster."""
    strategies: tuple[str, ...] = (SEARCHED,)
    scaling: str = "weak"
    measured_s: float | None = None
    """A step measured on one device, to which compute is stretched."""


def layerwise_rows(graph: Graph, sweep: Sweep, saved: Strategy | None = None) -> list[ScaleRow]:
    """Return a row for each strategy and device count."""
    known = (*([SAVED] if saved else []), SEARCHED, *BASELINES)
    for name in sweep.strategies:
        if name not in known:
            raise UnknownNameError("strategy", name, known, f"(known: {', '.join(known)})")
    if sweep.scaling not in SCALINGS:
        raise UnknownNameError("scaling", sweep.scaling, SCALINGS, "(known: weak, strong)")
    whole = sweep.terms.place()
    counts = sweep.counts or _powers(whole.devices)
    if saved is not None and SAVED in sweep.strategies and saved.devices not in counts:
        raise InvalidValueError(
            f"the plan is for {saved.devices} devices, which are not among "
            f"{', '.join(map(str, counts))}; give a cluster or --devices with {saved.devices}"
        )
    terms = sweep.terms
    alone = setting_for(terms, part_of(whole, 1), sweep.batch, sweep.seq)
    if sweep.measured_s is not None:
        terms = replace(terms, pace=pace_of(graph, alone, sweep.measured_s))
        alone = replace(alone, pace=terms.pace or 1.0)
    single = baselines(build_tables(graph, alone))["data"]
    speed = sweep.batch / single.step_s
    found: dict[tuple[str, int], ScaleRow] = {}
    for count in counts:
        batch = _batch(sweep, count, saved)
        setting = setting_for(terms, part_of(whole, count), batch, sweep.seq)
        for name, outcome in _outcomes(graph, setting, sweep.strategies, saved).items():
            found[name, count] = _row(name, outcome, setting, speed)
    return [found[n, c] for n in sweep.strategies for c in counts if (n, c) in found]


def part_of(cluster: Cluster, count: int) -> Cluster:
    """Return so many devices of a cluster, on as few of its nodes as hold them."""
    each = cluster.devices_per_node
    if count > cluster.devices:
        raise InvalidValueError(
            f"{count} devices are more than the {cluster.devices} of {cluster.name}; "
            "give a larger cluster or fewer devices"
        )
    if count > each and count % each:
        raise InvalidValueError(
            f"{count} devices do not fill nodes of {each} evenly; give multiples of {each}"
        )
    each = min(count, each)
    name = f"{count // each}x{each}x{cluster.device.name}"
    return replace(cluster, name=name, nodes=count // each, devices_per_node=each)


def _powers(most: int) -> tuple[int, ...]:
    counts = [2**k for k in range(most.bit_length()) if 2**k < most]
    return (*counts, most)


def _batch(sweep: Sweep, count: int, saved: Strategy | None) -> int:
    if saved is not None and saved.devices == count:
        return saved.batch
    if sweep.scaling == "weak":
        return sweep.batch * count
    if sweep.batch < count:
        raise InvalidValueError(
            f"batch {sweep.batch} cannot be dealt out to {count} devices in strong scaling"
        )
    return sweep.batch


def _outcomes(
    graph: Graph, setting: Setting, wanted: Sequence[str], saved: Strategy | None
) -> dict[str, Outcome]:
    """Return the strategies that are wanted on one number of devices."""
    result: dict[str, Outcome] = {}
    if SEARCHED in wanted:
        plan = make_plan(graph, setting)
        result |= {SEARCHED: plan.best, **plan.baselines}
    elif set(wanted) & set(BASELINES):
        result |= baselines(build_tables(graph, setting))
    if saved is not None and saved.devices == setting.cluster.devices:
        result[SAVED] = price_strategy(graph, saved, setting).outcome
    return {name: outcome for name, outcome in result.items() if name in wanted}


def _row(name: str, outcome: Outcome, setting: Setting, speed: float) -> ScaleRow:
    devices = setting.cluster.devices
    rate = setting.plan.batch / outcome.step_s
    return ScaleRow(
        strategy=name,
        devices=devices,
        scheme=setting.scheme,
        batch=setting.plan.batch // devices,
        compute_s=outcome.compute_s + outcome.update_s,
        communication_s=outcome.transfer_s + outcome.sync_s,
        step_s=outcome.step_s,
        speedup=rate / speed,
        efficiency=rate / speed / devices,
        samples_per_s=rate,
        traffic_bytes=outcome.communication_bytes,
        peak_bytes=outcome.memory_bytes,
        fits=outcome.memory_bytes <= setting.cluster.device.available_bytes,
    )
