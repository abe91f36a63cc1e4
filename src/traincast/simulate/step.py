"""One training step on one device: every kernel's time, put together by two clocks.

The host issues ops in order; the device runs them in order and may lag behind. Over many steps
without synchronisation the period of a step is the longer of the two totals.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traincast.estimate.fusion import compiled_layout, fused, launch_seconds
from traincast.estimate.host import host_seconds, update_seconds
from traincast.estimate.optimizer import Optimizer
from traincast.estimate.program import (
    FAMILIES,
    Flags,
    Floats,
    Ints,
    Kernels,
    Program,
    kernels_of,
    program_of,
)
from traincast.estimate.roofline import (
    Estimator,
    KernelEstimator,
    LayerEstimator,
    OpTimes,
    Pricing,
    StepEstimator,
)
from traincast.graph import Graph
from traincast.graph.precision import Precision
from traincast.hardware import Device

PHASES = ("forward", "backward", "optimizer")
BOUNDS = ("compute", "memory", "launch")
_WARM = 3
"""Steps after which a device that is faster than its host repeats itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How one device trains: what to vary in a what-if."""

    batch: int
    """Samples in one forward pass."""
    seq: int
    """Positions in a sequence; 0 for a network without."""
    optimizer: Optimizer | None
    """None for a forward pass alone."""
    accumulate: int = 1
    """Forward and backward passes before each update."""
    recompute: bool = False
    """Whether backward runs each block's forward pass again instead of keeping its values."""
    layout: str = "nchw"
    """Memory order of images: nchw or nhwc."""
    eager: bool = True
    """Whether the host issues each op; False when a compiler has fused them into kernels."""

    @property
    def training(self) -> bool:
        """Whether there is a backward pass."""
        return self.optimizer is not None


@dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """Times of one step, by op and by phase; seconds."""

    program: Program
    plan: Plan
    kernels: Kernels
    op_seconds: Floats
    """(ops, 2): device seconds of each op forward and backward, in one pass."""
    op_host: Floats
    """(ops, 2): host seconds to issue each op forward and backward, in one pass."""
    op_flops: Floats
    """(ops, 2): multiply-add FLOPs of each op forward and backward, in one pass."""
    op_bytes: Floats
    """(ops, 2): bytes moved by each op forward and backward, in one pass."""
    op_bound: Floats
    """(ops, 3): device seconds of each op by what bounds its kernels."""
    update_s: float
    """Device seconds of the optimizer update."""
    update_host_s: float
    """Host seconds to issue it."""
    update_bytes: float
    """Bytes it moves."""
    unpriced: dict[str, float]
    """Ops without a formula, with their share of the bytes moved."""
    spread: float | None = None
    """Standard deviation of the logarithm of the device's seconds that comes from its kernels."""
    notes: tuple[str, ...] = ()
    """What the estimator has to say of this step."""

    @property
    def device_s(self) -> dict[str, float]:
        """Device seconds of each phase."""
        return self._phases(self.op_seconds, self.update_s)

    @property
    def host_s(self) -> dict[str, float]:
        """Host seconds of each phase, for issuing it."""
        return self._phases(self.op_host, self.update_host_s)

    @property
    def again(self) -> Flags:
        """Which ops run a second time, in the backward pass."""
        return run_again(self.program, self.plan)

    def _phases(self, per_op: Floats, update: float) -> dict[str, float]:
        forward, backward = (float(s) for s in per_op.sum(axis=0) * self.plan.accumulate)
        if not self.plan.training:
            return {"forward": forward, "backward": 0.0, "optimizer": 0.0}
        again = float(per_op[self.again, 0].sum()) * self.plan.accumulate
        return {"forward": forward, "backward": backward + again, "optimizer": update}

    @property
    def seconds(self) -> float:
        """Seconds from one step to the next."""
        return max(sum(self.device_s.values()), sum(self.host_s.values()))

    @property
    def phase_s(self) -> dict[str, float]:
        """Seconds of each phase as events on the device see them; they add up to the step.

        A device that is the slower clock always has work. Otherwise it catches up with the host
        now and then, and in between lags behind: a backward pass that takes the device long is
        still running when the host has begun the next forward pass.
        """
        if not self.host_bound or not self.plan.training:
            return self.host_s if self.host_bound else self.device_s
        return dict(zip(PHASES, self._seen(), strict=True))

    def _seen(self) -> tuple[float, float, float]:
        """Return the phases of a step that the host bounds, after a few such steps.

        Op i ends on the device at f(i) = max(f(i-1), a(i)) + d(i), a(i) being when the host has
        issued it: f(i) = D(i) + max over j ≤ i of (a(j) - D(j-1)), D the sum of d up to i.
        """
        issue, run = (
            self._in_order(self.op_host, self.update_host_s),
            self._in_order(self.op_seconds, self.update_s),
        )
        issued, ran = np.cumsum(np.tile(issue, _WARM)), np.cumsum(np.tile(run, _WARM))
        ended = ran + np.maximum.accumulate(issued - ran + np.tile(run, _WARM))
        marks = np.maximum(ended, issued)
        ops, last = len(self.op_host), len(issue) * (_WARM - 1) - 1
        back = ops + int(self.again.sum())
        begin = last + (ops + back) * np.arange(self.plan.accumulate)
        forward = float((marks[begin + ops] - marks[begin]).sum())
        backward = float((marks[begin + ops + back] - marks[begin + ops]).sum())
        return forward, backward, self.seconds - forward - backward

    def _in_order(self, per_op: Floats, update: float) -> Floats:
        """Return seconds of everything in a step, one after the other."""
        forward, backward = per_op[:, 0], per_op[::-1, 1]
        passes = [forward, forward[self.again], backward] * self.plan.accumulate
        return np.concatenate([*passes, [update]])

    @property
    def host_bound(self) -> bool:
        """Whether the host is the slower of the two."""
        return sum(self.host_s.values()) > sum(self.device_s.values())

    @property
    def bound_s(self) -> dict[str, float]:
        """Device seconds in kernels bound by compute, by memory traffic, by their launch."""
        sums = self.op_bound.sum(axis=0) * self.plan.accumulate
        result = dict(zip(BOUNDS, map(float, sums), strict=True))
        result["memory"] += self.update_s
        return result

    @property
    def bound_by(self) -> str:
        """What to improve first: compute, memory or launch (the host included)."""
        bound = self.bound_s
        return "launch" if self.host_bound else max(bound, key=lambda key: bound[key])

    @property
    def flops(self) -> tuple[float, float]:
        """Multiply-add FLOPs forward and backward, all passes, without recomputation."""
        forward, backward = self.op_flops.sum(axis=0) * self.plan.accumulate
        return float(forward), float(backward) if self.plan.training else 0.0


def simulate_step(program: Program, device: Device, estimator: Estimator, plan: Plan) -> Step:
    """Return the times of a step."""
    layout = plan.layout
    if not plan.eager and isinstance(estimator, KernelEstimator):
        layout = compiled_layout(program, layout)
        program = fused(program, plan.training)
    kernels = kernels_of(program, plan.batch, plan.seq)
    efficiency = estimator.efficiency(device)
    classes = len(program.classes)
    cell = kernels.op_class * 2 + np.minimum(kernels.phase, 1)
    traffic = kernels.read + kernels.write

    def per_op(values: Floats) -> Floats:
        table: Floats = np.bincount(cell, values, 2 * classes).astype(np.float64)
        return table.reshape(classes, 2)[program.op_class]

    update = host = moved = 0.0
    spread: float | None = None
    if plan.optimizer is not None and isinstance(estimator, StepEstimator):
        update, host, moved = estimator.update(program, device, plan.optimizer)
    elif plan.optimizer is not None:
        update, host, moved = update_seconds(program, device, efficiency, plan.optimizer)
    if not plan.eager:
        op_host = launch_seconds(program, kernels, efficiency)
    elif isinstance(estimator, StepEstimator):
        op_host = estimator.host(program, kernels, device, plan.training)
    else:
        op_host = host_seconds(program, kernels, efficiency) * _host_share(plan)
    op_bytes = per_op(traffic)
    total = float(op_bytes.sum()) * plan.accumulate + moved
    if isinstance(estimator, LayerEstimator):
        times = estimator.times(program, device, plan.batch, plan.seq)
    else:
        assert isinstance(estimator, KernelEstimator)
        priced = estimator.price(kernels, device, program.precision, layout, plan.training)
        first = kernels.phase == 0
        runs = np.column_stack([1.0 + run_again(program, plan), np.full(len(program.names), 1.0)])
        bound: Floats = np.zeros((len(program.names), 3))
        for part, seconds in ((0, priced.seconds * first), (1, priced.seconds * ~first)):
            table = np.bincount(kernels.op_class * 3 + priced.bound, seconds, 3 * classes)
            if part == 0 or plan.training:
                bound += table.reshape(classes, 3)[program.op_class] * runs[:, part, None]
        times = OpTimes(per_op(priced.seconds), bound, update, ())
        spread = _spread(priced, np.bincount(program.op_class, minlength=classes), kernels)
    if not efficiency.overlap and plan.eager and isinstance(estimator, StepEstimator):
        # One clock: what the host does besides an op's kernels makes the op longer.
        bound = times.bound.copy()
        bound[:, BOUNDS.index("launch")] += op_host.sum(axis=1)
        times = times._replace(seconds=times.seconds + op_host, bound=bound)
        op_host = np.zeros_like(op_host)
    return Step(
        program=program,
        plan=plan,
        kernels=kernels,
        op_seconds=times.seconds,
        op_host=op_host,
        op_flops=per_op(kernels.flops),
        op_bytes=op_bytes,
        op_bound=times.bound,
        update_s=times.update_s if plan.training else 0.0,
        update_host_s=host,
        update_bytes=moved,
        unpriced=_unpriced(program, kernels, traffic, total),
        spread=spread,
        notes=times.notes,
    )


def run_again(program: Program, plan: Plan) -> Flags:
    """Tell which ops backward runs a second time: all, those of checkpointed calls, or none."""
    if not plan.training:
        return np.zeros(len(program.names), dtype=bool)
    return np.ones(len(program.names), dtype=bool) if plan.recompute else program.again


def program_for(
    graph: Graph, precision: Precision, device: Device, estimator: Estimator, plan: Plan
) -> Program:
    """Return the program that an estimator prices: on a GPU what eager PyTorch launches there."""
    lowered = plan.eager and getattr(estimator, "lowers", False) and device.is_gpu
    return program_of(graph, precision, plan.layout if lowered else "")


def _host_share(plan: Plan) -> float:
    """Return the part of the host's work that is left: without autograd, about six tenths."""
    return 1.0 if plan.training else 0.6


def _spread(priced: Pricing, count: Ints, kernels: Kernels) -> float | None:
    """Return the spread of a sum of kernels: those of one shape are off together, others apart."""
    if priced.spread is None:
        return None
    seconds = priced.seconds * count[kernels.op_class]
    return float(np.linalg.norm(seconds * priced.spread) / max(float(seconds.sum()), 1e-12))


def _unpriced(
    program: Program, kernels: Kernels, traffic: Floats, total: float
) -> dict[str, float]:
    count = np.bincount(program.op_class, minlength=len(program.classes))
    result: dict[str, float] = {}
    for i in np.flatnonzero(kernels.family == FAMILIES.index("unknown")):
        name = kernels.names[i].removesuffix("_backward")
        share = float(count[kernels.op_class[i]] * traffic[i]) / max(total, 1.0)
        result[name] = result.get(name, 0.0) + share
    return result
