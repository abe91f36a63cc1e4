"""A network as it is evaluated: without its loss, without dropout and other noise."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from traincast.graph.fast_attention import shortened
from traincast.graph.graph import Graph, Op

_DRAWN = frozenset({"bernoulli", "bernoulli_", "rand", "rand_like"})
"""Draws by which parts are dropped; normal ones are part of what a network computes."""
_DECIDES = frozenset({
    "bernoulli", "bernoulli_", "floor", "ceil", "round", "lt", "le", "gt", "ge",
})  # fmt: skip
"""What makes drawn numbers zeros and ones."""
_MOVES = ("view", "copy")


@lru_cache(maxsize=256)
def evaluated(graph: Graph, autocast: bool = False) -> Graph:
    """Return the forward pass in evaluation mode, under autocast or not.

    No gradient flows, so that nothing is kept for one. Dropout passes its input on, and so does a
    product with what is drawn to be zero or one (stochastic depth); other random numbers stay. What
    only the loss needs is left out; a network that computes its own loss is kept whole, unless it
    does so for labels that are not given then, as those of Transformers do. PyTorch's own attention
    goes a shorter way outside autocast.
    """
    readers: dict[str, list[Op]] = {}
    for op in graph.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    same: dict[str, str] = {}
    drawn: dict[str, bool] = {}  # of what comes from drawn numbers alone: whether it drops parts
    kept: list[Op] = []
    for op in graph.ops:
        inputs = tuple(same.get(name, name) for name in op.inputs)
        fn = op.attrs.get("fn")
        if fn in _DRAWN or (inputs and all(name in drawn for name in inputs)):
            drops = fn in _DECIDES or any(drawn.get(name, False) for name in inputs)
            drawn.update(dict.fromkeys(op.outputs, drops))
        if op.kind == "dropout" or _spares(op, readers):
            same[op.outputs[0]] = inputs[0]
        elif (whole := _undropped(op, inputs, drawn, graph)) is not None:
            same[op.outputs[0]] = whole
        else:
            kept.append(op if inputs == op.inputs else replace(op, inputs=inputs))
    end = _result(graph, kept, same)
    needed = {end}
    ops = []
    for op in reversed(kept):
        if any(name in needed for name in op.outputs):
            needed.update(op.inputs)
            ops.append(op)
    ops.reverse()
    known = dict(graph.tensors)
    ops = ops if autocast else shortened(ops, known)
    used = {name for op in ops for name in (*op.inputs, *op.outputs)}
    tensors = {
        name: replace(tensor, trainable=False) if tensor.role == "parameter" else tensor
        for name, tensor in known.items()
        if name in used or name == end or tensor.role == "parameter"
    }
    return replace(graph, ops=tuple(ops), tensors=tensors, loss=end)


def _undropped(op: Op, inputs: tuple[str, ...], drawn: dict[str, bool], graph: Graph) -> str | None:
    """Return what a product would be if none of it were dropped; None where it drops nothing."""
    rest = [name for name in inputs if name not in drawn]
    if op.attrs.get("fn") != "mul" or len(inputs) != 2 or len(rest) != 1:
        return None
    (mask,) = (name for name in inputs if name in drawn)
    shapes = [graph.tensors[name].shape for name in (op.outputs[0], rest[0])]
    return rest[0] if drawn[mask] and shapes[0] == shapes[1] else None


def _spares(op: Op, readers: dict[str, list[Op]]) -> bool:
    """Tell whether a clone is autograd's own: the input of an activation that works in place."""
    if op.attrs.get("fn") != "clone" or op.kind != "copy":
        return False
    found = readers.get(op.outputs[0], [])
    return len(found) == 1 and found[0].kind == "pointwise" and len(found[0].inputs) == 1


def _result(graph: Graph, ops: list[Op], same: dict[str, str]) -> str:
    """Return the tensor that evaluation ends in: what cross-entropy is taken of, or the loss."""
    last = graph.loss or graph.ops[-1].outputs[0]
    assumed = any(note.startswith("loss") for note in graph.notes)
    if not assumed and graph.source and not graph.of_transformers:
        return same.get(last, last)
    made = {name: op for op in ops for name in op.outputs}
    op = made.get(same.get(last, last))
    while op is not None and op.kind in _MOVES:
        op = made.get(op.inputs[0])
    if op is None or op.kind != "cross_entropy":
        return same.get(last, last)
    found = op.inputs[0]
    while (before := made.get(found)) is not None and before.kind in _MOVES:
        found = before.inputs[0]
    return found
