"""What to change: every idea is simulated, and offered with the gain that comes out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from traincast.errors import PredictionError
from traincast.graph.precision import PRECISIONS, Precision
from traincast.simulate.fit import default_precision, largest_batch, step_memory
from traincast.simulate.prediction import Prediction, Suggestion
from traincast.simulate.step import Plan, program_for, simulate_step


def suggestions_for(found: Prediction) -> tuple[Suggestion, ...]:
    """Return the changes that would help most, each with its predicted gain in throughput."""
    engine = found.engine
    device, precision = found.device, found.step.program.precision
    now = found.samples_per_s

    def rate(change: Plan, how: Precision = precision) -> float:
        program = program_for(found.graph, how, device, engine, change)
        other = simulate_step(program, device, engine, change)
        if step_memory(other, device).peak > device.available_bytes and found.fits:
            return 0.0
        return change.batch * change.accumulate / other.seconds

    tries = [(change, rate(other, how)) for change, other, how in _ideas(found)]
    gains = sorted(((speed / now - 1, change) for change, speed in tries), reverse=True)
    chosen: list[Suggestion] = []
    for gain, change in gains:
        same = change.startswith("raise") and any(s.change.startswith("raise") for s in chosen)
        if gain > 0.01 and not same and len(chosen) < 3:
            chosen.append(Suggestion(change=change, gain=gain))
    if not found.fits:
        chosen.insert(0, _make_it_fit(found))
    return tuple(chosen[:3])


def _ideas(found: Prediction) -> Iterator[tuple[str, Plan, Precision]]:
    """Yield what could be tried: the change, the plan and the precision that it means."""
    plan, device, precision = found.step.plan, found.device, found.step.program.precision
    mixed = default_precision(device)
    kinds = {op.kind for op in found.graph.ops}
    if precision.name in ("fp32", "tf32") and mixed.name != precision.name:
        yield f"train in {mixed.name}", plan, mixed
    if precision.name == "fp32" and "tf32" in device.matrix_flops:
        yield "allow TF32 in matrix products and convolutions", plan, PRECISIONS["tf32"]
    if precision.name == "amp_bf16":
        yield "keep parameters in bf16 too (precision bf16)", plan, PRECISIONS["bf16"]
    if (
        precision.name in ("bf16", "amp_bf16")
        and found.fits
        and "fp8" in device.matrix_flops
        and (kinds & {"attention"})
    ):
        yield "run linear layers in fp8", plan, PRECISIONS["fp8"]
    if plan.layout == "nchw" and "conv" in kinds:
        yield "use channels_last (layout nhwc)", replace(plan, layout="nhwc"), precision
    if plan.eager and found.step.host_bound:
        out = replace(plan, eager=False)
        yield "issue fewer, larger kernels: torch.compile", out, precision
    if "batch" not in found.graph.fixed:
        for factor in (2, 4):
            bigger = replace(plan, batch=plan.batch * factor)
            yield f"raise the batch to {bigger.batch}", bigger, precision
    if plan.recompute:
        yield "keep activations instead of recomputing", replace(plan, recompute=False), precision
    if plan.optimizer is not None and plan.accumulate == 1:
        yield "update every second pass (accumulate 2)", replace(plan, accumulate=2), precision


def _make_it_fit(found: Prediction) -> Suggestion:
    plan = found.step.plan
    precision = found.step.program.precision
    for change, other in (
        ("", plan),
        (" with recomputation", replace(plan, recompute=True)),
    ):
        try:
            batch = largest_batch(found.graph, found.device, precision, other)
        except PredictionError:
            continue
        if batch < plan.batch or change:
            fitting = replace(
                found.step.plan, batch=min(batch, plan.batch), recompute=other.recompute
            )
            engine = found.engine
            step = simulate_step(found.step.program, found.device, engine, fitting)
            gain = fitting.batch * fitting.accumulate / step.seconds / found.samples_per_s - 1
            return Suggestion(
                change=f"it does not fit: lower the batch to {fitting.batch}{change}", gain=gain
            )
    return Suggestion(change="it does not fit at any batch: use more devices", gain=0.0)
