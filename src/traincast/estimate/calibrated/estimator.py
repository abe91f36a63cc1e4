"""The calibrated estimator: kernels priced by a profile's models, on its device or another one."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from traincast.estimate.calibrated.host import host_table
from traincast.estimate.calibrated.models import KernelModel
from traincast.estimate.calibrated.profile import Profile
from traincast.estimate.calibrated.species import fallbacks, features_of, keys_of, work_of
from traincast.estimate.host import host_seconds, update_seconds
from traincast.estimate.optimizer import Optimizer
from traincast.estimate.program import FAMILIES, Floats, Kernels, Program
from traincast.estimate.roofline import TIERS, Efficiency, Pricing
from traincast.graph import DTYPE_BYTES
from traincast.graph.precision import Precision
from traincast.hardware import Device

GROUPS = ("matrix", "convolution", "grouped", "attention", "norm", "vector", "host")
"""Groups of kernels that a profile may have a factor for, and the host."""
ALL_PARTS = frozenset({"waves", "shapes", "host"})
_UNJUDGED = (0.7, 1.45)
"""5th and 95th percentile of measured over predicted where no run of the device was judged."""
_TRUST = 0.5
"""How much of the correction by shape holds on a device other than the one it was measured on."""


def group_of(key: str, family: str) -> str:
    """Return the group that a kernel belongs to, by its key and family."""
    if family == "conv":
        return "convolution" if key.startswith("conv.") else "grouped"
    return {"gemm": "matrix", "rnn": "matrix"}.get(
        family, family if family in GROUPS else "vector"
    )


@dataclass(frozen=True, eq=False, slots=True)
class Calibrated:
    """An estimator that prices kernels by what was measured."""

    profile: Profile
    own: bool = True
    """Whether the profile is the device's own; False for one of a similar device."""
    base: Profile | None = None
    """A profile of another device, for kernels that `profile` lacks."""
    name: str = "calibrated"
    parts: frozenset[str] = ALL_PARTS
    """Parts that are switched on; for ablations."""
    _found: dict[tuple[str, str], tuple[KernelModel, bool]] = field(
        default_factory=dict, repr=False
    )

    @property
    def basis(self) -> str:
        """What a prediction rests on."""
        if self.own:
            return f"calibration of {self.profile.device}"
        return f"profile of {self.profile.device}, transferred by datasheet"

    def efficiency(self, device: Device) -> Efficiency:
        """Return what devices of this one's tier reach: for what was not measured."""
        return TIERS[device.tier]

    def model(self, key: str, family: str) -> tuple[KernelModel, bool]:
        """Return the model of a key, or the nearest one there is; and whether it is this device's.

        At each step away from the key, the device's own models go before the other profile's.
        """
        found = self._found.get((key, family))
        if found is None:
            mine, others = self.profile.models, self.base.models if self.base else {}
            for near in fallbacks(key, family):
                if near in mine or near in others:
                    found = (mine[near], self.own) if near in mine else (others[near], False)
                    break
            else:
                found = (next(iter(mine.values())), False)
            self._found[key, family] = found
        return found

    def price(
        self,
        kernels: Kernels,
        device: Device,
        precision: Precision,
        layout: str = "nchw",
        training: bool = True,
    ) -> Pricing:
        """Return seconds for every kernel on a device."""
        flops, traffic = work_of(kernels, device)
        names = keys_of(kernels, precision, layout, training)
        if not training:
            once = [".infer|" in key for key in names]
            traffic = np.where(once, kernels.read / 2.0 + kernels.write, traffic)
        groups: dict[str, list[int]] = {}
        for i, key in enumerate(names):
            groups.setdefault(key, []).append(i)
        seconds = np.empty(len(names))
        bound = np.empty(len(names), dtype=np.int64)
        for key, rows in groups.items():
            index = np.array(rows)
            family = FAMILIES[kernels.family[rows[0]]]
            model, own = self.model(key, family)
            peak = device.peak(key.split("|")[1])
            seconds[index], bound[index] = self._priced(
                model, flops[index], traffic[index], peak, device
            )
            if model.residual is not None and "shapes" in self.parts:
                extra, _ = model.residual.at(features_of(family, kernels, index))
                seconds[index] *= np.exp(extra if own else _TRUST * extra)
            seconds[index] *= self.profile.factors.get(group_of(key, family), 1.0)
        return Pricing(seconds, bound)

    def host(self, program: Program, kernels: Kernels, device: Device, training: bool) -> Floats:
        """Return host seconds to issue each op forward and backward."""
        factor = self.profile.factors.get("host", 1.0)
        if self.profile.host is not None and "host" in self.parts:
            return factor * host_table(self.profile.host, program, kernels, training)
        share = 1.0 if training else 0.6
        return factor * share * host_seconds(program, kernels, self.efficiency(device))

    def update(
        self, program: Program, device: Device, optimizer: Optimizer
    ) -> tuple[float, float, float]:
        """Return device seconds, host seconds and bytes moved of one optimizer update."""
        seconds, host, moved = update_seconds(program, device, self.efficiency(device), optimizer)
        count = sum(t.trainable for t in program.graph.parameters)
        dtype = "bf16" if DTYPE_BYTES[program.precision.parameters] == 2 else "fp32"
        model = self.profile.models.get(f"update.{optimizer.name}|{dtype}|")
        if model is not None:
            traffic = np.array([moved])
            seconds = float(
                model.base(np.zeros(1), traffic, 1.0, device.memory_bandwidth)[0]
                + model.compute * count
            )
        known = self.profile.host.update.get(optimizer.name) if self.profile.host else None
        if known is not None and self.profile.host is not None:
            host = (known[0] + known[1] * count) * self.profile.host.scale
        host *= self.profile.factors.get("host", 1.0)
        return seconds * self.profile.factors.get("vector", 1.0), host, moved

    def interval(self, seconds: float, host_bound: bool) -> tuple[float, float]:
        """Return seconds between which a real step falls in nine cases of ten."""
        regime = "host" if host_bound else "device"
        low, high = self.profile.errors.get(regime, _UNJUDGED)
        if not self.own:
            low, high = low * _UNJUDGED[0], high * _UNJUDGED[1]
        return seconds * low, seconds * high

    def _priced(
        self, model: KernelModel, flops: Floats, traffic: Floats, peak: float, device: Device
    ) -> tuple[Floats, Floats]:
        bandwidth = device.memory_bandwidth
        seconds = model.base(flops, traffic, peak, bandwidth)
        work = flops / (peak * model.compute) if model.compute > 0 else np.zeros_like(flops)
        moved = traffic / (bandwidth * model.bandwidth)
        short = model.floor_s > np.maximum(work, moved)
        return seconds, np.where(short, 2, np.where(work >= moved, 0, 1))
