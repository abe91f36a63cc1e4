"""A compiler's view of a training step: loop nests and library calls over values.

Every op of a program becomes the loop nests that TorchInductor lowers it to, forward and backward.
A nest is pointwise (`point`), a reduction of whole rows (`rows`: layer norm, softmax), a reduction
whose results each gather from all over memory (`columns`: batch norm, the gradient of a bias), or
a library call (`call`: products, convolutions, attention, whatever has no lowering). Views are
other names of values. Which nests share a kernel is decided later, in `regions`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from traincast.estimate.program import OpClass, Program, Spec
from traincast.graph import KINDS, Op, Size

POINT, ROWS, COLUMNS, CALL = "point", "rows", "columns", "call"


class Read(NamedTuple):
    """A value as one nest reads it: whole, a part, or repeated."""

    value: int
    name: str
    """Tells parts of one value apart."""
    spec: Spec


@dataclass(slots=True, eq=False)
class Nest:
    """One loop nest or library call."""

    pattern: str
    """`point`, `rows`, `columns` or `call`."""
    at: int
    """Index of its op in the graph."""
    backward: bool
    reads: tuple[Read, ...]
    writes: tuple[int, ...]
    domain: Spec
    """What it loops over."""
    rows: Spec
    """What a reduction leaves; the domain where there is none."""
    ops: float
    """Elementary operations for each element of the domain."""
    again: bool = False
    """Whether backward may run it again instead of keeping its result."""
    call: OpClass | None = None
    slow: tuple[float, str] = (0.0, "")
    """Its dearest function: operations, and the aten op that computes it."""
    sums: int = 0
    """Results of a reduction that are added up apart from each other."""
    window: bool = False
    """Whether it reads several neighbours for each result, so that they had better be in memory."""


@dataclass(slots=True, eq=False)
class Joint:
    """Forward and backward nests of a program, in order."""

    program: Program
    specs: list[Spec] = field(default_factory=list)
    """What each value is."""
    names: list[str] = field(default_factory=list)
    forward: list[Nest] = field(default_factory=list)
    backward: list[Nest] = field(default_factory=list)
    outputs: set[int] = field(default_factory=set)
    """Values that outlive the step's graph: the loss and gradients of parameters."""

    def value(self, spec: Spec, name: str) -> Read:
        """Add a value and return it, read whole."""
        self.specs.append(spec)
        self.names.append(name)
        return Read(len(self.specs) - 1, name, spec)


Key = tuple[str, str]
"""A tensor's name and element type: autocast makes several versions of one tensor."""


class Lowering:
    """Turns a program's ops into nests; see `lower`."""

    def __init__(self, program: Program, training: bool) -> None:
        self.joint = Joint(program)
        self.graph = program.graph
        self.training = training
        self.known: dict[Key, Read] = {}
        self.dtype: dict[str, str] = {}
        self.parts: dict[Key, list[Read]] = {}
        """Contributions to the gradient of each tensor."""
        self.tape: list[tuple[int, Op, OpClass, tuple[Key, ...], tuple[Key, ...]]] = []
        self.notes: dict[int, tuple[Read, ...]] = {}
        """Values that an op's forward nests leave for its backward: statistics, masks."""
        self.calls: dict[int, OpClass] = {}
        """Library calls that differ from their op."""
        self.back = False
        self.index = 0

    def lower(self) -> Joint:
        """Return the nests of the whole step."""
        from traincast.estimate.fusion.rules import RULES

        classes = dict(zip(self.joint.program.names, self.joint.program.op_class, strict=True))
        table = self.joint.program.classes
        for index, op in enumerate(self.graph.ops):
            self.index = index
            self._lower_op(op, table[int(classes[op.name])])
        self.joint.outputs.update(
            self.known[key].value for key in self.tape[-1][4] if key in self.known
        )
        if not self.training:
            return self.joint
        self.back = True
        loss = self.tape[-1][4][0]
        self.parts[loss] = [self.value(self.known[loss].spec, "loss.grad")]
        for index, op, cls, ins, outs in reversed(self.tape):
            self.index = index
            if KINDS[op.kind].differentiable(op) and any(key in self.parts for key in outs):
                RULES[cls.kind].backward(self, op, cls, ins, outs)
        for tensor in self.graph.parameters:
            if tensor.trainable:
                for key in [k for k in self.parts if k[0] == tensor.name]:
                    if key[1] == self.dtype.get(tensor.name):
                        self.joint.outputs.add(self.gradient(key).value)
        return self.joint

    def _lower_op(self, op: Op, cls: OpClass) -> None:
        from traincast.estimate.fusion.rules import RULES

        ins = tuple(self._input(n, s, op) for n, s in zip(op.inputs, cls.ins, strict=True))
        outs = tuple((n, s.dtype) for n, s in zip(op.outputs, cls.outs, strict=True))
        for name, dtype in outs:
            self.dtype[name] = dtype
        self.tape.append((self.index, op, cls, ins, outs))
        RULES[cls.kind].forward(self, op, cls, ins, outs)

    def _input(self, name: str, spec: Spec, op: Op) -> Key:
        """Return the version of a tensor that an op reads; cast it where autocast would."""
        key = (name, spec.dtype)
        if name not in self.dtype:
            self.dtype[name] = spec.dtype
            tensor = self.graph.tensors[name]
            if tensor.role == "parameter":
                self.dtype[name] = self.joint.program.precision.parameters
            have = spec._replace(dtype=self.dtype[name], role=tensor.role)
            self.known[name, self.dtype[name]] = self.value(have, name)
        if key not in self.known:
            source = (name, self.dtype[name])
            cast = OpClass("copy", (("fn", "cast"),), (self.known[source].spec,), (spec,))
            self.known[key] = self.point(spec, (self.known[source],), name=name)
            self.tape.append((self.index, _cast_op(op, name), cast, (source,), (key,)))
        return key

    def value(self, spec: Spec, name: str) -> Read:
        """Add a value."""
        return self.joint.value(spec, name)

    def read(self, key: Key) -> Read:
        """Return a forward tensor as ops read it."""
        return self.known[key]

    def gradient(self, key: Key) -> Read:
        """Return the gradient of a tensor; its contributions are added up where there are more."""
        parts = self.parts[key]
        if len(parts) > 1:
            whole = next((p.spec for p in parts if p.spec.shape), parts[0].spec)
            largest = max(parts, key=lambda p: probe(p.spec)).spec if whole.shape else whole
            self.parts[key] = [self.point(largest, tuple(parts), ops=len(parts) - 1)]
        return self.parts[key][0]

    def give(self, key: Key, part: Read) -> None:
        """Add a contribution to the gradient of a tensor, in the tensor's type."""
        if part.spec.dtype != key[1]:
            part = self.point(shaped(part.spec, part.spec.shape, key[1]), (part,))
        self.parts.setdefault(key, []).append(part)

    def point(
        self,
        out: Spec,
        reads: tuple[Read, ...],
        *,
        ops: float = 1,
        again: bool = True,
        name: str = "",
        aten: str = "",
    ) -> Read:
        """Add a pointwise nest that writes one value, and return the value."""
        made = self.value(out._replace(role="activation"), name or f"{self.index}")
        one = self.nest(POINT, reads, (made,), out, out, ops, again and not self.back)
        one.slow = (ops, aten)
        return made

    def reduce(
        self,
        pattern: str,
        domain: Spec,
        rows: Spec,
        reads: tuple[Read, ...],
        count: int = 1,
        ops: float = 2,
        sums: int = 0,
    ) -> tuple[Read, ...]:
        """Add a reduction of a domain to rows that writes `count` values, and return them."""
        made = tuple(self.value(rows, f"{self.index}.{i}") for i in range(count))
        self.nest(pattern, reads, made, domain, rows, ops).sums = sums or count
        return made

    def nest(
        self,
        pattern: str,
        reads: tuple[Read, ...],
        writes: tuple[Read, ...],
        domain: Spec,
        rows: Spec,
        ops: float,
        again: bool = False,
        call: OpClass | None = None,
    ) -> Nest:
        """Add a nest to the pass that is being lowered, and return it."""
        one = Nest(
            pattern, self.index, self.back, reads, tuple(w.value for w in writes), domain, rows,
            ops, again, call,
        )  # fmt: skip
        (self.joint.backward if self.back else self.joint.forward).append(one)
        return one


def _cast_op(op: Op, name: str) -> Op:
    return Op(
        name=f"{op.name}.cast", kind="copy", inputs=(name,), outputs=(name,),
        attrs={"fn": "cast"}, layer=op.layer,
    )  # fmt: skip


_PROBE = (6, 96)
"""Batch and positions at which shapes are compared; fusion depends on which are equal."""


def probe(spec: Spec) -> int:
    """Return the elements of a tensor at a sample size, to tell equal loops from others."""
    count = 1
    for size in spec.shape:
        count *= size.at(*_PROBE)
    return count


def shaped(spec: Spec, shape: tuple[Size, ...], dtype: str | None = None) -> Spec:
    """Return a tensor like another, with another shape."""
    return Spec(shape, dtype or spec.dtype, spec.grad, "activation")


def lower(program: Program, training: bool) -> Joint:
    """Return the nests that a compiler makes of a program."""
    return Lowering(program, training).lower()
