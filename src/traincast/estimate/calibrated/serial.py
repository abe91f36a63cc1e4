"""What a CPU does besides running kernels: Python, autograd's engine, and fetching fresh memory.

On a CPU nothing overlaps: kernels, timed as they are called, include their own dispatch, and what
comes on top adds up. Most of it is memory. The C library gives large blocks back to the system when
they are freed, and the system clears every page that it hands out again, which takes longer than
most kernels take to fill it. With glibc (malloc/malloc.c):

- a block of 32 MiB or more is mapped anew each time (`DEFAULT_MMAP_THRESHOLD_MAX`), as are the
  copies in blocks of channels that oneDNN's convolutions make of such images;
- smaller ones come from a heap, whose free end is cut off where it is longer than twice the largest
  block that was ever mapped. Parameters' gradients, which are freed all at once between steps, lie
  on fresh pages then, and so do shares of what forward and backward passes make.

The shares are means over the page faults of 22 networks; those of one network, and its single
steps, differ by a half.
"""

from __future__ import annotations

import numpy as np

from traincast.estimate.calibrated.host import dispatched, op_cost
from traincast.estimate.calibrated.profile import Host
from traincast.estimate.program import FAMILIES, Floats, Kernels, Program

ALWAYS = 2.0**25
"""Bytes from which the C library keeps no block."""
SHARES = np.array([0.17, 0.08, 0.8])
"""Parts of a forward pass, of gradients that flow back, and of parameters' gradients that lie on
fresh pages of the heap; where larger blocks are mapped, the heap is cut later, and little does."""
FUSED = frozenset({"convolution.bias", "convolution_backward.bias"})
"""What oneDNN's convolutions do on the way."""
CLEARED = frozenset({"max_pool2d_with_indices_backward"})


def beside_kernels(host: Host, program: Program, kernels: Kernels, training: bool) -> Floats:
    """Return seconds of each op forward and backward besides its kernels: (ops, 2)."""
    rows = np.zeros((len(program.classes), 2))
    phase = np.minimum(kernels.phase, 1)
    fresh = fresh_bytes(program, kernels, training)
    np.add.at(rows, (kernels.op_class, phase), fresh * host.fresh_s)
    runs = np.zeros((len(program.classes), 2))
    np.add.at(runs, (kernels.op_class, phase), 1.0)
    node = op_cost(host, "view")[2]
    for i, op in enumerate(program.classes):
        if op.kind == "accumulate":
            continue
        infer, forward, backward = op_cost(host, dispatched(op))
        grad = any(s.grad for s in op.ins) and training
        # What is timed as a kernel has been called from Python without autograd.
        called = forward if grad else infer
        around = host.python_s if training else host.infer_s
        rows[i, 0] += around + (called - infer if runs[i, 0] else called)
        if grad:
            own = sum(s.role == "parameter" and s.grad for s in op.ins)
            rows[i, 1] += (node if runs[i, 1] else backward) + own * host.parameter_s
    return rows[program.op_class] * host.scale


def fresh_bytes(program: Program, kernels: Kernels, training: bool = True) -> Floats:
    """Return the bytes of each kernel that lie on pages which the system has to clear first.

    Without training nothing is kept, and small blocks are soon used again.
    """
    inplace = np.array([bool(dict(c.attrs).get("inplace")) for c in program.classes])
    made = np.where(inplace[kernels.op_class] & (kernels.phase == 0), 0.0, kernels.write)
    # The gradient of a maximum is cleared, then written: twice the traffic of one block.
    made[[name in CLEARED for name in kernels.names]] /= 2.0
    mapped = made >= ALWAYS
    shares = SHARES * ([0.0, 0.0, 1.0] if mapped.any() or not training else 1.0)
    fresh: Floats = np.where(mapped, made, made * shares[kernels.phase])
    conv = kernels.family == FAMILIES.index("conv")
    images = _images(kernels, conv)
    fresh[conv] += np.where(images >= ALWAYS, images, 0.0)[conv].sum(axis=1)
    return fresh


def _images(kernels: Kernels, conv: Floats) -> Floats:
    """Return the bytes of input and output of each kernel's convolution: (kernels, 2)."""
    classes = int(kernels.op_class.max(initial=-1)) + 1
    found = np.zeros((classes, 2))
    first = conv & (kernels.phase == 0)
    found[kernels.op_class[first], 0] = kernels.read[first]
    found[kernels.op_class[first], 1] = kernels.write[first]
    return found[kernels.op_class]
