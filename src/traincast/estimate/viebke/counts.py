"""Operation counts of any network for model A, from its graph.

An operation is a multiply-add (half of what `Kernel.flops` counts) or one elementary operation of
other arithmetic. The backward pass follows by rule from the forward ops, and every trainable weight
costs one multiply-add for its update. Where an op has no formula, one operation for every four
bytes that it moves is counted, and said.

These are not the published counts, which come from the authors' own breakdown by layer type and
are 2.8 to 4.2 times smaller than the multiply-adds forward: they go with their own factors.
"""

from __future__ import annotations

from collections import Counter

from traincast.estimate.program import program_of
from traincast.estimate.viebke.models import Work
from traincast.graph import Graph
from traincast.graph.graph import elements
from traincast.graph.kinds import Kernel
from traincast.graph.precision import precision_named

PREPARE = 1e9
"""Operations of the preparation, as published for two of the three networks (12 s on the Phi)."""


def work_of(graph: Graph, *, batch: int = 1, seq: int | None = None) -> tuple[Work, list[str]]:
    """Return what one image costs, and remarks on what could only be bounded.

    `batch` is how many images a thread takes at a time: it shares out the calls and the update.
    For a network of sequences an image is one sequence, of `seq` positions.
    """
    if "batch" in graph.fixed:
        batch = graph.batch
    program = program_of(graph, precision_named("fp32"))
    ops, calls, written = [0.0, 0.0], [0.0, 0.0], 0.0
    unknown: set[str] = set()
    for index, count in Counter(program.op_class.tolist()).items():
        costs = program.classes[index].at(batch, seq or graph.seq)
        for way, kernels in ((0, costs.forward), (1, costs.data + costs.weight)):
            for kernel in kernels:
                ops[way] += count * _operations(kernel)
                calls[way] += count * kernel.launches
                if kernel.family == "unknown":
                    unknown.add(kernel.name)
        written += count * sum(kernel.write for kernel in costs.forward)
    weights = sum(elements(t.shape, 1, 1) for t in graph.parameters if t.trainable)
    notes = [f"no formula for {name}: one operation for four bytes moved" for name in unknown]
    work = Work(
        prepare=PREPARE,
        forward=ops[0] / batch,
        backward=(ops[1] + weights) / batch,
        forward_calls=calls[0] / batch,
        backward_calls=(calls[1] + 1) / batch,
        written=written / batch,
    )
    return work, sorted(notes)


def _operations(kernel: Kernel) -> float:
    if kernel.family == "unknown":
        return (kernel.read + kernel.write) / 4
    return kernel.flops * kernel.done / 2 + kernel.ops
