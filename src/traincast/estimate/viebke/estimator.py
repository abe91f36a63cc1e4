"""The many-core models as estimators of one training step, with every thread of the CPU.

A step trains `batch` images: the training part of a run of that many images and one epoch, with
the contention of memory. What comes before training, validation and tests do not belong to it.
The step is shared out over the ops in proportion to their arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traincast.estimate.program import Floats, Program, kernels_of
from traincast.estimate.roofline import IDEAL, Efficiency, OpTimes
from traincast.estimate.viebke.forecast import forecast
from traincast.estimate.viebke.machine import machine_of
from traincast.estimate.viebke.models import Run
from traincast.hardware import Device


@dataclass(frozen=True, slots=True)
class ManyCore:
    """Model A or B of Viebke et al. (HPCS 2019)."""

    model: str
    """a (operation counts and a clock) or b (measured times)."""
    basis: str = "datasheet"

    @property
    def name(self) -> str:
        """As users choose it."""
        return f"viebke-{self.model}"

    def efficiency(self, device: Device) -> Efficiency:
        """Return that nothing else is lost: the models hold whole images."""
        return IDEAL

    def times(self, program: Program, device: Device, batch: int, seq: int) -> OpTimes:
        """Return the seconds of every op forward and backward; the update is in the latter."""
        threads = machine_of(device).threads
        found = forecast(
            program.graph.name,
            model=self.model,
            threads=[threads],
            run=Run(images=batch, test_images=0, epochs=1),
            device=device,
            graph=program.graph,
        )
        parts = found.rows[0].seconds
        # Validation is a forward pass over the same images.
        forward = parts.validation
        backward = parts.training - parts.validation + parts.memory
        shares = _shares(program, batch, seq)
        seconds = shares * np.array([forward, backward])
        bound: Floats = np.zeros((len(program.names), 3))
        bound[:, 0] = seconds.sum(axis=1)
        notes = (f"{found.basis}; {threads} threads", *found.notes)
        return OpTimes(seconds, bound, 0.0, notes)


def _shares(program: Program, batch: int, seq: int) -> Floats:
    """Return each op's part of the arithmetic forward and backward; both columns add up to 1."""
    kernels = kernels_of(program, batch, seq)
    classes = len(program.classes)
    cell = kernels.op_class * 2 + np.minimum(kernels.phase, 1)
    work = np.bincount(cell, kernels.flops + kernels.ops, 2 * classes).reshape(classes, 2)
    per_op: Floats = work[program.op_class].astype(np.float64)
    shares: Floats = per_op / np.maximum(per_op.sum(axis=0), 1e-300)
    return shares
