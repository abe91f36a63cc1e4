"""The same figures from a graph."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from traincast.estimate.program import kernels_of, program_of
from traincast.graph import DTYPE_BYTES, Graph, elements
from traincast.graph.precision import PRECISIONS


@dataclass
class Figures:
    forward_flops: float
    backward_flops: float
    backward_ops: Counter[str]
    kept_bytes: float


def figures(graph: Graph, batch: int, seq: int, precision: str) -> Figures:
    program = program_of(graph, PRECISIONS[precision])
    kernels = kernels_of(program, batch, seq)
    count = np.bincount(program.op_class, minlength=len(program.classes))
    times = count[kernels.op_class]
    flops = kernels.flops * times
    ops: Counter[str] = Counter()
    for i, name in enumerate(kernels.names):
        if kernels.phase[i] > 0:
            ops[name] += int(times[i])
    kept = float((kernels.extra * count).sum())
    for value in program.values:
        if value.kept >= 0:
            kept += elements(value.spec.shape, batch, seq) * DTYPE_BYTES[value.spec.dtype]
    return Figures(
        float(flops[kernels.phase == 0].sum()), float(flops[kernels.phase > 0].sum()), ops, kept
    )
