"""A graph in one precision: every op with its element types, ready to be evaluated at any size.

Autocast's casts are inserted here, and the sums of gradients where a value has several readers.
Ops that are alike (same kind, attributes, symbolic shapes and types) form one class, so that a
network of 126 equal layers costs no more to evaluate than one layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from traincast.estimate.calls import calls_of, rerun_ops, uncalled
from traincast.estimate.kernels import FAMILIES, Flags, Floats, Ints, Kernels, kernel_table
from traincast.estimate.lowering import Moves, launched
from traincast.estimate.moves import find_moves
from traincast.graph import DTYPE_BYTES, FLOATS, KINDS, Attr, Graph, Op, Size
from traincast.graph.kinds import Arg, Case, Costs, Kernel
from traincast.graph.precision import (
    AUTOCAST_HIGH,
    AUTOCAST_HIGH_FUNCTIONS,
    AUTOCAST_LOW,
    PRECISIONS,
    Precision,
)

__all__ = [
    "FAMILIES", "Flags", "Floats", "Ints", "Kernels", "OpClass", "Program", "Spec", "Value",
    "kernel_table", "kernels_of", "program_of",
]  # fmt: skip


_PROMOTING = frozenset({"pointwise", "batch_norm", "concat", "cross_entropy"})
"""Kinds that take tensors of several types as they are."""
_NOISE = frozenset({"bernoulli", "empty", "empty_like", "new_empty"})
"""Values that networks make in the type of what they are applied to."""


class Spec(NamedTuple):
    """A tensor as one op class sees it."""

    shape: tuple[Size, ...]
    dtype: str
    grad: bool
    role: str


class OpClass(NamedTuple):
    """Ops that cost the same at every size."""

    kind: str
    attrs: tuple[tuple[str, Attr], ...]
    ins: tuple[Spec, ...]
    outs: tuple[Spec, ...]
    moves: Moves | None = None
    """Copies into another memory order; None where launches on a GPU are not asked for."""

    def at(self, batch: int, seq: int, known: dict[int, Arg] | None = None) -> Costs:
        """Return the kernels of one such op for a batch and sequence length.

        `known` holds the tensors of other classes at the same sizes, by the identity of their spec.
        """
        met = {} if known is None else known
        case = Case(
            dict(self.attrs),
            tuple([met.get(id(spec)) or _met(spec, batch, seq, met) for spec in self.ins]),
            tuple([met.get(id(spec)) or _met(spec, batch, seq, met) for spec in self.outs]),
        )
        costs = KINDS[self.kind].costs(case)
        return costs if self.moves is None else launched(case, costs, self.moves)


def _met(spec: Spec, batch: int, seq: int, met: dict[int, Arg]) -> Arg:
    found = met[id(spec)] = _arg(spec, batch, seq)
    return found


def _arg(spec: Spec, batch: int, seq: int) -> Arg:
    shape = tuple([size.at(batch, seq) for size in spec.shape])
    n = 1
    for length in shape:
        n *= length
    return Arg(shape, n, DTYPE_BYTES[spec.dtype], spec.grad, spec.role)


@dataclass(frozen=True, slots=True)
class Value:
    """A stretch of memory that ops write: a tensor with all its views and in-place versions."""

    spec: Spec
    made: int
    """Op that writes it first; -1 for an input."""
    last: int
    """Last op that reads it in the forward pass."""
    kept: int
    """First op that keeps it for backward; -1 if none does."""


@dataclass(frozen=True, eq=False)
class Program:
    """Ops in order, each of a class; and the values that they make, keep and free."""

    graph: Graph
    precision: Precision
    classes: tuple[OpClass, ...]
    names: tuple[str, ...]
    """Name of each op."""
    layers: tuple[str, ...]
    """Layer of each op."""
    op_class: Ints
    """Class of each op."""
    call: Ints
    """For each op, the checkpointed call that it is part of; -1 for none."""
    again: Flags
    """Whether it runs a second time in the backward pass, as parts of checkpointed calls do."""
    values: tuple[Value, ...]
    parameter_op: Mapping[str, int]
    """For each trainable parameter, the first op that uses it: its gradient appears last there."""


@lru_cache(maxsize=256)
def program_of(graph: Graph, precision: Precision, layout: str = "") -> Program:
    """Return the graph's program in a precision; made once for each.

    With a layout of images, `nchw` or `nhwc`, kernels are those that eager PyTorch launches on
    a GPU (`lowering`), with the copies between memory orders; without, those of the aten ops that
    autograd runs, on whatever device.
    """
    types = (precision.parameters, precision.compute)
    first = next(p for p in PRECISIONS.values() if (p.parameters, p.compute) == types)
    if precision != first:  # TF32 and FP8 change how products are computed, not what is launched
        return replace(program_of(graph, first, layout), precision=precision)
    return _Builder(graph, precision, layout).build()


class _Builder:
    def __init__(self, graph: Graph, precision: Precision, layout: str) -> None:
        self.graph = graph
        self.precision = precision
        self.layout = layout
        self.sums: dict[str, tuple[str, ...]] = {}
        self.dtype: dict[str, str] = {}
        self.grad: set[str] = set(graph.needs_grad)
        self.role: dict[str, str] = {}
        self.shape: dict[str, tuple[Size, ...]] = {}
        self.ops: list[Op] = []
        self.cast_of: dict[tuple[str, str], str] = {}
        self.specs: dict[tuple[str, bool], Spec] = {}
        self.distinct: dict[tuple[int, str, bool, str], Spec] = {}
        self.shapes: dict[tuple[Size, ...], int] = {}

    def build(self) -> Program:
        for name, tensor in self.graph.tensors.items():
            self.shape[name] = tensor.shape
            self.role[name] = tensor.role
            if tensor.role != "activation":
                self.dtype[name] = self._concrete(tensor.dtype)
        for op in self.graph.ops:
            self._add(op)
        moves = self._follow_order() if self.layout else {}
        ops = self._with_accumulation()
        # Keys hold one object for each distinct tensor, so that comparing two ops compares a few
        # numbers instead of every size of every shape.
        known: dict[tuple[object, ...], int] = {}
        classes: list[OpClass] = []
        op_class = np.empty(len(ops), dtype=np.int64)
        for i, op in enumerate(ops):
            attrs = tuple(op.attrs.items() if "checkpoint" not in op.attrs else uncalled(op.attrs))
            # No gradient comes back through an op whose results have none, as an argmin's.
            flows = not op.outputs or any(name in self.grad for name in op.outputs)
            ins = tuple([self._spec(name, flows) for name in op.inputs])
            outs = tuple(map(self._spec, op.outputs))
            copies = moves.get(op.outputs[:1], Moves()) if self.layout else None
            key = (op.kind, attrs, copies, len(ins), *map(id, ins), *map(id, outs))
            index = known.setdefault(key, len(classes))
            if index == len(classes):
                classes.append(OpClass(op.kind, attrs, ins, outs, copies))
            op_class[i] = index
        table = tuple(classes)
        met: dict[int, Arg] = {}
        # Where nothing is trained, nothing is kept for a backward pass.
        costs = [c.at(2, 64, met) if self.grad else Costs(()) for c in table]
        call = calls_of(ops)
        return Program(
            graph=self.graph,
            precision=self.precision,
            classes=table,
            names=tuple(op.name for op in ops),
            layers=tuple(op.layer or op.name for op in ops),
            op_class=op_class,
            call=call,
            again=rerun_ops(ops, call, costs, op_class),
            values=self._values(ops, costs, op_class),
            parameter_op=self._parameter_ops(ops),
        )

    def _concrete(self, dtype: str) -> str:
        return self.precision.parameters if dtype == "float" else dtype

    def _spec(self, name: str, flows: bool = True) -> Spec:
        """Return what a tensor is to an op that gradients flow back through, or not.

        Equal ones are one object.
        """
        spec = self.specs.get((name, flows))
        if spec is None:
            grad = flows and name in self.grad
            key = (self._shape_id(name), self.dtype[name], grad, self.role[name])
            spec = self.distinct.get(key)
            if spec is None:
                spec = Spec(self.shape[name], *key[1:])
                self.distinct[key] = spec
            self.specs[name, flows] = spec
        return spec

    def _shape_id(self, name: str) -> int:
        shape = self.shape[name]
        return self.shapes.setdefault(shape, len(self.shapes))

    def _add(self, op: Op) -> None:
        inputs = list(op.inputs)
        out: str | None = None
        if self.precision.autocast:
            floats = [n for n in inputs if self.dtype[n] in FLOATS and self.shape[n]]
            wanted = self._autocast(op, floats)
            if wanted is not None:
                out = wanted
                if op.kind not in _PROMOTING or op.attrs.get("fn") in AUTOCAST_HIGH_FUNCTIONS:
                    inputs = [self._cast(n, wanted, op) if n in floats else n for n in inputs]
        for name in op.outputs:
            declared = self.graph.tensors[name].dtype
            self.dtype[name] = out if out and declared == "float" else self._concrete(declared)
        attrs = op.attrs
        if op.kind == "attention" and self._unfused(inputs):
            attrs = {**attrs, "algorithm": "math"}
        if op.attrs.get("fn") == "cast" and self._retyped(op):
            attrs = {**attrs, "retyped": True}
        given = tuple(inputs)
        if given != op.inputs or attrs is not op.attrs:
            op = replace(op, inputs=given, attrs=attrs)
        self.ops.append(op)

    def _retyped(self, op: Op) -> bool:
        """Tell whether a cast is between different types of equal width."""
        a, b = self.dtype[op.inputs[0]], self.dtype[op.outputs[0]]
        return a != b and DTYPE_BYTES[a] == DTYPE_BYTES[b]

    def _unfused(self, inputs: list[str]) -> bool:
        """Tell whether PyTorch has no fused kernel: float32 with heads shared among queries."""
        query, key = self.shape[inputs[0]], self.shape[inputs[1]]
        shared = len(query) == 4 and query[1] != key[1]
        return shared and self.dtype[inputs[0]] == "float32"

    def _autocast(self, op: Op, floats: list[str]) -> str | None:
        """Return the type that autocast runs an op in, None for "as declared"."""
        if op.kind in AUTOCAST_LOW:
            return self.precision.compute
        if op.kind in AUTOCAST_HIGH or op.attrs.get("fn") in AUTOCAST_HIGH_FUNCTIONS:
            return "float32"
        if op.kind == "fill" and op.attrs.get("fn") in _NOISE:
            return self.precision.compute
        if not floats or op.attrs.get("fn") == "cast":
            return None
        if op.kind in ("batch_norm", "embedding", "view", "copy"):
            return self.dtype[floats[0]]
        low = all(self.dtype[n] == self.precision.compute for n in floats)
        return self.precision.compute if low else "float32"

    def _cast(self, name: str, dtype: str, op: Op) -> str:
        """Return the name of a tensor in another type; a cast is made once and then reused.

        Autocast caches only parameters' casts; but two readers of one activation mostly follow
        on the same layer, whose own code casts once.
        """
        if self.dtype[name] == dtype:
            return name
        key = (name, dtype)
        if self.role[name] == "parameter" and key in self.cast_of:
            return self.cast_of[key]
        new = f"{name}→{dtype}#{len(self.ops)}"
        self.shape[new], self.dtype[new], self.role[new] = self.shape[name], dtype, "activation"
        if name in self.grad:
            self.grad.add(new)
        self.ops.append(
            Op(
                name=f"{op.name}.autocast",
                kind="copy",
                inputs=(name,),
                outputs=(new,),
                attrs={"fn": "cast", "inner": True},
                layer=op.layer,
            )
        )
        self.cast_of[key] = new
        return new

    def _follow_order(self) -> dict[tuple[str, ...], Moves]:
        """Find copies between memory orders, and note on ops what the order changes."""
        batch, seq = max(self.graph.batch, 2), max(self.graph.seq, 2)
        shapes = {n: tuple([s.at(batch, seq) for s in shape]) for n, shape in self.shape.items()}
        found, self.sums = find_moves(
            self.ops, shapes, self.dtype, self.role, self.grad, self.layout
        )
        moves = {}
        averaged = {op.inputs[0] for op in self.ops if op.attrs.get("fn") == "mean"}
        for i, (op, one) in enumerate(zip(self.ops, found, strict=True)):
            attrs = dict(one.attrs)
            if op.attrs.get("fn") == "pow" and op.outputs[0] in averaged:
                # A root mean square: graphs do not tell exponents.
                attrs["square"] = True
            if attrs:
                self.ops[i] = replace(op, attrs={**op.attrs, **attrs})
            if one.forward or one.backward:
                moves[op.outputs[:1]] = Moves(one.forward, one.backward)
        return moves

    def _with_accumulation(self) -> list[Op]:
        readers: dict[str, int] = {}
        for op in self.ops:
            if KINDS[op.kind].differentiable(op) and any(n in self.grad for n in op.outputs):
                for name in op.inputs:
                    if name in self.grad:
                        readers[name] = readers.get(name, 0) + 1
        ops: list[Op] = []

        def accumulate(name: str, layer: str) -> None:
            if readers.get(name, 0) > 1:
                attrs: dict[str, Attr] = {"readers": readers[name]}
                if name in self.sums:
                    attrs["forms"] = self.sums[name]
                ops.append(
                    Op(
                        name=f"{name}.grad",
                        kind="accumulate",
                        inputs=(name,),
                        outputs=(),
                        attrs=attrs,
                        layer=layer,
                    )
                )

        for parameter in self.graph.parameters:
            accumulate(parameter.name, parameter.name.rpartition(".")[0])
        for op in self.ops:
            ops.append(op)
            for name in op.outputs:
                accumulate(name, op.layer)
        return ops

    def _values(self, ops: list[Op], costs: list[Costs], op_class: Ints) -> tuple[Value, ...]:
        root: dict[str, str] = {n: n for n in self.role}
        made: dict[str, int] = {}
        last: dict[str, int] = {}
        kept: dict[str, int] = {}
        for i, op in enumerate(ops):
            alias = KINDS[op.kind].alias(op) or self._same_type_cast(op)
            for name in op.inputs:
                last[root[name]] = i
            for name in op.outputs:
                root[name] = root[op.inputs[0]] if alias and op.inputs else name
                made.setdefault(root[name], i)
                last[root[name]] = i
            for index in costs[int(op_class[i])].saved:
                name = op.inputs[index] if index >= 0 else op.outputs[~index]
                kept.setdefault(root[name], i)
        values = []
        for name, role in self.role.items():
            if role == "input":
                values.append(Value(self._spec(name), -1, last.get(name, -1), kept.get(name, -1)))
            elif role == "activation" and root.get(name) == name and name in made:
                values.append(Value(self._spec(name), made[name], last[name], kept.get(name, -1)))
        return tuple(values)

    def _same_type_cast(self, op: Op) -> bool:
        return op.attrs.get("fn") == "cast" and (
            self.dtype[op.inputs[0]] == self.dtype[op.outputs[0]]
        )

    def _parameter_ops(self, ops: list[Op]) -> dict[str, int]:
        trainable = {t.name for t in self.graph.parameters if t.trainable}
        first: dict[str, int] = {}
        for i, op in enumerate(ops):
            for name in op.inputs:
                if name in trainable:
                    first.setdefault(name, i)
        return first


def kernels_of(program: Program, batch: int, seq: int) -> Kernels:
    """Evaluate every class of a program at one batch and sequence length."""
    rows: list[tuple[int, int, Kernel]] = []
    extra = np.zeros(len(program.classes))
    workspace = np.zeros(len(program.classes))
    known: dict[int, Arg] = {}
    for index, op_class in enumerate(program.classes):
        costs = op_class.at(batch, seq, known)
        extra[index], workspace[index] = costs.extra, costs.workspace
        for phase, kernels in enumerate((costs.forward, costs.data, costs.weight)):
            rows += [(index, phase, k) for k in kernels]
    return kernel_table(rows, extra, workspace)
