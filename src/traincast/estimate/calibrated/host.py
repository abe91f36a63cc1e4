"""The host's clock: what eager PyTorch takes to issue each op, from measured dispatch costs."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from traincast.estimate.calibrated.profile import Host
from traincast.estimate.program import FAMILIES, Floats, Kernels, OpClass, Program

_KINDS = {
    "linear": "linear", "matmul": "bmm", "grouped_matmul": "bmm", "attention": "sdpa",
    "rnn": "linear", "batch_norm": "batch_norm", "layer_norm": "layer_norm",
    "group_norm": "group_norm", "rms_norm": "rms_norm", "softmax": "softmax",
    "cross_entropy": "cross_entropy", "dropout": "dropout", "concat": "cat",
    "embedding": "embedding", "gather": "index_select", "fill": "zeros", "reduce": "sum",
    "interpolate": "max_pool2d", "sort": "index_select", "unknown": "add",
}  # fmt: skip
"""Which measured op stands for a kind."""
_VIEWS = {"permute": "permute", "transpose": "permute", "split": "split", "unbind": "split",
          "slice": "slice", "select": "slice", "expand": "view"}  # fmt: skip
_COPIES = {"cast": "to", "clone": "contiguous"}


def dispatched(op: OpClass) -> str:
    """Return the measured op that an op of the graph is dispatched like."""
    fn = str(dict(op.attrs).get("fn", ""))
    if op.kind == "conv":
        return "conv2d_bias" if len(op.ins) > 2 else "conv2d"
    if op.kind == "pool":
        attrs = dict(op.attrs)
        aten = str(attrs.get("aten", ""))
        if "adaptive" in aten:
            return "adaptive_avg_pool2d"
        return "max_pool2d" if attrs.get("op") == "max" else "avg_pool2d"
    if op.kind == "view":
        return _VIEWS.get(fn, "view")
    if op.kind == "copy":
        return _COPIES.get(fn, "contiguous")
    if op.kind == "pointwise":
        return fn + ("_" if dict(op.attrs).get("inplace") else "")
    if op.kind == "reduce":
        return fn
    return _KINDS.get(op.kind, "add")


FEW = 4
"""Launches that are part of what an op's dispatch was measured to take."""
GROUPS = {
    "linear": "linear", "conv": "conv", "batch_norm": "batch_norm", "layer_norm": "norm",
    "group_norm": "norm", "rms_norm": "norm", "attention": "attention", "matmul": "matmul",
    "grouped_matmul": "matmul", "view": "view", "pointwise": "pointwise", "softmax": "pointwise",
    "dropout": "pointwise", "pool": "pointwise", "copy": "copy", "concat": "copy",
    "reduce": "reduce", "gather": "gather", "embedding": "gather", "fill": "fill",
    "cross_entropy": "loss",
}  # fmt: skip
"""Kinds that take alike many times in networks what they take in a loop of their own."""
IN_NETWORKS: dict[str, tuple[float, float, float]] = {
    # group: forward alone, forward, backward
    "attention": (9.23, 9.68, 1.02), "batch_norm": (1.45, 2.06, 0.49), "conv": (1.45, 1.97, 0.84),
    "copy": (1.15, 1.98, 0.85), "fill": (1.61, 5.53, 0.0), "gather": (1.91, 1.90, 1.81),
    "linear": (2.86, 2.76, 0.73), "loss": (1.31, 6.03, 2.46), "matmul": (1.27, 2.14, 0.91),
    "norm": (2.45, 3.09, 0.95), "other": (0.51, 1.32, 0.69), "pointwise": (1.49, 1.81, 1.08),
    "reduce": (0.92, 3.17, 0.80), "view": (1.27, 1.76, 0.73),
    "inner": (1.45, 1.75, 0.0),  # issued by a call that issued another op before
    # In additions: a cast by autocast, a launch of unfused attention, a launch beyond the fourth,
    # a position in a layer of a recurrent network, a sum of gradients, a parameter, a whole pass.
    "cast": (0.54, 0.65, 0.94), "weight_cast": (2.06, 2.28, 2.44), "unfused": (2.10, 3.07, 1.07),
    "launch": (0.40, 0.40, 0.40), "recurrent": (1.36, 1.77, 2.39), "accumulate": (0.0, 0.0, 1.15),
    "parameter": (0.0, 0.0, 1.45), "pass": (5.69, 21.66, 29.76),
}  # fmt: skip
"""How many times longer the host takes for an op in a network than in a loop that runs it alone:
there its code and Python's lie in the caches, and little Python stands around it. From the host's
time for 137 networks, none of a whole step (benchmarks/fit_host.py)."""
UPDATE = 3.2
"""The same for an optimizer's update, whatever the number of tensors."""


class Part(NamedTuple):
    """What the host does for one op in one phase, as measured apart from networks; seconds."""

    op_class: int
    group: str
    seconds: float


def host_parts(host: Host, program: Program, kernels: Kernels, form: int) -> list[Part]:
    """Return what issuing each class of ops takes, by group of IN_NETWORKS.

    `form` is 0 for a forward pass alone, 1 for one that autograd records, 2 for a backward pass.
    """
    unit = op_cost(host, "add")[1]
    launches = np.zeros(len(program.classes))
    chain = np.zeros(len(program.classes))
    now = (np.minimum(kernels.phase, 1) == 1) == (form == 2)
    np.add.at(launches, kernels.op_class[now], kernels.launches[now])
    recurrent = now & (kernels.family == FAMILIES.index("rnn"))
    steps = kernels.space * kernels.dims[:, 3]
    np.add.at(chain, kernels.op_class[recurrent], steps[recurrent])
    parts: list[Part] = []
    for i, op in enumerate(program.classes):
        grad = any(s.grad for s in op.ins)
        if form == 2 and not grad:
            continue
        if op.kind == "accumulate":
            # Autograd adds gradients up in its own loop, without Python.
            if form == 2:
                parts.append(Part(i, "accumulate", unit * (launches[i] or 1.0)))
            continue
        group, attrs = GROUPS.get(op.kind, "other"), dict(op.attrs)
        if form < 2 and (attrs.get("fn") == "written" or attrs.get("implied")):
            continue  # what depends on what; nothing is issued
        seconds = op_cost(host, dispatched(op))[form if grad else 0]
        if attrs.get("fn") == "cast" and attrs.get("inner"):
            group = "weight_cast" if op.ins[0].role == "parameter" else "cast"
            seconds = unit
        elif attrs.get("algorithm") == "math":
            group, seconds = "unfused", unit * launches[i]
        elif attrs.get("inner") and form < 2:
            group = "inner"
        parts.append(Part(i, group, seconds))
        if chain[i]:
            parts.append(Part(i, "recurrent", unit * chain[i]))
        elif launches[i] > FEW and group != "unfused":
            parts.append(Part(i, "launch", unit * (launches[i] - FEW)))
        if form == 2:
            own = sum(s.role == "parameter" and s.grad for s in op.ins)
            parts.append(Part(i, "parameter", unit * own))
    return parts


def host_table(host: Host, program: Program, kernels: Kernels, training: bool) -> Floats:
    """Return host seconds of each op, forward and backward: (ops, 2).

    A pass has some of its own, which its first op takes: the loop around it, autograd's thread.
    """
    rows = np.zeros((len(program.classes), 2))
    forms = (1, 2) if training else (0,)
    for phase, form in enumerate(forms):
        for i, group, seconds in host_parts(host, program, kernels, form):
            rows[i, phase] += IN_NETWORKS[group][form] * seconds
    table: Floats = rows[program.op_class]
    unit = op_cost(host, "add")[1]
    for phase, form in enumerate(forms):
        table[-1 if phase else 0, phase] += IN_NETWORKS["pass"][form] * unit
    return table * host.scale


def op_cost(host: Host, op: str) -> tuple[float, float, float]:
    """Return seconds of an op without autograd, recorded by it, and backward."""
    for name in (op, op.rstrip("_"), "add"):
        if name in host.ops:
            return host.ops[name]
    return next(iter(host.ops.values()))
