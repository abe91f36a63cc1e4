"""The classes of a compiled program: fused loops, and library calls without what was fused."""

from __future__ import annotations

from traincast.estimate.fusion.nests import COLUMNS, POINT, ROWS
from traincast.estimate.program import OpClass, Spec
from traincast.graph import DTYPE_BYTES, elements
from traincast.graph.kinds import Arg, Costs, Kernel

_LOOPED = ("embedding", "gather", "interpolate")
"""Kinds whose forward is part of a loop and whose backward is a library call."""
PAD_BYTES = 16
"""What the sides of a product should be a multiple of, for matrix units: pad_mm.py's alignment."""
_BIASED = ("linear", "conv", "matmul")
_PARTS = 256.0
"""Blocks that a column is split into, at most."""
_CHUNK = 64
"""Rows that one block of a mixed reduction adds up before a last kernel adds the blocks."""


def call_class(cls: OpClass) -> OpClass:
    """Return the class of a library call, given that of its op."""
    return Scatter(*cls) if cls.kind in _LOOPED else Call(*cls)


def whole_call(cls: OpClass) -> bool:
    """Tell whether a class holds the backward of a library call with its forward."""
    return cls.kind not in _LOOPED


def loop_class(
    pattern: str,
    backward: bool,
    name: str,
    ops: float,
    sums: int,
    domain: Spec,
    rows: Spec,
    reads: list[Spec],
    writes: list[Spec],
) -> OpClass:
    """Return the class of a fused loop; see `Loop`."""
    attrs = (("backward", backward), ("name", name), ("ops", ops), ("sums", sums))
    ins = (_plain(domain), _plain(rows), *sorted(map(_plain, reads), key=str))
    return Loop(f"loop.{pattern}", attrs, ins, tuple(sorted(map(_plain, writes), key=str)))


def _plain(spec: Spec) -> Spec:
    return Spec(spec.shape, spec.dtype, False, "")


class Loop(OpClass):
    """A fused kernel: `ins` are its domain, its rows and what it reads; `outs` what it writes."""

    __slots__ = ()

    def at(self, batch: int, seq: int, known: dict[int, Arg] | None = None) -> Costs:
        """Return its kernels for a batch and sequence length.

        Reductions of columns take a kernel for partial sums and a small one for each sum; mixed
        ones end in a kernel of the library for each.
        """
        attrs = dict(self.attrs)
        pattern = self.kind.partition(".")[2]
        name, sums = str(attrs["name"]), int(str(attrs["sums"]))
        domain, *counts = (elements(s.shape, batch, seq) for s in self.ins)
        rows = max(counts[0], 1)
        read = sum(n * DTYPE_BYTES[s.dtype] for n, s in zip(counts[1:], self.ins[2:], strict=True))
        write = sum(elements(s.shape, batch, seq) * DTYPE_BYTES[s.dtype] for s in self.outs)
        columns = domain / rows
        family = "softmax" if "softmax" in name else "pointwise"
        dims = (0.0, 0.0, 0.0, 0.0) if pattern == POINT else (float(rows), columns, 0.0, 0.0)
        last: tuple[Kernel, ...] = ()
        if pattern == COLUMNS:
            family, dims = "reduction", (float(rows), columns, float(rows), 0.0)
            left = sums * rows * 4.0
            parts = left * min(columns, _PARTS)
            last = (Kernel("triton.last", "pointwise", 0, 0, parts, left, launches=sums),)
        elif pattern != ROWS and sums:
            blocks = max(rows / _CHUNK, 1.0)
            shape = (columns, blocks, columns, 0.0)
            one = Kernel("sum", "reduction", 0, 0, blocks * columns * 4, columns * 4, shape)
            last = (one,) * sums
        each = DTYPE_BYTES[self.ins[0].dtype]
        ops = float(str(attrs["ops"])) * domain
        kernels = (Kernel(name, family, 0, ops, read, write, dims, each=each), *last)
        return Costs((), kernels) if attrs["backward"] else Costs(kernels)


class Call(OpClass):
    """A library call, forward and backward, without the bias, which is part of loops."""

    __slots__ = ()

    def at(self, batch: int, seq: int, known: dict[int, Arg] | None = None) -> Costs:
        """Return the library's kernels for a batch and sequence length."""
        costs = super().at(batch, seq, known)
        if self.kind not in _BIASED:
            return costs
        forward, data, weight = (
            tuple(_aligned(k) for k in part if k.family in ("gemm", "conv"))
            for part in (costs.forward, costs.data, costs.weight)
        )
        return costs._replace(forward=forward, data=data, weight=weight)


def _aligned(kernel: Kernel) -> Kernel:
    """Return a product with sides that matrix units like, as Inductor pads them."""
    if kernel.family != "gemm":
        return kernel
    side = PAD_BYTES // kernel.each
    *sides, batch = kernel.dims
    rows, columns, depth = (-(-length // side) * side for length in sides)
    return kernel._replace(dims=(rows, columns, depth, batch))


class Scatter(OpClass):
    """The backward of a look-up, whose forward is part of a loop."""

    __slots__ = ()

    def at(self, batch: int, seq: int, known: dict[int, Arg] | None = None) -> Costs:
        """Return the library's backward kernels for a batch and sequence length."""
        return super().at(batch, seq, known)._replace(forward=())
