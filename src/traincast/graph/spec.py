"""The executable specification: what makes a graph valid, as a table of rules.

`verify` runs every rule and raises one GraphError that lists all that is broken. It is run on
whatever enters (importers, files) and after every pass that makes a new graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from traincast.errors import GraphError, near_names
from traincast.graph.graph import DTYPE_BYTES, ROLES, Graph, Op
from traincast.graph.kinds import KINDS, Arg, Case, MisfitError

_PROBES = ((2, 64), (5, 96))


def verify(graph: Graph) -> Graph:
    """Return the graph if it obeys every rule; raise GraphError with all violations if not."""
    problems: list[str] = []
    for rule in RULES:
        found = list(rule(graph))
        problems += found
        if found and rule in _BLOCKING:
            break
    if problems:
        raise GraphError(graph.name, problems)
    return graph


def has_ops(graph: Graph) -> Iterator[str]:
    """A graph has at least one op."""
    if not graph.ops:
        yield "it has no ops"


def names_are_unique(graph: Graph) -> Iterator[str]:
    """Each op has a name of its own."""
    for name, count in Counter(op.name for op in graph.ops).items():
        if count > 1:
            yield f"op name {name!r} is used {count} times; give each op a name of its own"


def kinds_are_known(graph: Graph) -> Iterator[str]:
    """Each kind is in the registry, with the inputs and attributes that it defines."""
    for op in graph.ops:
        kind = KINDS.get(op.kind)
        if kind is None:
            close = near_names(op.kind, KINDS)
            hint = f"; did you mean {' or '.join(close)}?" if close else ""
            yield f"op {op.name!r} has the unknown kind {op.kind!r}{hint}"
            continue
        least, most = kind.inputs
        if len(op.inputs) < least or (most is not None and len(op.inputs) > most):
            takes = f"{least}" if most == least else f"{least} to {most if most else 'any number'}"
            yield f"op {op.name!r} ({op.kind}) has {len(op.inputs)} inputs, takes {takes}"
        if not op.outputs:
            yield f"op {op.name!r} ({op.kind}) has no outputs"
        for attr, types in kind.attrs.items():
            if attr not in op.attrs:
                yield f"op {op.name!r} ({op.kind}) lacks the attribute {attr!r}"
            elif not isinstance(op.attrs[attr], types):
                yield f"op {op.name!r}: attribute {attr!r} is {op.attrs[attr]!r}, of the wrong type"


def tensors_are_declared(graph: Graph) -> Iterator[str]:
    """Each tensor that an op names is declared, with a known type and role."""
    for op in graph.ops:
        for name in (*op.inputs, *op.outputs):
            if name not in graph.tensors:
                close = near_names(name, graph.tensors)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                yield f"op {op.name!r} names the tensor {name!r}, which is not declared{hint}"
    if graph.loss and graph.loss not in graph.tensors:
        yield f"the loss {graph.loss!r} is no tensor of the graph"
    for name, tensor in graph.tensors.items():
        if tensor.dtype != "float" and tensor.dtype not in DTYPE_BYTES:
            yield f"tensor {name!r} has the unknown element type {tensor.dtype!r}"
        if tensor.role not in ROLES:
            yield f"tensor {name!r} has the role {tensor.role!r}; use one of {', '.join(ROLES)}"
        if tensor.role == "parameter" and not all(s.is_constant for s in tensor.shape):
            shape = ", ".join(map(str, tensor.shape))
            yield f"parameter {name!r} of shape ({shape}) depends on the batch or the sequence"
        if tensor.dims and len(tensor.dims) != len(tensor.shape):
            yield f"tensor {name!r} names {len(tensor.dims)} dims for {len(tensor.shape)} axes"


def order_is_causal(graph: Graph) -> Iterator[str]:
    """Each activation is written once, before it is read; so there is no cycle."""
    writer: dict[str, str] = {}
    for op in graph.ops:
        for name in op.outputs:
            if name in writer:
                yield f"tensor {name!r} is written by both {writer[name]!r} and {op.name!r}"
            elif graph.tensors[name].role != "activation":
                role = graph.tensors[name].role
                yield f"op {op.name!r} writes {name!r}, which has the role {role}"
            writer[name] = op.name
    ready = {n for n, t in graph.tensors.items() if t.role != "activation"}
    for op in graph.ops:
        for name in op.inputs:
            if name in ready:
                continue
            if name not in writer:
                yield f"op {op.name!r} reads {name!r}, which nothing writes"
            else:
                cycle = _cycle(graph)
                if cycle:
                    yield "there is a cycle: " + " → ".join(cycle) + "; a graph must not have one"
                    return
                yield (
                    f"op {op.name!r} reads {name!r} before {writer[name]!r} writes it; "
                    "list the ops in an order in which they can run"
                )
        ready.update(op.outputs)


def lengths_are_given(graph: Graph) -> Iterator[str]:
    """There is a batch, and a sequence length where a size depends on it."""
    if graph.batch < 1:
        yield f"its batch is {graph.batch}; it must be at least 1"
    if graph.seq < 0 or (graph.has_sequence and not graph.seq):
        yield f"its sizes depend on the sequence length, but seq is {graph.seq}"


def shapes_follow(graph: Graph) -> Iterator[str]:
    """Sizes are positive, and each output has the shape that the kind derives."""
    for batch, seq in _PROBES:
        for name, tensor in graph.tensors.items():
            if any(size.at(batch, seq) < 0 for size in tensor.shape):
                shape = ", ".join(map(str, tensor.shape))
                yield f"tensor {name!r} of shape ({shape}) has a negative size at batch {batch}"
        for op in graph.ops:
            yield from _shape_problems(graph, op, batch, seq)


def _shape_problems(graph: Graph, op: Op, batch: int, seq: int) -> Iterator[str]:
    derive = KINDS[op.kind].shapes
    if derive is None:
        return

    def arg(name: str) -> Arg:
        tensor = graph.tensors[name]
        return Arg(tuple(s.at(batch, seq) for s in tensor.shape), 0, 0, False, tensor.role)

    case = Case(op.attrs, tuple(map(arg, op.inputs)), tuple(map(arg, op.outputs)))
    try:
        expected = derive(case)
    except MisfitError as reason:
        shapes = " and ".join(str(a.shape) for a in case.ins)
        yield f"op {op.name!r} ({op.kind}) cannot take {shapes}: {reason}"
        return
    except (IndexError, KeyError, AssertionError, TypeError, ValueError):
        ranks = ", ".join(str(a.shape) for a in case.ins)
        yield f"op {op.name!r} ({op.kind}): its inputs {ranks} do not fit its attributes"
        return
    for name, shape, out in zip(op.outputs, expected, case.outs, strict=False):
        if shape is not None and shape != out.shape:
            ins = " and ".join(str(a.shape) for a in case.ins)
            yield (
                f"op {op.name!r} ({op.kind}) makes {shape} out of {ins} at batch {batch}, "
                f"but its output {name!r} is declared as {out.shape}"
            )


def _cycle(graph: Graph) -> list[str]:
    """Return op names along one cycle, or nothing."""
    writer = {name: op for op in graph.ops for name in op.outputs}
    state: dict[str, int] = {}
    for start in graph.ops:
        path: list[Op] = []
        stack: list[tuple[Op, Iterator[str]]] = []
        if start.name in state:
            continue
        stack.append((start, iter(start.inputs)))
        state[start.name] = 1
        path.append(start)
        while stack:
            op, names = stack[-1]
            before = next((writer[n] for n in names if n in writer), None)
            if before is None:
                state[op.name] = 2
                stack.pop()
                path.pop()
            elif state.get(before.name) == 1:
                loop = path[[p.name for p in path].index(before.name) :]
                return [p.name for p in [*loop, before]][::-1]
            elif before.name not in state:
                state[before.name] = 1
                stack.append((before, iter(before.inputs)))
                path.append(before)
    return []


Rule = Callable[[Graph], Iterator[str]]
RULES: tuple[Rule, ...] = (
    has_ops,
    names_are_unique,
    kinds_are_known,
    tensors_are_declared,
    order_is_causal,
    lengths_are_given,
    shapes_follow,
)
_BLOCKING = frozenset({has_ops, kinds_are_known, tensors_are_declared, order_is_causal})
"""Rules without which the later ones cannot be checked."""
