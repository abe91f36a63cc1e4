"""The host's clock: what eager PyTorch takes to issue each op, from measured dispatch costs."""

from __future__ import annotations

import numpy as np

from traincast.estimate.calibrated.profile import Host
from traincast.estimate.program import FAMILIES, Floats, Kernels, OpClass, Program

_KINDS = {
    "linear": "linear", "matmul": "matmul", "grouped_matmul": "matmul", "attention": "sdpa",
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


BACKWARD = 0.81
"""A network's backward pass over the same ops one by one: the engine starts once."""
INFERENCE = 0.5
"""The same for a forward pass without autograd."""


FEW = 4
"""Launches that are part of what an op's dispatch was measured to take."""
LAUNCH = 0.5
"""A further launch of the same op, in additions: most of a dispatch comes before the launch."""
RECURRENT = (2.0, 2.6)
"""The same for each position in each layer of a recurrent network, forward and backward: cuDNN
launches several kernels there."""


def host_table(host: Host, program: Program, kernels: Kernels, training: bool) -> Floats:
    """Return host seconds of each op, forward and backward: (ops, 2).

    Forward, an op takes what its dispatch was measured to take and what Python does around it;
    backward, what its gradient was measured to take, and each parameter its own.
    """
    further = np.zeros((len(program.classes), 2))
    phase = np.minimum(kernels.phase, 1)
    np.add.at(further, (kernels.op_class, phase), 1.0)
    many = np.zeros((len(program.classes), 2))
    np.add.at(many, (kernels.op_class, phase), np.maximum(kernels.launches - FEW, 0.0))
    rows = np.zeros((len(program.classes), 2))
    for i, op in enumerate(program.classes):
        if op.kind == "accumulate":
            # Autograd adds gradients up in its own loop, without Python.
            rows[i, 1] = further[i, 1] * op_cost(host, "add")[0]
            continue
        infer, forward, backward = op_cost(host, dispatched(op))
        grad = any(s.grad for s in op.ins)
        if not training:
            rows[i, 0] = INFERENCE * infer + host.infer_s
        else:
            rows[i, 0] = (forward if grad else infer) + host.python_s
        if grad:
            own = sum(s.role == "parameter" and s.grad for s in op.ins)
            rows[i, 1] = BACKWARD * backward + own * host.parameter_s
    recurrent = kernels.family == FAMILIES.index("rnn")
    chain = np.where(recurrent, kernels.space * kernels.dims[:, 3], 0.0)
    np.add.at(many, (kernels.op_class, phase), chain * np.take(RECURRENT, phase) / LAUNCH)
    rows += LAUNCH * op_cost(host, "add")[0] * many
    return rows[program.op_class] * host.scale


def op_cost(host: Host, op: str) -> tuple[float, float, float]:
    """Return seconds of an op without autograd, recorded by it, and backward."""
    for name in (op, op.rstrip("_"), "add"):
        if name in host.ops:
            return host.ops[name]
    return next(iter(host.ops.values()))
