"""What the user gets: a step's time with its interval, memory, bottleneck and what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from traincast.errors import UnknownNameError
from traincast.estimate.roofline import Estimator
from traincast.graph import Graph
from traincast.hardware import Device
from traincast.parallel.memory import Memory
from traincast.simulate.step import Step

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """A change worth trying."""

    change: str
    """What to do."""
    gain: float
    """Predicted throughput after the change over that before, minus 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Part of a step: a layer, a type of op or one op. Seconds are those of the device."""

    name: str
    count: int
    forward_s: float
    backward_s: float
    flops: float
    traffic_bytes: float
    bound_by: str

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward_s + self.backward_s

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with units in the keys."""
        return {
            "name": self.name,
            "count": self.count,
            "forward_ms": self.forward_s * 1e3,
            "backward_ms": self.backward_s * 1e3,
            "flops": self.flops,
            "traffic_bytes": self.traffic_bytes,
            "bound_by": self.bound_by,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A whole training run."""

    steps: float
    seconds: float
    cost: float | None
    """In the currency of the price given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """The predicted training step of one model on one device."""

    model: str
    graph: Graph
    device: Device
    precision: str
    optimizer: str
    step: Step
    memory: Memory
    interval_s: tuple[float, float]
    """Nine real steps in ten fall between these."""
    engine: Estimator = field(repr=False)
    """What priced it."""
    totals: Totals | None
    notes: tuple[str, ...]

    @cached_property
    def suggestions(self) -> tuple[Suggestion, ...]:
        """Up to three changes worth trying; simulated when first asked for."""
        from traincast.simulate.suggest import suggestions_for

        return suggestions_for(self)

    @property
    def estimator(self) -> str:
        """Name of the estimator."""
        return self.engine.name

    @property
    def basis(self) -> str:
        """What it rests on: a datasheet, a transferred profile or a calibration of that device."""
        return self.engine.basis

    @property
    def seconds(self) -> float:
        """Predicted seconds of a step."""
        return self.step.seconds

    @property
    def samples(self) -> int:
        """Samples in a step."""
        return self.step.plan.batch * self.step.plan.accumulate

    @property
    def samples_per_s(self) -> float:
        """Throughput in samples."""
        return self.samples / self.seconds

    @property
    def tokens_per_s(self) -> float | None:
        """Throughput in positions; None for a network without a sequence."""
        seq = self.step.plan.seq
        return self.samples_per_s * seq if seq else None

    @property
    def fits(self) -> bool:
        """Whether the peak fits into what the device offers."""
        return self.memory.peak <= self.device.available_bytes

    @property
    def utilisation(self) -> float:
        """FLOPs of the model over what the device's peak would do in that time."""
        peak = self.device.peak(self.step.program.precision.peak)
        return sum(self.step.flops) / (self.seconds * peak)

    @property
    def bound_by(self) -> str:
        """compute, memory or launch."""
        return self.step.bound_by

    def by(self, group: str) -> list[Row]:
        """Return the parts of the step by `layer`, `similar` layers, `type` or `op`, longest first.

        Layers are similar whose paths differ in numbers only: `layers.3.mlp` and `layers.4.mlp`.
        """
        if group not in ("layer", "similar", "type", "op"):
            raise UnknownNameError("group", group, (), "use layer, similar, type or op")
        step = self.step
        program = step.program
        kinds = [c.kind for c in program.classes]
        if group == "type":
            labels = [kinds[i] for i in program.op_class]
        elif group == "layer":
            labels = list(program.layers)
        elif group == "similar":
            labels = [_NUMBER.sub(".*", layer) for layer in program.layers]
        else:
            labels = list(program.names)
        index: dict[str, int] = {}
        group_of = np.array([index.setdefault(label, len(index)) for label in labels])
        size = len(index)
        times = step.op_seconds * step.plan.accumulate
        forward, backward = (
            np.bincount(group_of, times[:, i], size).astype(np.float64) for i in (0, 1)
        )
        if not step.plan.training:
            backward = np.zeros(size)
        elif step.again.any():
            backward += np.bincount(group_of, times[:, 0] * step.again, size)
        passes = 2 if step.plan.training else 1
        flops = np.bincount(group_of, step.op_flops[:, :passes].sum(axis=1), size)
        moved = np.bincount(group_of, step.op_bytes[:, :passes].sum(axis=1), size)
        bound = np.column_stack(
            [np.bincount(group_of, step.op_bound[:, i], size) for i in range(3)]
        ).argmax(axis=1)
        count = np.bincount(group_of, minlength=size)
        rows = [
            Row(
                name=name,
                count=int(count[i]),
                forward_s=float(forward[i]),
                backward_s=float(backward[i]),
                flops=float(flops[i]) * step.plan.accumulate,
                traffic_bytes=float(moved[i]) * step.plan.accumulate,
                bound_by=("compute", "memory", "launch")[bound[i]],
            )
            for name, i in index.items()
        ]
        return sorted(rows, key=lambda row: -row.seconds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with stable keys; units are in the names."""
        step, phases = self.step, self.step.phase_s
        return {
            "model": self.model,
            "device": self.device.name,
            "batch": step.plan.batch,
            "seq": step.plan.seq or None,
            "precision": self.precision,
            "optimizer": self.optimizer if step.plan.training else None,
            "accumulate": step.plan.accumulate,
            "recompute": step.plan.recompute,
            "layout": step.plan.layout,
            "parameters": self.graph.parameter_count,
            "forward_flops": step.flops[0],
            "backward_flops": step.flops[1],
            "step_ms": self.seconds * 1e3,
            "interval_ms": [s * 1e3 for s in self.interval_s],
            "forward_ms": phases["forward"] * 1e3,
            "backward_ms": phases["backward"] * 1e3,
            "optimizer_ms": phases["optimizer"] * 1e3,
            "device_ms": sum(step.device_s.values()) * 1e3,
            "host_ms": sum(step.host_s.values()) * 1e3,
            "samples_per_s": self.samples_per_s,
            "tokens_per_s": self.tokens_per_s,
            "utilisation": self.utilisation,
            "peak_bytes": self.memory.peak,
            "memory_bytes": {
                "parameters": self.memory.parameters,
                "gradients": self.memory.gradients,
                "optimizer": self.memory.optimizer,
                "inputs": self.memory.inputs,
                "activations": self.memory.activations,
                "workspace": self.memory.workspace,
            },
            "capacity_bytes": self.device.available_bytes,
            "fits": self.fits,
            "bound_by": self.bound_by,
            "bound_ms": {k: v * 1e3 for k, v in step.bound_s.items()},
            "estimator": self.estimator,
            "basis": self.basis,
            "unpriced_ops": [
                {"op": name, "bytes_share": share} for name, share in step.unpriced.items()
            ],
            "suggestions": [{"change": s.change, "gain": s.gain} for s in self.suggestions],
            "totals": None
            if self.totals is None
            else {
                "steps": self.totals.steps,
                "hours": self.totals.seconds / 3600,
                "cost": self.totals.cost,
            },
            "notes": list(self.notes),
        }

    def to_trace(self, path: str | Path) -> None:
        """Write a Chrome trace of the step, which Perfetto and chrome://tracing open."""
        from traincast.report.trace import write_trace

        write_trace(self, Path(path))

    def __repr__(self) -> str:
        from traincast.units import format_bytes, format_seconds

        low, high = self.interval_s
        plan = self.step.plan
        seq = f", seq={plan.seq}" if plan.seq else ""
        return (
            f"Prediction({self.model!r} on {self.device.name}, batch={plan.batch}{seq}, "
            f"{self.precision}: {format_seconds(self.seconds)} a step "
            f"[{format_seconds(low)} to {format_seconds(high)}], "
            f"{self.samples_per_s:,.0f} samples/s, {format_bytes(self.memory.peak)}, "
            f"bound by {self.bound_by})"
        )
