"""A measured training step, for people and machines."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from traincast.measure.breakdown import Breakdown, Part
from traincast.measure.steps import Measured
from traincast.measure.table import run_columns
from traincast.report.fitted import Fitted, add_row, plain_table
from traincast.simulate.prediction import Prediction
from traincast.units import format_bytes, format_seconds

_ROUGH = 0.5
"""Beyond this overhead, as a fraction of the step, parts are only a rough guide."""


def measured_dict(found: Measured, device: str, predicted: Prediction | None) -> dict[str, Any]:
    """Return plain data: the columns of the validate table, and what is predicted."""
    columns = run_columns(found, device)
    names = ("step_ms", "step_p10", "step_p90", "wall_ms", "fwd_ms", "bwd_ms", "opt_ms",
             "infer_ms", "peak_gib", "steps", "depth")  # fmt: skip
    result = columns | {name: columns.get(name) for name in names}
    result["model"] = found.workload.model
    result["error"] = found.error or None
    result["notes"] = list(found.notes)
    result["predicted"] = None
    if predicted is not None:
        result["predicted"] = {
            "step_ms": predicted.seconds * 1e3,
            "interval_ms": [s * 1e3 for s in predicted.interval_s],
            "peak_gib": predicted.memory.peak / 2**30,
            "fits": predicted.fits,
            "error": _error(found, predicted),
            "estimator": predicted.estimator,
        }
    return result


def _error(found: Measured, predicted: Prediction) -> float | None:
    return predicted.seconds / found.timing.step_s - 1 if found.timing else None


def measured_panel(
    found: Measured, predicted: Prediction | None, top: int, similar: bool = True
) -> RenderableType:
    """Return what was found, the prediction beside it, and the longest `top` parts.

    With `similar`, layers whose paths differ in numbers only are put together.
    """
    parts: list[RenderableType] = [_facts(found, predicted)]
    if found.breakdown is not None and top:
        shown = found.breakdown.similar() if similar else found.breakdown
        parts.append(_breakdown(shown, top))
    notes = [note[0].upper() + note[1:] + "." for note in found.notes]
    if found.breakdown is not None:
        notes.append(_cost(found.breakdown, found.workload.unit == "cuda"))
    if found.workload.unit == "cpu" and found.peak_bytes is not None:
        notes.append("Memory is that of tensors; scratch inside operators is not counted.")
    if notes:
        parts.append(Text("\n".join(notes), style="dim"))
    spaced = [part if i == 0 else Padding(part, (1, 0, 0, 0)) for i, part in enumerate(parts)]
    title = Text(f"{found.workload.model} · {found.device}")
    return Panel(Group(*spaced), title=title, title_align="left", expand=False, padding=(1, 2))


def _setting(found: Measured) -> str:
    w = found.workload
    parts = [f"batch {w.batch}"]
    parts += [f"seq {w.seq}"] if w.seq else []
    parts += [f"{w.image} px"] if w.image else []
    parts += [str(w.precision), w.optimizer]
    parts += [w.layout] if w.layout != "nchw" else []
    parts += ["compiled"] if w.compiled else []
    return " · ".join([*parts, f"PyTorch {found.torch}"])


def _facts(found: Measured, predicted: Prediction | None) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    table.add_row("Run", _setting(found))
    timing = found.timing
    assert timing is not None
    step = Text(format_seconds(timing.step_s), style="bold green")
    step.append(
        f"   8 of 10 steps: {format_seconds(timing.low_s)} to {format_seconds(timing.high_s)}; "
        f"{timing.steps} timed",
        style="not bold dim",
    )
    table.add_row("Step", step)
    samples = (found.workload.batch or 0) / timing.step_s
    speed = f"{samples:,.0f} samples/s" if samples >= 100 else f"{samples:.3g} samples/s"
    if found.workload.seq:
        speed = f"{samples * found.workload.seq:,.0f} tokens/s   {speed}"
    table.add_row("Throughput", speed)
    for name, seconds in zip(("Forward", "Backward", "Optimizer"), timing.phases_s, strict=True):
        table.add_row(name, f"{format_seconds(seconds)}   {seconds / timing.step_s:.0%}")
    if found.infer_s is not None:
        table.add_row("Forward alone", f"{format_seconds(found.infer_s)} without gradients")
    if found.peak_bytes is not None:
        memory = Text(format_bytes(found.peak_bytes))
        if predicted is not None:
            memory.append(f"   predicted {format_bytes(predicted.memory.peak)}", style="dim")
        table.add_row("Peak memory", memory)
    if predicted is not None:
        table.add_row("Predicted", _predicted(found, predicted))
    return table


def _predicted(found: Measured, predicted: Prediction) -> Text:
    low, high = predicted.interval_s
    error = _error(found, predicted)
    assert error is not None
    text = Text(f"{format_seconds(predicted.seconds)} ({100 * error:+.0f} %)")
    said = f"   90 % of real runs: {format_seconds(low)} to {format_seconds(high)}"
    return text.append(f"{said}; {predicted.estimator}", style="dim")


def _cost(breakdown: Breakdown, gpu: bool) -> str:
    each, adds = breakdown.depth, "the parts add up to the step"
    if breakdown.overhead <= 0:
        return f"Timing each {each} made no step longer; {adds}."
    said = f"Timing each {each} made a step {breakdown.overhead:.0%} longer"
    if gpu and each == "op":
        return f"{said}, but no kernel; {adds} as it is without."
    if breakdown.overhead > _ROUGH:
        return f"{said}, which is taken off: that is much, so take the shares as a rough guide."
    return f"{said}, which is taken off; {adds}."


def _breakdown(breakdown: Breakdown, top: int) -> RenderableType:
    layers = breakdown.depth == "layer"
    heads = [breakdown.depth, "share", "time", *(["forward", "backward"] if layers else ["calls"])]

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=(breakdown.depth,))
        table.columns[0].no_wrap = False
        table.columns[0].overflow = "fold"
        for part in breakdown.parts[:top]:
            name = part.name + (f" ×{part.count}" if part.count > 1 else "")
            cells = [name, f"{part.seconds / breakdown.step_s:.1%}", *_times(part, layers)]
            add_row(table, list(zip(heads, cells, strict=True)))
        rest = breakdown.parts[top:]
        if rest:
            share = sum(part.seconds for part in rest) / breakdown.step_s
            table.add_row(f"… {len(rest)} more", f"{share:.1%}", style="dim")
        return table

    return Fitted(build, ("calls", "backward", "forward"))


def _times(part: Part, layers: bool) -> list[str]:
    times = [part.seconds, part.forward_s, part.backward_s] if layers else [part.seconds]
    shown = ["–" if not t else format_seconds(t) for t in times]
    return shown if layers else [*shown, f"{part.calls:g}"]
