"""A run of a plan, for people and machines: measured beside predicted."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from traincast.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.console import RenderableType

    from traincast.execute.job import Job, Outcome
    from traincast.simulate.planned import Priced


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What was predicted of a run."""

    plan: Mapping[str, Any] = field(default_factory=dict)
    """What the plan's file says; empty where it was made for other sizes, or says nothing."""
    cluster: str | None = None
    """What the plan was made for."""
    same: bool = False
    """Whether that is the kind of device the processes ran on."""
    device: str = ""
    """What they ran on."""
    here: Priced | None = None
    """The plan priced for the very processes that ran it."""


def run_dict(job: Job, outcome: Outcome, foretold: Foretold) -> dict[str, Any]:
    """Return a run as plain data, units in the keys."""
    times = [s * 1e3 for s in outcome.steps_s]
    middle, check = statistics.median(times), outcome.check
    plan = dict(foretold.plan)
    return {
        "model": job.strategy.model,
        "devices": job.strategy.devices,
        "batch": job.strategy.batch,
        "backend": job.backend,
        "precision": job.precision,
        "optimizer": job.optimizer,
        "losses": list(outcome.losses),
        "steps": len(times),
        "step_ms": middle,
        "step_min_ms": min(times),
        "step_max_ms": max(times),
        "waited_ms": outcome.waited_s * 1e3,
        "load_ms": statistics.median(outcome.load_s) * 1e3,
        "samples_per_s": job.strategy.batch / middle * 1e3,
        "communication_bytes": outcome.moved_bytes + outcome.summed_bytes,
        "activation_bytes": outcome.moved_bytes,
        "gradient_bytes": outcome.summed_bytes,
        "parameter_bytes": list(outcome.held_bytes),
        "device": foretold.device,
        "predicted": plan | {"cluster": foretold.cluster, "same_device": foretold.same}
        if plan
        else None,
        "predicted_here": _here_dict(outcome, foretold.here),
        "check": None
        if check is None
        else {
            "loss": check.loss,
            "weight": check.weight,
            "weight_name": check.name,
            "weight_travel": check.travel,
        },
        "notes": list(outcome.notes),
    }


def _here_dict(outcome: Outcome, here: Priced | None) -> dict[str, Any] | None:
    if here is None or outcome.probe is None:
        return None
    o, probe = here.outcome, outcome.probe
    return {
        "step_ms": o.step_s * 1e3,
        "compute_ms": (o.compute_s + o.update_s) * 1e3,
        "transfer_ms": o.transfer_s * 1e3,
        "synchronisation_ms": o.sync_s * 1e3,
        "exposed_ms": o.exposed_s * 1e3,
        "communication_bytes": o.communication_bytes,
        "alone_ms": probe.step_s * 1e3,
        "latency_ms": probe.latency_s * 1e3,
        "bytes_per_s": probe.bandwidth,
    }


def run_panel(job: Job, outcome: Outcome, foretold: Foretold) -> RenderableType:
    """Return a run as a panel."""
    strategy, times = job.strategy, outcome.steps_s
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    middle = statistics.median(times)
    spread = f"{format_seconds(min(times))} to {format_seconds(max(times))}; {len(times)} timed"
    split = sum(layer.parts > 1 for layer in strategy.layers)
    table.add_row(
        "Plan", f"batch {strategy.batch} · {split} of {len(strategy.layers)} layers split"
    )
    table.add_row("Step", f"{format_seconds(middle)}   {spread}")
    if outcome.waited_s and job.backend == "gloo":
        table.add_row("Waiting", f"{format_seconds(outcome.waited_s)} of it, for other processes")
    for line in _predictions(middle, outcome, foretold):
        table.add_row("Predicted", line)
    table.add_row("Throughput", f"{strategy.batch / middle:,.4g} samples/s")
    table.add_row("Loading", f"{format_seconds(statistics.median(outcome.load_s))} a batch")
    table.add_row("Loss", f"{outcome.losses[0]:.5g} to {outcome.losses[-1]:.5g}")
    table.add_row("Sent a step", _traffic(outcome, foretold))
    held = " · ".join(format_bytes(h) for h in outcome.held_bytes)
    table.add_row("Parameters", f"{held} by process")
    if outcome.check is not None:
        c = outcome.check
        table.add_row(
            "One process",
            f"losses within {c.loss:.2g}, weights within {c.weight:.2g} ({c.name}, which training "
            f"moved by up to {c.travel:.2g})",
        )
    for note in outcome.notes:
        table.add_row("Note", note)
    title = Text(f"{strategy.model} · {strategy.devices} processes over {job.backend}")
    return Panel(table, title=title, title_align="left", expand=False, padding=(1, 2))


def _predictions(measured: float, outcome: Outcome, foretold: Foretold) -> list[str]:
    """Return what was predicted, each line with where that holds."""
    lines = []
    if foretold.here is not None and outcome.probe is not None:
        o, probe = foretold.here.outcome, outcome.probe
        lines.append(
            f"{format_seconds(o.step_s)} here, {_beside(measured, o.step_s)}\n"
            f"compute {format_seconds(o.compute_s + o.update_s)}, transfers "
            f"{format_seconds(o.transfer_s)}, gradients {format_seconds(o.sync_s)} of which "
            f"{format_seconds(o.exposed_s)} after backward;\nfrom {format_seconds(probe.step_s)} "
            f"for a share of the batch alone, {format_bytes(probe.bandwidth)}/s and "
            f"{format_seconds(probe.latency_s)} a message"
        )
    step_ms = foretold.plan.get("step_ms")
    if isinstance(step_ms, int | float):
        text = f"{format_seconds(step_ms / 1e3)} on {foretold.cluster or 'an unnamed cluster'}"
        if foretold.same:
            text += f", {_beside(measured, step_ms / 1e3)}"
        else:
            text += f"; this ran on {foretold.device}"
            text += "" if lines else ", see --calibrate"
        lines.append(text)
    return lines


def _beside(measured: float, predicted: float) -> str:
    off = predicted / measured - 1
    if abs(off) < 0.005:
        return "as measured"
    return f"{abs(off):.0%} {'more' if off > 0 else 'less'} than measured"


def _traffic(outcome: Outcome, foretold: Foretold) -> str:
    text = (
        f"{format_bytes(outcome.moved_bytes + outcome.summed_bytes)}   activations "
        f"{format_bytes(outcome.moved_bytes)}, gradients {format_bytes(outcome.summed_bytes)}"
    )
    expected = foretold.plan.get("communication_bytes")
    if foretold.here is not None:
        expected = foretold.here.outcome.communication_bytes
    if isinstance(expected, int | float):
        text += f"; predicted {format_bytes(expected)}"
    return text
