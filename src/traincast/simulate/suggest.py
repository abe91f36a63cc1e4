"""What to change: every idea is simulated, and offered with the gain that comes out."""

from __future__ import annotations

from dataclasses import replace

from traincast.errors import PredictionError
from traincast.estimate.program import program_of
from traincast.estimate.roofline import estimator_named
from traincast.graph.precision import PRECISIONS, Precision
from traincast.simulate.fit import default_precision, largest_batch, step_memory
from traincast.simulate.prediction import Prediction, Suggestion
from traincast.simulate.step import Plan, simulate_step


def suggestions_for(found: Prediction) -> tuple[Suggestion, ...]:
    """Return the changes that would help most, each with its predicted gain in throughput."""
    step, plan = found.step, found.step.plan
    engine = estimator_named(found.estimator)
    device, precision = found.device, step.program.precision
    now = found.samples_per_s

    def rate(change: Plan, how: Precision = precision) -> float:
        program = program_of(found.graph, how)
        other = simulate_step(program, device, engine, change)
        if step_memory(other, device).peak > device.available_bytes and found.fits:
            return 0.0
        return change.batch * change.accumulate / other.seconds

    tries: list[tuple[str, float]] = []
    mixed = default_precision(device)
    if precision.name in ("fp32", "tf32") and mixed.name != precision.name:
        tries.append((f"train in {mixed.name}", rate(plan, mixed)))
    if precision.name == "fp32" and "tf32" in device.matrix_flops:
        tries.append(
            ("allow TF32 in matrix products and convolutions", rate(plan, PRECISIONS["tf32"]))
        )
    if plan.layout == "nchw" and any(o.kind == "conv" for o in found.graph.ops):
        tries.append(("use channels_last (layout nhwc)", rate(replace(plan, layout="nhwc"))))
    if plan.eager and step.host_bound:
        tries.append(
            ("take the host out: torch.compile or CUDA graphs", rate(replace(plan, eager=False)))
        )
    if "batch" not in found.graph.fixed:
        for factor in (2, 4):
            bigger = replace(plan, batch=plan.batch * factor)
            tries.append((f"raise the batch to {bigger.batch}", rate(bigger)))
    if plan.recompute:
        tries.append(
            ("keep activations instead of recomputing", rate(replace(plan, recompute=False)))
        )
    gains = sorted(((speed / now - 1, change) for change, speed in tries), reverse=True)
    chosen: list[Suggestion] = []
    for gain, change in gains:
        same = change.startswith("raise") and any(s.change.startswith("raise") for s in chosen)
        if gain > 0.03 and not same and len(chosen) < 3:
            chosen.append(Suggestion(change=change, gain=gain))
    if not found.fits:
        chosen.insert(0, _make_it_fit(found))
    return tuple(chosen[:3])


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
            engine = estimator_named(found.estimator)
            step = simulate_step(found.step.program, found.device, engine, fitting)
            gain = fitting.batch * fitting.accumulate / step.seconds / found.samples_per_s - 1
            return Suggestion(
                change=f"it does not fit: lower the batch to {fitting.batch}{change}", gain=gain
            )
    return Suggestion(change="it does not fit at any batch: use more devices", gain=0.0)
