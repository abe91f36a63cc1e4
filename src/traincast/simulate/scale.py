"""Training on many devices: compute, communication and what overlaps, over device counts.

Gradients of replicated parameters are all-reduced in buckets, in the order in which backward
produces them; a bucket starts when its last gradient is ready and the one before it has ended, so
most of it hides behind the rest of backward. Activations that a split layer needs are waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.program import Program, program_of
from traincast.estimate.roofline import Estimator
from traincast.graph import DTYPE_BYTES, Graph, elements
from traincast.graph.precision import Precision
from traincast.hardware import Cluster, Device, Link
from traincast.network import collective_seconds
from traincast.parallel.shard import Sharded, shard_program
from traincast.simulate.fit import step_memory
from traincast.simulate.step import Plan, Step, simulate_step, update_seconds

STRATEGIES = ("data", "model", "hybrid")
SCALINGS = ("weak", "strong")
BUCKET_BYTES = 25 * 2**20
"""Size of a gradient bucket, that of PyTorch's DistributedDataParallel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleRow:
    """One strategy on one number of devices; seconds and bytes."""

    strategy: str
    devices: int
    scheme: str
    """Algorithm of the gradient all-reduce."""
    batch: int
    """Samples that each device takes in a step."""
    compute_s: float
    """Time without any communication."""
    communication_s: float
    """Time of all communication, hidden or not."""
    step_s: float
    speedup: float
    """Throughput over that of one device."""
    efficiency: float
    """Speed-up over the number of devices."""
    samples_per_s: float
    traffic_bytes: float
    """Bytes of all vectors that are reduced, gathered or scattered in a step."""
    peak_bytes: float | None = None
    """Memory of each device; None where it is not modelled."""
    fits: bool | None = None


def check_request(devices: Sequence[int], strategies: Sequence[str], scaling: str) -> None:
    """Raise for device counts, strategies or a scaling that make no sense."""
    for count in devices:
        if count < 1:
            raise InvalidValueError(f"{count} devices: give whole numbers of at least 1")
    for name in strategies:
        if name not in STRATEGIES:
            raise UnknownNameError(
                "strategy", name, STRATEGIES, f"(known: {', '.join(STRATEGIES)})"
            )
    if scaling not in SCALINGS:
        raise UnknownNameError("scaling", scaling, SCALINGS, "(known: weak, strong)")


def scale(
    graph: Graph,
    device: Device,
    where: Link | Cluster,
    estimator: Estimator,
    precision: Precision,
    plan: Plan,
    *,
    devices: Sequence[int],
    strategies: Sequence[str] = ("data",),
    schemes: Sequence[str] = ("auto",),
    scaling: str = "weak",
    bucket_bytes: float = BUCKET_BYTES,
    overlap: bool = True,
) -> list[ScaleRow]:
    """Return a row for each strategy, scheme and number of devices.

    `plan.batch` is the batch of each device in weak scaling and that of all together in strong
    scaling, where it has to be a multiple of every number of devices.
    """
    check_request(devices, strategies, scaling)
    program = program_of(graph, precision)
    alone = simulate_step(program, device, estimator, plan)
    rows = []
    for strategy in strategies:
        for scheme in schemes:
            for count in devices:
                local = _local_batch(plan.batch, count, scaling)
                study = _Study(program, device, where, estimator, replace(plan, batch=local))
                row = study.row(strategy, scheme, count, bucket_bytes, overlap)
                ratio = plan.batch / alone.seconds
                speedup = row.samples_per_s / ratio
                rows.append(replace(row, speedup=speedup, efficiency=speedup / count))
    return rows


def _local_batch(batch: int, count: int, scaling: str) -> int:
    if scaling == "weak":
        return batch
    if batch % count:
        below, above = batch // count * count, (batch // count + 1) * count
        near = " or ".join(str(b) for b in (below, above) if b)
        raise InvalidValueError(
            f"batch {batch} does not divide among {count} devices in strong scaling; "
            f"take batch {near}, or other device counts"
        )
    return batch // count


@dataclass(frozen=True, slots=True)
class _Study:
    program: Program
    device: Device
    where: Link | Cluster
    estimator: Estimator
    plan: Plan

    def row(self, strategy: str, scheme: str, count: int, bucket: float, overlap: bool) -> ScaleRow:
        # Under `model` every device works on the samples of all.
        plan = self.plan
        if strategy == "model":
            plan = replace(plan, batch=plan.batch * count)
        sharded = shard_program(self.program, strategy, count)
        step = simulate_step(sharded.program, self.device, self.estimator, plan)
        step = self._updated(step, sharded, count)
        stretch = step.seconds / (sum(step.device_s.values()) or 1.0)
        waits, moved = self._activations(sharded, plan, count)
        sync, exposed, reduced = 0.0, 0.0, 0.0
        if count > 1 and plan.training:
            buckets = self._buckets(sharded, step, bucket, stretch)
            reduced = sum(size for size, _ in buckets)
            sync, exposed = self._overlap(buckets, step, scheme, count, stretch, overlap)
        seconds = step.seconds + waits + exposed
        samples = self.plan.batch * count * plan.accumulate
        peak = step_memory(step, self.device).peak if strategy == "data" else None
        return ScaleRow(
            strategy=strategy,
            devices=count,
            scheme=scheme,
            batch=self.plan.batch,
            compute_s=step.seconds,
            communication_s=waits + sync,
            step_s=seconds,
            speedup=1.0,
            efficiency=1.0,
            samples_per_s=samples / seconds,
            traffic_bytes=moved + reduced,
            peak_bytes=peak,
            fits=None if peak is None else peak <= self.device.available_bytes,
        )

    def _updated(self, step: Step, sharded: Sharded, count: int) -> Step:
        """Return the step with the update of this device's own parameters only."""
        if step.plan.optimizer is None or not sharded.split:
            return step
        efficiency = self.estimator.efficiency(self.device)
        whole = update_seconds(self.program, self.device, efficiency, step.plan.optimizer)
        share = 1.0 - self._split_share(sharded) * (1.0 - 1.0 / count)
        return replace(step, update_s=whole[0] * share, update_bytes=whole[2] * share)

    def _split_share(self, sharded: Sharded) -> float:
        sizes = self._parameter_sizes()
        split = sum(
            size
            for name, size in sizes.items()
            if int(self.program.op_class[self.program.parameter_op[name]]) in sharded.split
        )
        return split / (sum(sizes.values()) or 1.0)

    def _parameter_sizes(self) -> dict[str, float]:
        each = DTYPE_BYTES[self.program.precision.parameters]
        tensors = self.program.graph.tensors
        return {
            name: elements(tensors[name].shape, 1, 1) * each for name in self.program.parameter_op
        }

    def _activations(self, sharded: Sharded, plan: Plan, count: int) -> tuple[float, float]:
        """Return the seconds that split layers wait for activations, and the bytes of those."""
        times = np.bincount(self.program.op_class, minlength=len(self.program.classes))
        seconds = moved = 0.0
        known: dict[tuple[str, float], float] = {}
        for index, sent in enumerate(sharded.traffic):
            for traffic in sent:
                if traffic.backward and not plan.training:
                    continue
                size = traffic.bytes_at(plan.batch, plan.seq)
                key = (traffic.collective, size)
                if size and key not in known:
                    known[key] = collective_seconds(traffic.collective, size, count, self.where)
                repeats = int(times[index]) * plan.accumulate
                seconds += known.get(key, 0.0) * repeats
                moved += size * repeats
        return seconds, moved

    def _buckets(
        self, sharded: Sharded, step: Step, limit: float, stretch: float
    ) -> list[tuple[float, float]]:
        """Return (bytes, seconds into backward when it is ready) of each gradient bucket."""
        backward = step.op_seconds[:, 1][::-1].cumsum()[::-1] * stretch
        ready: list[tuple[int, float]] = []
        for name, size in self._parameter_sizes().items():
            op = self.program.parameter_op[name]
            if int(self.program.op_class[op]) not in sharded.split:
                ready.append((op, size))
        ready.sort(reverse=True)
        buckets: list[tuple[float, float]] = []
        filled = 0.0
        for i, (op, size) in enumerate(ready):
            filled += size
            if filled >= limit or i == len(ready) - 1:
                buckets.append((filled, float(backward[op])))
                filled = 0.0
        return buckets

    def _overlap(
        self,
        buckets: list[tuple[float, float]],
        step: Step,
        scheme: str,
        count: int,
        stretch: float,
        overlap: bool,
    ) -> tuple[float, float]:
        """Return the seconds of all bucket reductions, and those that backward does not hide."""
        if not buckets:
            return 0.0, 0.0
        sizes = np.array([size for size, _ in buckets])
        times = np.asarray(
            collective_seconds("all-reduce", sizes, count, self.where, algorithm=scheme)
        )
        total = float(times.sum())
        if not overlap:
            return total, total
        end = 0.0
        for seconds, (_, ready) in zip(times, buckets, strict=True):
            end = max(end, ready) + float(seconds)
        backward = float(step.op_seconds[:, 1].sum()) * stretch
        return total, max(0.0, end - backward)
