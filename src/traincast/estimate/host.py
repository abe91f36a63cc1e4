"""What the host takes to issue ops, and what an optimizer update takes, by rules of thumb.

For estimators that have nothing measured; a calibrated profile has its own figures.
"""

from __future__ import annotations

import numpy as np

from traincast.estimate.optimizer import Optimizer, launch_count
from traincast.estimate.program import Floats, Kernels, Program
from traincast.estimate.roofline import Efficiency
from traincast.graph import DTYPE_BYTES, elements
from traincast.hardware import Device


def host_seconds(program: Program, kernels: Kernels, efficiency: Efficiency) -> Floats:
    """Return host seconds to issue each op forward and backward.

    A view costs about a third of an op that launches; each further kernel of an op less than its
    first. On a CPU the op itself runs on the host: there is nothing to issue ahead.
    """
    if not efficiency.overlap:
        return np.zeros((len(program.names), 2))
    launches = np.zeros((len(program.classes), 2))
    np.add.at(launches, (kernels.op_class, np.minimum(kernels.phase, 1)), 1.0)
    forward = np.where(launches[:, 0] > 0, 1.0 + 0.1 * (launches[:, 0] - 1), 0.35)
    backward = np.where(launches[:, 1] > 0, 1.0 + 0.3 * (launches[:, 1] - 1), 0.35)
    inserted = np.array([c.kind == "accumulate" for c in program.classes])
    grad = np.array([any(s.grad for s in c.ins) for c in program.classes])
    forward[inserted] = 0.0
    backward[~grad] = 0.0
    table = np.column_stack([forward, backward * efficiency.backward_dispatch])
    return table[program.op_class] * efficiency.dispatch_s


def trained_sizes(program: Program) -> tuple[int, ...]:
    """Return the elements of each tensor that is trained."""
    return tuple([elements(t.shape, 1, 1) for t in program.graph.parameters if t.trainable])


def update_seconds(
    program: Program, device: Device, efficiency: Efficiency, optimizer: Optimizer
) -> tuple[float, float, float]:
    """Return device seconds, host seconds and bytes moved of one optimizer update."""
    sizes = trained_sizes(program)
    count = float(sum(sizes))
    moved = count * optimizer.traffic * DTYPE_BYTES[program.precision.parameters]
    launches = launch_count(optimizer, sizes)
    compute = count * optimizer.ops / (device.vector_peak("fp32") * efficiency.vector)
    memory = moved / (device.memory_bandwidth * min(1.4 * efficiency.bandwidth, 0.9))
    seconds = max(compute, memory) + launches * efficiency.gap_s
    host = (0.2 * len(sizes) + launches) * efficiency.dispatch_s if efficiency.overlap else 0.0
    return seconds, host, moved
