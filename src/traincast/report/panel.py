"""A prediction for people, in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.simulate.prediction import Prediction, Row
from traincast.units import format_bytes, format_seconds, format_si

_WIDTH = 24
_BOUND_TEXT = {
    "compute": "compute: arithmetic takes longest",
    "memory": "memory traffic: moving data takes longest",
    "launch": "launches: the kernels are too small for the device",
}


def panel(found: Prediction, by: str | None, top: int) -> RenderableType:
    """Return everything a person wants to see first."""
    parts: list[RenderableType] = [_facts(found), _phases(found)]
    if top:
        parts.append(_rows(found, by or "similar", top))
    if found.suggestions:
        parts.append(_suggestions(found))
    parts.append(_basis(found))
    spaced = [part if i == 0 else Padding(part, (1, 0, 0, 0)) for i, part in enumerate(parts)]
    title = Text(f"{found.model} · {found.device.title}")
    return Panel(Group(*spaced), title=title, title_align="left", expand=False, padding=(1, 2))


def _setting(found: Prediction) -> str:
    plan = found.step.plan
    parts = [f"batch {plan.batch}"]
    if plan.seq:
        parts.append(f"seq {plan.seq}")
    parts.append(found.precision)
    parts.append(found.optimizer if plan.training else "inference")
    if plan.accumulate > 1:
        parts.append(f"{plan.accumulate} passes a step")
    if plan.recompute:
        parts.append("recomputation")
    if plan.layout != "nchw":
        parts.append(plan.layout)
    if not plan.eager:
        parts.append("compiled")
    return " · ".join(parts)


def _bar(share: float, color: str) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * _WIDTH)
    return Text("█" * filled, style=color) + Text("░" * (_WIDTH - filled), style="dim")


def _facts(found: Prediction) -> RenderableType:
    low, high = found.interval_s
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("Run", _setting(found))
    unit = "Step" if found.step.plan.training else "Forward pass"
    step = Text(format_seconds(found.seconds), style="bold green")
    step.append(
        f"   90 % of real runs: {format_seconds(low)} to {format_seconds(high)}",
        style="not bold dim",
    )
    table.add_row(unit, step)
    speed = f"{_count(found.samples_per_s)} samples/s"
    if found.tokens_per_s:
        speed = f"{_count(found.tokens_per_s)} tokens/s   {speed}"
    table.add_row("Throughput", speed)
    peak = found.device.peak(found.step.program.precision.peak)
    table.add_row(
        "Utilisation",
        f"{found.utilisation:.1%} of {format_si(peak, 'FLOP/s')} "
        f"({format_si(found.step.flops[0], 'FLOP')} forward)",
    )
    table.add_row("Bound by", _bound(found))
    table.add_row("Memory", _memory(found))
    if found.totals:
        text = f"{format_seconds(found.totals.seconds)} for {_count(found.totals.steps)} steps"
        if found.totals.cost is not None:
            text += f", cost {found.totals.cost:,.2f}"
        table.add_row("Whole run", text)
    return table


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _bound(found: Prediction) -> Text:
    if found.step.host_bound:
        host, device = (sum(s.values()) for s in (found.step.host_s, found.step.device_s))
        return Text(
            f"launches: the host needs {format_seconds(host)} to issue what the device "
            f"does in {format_seconds(device)}"
        )
    shares = found.step.bound_s
    total = sum(shares.values()) or 1.0
    parts = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in shares.items())
    return Text(_BOUND_TEXT[found.bound_by]) + Text(f"   {parts}", style="dim")


def _memory(found: Prediction) -> Text:
    room = found.device.available_bytes
    share = found.memory.peak / room
    text = Text(f"{format_bytes(found.memory.peak)} of {format_bytes(room)} ({share:.0%})")
    text.append("" if found.fits else "  DOES NOT FIT", style="bold red")
    parts = [
        ("parameters", found.memory.parameters),
        ("gradients", found.memory.gradients),
        ("optimizer", found.memory.optimizer),
        ("activations", found.memory.activations),
    ]
    shown = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)
    return text + Text(f"\n{shown}", style="dim")


def _phases(found: Prediction) -> RenderableType:
    def build(without: frozenset[str]) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for phase, seconds in found.step.phase_s.items():
            if seconds:
                share = seconds / found.seconds
                bar = [] if "bar" in without else [_bar(share, "cyan")]
                table.add_row(phase, format_seconds(seconds), f"{share:.0%}", *bar)
        return table

    return Fitted(build, ("bar",))


def _rows(found: Prediction, by: str, top: int) -> RenderableType:
    rows = found.by(by)
    whole = sum(row.seconds for row in rows) or 1.0
    heads = [by, "share", "forward", "backward", "FLOP", "traffic", "bound by"]

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=(by, "bound by"))
        table.columns[0].no_wrap = False
        table.columns[0].overflow = "fold"
        table.columns[0].max_width = 44
        for row in rows[:top]:
            add_row(table, list(zip(heads, _cells(row, whole), strict=True)))
        if len(rows) > top:
            rest = sum(row.seconds for row in rows[top:])
            table.add_row(f"… {len(rows) - top} more", f"{rest / whole:.1%}", style="dim")
        return table

    return Fitted(build, ("traffic", "FLOP", "bound by", "backward", "forward"))


def _cells(row: Row, whole: float) -> list[str]:
    return [
        row.name + (f" ×{row.count}" if row.count > 1 else ""),
        f"{row.seconds / whole:.1%}",
        format_seconds(row.forward_s) if row.forward_s else "–",
        format_seconds(row.backward_s) if row.backward_s else "–",
        format_si(row.flops, "") if row.flops else "–",
        format_bytes(row.traffic_bytes),
        row.bound_by,
    ]


def _suggestions(found: Prediction) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="yellow", no_wrap=True)
    table.add_column()
    for suggestion in found.suggestions:
        gain = f"  {suggestion.gain:+.0%} throughput" if suggestion.gain else ""
        table.add_row("→", f"{suggestion.change}" + gain)
    return table


def _basis(found: Prediction) -> Text:
    rests = found.basis if found.basis.startswith("published") else f"a {found.basis}"
    lines = [f"Estimator {found.estimator}, resting on {rests}; no run was measured."]
    lines += [note[0].upper() + note[1:] + "." for note in found.notes]
    if found.step.unpriced:
        named = ", ".join(f"{op} ({share:.1%})" for op, share in found.step.unpriced.items())
        lines.append(f"No formula for {named} of the bytes moved: bounded by its traffic.")
    return Text("\n".join(lines), style="dim")
