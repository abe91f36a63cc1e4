"""The estimators by name. Each is loaded when asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.roofline import Estimator, Roofline
from traincast.hardware import Device


def _castello() -> Estimator:
    from traincast.estimate.castello.estimator import Castello

    return Castello()


def _paleo() -> Estimator:
    from traincast.estimate.paleo.estimator import Paleo

    return Paleo()


def _many_core(model: str) -> Estimator:
    from traincast.estimate.viebke.estimator import ManyCore

    return ManyCore(model)


ESTIMATORS: dict[str, Callable[[], Estimator]] = {
    "roofline": Roofline,
    "paleo": _paleo,
    "castello": _castello,
    "viebke-a": lambda: _many_core("a"),
    "viebke-b": lambda: _many_core("b"),
}
PROFILED = ("auto", "calibrated", "transfer")
"""Choices that rest on a profile: `auto` takes the device's own, else a similar device's, else the
datasheet; `calibrated` wants the device's own; `transfer` takes a similar device's in any case."""
CPU_ONLY = frozenset({"viebke-a", "viebke-b"})
"""Estimators that say nothing of other devices."""


@cache
def estimator_named(name: str) -> Estimator:
    """Return the estimator of a name that needs no profile."""
    check_estimator(name)
    return ESTIMATORS[name]()


def check_estimator(name: str) -> None:
    """Raise unless an estimator has this name."""
    if name not in (*ESTIMATORS, *PROFILED):
        known = (*PROFILED, *ESTIMATORS)
        raise UnknownNameError("estimator", name, known, f"(known: {', '.join(known)})")


def estimator_for(name: str, device: Device, profile: Path | None = None) -> Estimator:
    """Return the estimator of a name for a device; a profile's file decides what it rests on."""
    check_estimator(name)
    if profile is not None:
        if name not in PROFILED:
            raise InvalidValueError(f"estimator {name!r} takes no profile; use calibrated")
        return _from_file(profile, device)
    return _for_device(name, device) if name in PROFILED else estimator_named(name)


@lru_cache(maxsize=128)
def _for_device(name: str, device: Device) -> Estimator:
    from traincast.estimate.calibrated.estimator import Calibrated
    from traincast.estimate.calibrated.library import complement, nearest, profile_for

    own = None if name == "transfer" else profile_for(device)
    if own is not None:
        return Calibrated(own, base=complement(own, device))
    if name == "calibrated":
        raise InvalidValueError(
            f"{device.name} has no profile; measure it with `traincast calibrate`, or use "
            "--estimator auto, transfer or roofline"
        )
    similar = nearest(device)
    if similar is not None:
        base = complement(similar, device)
        return Calibrated(similar, own=False, base=base, name="transfer")
    if name == "transfer":
        raise InvalidValueError(f"no profile is of a device like {device.name}; use roofline")
    return estimator_named("roofline")


def _from_file(path: Path, device: Device) -> Estimator:
    from traincast.estimate.calibrated.estimator import Calibrated
    from traincast.estimate.calibrated.library import complement
    from traincast.estimate.calibrated.profile import read_profile

    found = read_profile(path)
    own = found.device == device.name
    base = complement(found, device)
    return Calibrated(found, own=own, base=base, name="calibrated" if own else "transfer")
