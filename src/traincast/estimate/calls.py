"""Checkpointed calls: parts of a network that backward runs again instead of keeping values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traincast.estimate.kernels import Flags, Ints
from traincast.graph import Attr, Op
from traincast.graph.kinds import Costs


def uncalled(attrs: Mapping[str, Attr]) -> Iterator[tuple[str, Attr]]:
    """Yield the attributes of an op without those that tell when it runs, not what it costs."""
    return ((k, v) for k, v in attrs.items() if k not in ("checkpoint", "reentrant"))


def calls_of(ops: Sequence[Op]) -> Ints:
    """Return, for each op, the checkpointed call that it is part of; -1 for none."""
    calls = [op.attrs.get("checkpoint", -1) for op in ops]
    return np.array(calls, dtype=np.int64)


def rerun_ops(ops: Sequence[Op], call: Ints, costs: Sequence[Costs], op_class: Ints) -> Flags:
    """Tell which ops of checkpointed calls run a second time, from the costs of their classes.

    PyTorch stops as soon as everything that backward needs is there again: before the last op that
    keeps something, if that keeps its operands alone. A reentrant call is run again to its end.
    """
    again: Flags = call >= 0
    for number in np.unique(call[again]):
        inside = np.flatnonzero(call == number).tolist()
        if ops[inside[0]].attrs.get("reentrant"):
            continue
        kept = {i: costs[op_class[i]] for i in inside}
        keeping = [i for i in inside if kept[i].saved or kept[i].extra]
        if not keeping:
            again[inside] = False
            continue
        last = keeping[-1]
        results = kept[last].extra or any(index < 0 for index in kept[last].saved)
        again[[i for i in inside if i >= last + bool(results)]] = False
    return again
