"""Peak memory of a training step, from when each value is made, kept and freed.

The step is followed op by op: forward allocates outputs and frees what nobody needs again, except
what backward needs; backward frees that in reverse while gradients appear; the update needs all
gradients at once. The peak is the largest sum on the way.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from traincast.estimate.optimizer import Optimizer
from traincast.estimate.program import Flags, Floats, Ints, Kernels, Program
from traincast.graph import DTYPE_BYTES, elements


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes on one device during a training step."""

    parameters: float
    gradients: float
    optimizer: float
    """Optimizer state."""
    inputs: float
    """The batch itself."""
    activations: float
    """Values kept for backward and in flight, at the peak."""
    workspace: float
    """Scratch of libraries."""
    peak: float
    """Largest total at any moment; less than the sum of the parts, which peak at other moments."""
    at: str
    """When the peak occurs: forward, backward or update."""


def memory_of(
    program: Program,
    kernels: Kernels,
    batch: int,
    seq: int,
    *,
    optimizer: Optimizer | None,
    recompute: bool = False,
    accumulate: int = 1,
    workspace: float = 0.0,
) -> Memory:
    """Return the memory of a step; `optimizer` None means a forward pass alone."""
    each = DTYPE_BYTES[program.precision.parameters]
    parameters = trainable = 0.0
    for tensor in program.graph.parameters:
        size = elements(tensor.shape, 1, 1) * each
        parameters += size
        trainable += size if tensor.trainable else 0
    count = len(program.names)
    sizes = _sizes(program, batch, seq)
    made = np.array([v.made for v in program.values], dtype=np.int64)
    last = np.array([v.last for v in program.values], dtype=np.int64)
    kept = np.array([v.kept for v in program.values], dtype=np.int64)
    inputs = float(sizes[made < 0].sum())
    inner = made >= 0
    sizes, made, last, kept = sizes[inner], made[inner], last[inner], kept[inner]
    if optimizer is None:
        live = _sweep(count, made, last + 1, sizes)
        peak = parameters + inputs + workspace + float(live.max(initial=0))
        return Memory(
            parameters=parameters, gradients=0, optimizer=0, inputs=inputs,
            activations=float(live.max(initial=0)), workspace=workspace, peak=peak, at="forward",
        )  # fmt: skip
    extra = kernels.extra[program.op_class]
    scratch = np.zeros(count)
    block = _blocks(program) if recompute else program.call
    if recompute or program.again.any():
        dropped = _inside_blocks(block, made, last, kept)
        scratch = _recomputed(block, kept[dropped], sizes[dropped], extra)
        kept = np.where(dropped, -1, kept)
        extra = np.where(block >= 0, 0.0, extra)
    forward = _sweep(count, made, np.where(kept >= 0, count, last + 1), sizes) + np.cumsum(extra)
    saved = kept >= 0
    # Kept until backward has run the first op that keeps it, which is the last to run.
    held = np.cumsum(np.bincount(kept[saved], sizes[saved], count)) + np.cumsum(extra)
    flowing = _gradients(program, count, made, last, sizes)
    accumulated = np.zeros(count)
    total_gradients = 0.0
    for name, op in program.parameter_op.items():
        size = elements(program.graph.tensors[name].shape, 1, 1) * each
        accumulated[op] += size
        total_gradients += size
    arrived = np.cumsum(accumulated[::-1])[::-1]
    if accumulate > 1:
        arrived = np.full(count, total_gradients)
        forward = forward + total_gradients
    state = trainable * optimizer.state
    base = parameters + state + inputs + workspace
    backward = held + flowing + arrived + scratch + kernels.workspace[program.op_class]
    moments = {
        "forward": float(forward.max(initial=0)),
        "backward": float(backward.max(initial=0)),
        "update": total_gradients,
    }
    at = max(moments, key=lambda key: moments[key])
    return Memory(
        parameters=parameters,
        gradients=total_gradients,
        optimizer=state,
        inputs=inputs,
        activations=float(max(forward.max(initial=0), (held + flowing + scratch).max(initial=0))),
        workspace=workspace,
        peak=base + moments[at],
        at=at,
    )


def _sizes(program: Program, batch: int, seq: int) -> Floats:
    known: dict[int, float] = {}  # equal specs of a program are one object
    result = np.empty(len(program.values))
    for i, value in enumerate(program.values):
        key = id(value.spec)
        size = known.get(key)
        if size is None:
            size = elements(value.spec.shape, batch, seq) * DTYPE_BYTES[value.spec.dtype]
            known[key] = size
        result[i] = size
    return result


def _sweep(count: int, start: Ints, end: Ints, sizes: Floats) -> Floats:
    """Return, for each op, the bytes of values alive while it runs."""
    change = np.bincount(start, sizes, count + 1) - np.bincount(
        np.minimum(end, count), sizes, count + 1
    )
    return np.cumsum(change)[:count]


def _gradients(program: Program, count: int, made: Ints, last: Ints, sizes: Floats) -> Floats:
    """Return the bytes of gradients in flight while backward runs each op.

    A value's gradient exists from the backward of its last reader to that of its maker.
    """
    grad = np.array([v.spec.grad for v in program.values if v.made >= 0], dtype=bool)
    return _sweep(count, made[grad], last[grad] + 1, sizes[grad])


_BLOCK = re.compile(r"^(.*?\.?\w*?\d+)(?=\.|$)")


def block_of(layer: str) -> str:
    """Return the repeated block that a layer belongs to: the path up to its first number."""
    match = _BLOCK.match(layer)
    return match[1] if match else layer


def _blocks(program: Program) -> Ints:
    ids: dict[str, int] = {}
    return np.array([ids.setdefault(block_of(layer), len(ids)) for layer in program.layers])


def _inside_blocks(block: Ints, made: Ints, last: Ints, kept: Ints) -> Flags:
    """Tell which kept values live and die in one block, so that recomputation spares them.

    Ops of block -1 are not run again.
    """
    inside: Flags = (kept >= 0) & (block[made] == block[last]) & (block[made] >= 0)
    return inside


def _recomputed(block: Ints, kept: Ints, sizes: Floats, extra: Floats) -> Floats:
    """Return, for each op, what backward made again in its block and still needs while it runs.

    Backward makes one block's values at a time and frees them in reverse, so an op finds those
    that it and earlier ops of its own block keep.
    """
    grown = np.where(block >= 0, np.bincount(kept, sizes, len(block)) + extra, 0.0)
    block = block - block.min()
    order = np.argsort(block, kind="stable")
    running = np.cumsum(grown[order])
    starts = np.searchsorted(block[order], np.arange(block.max() + 1))
    before = np.append(0.0, running)[starts]
    result = np.empty(len(block))
    result[order] = running - before[block[order]]
    return result
