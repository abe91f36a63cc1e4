"""Training on many devices: compute, communication and what overlaps, over device counts.

Gradients of replicated parameters are all-reduced in buckets, in the order in which backward
produces them; a bucket starts when its last gradient is ready and the one before it has ended, so
most of it hides behind the rest of backward. Activations that a split layer needs are waited for.

Parameter servers, as TensorFlow and MXNet arrange them (github.com/tensorflow/tensorflow,
docs_src/performance/performance_models.md at 01fc22e: gradients are summed over the GPUs of a
machine, and one sum goes to the servers, among which variables are spread by size): each node has
one in the memory of its host, with 1/N of n bytes. Every device copies its gradients to its host
and the new values back, over its link to the host at B_h; N hosts then exchange over ports of B_n:

    2n / B_h + 2 (N−1) / K · n / B_n        K servers on N nodes, by default K = N

Half of it is the way there, which backward hides as above. The way back waits until all gradients
of all workers have arrived (the barrier of a synchronous step, as the same document has it), so
nothing hides it.

Known inaccuracy: the host adds and updates at no cost, devices do not share their way to it, and
systems that hand out each variable as soon as it is complete hide some of the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.program import Program
from traincast.estimate.roofline import Estimator, LayerEstimator
from traincast.graph import DTYPE_BYTES, Graph, elements
from traincast.graph.precision import Precision
from traincast.hardware import Cluster, Device, Link, load_link
from traincast.network import algorithms, collective_seconds
from traincast.parallel.shard import Sharded, shard_program
from traincast.simulate.fit import step_memory
from traincast.simulate.step import Plan, Step, program_for, simulate_step

STRATEGIES = ("data", "model", "hybrid")
SCALINGS = ("weak", "strong")
SERVERS = "parameter-server"
BUCKET_BYTES = 25 * 2**20
"""Size of a gradient bucket, that of PyTorch's DistributedDataParallel."""
_MOST = 10**6
"""Devices beyond which no cluster goes."""


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


def check_request(
    devices: Sequence[int], strategies: Sequence[str], scaling: str, batch: int = 0
) -> None:
    """Raise for device counts, strategies, a scaling or a batch that make no sense."""
    for count in devices:
        if not 1 <= count <= _MOST:
            raise InvalidValueError(f"{count} devices: give whole numbers from 1 to {_MOST:,}")
    for name in strategies:
        if name not in STRATEGIES:
            raise UnknownNameError(
                "strategy", name, STRATEGIES, f"(known: {', '.join(STRATEGIES)})"
            )
    if scaling not in SCALINGS:
        raise UnknownNameError("scaling", scaling, SCALINGS, "(known: weak, strong)")
    for count in devices:
        if batch:
            _local_batch(batch, count, scaling)


def _folded(scheme: str) -> str:
    return scheme.strip().lower().replace("_", "-")


def check_scheme(name: str) -> None:
    """Raise for a name that is no way to reduce gradients."""
    known = ("auto", "nccl", "fastest", "hierarchical", *algorithms("all-reduce"))
    if _folded(name) not in known:
        raise UnknownNameError("scheme", name, known, f"(known: {', '.join(known)})")


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
    servers: int | None = None,
    measured_s: float | None = None,
) -> list[ScaleRow]:
    """Return a row for each strategy, scheme and number of devices.

    `plan.batch` is the batch of each device in weak scaling and that of all together in strong
    scaling, where it has to be a multiple of every number of devices. `servers` is the number of
    parameter servers, by default one a node. `measured_s` is what a step of `plan` really takes on
    one device: all compute is stretched to it, and only communication is then predicted.
    """
    check_request(devices, strategies, scaling, plan.batch)
    for scheme in schemes:
        check_scheme(scheme)
    split = next((name for name in strategies if name != "data"), None)
    if split and isinstance(estimator, LayerEstimator):
        raise InvalidValueError(
            f"{estimator.name} prices whole layers and cannot split them for strategy {split}; "
            "take strategy data, or the estimator roofline"
        )
    program = program_for(graph, precision, device, estimator, plan)
    alone = simulate_step(program, device, estimator, plan)
    pace = 1.0 if measured_s is None else measured_s / alone.seconds
    rows = []
    for strategy in strategies:
        for scheme in schemes:
            for count in devices:
                local = _local_batch(plan.batch, count, scaling)
                study = _Study(
                    program, device, where, estimator, replace(plan, batch=local), pace, servers
                )
                row = study.row(strategy, scheme, count, bucket_bytes, overlap)
                ratio = plan.batch * plan.accumulate / (alone.seconds * pace)
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
    pace: float
    """Factor on predicted compute, from a measured step."""
    servers: int | None

    def row(self, strategy: str, scheme: str, count: int, bucket: float, overlap: bool) -> ScaleRow:
        # Under `model` every device works on the samples of all.
        plan = self.plan
        if strategy == "model":
            plan = replace(plan, batch=plan.batch * count)
        sharded = shard_program(self.program, strategy, count)
        step = simulate_step(sharded.program, self.device, self.estimator, plan)
        step = self._updated(step, sharded, count)
        compute = step.seconds * self.pace
        stretch = compute / (sum(step.device_s.values()) or 1.0)
        waits, moved = self._activations(sharded, plan, count)
        sync, exposed, reduced = 0.0, 0.0, 0.0
        if count > 1 and plan.training:
            buckets = self._buckets(sharded, step, bucket, stretch)
            reduced = sum(size for size, _ in buckets)
            sync, exposed = self._overlap(buckets, step, scheme, count, stretch, overlap)
        seconds = compute + waits + exposed
        samples = self.plan.batch * count * plan.accumulate
        peak = step_memory(step, self.device).peak if strategy == "data" else None
        return ScaleRow(
            strategy=strategy,
            devices=count,
            scheme=scheme,
            batch=self.plan.batch,
            compute_s=compute,
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
        share = 1.0 - self._split_share(sharded) * (1.0 - 1.0 / count)
        return replace(step, update_s=step.update_s * share, update_bytes=step.update_bytes * share)

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
        times = np.asarray(self._reduction(sizes, scheme, count))
        total = float(times.sum())
        if not overlap:
            return total, total
        back = total / 2 if _folded(scheme) == SERVERS else 0.0
        end = 0.0
        for seconds, (_, ready) in zip(times * (1 - back / total), buckets, strict=True):
            end = max(end, ready) + float(seconds)
        backward = float(step.op_seconds[:, 1].sum()) * stretch
        return total, max(0.0, end - backward) + back

    def _reduction(
        self, sizes: NDArray[np.float64], scheme: str, count: int
    ) -> float | NDArray[np.float64]:
        """Return the seconds of one all-reduce of each size."""
        name, where = _folded(scheme), self.where
        if name != SERVERS:
            return collective_seconds("all-reduce", sizes, count, where, algorithm=name)
        if isinstance(where, Link):
            servers = min(self.servers or count, count)
            return collective_seconds(
                "all-reduce", sizes, count, where, algorithm=SERVERS, servers=servers
            )
        nodes = -(-count // where.devices_per_node)
        host = load_link(self.device.host_link) if self.device.host_link else where.intra_link
        seconds = 2 * (host.latency_s + sizes / host.bandwidth)
        if nodes > 1:
            port = where.inter_link
            ports = replace(port, bandwidth=port.bandwidth * where.ports_per_node)
            servers = min(self.servers or nodes, nodes)
            seconds = seconds + collective_seconds(
                "all-reduce", sizes, nodes, ports, algorithm=SERVERS, servers=servers
            )
        return seconds
