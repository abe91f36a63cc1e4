"""Paleo as an estimator of steps on one device: its own equations, op by op.

    t = compute + memory traffic        of every convolution, dense layer, pooling and dropout

at the peaks of Paleo's device table (or the catalog's, for devices Paleo never had), fp32, with no
cost for launches, activations or normalisation. Percent of peak is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traincast.estimate.paleo.from_graph import paleo_from_graph
from traincast.estimate.paleo.model import PaleoModel
from traincast.estimate.program import Floats, Program
from traincast.estimate.roofline import IDEAL, Efficiency, OpTimes
from traincast.hardware import Device


@dataclass(frozen=True, slots=True)
class Paleo:
    """The estimator of Qi, Sparks and Talwalkar (ICLR 2017), under the rules of the paper."""

    name: str = "paleo"
    basis: str = "datasheet"

    def efficiency(self, device: Device) -> Efficiency:
        """Return that nothing is lost and the host costs nothing."""
        return IDEAL

    def times(self, program: Program, device: Device, batch: int, seq: int) -> OpTimes:
        """Return the seconds of every op forward and backward, and of the update."""
        net = paleo_from_graph(program.graph, seq=seq or None)
        model = PaleoModel(rules="head" if _needs_head(net.layers) else "paper")
        rows = {row.layer: row for row in model.layers(net, device.name, batch)}
        step = model.step(net, device.name, batch)
        seconds: Floats = np.zeros((len(program.names), 2))
        bound: Floats = np.zeros((len(program.names), 3))
        for i, name in enumerate(program.names):
            row = rows.get(name)
            if row is not None:
                seconds[i] = row.forward_s, row.backward_s
                compute = row.forward_compute_s + row.data_compute_s + row.filter_compute_s
                bound[i, 0 if 2 * compute >= row.forward_s + row.backward_s else 1] = seconds[
                    i
                ].sum()
        return OpTimes(seconds, bound, step.update_s, net.notes)


def _needs_head(layers: object) -> bool:
    """Tell whether only the later rule set can price a network: the first has no deconvolution."""
    return any(layer.type == "Deconvolution" for layer in layers)  # type: ignore[attr-defined]
