"""What the model knows of the cluster, and the rules by which it counts."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.castello.collectives import FAMILIES

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Equal nodes on a flat network. Every field may be an array; all of them broadcast."""

    flops: ArrayLike
    """F, peak speed of a node in FLOP/s, > 0."""
    memory_bandwidth: ArrayLike
    """BW, peak bandwidth to a node's memory in bytes/s, > 0."""
    link_bandwidth: ArrayLike
    """Bandwidth of a node's link in bytes/s, > 0 (the authors write bits)."""
    latency_s: ArrayLike = 0.5e-6
    """α, seconds for an empty message, >= 0."""
    element_bytes: float = 4.0
    """w, bytes of one element, > 0."""
    gradient_bytes: float | None = None
    """Bytes of an element of a weight's gradient, > 0; by default as any other."""

    def __post_init__(self) -> None:
        for spec in fields(self):
            if getattr(self, spec.name) is None:
                continue
            value = np.asarray(getattr(self, spec.name), dtype=np.float64)
            positive = value >= 0 if spec.name == "latency_s" else value > 0
            if not (np.isfinite(value) & positive).all():
                least = "zero or more" if spec.name == "latency_s" else "above zero"
                raise InvalidValueError(
                    f"machine: {spec.name} = {getattr(self, spec.name)!r} has to be finite and "
                    f"{least}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the model counts; the defaults are the authors' model, completed and corrected."""

    collectives: str = "long"
    """Algorithms of the collectives: `long`, `short` or `best`; or `bta`, `vdg`, the labels of the
    authors' code."""
    unfold: bool = True
    """Whether a convolution writes its unfolded input (im2col), as on a CPU; False: as on a GPU."""
    charge_others: bool = False
    """Charge ops that the authors take as free (activation, normalisation, …) for their traffic."""
    least_kernels: int = 1
    """Fewest kernels of a convolution that are worth a process of their own, >= 1."""
    least_neurons: int = 1
    """The same for the neurons of a dense layer, >= 1."""
    compat: bool = False
    """Count as the authors' published code does, with its slips; see docs/models/castello.md."""

    def __post_init__(self) -> None:
        if self.collectives not in FAMILIES:
            known = f"(known: {', '.join(FAMILIES)})"
            raise UnknownNameError("family of collectives", self.collectives, FAMILIES, known)
        for name in ("least_kernels", "least_neurons"):
            if getattr(self, name) < 1:
                raise InvalidValueError(f"{name} = {getattr(self, name)} has to be 1 or more")


def published_rules(*, unfold: bool = True) -> Rules:
    """Return the rules of the authors' code as it stands, with its default algorithms."""
    return Rules(unfold=unfold, collectives="vdg", compat=True)
