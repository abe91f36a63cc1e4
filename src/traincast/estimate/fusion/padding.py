"""Products whose width matrix units do not like, such as a vocabulary of 50,257: they are padded.

As torch/_inductor/fx_passes/pad_mm.py does where it pays. Eager products of such widths run several
times slower, so that this is much of what compiling gains for GPT-2.
"""

from __future__ import annotations

from traincast.estimate.fusion.loops import PAD_BYTES
from traincast.estimate.fusion.nests import POINT, Lowering, Read, probe, shaped
from traincast.estimate.program import OpClass, Spec
from traincast.graph import DTYPE_BYTES, Size

_LARGE = 1 << 20
"""Elements of a weight from which padding a product pays."""


def padded(low: Lowering, cls: OpClass, spec: Spec, read: Read, copies: int) -> tuple[Read, ...]:
    """Copy an operand of a product in a better width, and return the copies; none if it is fine."""
    if cls.kind != "linear" or probe(cls.ins[1]) < _LARGE:
        return ()
    wide = cls.outs[0].shape[-1]
    side = PAD_BYTES // int(DTYPE_BYTES[spec.dtype])
    if not wide.is_constant:
        return ()
    length = wide.at(1, 1)
    if length % side == 0 or wide not in spec.shape:
        return ()
    shape = tuple(Size(-(-length // side) * side) if s == wide else s for s in spec.shape)
    made = tuple(low.value(shaped(spec, shape), f"{low.index}.{i}") for i in range(copies))
    low.nest(POINT, (read,), made, shaped(spec, shape), shaped(spec, shape), 0).window = True
    return made
