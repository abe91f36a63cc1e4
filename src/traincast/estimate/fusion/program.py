"""A program of eager ops as a compiler's kernels: fused loops and library calls.

The result is a `Program` like any other, so that times, memory and reports follow from it by the
same rules: an op is a kernel (or a library call with its backward), and a value is what a kernel
writes to memory. What stays inside a kernel is no value and moves no bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from traincast.estimate.calls import calls_of
from traincast.estimate.fusion.inline import inlined
from traincast.estimate.fusion.kept import kept_values
from traincast.estimate.fusion.loops import call_class, loop_class, whole_call
from traincast.estimate.fusion.nests import COLUMNS, ROWS, Nest, Read, lower, probe
from traincast.estimate.fusion.regions import MIXED, Region, regions_of
from traincast.estimate.program import OpClass, Program, Spec, Value, program_of

_DEAR = 10
"""Operations from which a function, rather than memory, may set the pace of a kernel."""


@lru_cache(maxsize=32)
def fused(program: Program, training: bool) -> Program:
    """Return what a compiler makes of a program; made once for each."""
    # Memory orders are the compiler's to choose, so its input has no copies between them.
    return _Assembly(program_of(program.graph, program.precision), training).build()


class _Entry(NamedTuple):
    """One op of the new program."""

    place: int
    """Index of the forward region that it is, or that its backward starts from."""
    backward: bool
    cls: OpClass
    region: Region


class _Assembly:
    def __init__(self, program: Program, training: bool) -> None:
        self.program = program
        self.joint = lower(program, training)
        self.kept = kept_values(self.joint)
        leaving = self.joint.outputs | self.kept.values
        self.forward = regions_of(inlined(self.joint.forward, leaving))
        back = [self._substituted(nest) for nest in self.joint.backward]
        self.backward = regions_of(inlined(back, leaving))
        self.readers: dict[int, set[Region]] = {}
        for region in (*self.forward, *self.backward):
            for value in _reads(region):
                self.readers.setdefault(value, set()).add(region)

    def _substituted(self, nest: Nest) -> Nest:
        """Let a backward nest read what its values are computed from, where they are not kept."""
        found: dict[tuple[int, str], Read] = {}
        for read in nest.reads:
            reads, ops = self.kept.again.get(read.value, ((read,), 0.0))
            found.update(((r.value, r.name), r) for r in reads)
            nest.ops += ops
        nest.reads = tuple(found.values())
        return nest

    def build(self) -> Program:
        entries = self._entries()
        at = {e.place: i for i, e in enumerate(entries) if not e.backward}
        classes: dict[OpClass, int] = {}
        index = [classes.setdefault(e.cls, len(classes)) for e in entries]
        ops = self.program.graph.ops
        first = [ops[e.region.nests[0].at] for e in entries]
        call = np.where([e.backward for e in entries], -1, calls_of(first))
        return Program(
            graph=self.program.graph,
            precision=self.program.precision,
            classes=tuple(classes),
            names=tuple(self._name(e) for e in entries),
            layers=tuple(op.layer or op.name for op in first),
            op_class=np.array(index, dtype=np.int64),
            call=call,
            again=call >= 0,
            values=self._values(at),
            parameter_op=self._parameter_ops(at),
        )

    def _entries(self) -> list[_Entry]:
        """Return forward kernels in order, each followed by backward kernels that it ends with."""
        entries = [_Entry(i, False, self._class(r), r) for i, r in enumerate(self.forward)]
        for region, place in zip(self.backward, self._places(), strict=True):
            call = region.nests[0].call
            if call is None or not whole_call(call):
                entries.append(_Entry(place, True, self._class(region), region))
        return sorted(entries, key=lambda e: (e.place, e.backward))

    def _places(self) -> list[int]:
        """Return, for each backward region, the forward region that it goes back to."""
        place: dict[int, int] = {}
        for i, region in enumerate(self.forward):
            for nest in region.nests:
                place[nest.at] = max(place.get(nest.at, 0), i)
        return [min(place.get(n.at, 0) for n in region.nests) for region in self.backward]

    def _name(self, entry: _Entry) -> str:
        ops, nests = self.program.graph.ops, entry.region.nests
        head, tail = ops[nests[0].at].name, ops[nests[-1].at].name
        name = head if head == tail else f"{head}+{tail}"
        return f"{name}.backward" if entry.backward else name

    def _class(self, region: Region) -> OpClass:
        head = region.nests[0]
        if head.call is not None:
            return call_class(head.call)
        rowwise = (ROWS,) if region.pattern == MIXED else (ROWS, COLUMNS)
        reduced = [n for n in region.nests if n.pattern in rowwise]
        largest = reduced[0] if reduced else max(region.nests, key=lambda n: probe(n.domain))
        reads, writes = self._traffic(region)
        main = max((*reads, *writes, largest.domain), key=probe)
        domain = largest.domain._replace(dtype=main.dtype)
        ops = sum(n.ops * probe(n.domain) for n in region.nests) / max(probe(domain), 1)
        dear, aten = max(n.slow for n in region.nests)
        return loop_class(
            region.pattern,
            head.backward,
            aten if dear >= _DEAR and aten else f"triton.{region.pattern}",
            float(round(ops)),
            sum(n.sums for n in region.nests if n.pattern == COLUMNS),
            domain,
            min((n.rows for n in reduced), key=probe, default=domain),
            reads,
            writes,
        )

    def _traffic(self, region: Region) -> tuple[list[Spec], list[Spec]]:
        """Return what a region reads from memory, and what it writes."""
        made = {value for nest in region.nests for value in nest.writes}
        parts: dict[int, dict[str, Spec]] = {}
        for nest in region.nests:
            for read in nest.reads:
                if read.value not in made:
                    parts.setdefault(read.value, {})[read.name] = read.spec
        reads: list[Spec] = []
        for value, seen in parts.items():
            whole = self.joint.specs[value]
            reads += seen.values() if sum(map(probe, seen.values())) < probe(whole) else (whole,)
        leaving = self.joint.outputs | self.kept.values
        writes = [
            self.joint.specs[v]
            for v in sorted(made)
            if v in leaving or self.readers.get(v, set()) - {region}
        ]
        return reads, writes

    def _values(self, at: dict[int, int]) -> tuple[Value, ...]:
        """Return what forward kernels write to memory, and the inputs."""
        made: dict[int, int] = {}
        last: dict[int, int] = {}
        for i, region in enumerate(self.forward):
            made.update((value, at[i]) for nest in region.nests for value in nest.writes)
            last.update((value, at[i]) for value in _reads(region))
        keeper: dict[int, int] = {}
        for region, place in zip(self.backward, self._places(), strict=True):
            for value in _reads(region) & self.kept.values:
                keeper[value] = min(keeper.get(value, at[place]), at[place])
        specs: dict[Spec, Spec] = {}  # equal ones are one object
        found = []
        for value, own in enumerate(self.joint.specs):
            spec, start = specs.setdefault(own, own), made.get(value, -1)
            if (start >= 0 and (value in last or value in keeper)) or own.role == "input":
                end = max(last.get(value, start), start)
                found.append(Value(spec, start, end, keeper.get(value, -1)))
        return tuple(found)

    def _parameter_ops(self, at: dict[int, int]) -> dict[str, int]:
        found: dict[str, int] = {}
        for i, region in enumerate(self.forward):
            for nest in region.nests:
                for read in nest.reads:
                    name = self.joint.names[read.value]
                    if name in self.program.parameter_op:
                        found.setdefault(name, at[i])
        return found


def _reads(region: Region) -> set[int]:
    """Return the values that a region reads from memory."""
    made = {value for nest in region.nests for value in nest.writes}
    return {read.value for nest in region.nests for read in nest.reads} - made
