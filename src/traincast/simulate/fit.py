"""Whether a step fits: its memory on a device, and the largest batch that does."""

from __future__ import annotations

from traincast.errors import PredictionError
from traincast.estimate.fusion import fused
from traincast.estimate.program import kernels_of, program_of
from traincast.graph import Graph
from traincast.graph.precision import PRECISIONS, Precision
from traincast.hardware import Device
from traincast.parallel.memory import Memory, memory_of
from traincast.simulate.step import Plan, Step
from traincast.units import format_bytes

_WORKSPACE = {"datacenter-gpu": 34e6, "consumer-gpu": 9e6}
"""Scratch that PyTorch gives to cuBLAS: 8 blocks of 4 MiB on Hopper, two and small ones before
(CUBLAS_WORKSPACE_CONFIG's defaults); other devices need none that counts. The backward pass runs
in a thread of its own, which has its own: training takes two."""
_LARGEST_BATCH = 1 << 44
"""Where the search ends for a graph that needs no memory for a sample; above any device's bytes."""


def default_precision(device: Device) -> Precision:
    """Return mixed precision where the device has matrix units for it, otherwise fp32."""
    for name, unit in (("amp_bf16", "bf16"), ("amp_fp16", "fp16")):
        if unit in device.matrix_flops:
            return PRECISIONS[name]
    return PRECISIONS["fp32"]


def _scratch(device: Device, plan: Plan) -> float:
    return _WORKSPACE.get(device.tier, 0.0) * (2 if plan.training else 1)


def step_memory(step: Step, device: Device) -> Memory:
    """Return the memory that a step takes on a device."""
    plan = step.plan
    return memory_of(
        step.program,
        step.kernels,
        plan.batch,
        plan.seq,
        optimizer=plan.optimizer,
        recompute=plan.recompute,
        accumulate=plan.accumulate,
        workspace=_scratch(device, plan),
    )


def largest_batch(graph: Graph, device: Device, precision: Precision, plan: Plan) -> int:
    """Return the largest batch whose peak fits on the device; raise if not even one does."""
    program = program_of(graph, precision)
    if not plan.eager:
        program = fused(program, plan.training)

    def peak(batch: int) -> float:
        return memory_of(
            program,
            kernels_of(program, batch, plan.seq),
            batch,
            plan.seq,
            optimizer=plan.optimizer,
            recompute=plan.recompute,
            accumulate=plan.accumulate,
            workspace=_scratch(device, plan),
        ).peak

    room = device.available_bytes
    least = graph.batch if "batch" in graph.fixed else 1
    if peak(least) > room:
        raise PredictionError(
            f"{graph.name} does not fit on {device.name} even at batch {least}: it needs "
            f"{format_bytes(peak(least))} of {format_bytes(room)}; use a lower precision, "
            "recomputation, a leaner optimizer or more devices"
        )
    if "batch" in graph.fixed:
        return least
    low, high = 1, 2
    while high <= _LARGEST_BATCH and peak(high) <= room:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if peak(middle) <= room else (low, middle)
    return low
