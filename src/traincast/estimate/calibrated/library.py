"""Profiles by device: the user's own, those that ship with traincast, and the nearest one.

A profile in `$TRAINCAST_PROFILES`, or in `traincast/profiles` of the user's data folder, goes
before the shipped one of the same device.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib import resources
from pathlib import Path

from traincast.estimate.calibrated.profile import Profile, profile_from_json, read_profile
from traincast.hardware import Device, load_device

COMPLETE = "h200"
"""The shipped profile that has every kind of kernel; what others lack is taken from it."""
_KINDS = {"datacenter-gpu": "gpu", "consumer-gpu": "gpu", "cpu": "cpu", "manycore": "cpu"}


def profiles_folder() -> Path:
    """Return where this user's profiles are."""
    chosen = os.environ.get("TRAINCAST_PROFILES")
    if chosen:
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "traincast" / "profiles"


def profile_for(device: Device) -> Profile | None:
    """Return the profile of that very device: the user's own or a shipped one; None if neither."""
    mine = profiles_folder() / f"{device.name}.json"
    if mine.is_file():
        return read_profile(mine)
    return shipped(device.name)


@cache
def shipped(name: str) -> Profile | None:
    """Return a profile of the package, None if there is none for the device."""
    file = resources.files("traincast.hardware") / "profiles" / f"{name}.json"
    if not file.is_file():
        return None
    return profile_from_json(file.read_text(encoding="utf-8"), str(file))


@cache
def shipped_names() -> tuple[str, ...]:
    """Return the devices that have a shipped profile."""
    folder = resources.files("traincast.hardware") / "profiles"
    if not folder.is_dir():
        return ()
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".json")))


def nearest(device: Device) -> Profile | None:
    """Return the shipped profile of the most similar device; None if no kind of device fits.

    Similar by datasheet: architecture, then bandwidth, vector rate and matrix rate, in doublings.
    """
    kind = _KINDS.get(device.tier)
    if kind is None:
        return None
    names = [n for n in shipped_names() if n != device.name]
    known = [load_device(n) for n in names]
    alike = [d for d in known if _KINDS.get(d.tier) == kind]
    if not alike:
        return None
    best = min(alike, key=lambda d: distance(device, d))
    return shipped(best.name)


def distance(one: Device, other: Device) -> float:
    """Return how far two devices are apart, in doublings of their datasheet figures."""

    def doublings(a: float, b: float) -> float:
        return abs(math.log2(a / b))

    apart = doublings(one.memory_bandwidth, other.memory_bandwidth)
    apart += doublings(one.vector_peak(), other.vector_peak())
    apart += doublings(one.peak("fp16"), other.peak("fp16"))
    apart += 0.5 * (one.vendor != other.vendor) + 0.5 * (one.architecture != other.architecture)
    return apart + 0.2 * abs(one.year - other.year) / 2.0
