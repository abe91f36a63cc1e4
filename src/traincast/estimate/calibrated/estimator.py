"""The calibrated estimator: kernels priced by a profile's models, on its device or another one."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from traincast.estimate.calibrated.host import UPDATE, host_table
from traincast.estimate.calibrated.models import KernelModel
from traincast.estimate.calibrated.profile import Profile
from traincast.estimate.calibrated.serial import FUSED, beside_kernels
from traincast.estimate.calibrated.species import (
    REDUCED,
    fallbacks,
    features_of,
    group_depth,
    keys_of,
    windows_of,
    work_of,
)
from traincast.estimate.calibrated.transfer import carried, saving
from traincast.estimate.host import host_seconds, trained_sizes, update_seconds
from traincast.estimate.optimizer import Optimizer
from traincast.estimate.program import FAMILIES, Floats, Ints, Kernels, Program
from traincast.estimate.roofline import TIERS, Efficiency, Pricing
from traincast.graph import DTYPE_BYTES
from traincast.graph.precision import Precision
from traincast.hardware import Device, load_device

GROUPS = (
    "matrix", "convolution", "grouped", "depthwise", "attention", "norm", "copy", "vector", "host",
)  # fmt: skip
"""Groups of kernels that a profile may have a factor for, and the host.

What holds for convolutions in one layout alone, as `grouped.nhwc`, multiplies their factor; and
again for groups of many channels, `grouped.nhwc.wide`, for which libraries have other kernels.
"""
MATRIX = frozenset({"gemm", "conv", "attention", "rnn"})
BY_LAYOUT = ("convolution", "grouped", "depthwise")
WIDE = 32
"""Channels from which a group is wide."""
ALL_PARTS = frozenset({"waves", "shapes", "host", "lowering"})
_UNJUDGED = (0.7, 1.45)
"""5th and 95th percentile of measured over predicted where no run of the device was judged."""
_CARRIED = {"device": (0.65, 1.95), "host": (0.72, 2.0)}
"""The same for kernels carried over from another device, and another host than the one measured:
469 published steps on 17 GPUs (benchmarks/published_steps.py), and 2,443 of timm's networks on an
RTX 3090 (benchmarks/timm_rtx3090.py), of which 93 % lie between."""
OTHER_HOST = 1.3
"""How much longer another host than the one measured takes, where nothing is known of it.

Six machines whose steps others have published take 0.92, 1.09, 1.56, 1.56, 1.58, 1.8 times what
the H200's host does (their steps that it bounds by far), 1.38 in the geometric mean; hosts
of further H200s took 0.6 to 1.1 times."""
SURE = 0.035
"""Standard deviation of log(measured / predicted) of a step that the device bounds and all of whose
kernels were measured: of 278 such steps on an H200, those with the surest kernels and those with
the least sure ones then lie inside their intervals alike."""
_CONVOLUTIONS = {"gconv": "grouped", "dwconv": "depthwise"}


COLD, LATENCY_S = 0.15, 0.3e-6
COLDER = {"reduction": 0.7, "concat": 0.6}
"""Kernels are timed again and again on the same tensors, which lie in the cache if they fit. In a
network some have left it: so much of their bytes comes from memory, and the first of them later.
Found from 22,323 vector kernels of 79 recorded training steps on an H200, which took 12 % longer on
average than alone, those over 50 MB no longer (benchmarks/kernel_times.py --vector); sums and
concatenations, of what was written long before, took 18 and 38 % longer."""


def widening(spread: float, typical: float) -> float:
    """Return how much wider an interval is, in logarithms, for one spread of kernels or another."""
    return math.hypot(SURE, spread) / math.hypot(SURE, typical)


def cold_seconds(traffic: Floats, device: Device, cold: Floats | float = COLD) -> Floats:
    """Return seconds that vector kernels of so many bytes take longer in a network than alone."""
    if not device.l2_bytes or not device.is_gpu:
        return np.zeros_like(traffic)
    fits = 1.0 / (1.0 + (traffic / (0.75 * device.l2_bytes)) ** 4)
    late = LATENCY_S * traffic / (traffic + 1e6)
    longer: Floats = fits * (cold * traffic / device.memory_bandwidth + late)
    return longer


def _shapes_of(kernels: Kernels, units: int) -> tuple[dict[str, Floats], Ints]:
    """Return the features of all kernels by family, and each kernel's row among its family's."""
    place = np.empty(len(kernels.family), dtype=np.int64)
    shapes = {}
    for code in np.unique(kernels.family):
        index = np.flatnonzero(kernels.family == code)
        place[index] = np.arange(len(index))
        shapes[FAMILIES[code]] = features_of(FAMILIES[code], kernels, index, units)
    return shapes, place


def group_of(key: str, family: str) -> str:
    """Return the group that a kernel belongs to, by its key and family."""
    if family == "conv":
        return _CONVOLUTIONS.get(key.partition(".")[0], "convolution")
    named = {"gemm": "matrix", "rnn": "matrix", "concat": "copy"}
    return named.get(family, family if family in GROUPS else "vector")


def groups_of(key: str, family: str, depth: float = 0.0) -> tuple[str, ...]:
    """Return the groups whose factors multiply a kernel's seconds.

    `depth` is the input channels of one group of a convolution.
    """
    group, layout = group_of(key, family), key.rpartition("|")[2]
    if group not in BY_LAYOUT:
        return (group,)
    wide = (f"{group}.{layout}.wide",) if group == "grouped" and depth >= WIDE else ()
    return (group, f"{group}.{layout}", *wide)


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
    _found: dict[tuple[str, str], tuple[KernelModel, Profile]] = field(
        default_factory=dict, repr=False
    )

    @property
    def lowers(self) -> bool:
        """Whether it prices the kernels that eager PyTorch launches on a GPU, copies included."""
        return "lowering" in self.parts

    @property
    def basis(self) -> str:
        """What a prediction rests on."""
        if self.own and not self.profile.models and self.base is not None:
            return f"profile of {self.base.device}, adjusted to runs on {self.profile.device}"
        if self.own and "sources" in self.profile.provenance:
            return f"published timings of {self.profile.device}"
        if self.own:
            return f"calibration of {self.profile.device}"
        return f"profile of {self.profile.device}, transferred by datasheet"

    def efficiency(self, device: Device) -> Efficiency:
        """Return what devices of this one's tier reach: for what was not measured."""
        return TIERS[device.tier]

    def model(self, key: str, family: str) -> tuple[KernelModel, Profile]:
        """Return the model of a key, or the nearest one there is; and the profile it is from.

        At each step away from the key, `profile` goes before `base`.
        """
        found = self._found.get((key, family))
        if found is None:
            # A profile that does not tell windows apart has one model for all of them.
            near = (
                (same, profile)
                for name in fallbacks(key, family)
                for profile in self._profiles
                for same in (name, *windows_of(name)[-1:])
            )
            known = ((p.models[name], p) for name, p in near if name in p.models)
            last = ((m, p) for p in self._profiles for m in p.models.values())
            found = next(known, None) or next(last)
            self._found[key, family] = found
        return found

    @property
    def _profiles(self) -> tuple[Profile, ...]:
        return (self.profile, self.base) if self.base else (self.profile,)

    def factor(self, source: Profile | None, *groups: str) -> float:
        """Return what whole steps say that the seconds of these groups are to be multiplied by.

        What comes from `base` keeps the factors that were found there.
        """
        told = {self.profile, source or self.profile}
        return math.prod(p.factors.get(group, 1.0) for p in told for group in groups)

    def price(
        self,
        kernels: Kernels,
        device: Device,
        precision: Precision,
        layout: str = "nchw",
        training: bool = True,
    ) -> Pricing:
        """Return seconds for every kernel on a device."""
        flops, traffic = work_of(kernels, device if "waves" in self.parts else None)
        converted = tuple(t for t in REDUCED if device.is_gpu and not device.takes(t))
        names = keys_of(kernels, precision, layout, training, converted)
        if not training:
            once = [".infer|" in key for key in names]
            traffic = np.where(once, kernels.read / 2.0 + kernels.write, traffic)
        groups: dict[tuple[str, int], list[int]] = {}
        for i, kind in enumerate(zip(names, kernels.family.tolist(), strict=True)):
            groups.setdefault(kind, []).append(i)
        seconds = np.empty(len(names))
        bound = np.empty(len(names), dtype=np.int64)
        spread = np.empty(len(names))
        share = np.array([COLDER.get(family, COLD) for family in FAMILIES])[kernels.family]
        cold = {
            p.device: cold_seconds(traffic, load_device(p.device), share) for p in self._profiles
        }
        shapes, place = _shapes_of(kernels, device.units)
        for (key, code), rows in groups.items():
            index, family = np.array(rows), FAMILIES[code]
            model, source = self.model(key, family)
            correction, spread[index] = self._correction(
                model, source, shapes[family][place[index]]
            )
            seconds[index], bound[index] = self._priced(
                model, source, flops[index], traffic[index], key.split("|")[1], device, correction
            )
            if family not in MATRIX:
                seconds[index] += cold[source.device][index]
            factor = self.factor(source, *groups_of(key, family))
            if factor != 1.0:
                seconds[index] *= factor
            if group_of(key, family) == "grouped":
                wide = index[group_depth(kernels)[index] >= WIDE]
                seconds[wide] *= self.factor(source, groups_of(key, family, WIDE)[-1])
        if not self.efficiency(device).overlap:
            seconds[[name in FUSED for name in kernels.names]] = 0.0
        gap = next((p.gap_s for p in self._profiles if p.gap_s), 0.0)
        return Pricing(seconds + gap * kernels.launches, bound, spread)

    def host(self, program: Program, kernels: Kernels, device: Device, training: bool) -> Floats:
        """Return host seconds to issue each op forward and backward."""
        source = self._hosted
        factor = self._pace(source)
        if source is not None and source.host is not None and "host" in self.parts:
            if not self.efficiency(device).overlap:
                return factor * beside_kernels(source.host, program, kernels, training)
            return factor * host_table(source.host, program, kernels, training)
        share = 1.0 if training else 0.6
        return factor * share * host_seconds(program, kernels, self.efficiency(device))

    @property
    def _hosted(self) -> Profile | None:
        return next((p for p in self._profiles if p.host is not None), None)

    def _pace(self, source: Profile | None) -> float:
        """Return what the seconds of a profile's host are to be multiplied by."""
        own = self.own and source is self.profile
        return self.factor(source, "host") * (1.0 if own else OTHER_HOST)

    def update(
        self, program: Program, device: Device, optimizer: Optimizer
    ) -> tuple[float, float, float]:
        """Return device seconds, host seconds and bytes moved of one optimizer update."""
        seconds, host, moved = update_seconds(program, device, self.efficiency(device), optimizer)
        sizes, each = trained_sizes(program), DTYPE_BYTES[program.precision.parameters]
        key = f"{optimizer.name}|{'bf16' if each == 2 else 'fp32'}"
        source = next((p for p in self._profiles if key in p.updates), None)
        if source is not None:
            seconds = source.updates[key].seconds(optimizer, sizes, each, device.memory_bandwidth)
        seconds *= self.factor(source, "vector")
        hosted = self._hosted
        if not self.efficiency(device).overlap:
            return seconds, 0.0, moved
        if hosted is not None and hosted.host is not None and optimizer.name in hosted.host.update:
            done = (hosted.host.update[name] for name in (optimizer.name, "zero_grad")
                    if name in hosted.host.update)  # fmt: skip
            host = UPDATE * hosted.host.scale * sum(a + b * len(sizes) for a, b in done)
        return seconds, host * self._pace(hosted), moved

    def interval(
        self, seconds: float, host_bound: bool, spread: float | None = None
    ) -> tuple[float, float]:
        """Return seconds between which a real step falls in nine cases of ten.

        Where the profile says how unsure the kernels of the steps were that it was judged on, a
        step whose kernels are less sure, with a `spread` above theirs, has a wider interval.
        """
        regime = "host" if host_bound else "device"
        whole = self.own and self.profile.host is not None
        low, high = _UNJUDGED if whole else _CARRIED[regime]
        if self.own:
            low, high = self.profile.errors.get(regime, (low, high))
            if not host_bound and spread is not None and self.profile.spread:
                wider = widening(spread, self.profile.spread)
                low, high = low**wider, high**wider
        return seconds * low, seconds * high

    def _correction(
        self, model: KernelModel, source: Profile, features: Floats
    ) -> tuple[Floats, Floats]:
        """Return the correction by shape of some kernels, and how unsure they are.

        Both in logarithms of seconds: on a shape like measured ones a model is off by its error on
        shapes left out, on another one by the spread of its physical part, on the very shape by
        nothing. What a library does with single shapes is not carried over to another device.

        A model that stands in for kernels of another family knows them by other features.
        """
        shapes = model.residual if "shapes" in self.parts else None
        if shapes is not None and features.shape[1] == len(shapes.scales):
            # A sum of many kernels goes by their mean: of what is spread by e in logarithms,
            # the mean lies e²/2 above the middle.
            value, known, same = shapes.at(features, source is self.profile and self.own)
            unsure = (1.0 - same) * (known * model.error**2 + (1.0 - known) * model.spread**2)
            return value + 0.5 * (1.0 - same) * min(model.error, 0.2) ** 2, np.sqrt(unsure)
        return np.zeros(len(features)), np.full(len(features), model.spread)

    def _priced(
        self, model: KernelModel, source: Profile, flops: Floats, traffic: Floats, dtype: str,
        device: Device, correction: Floats,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """Return seconds of kernels of one model, and what bounds them."""
        peak, bandwidth = device.peak(dtype), device.memory_bandwidth
        if source is self.profile and self.own:
            work = flops / (peak * model.compute) if model.compute > 0 else np.zeros_like(flops)
            moved = traffic / (bandwidth * model.bandwidth)
            seconds = (model.floor_s + np.hypot(work, moved)) * np.exp(correction)
        else:
            of, work = load_device(source.device), np.zeros_like(flops)
            if model.compute > 0:
                reached = model.compute * np.exp(-correction)
                work = flops / (peak * saving(reached, peak, device, of.peak(dtype), of))
            reached = model.bandwidth * np.exp(-correction)
            moved = traffic / (
                bandwidth * carried(reached, bandwidth, device, of.memory_bandwidth, of)
            )
            seconds = model.floor_s + np.hypot(work, moved)
        short = model.floor_s > np.maximum(work, moved)
        return seconds, np.where(short, 2, np.where(work >= moved, 0, 1))
