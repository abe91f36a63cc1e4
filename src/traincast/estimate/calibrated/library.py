"""Profiles by device: the user's own, those that ship with traincast, and the nearest one.

A profile in `$TRAINCAST_PROFILES`, or in `traincast/profiles` of the user's data folder, goes
before the shipped one of the same device.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import resources

from traincast.estimate.calibrated.profile import Profile, profile_from_json, read_profile
from traincast.estimate.calibrated.transfer import cycles
from traincast.hardware import Device, load_device
from traincast.hardware.files import profiles_folder

COMPLETE = "h200"
"""The shipped profile that has every kind of kernel; what others lack is taken from it."""
_TRAINED = frozenset({"fp16", "bf16", "tf32"})
"""Types of matrix units that training runs on: which kernels libraries choose depends on them."""


def profile_for(device: Device) -> Profile | None:
    """Return the profile of that very device: the user's own or a shipped one; None if neither."""
    mine = profiles_folder() / f"{device.name}.json"
    if mine.is_file():
        return read_profile(mine)
    return shipped(device.name)


def complement(profile: Profile, device: Device) -> Profile | None:
    """Return the profile to take kernels from that another one lacks; None for what is no GPU."""
    if profile.device == COMPLETE or not device.is_gpu:
        return None
    return shipped(COMPLETE)


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
    """Return the shipped profile to carry over to a device; None if no kind of device fits.

    Of the most similar device that has kernels of its own. What it lacks comes from the complete
    profile.
    """
    if not device.is_gpu:
        return None
    names = [n for n in shipped_names() if n != device.name]
    alike = [d for d in map(load_device, names) if d.is_gpu]
    for found in sorted(alike, key=lambda d: distance(device, d)):
        profile = shipped(found.name)
        if profile is not None and profile.models:
            return profile
    return None


def distance(one: Device, other: Device) -> float:
    """Return how unlike two devices are in what a datasheet does not make up for.

    Speed is no matter: times are carried over by it. What counts is whether libraries run the same
    kernels (maker, generation, the types that matrix units take) and whether a kernel finds the
    same balance there: operations and bytes for each clock cycle of a multiprocessor, and watts,
    without which a board does not hold its clock and falls short of its datasheet.
    """
    apart = 8.0 * (one.vendor != other.vendor) + 1.0 * (one.architecture != other.architecture)
    apart += len({*one.matrix_flops} & _TRAINED ^ {*other.matrix_flops} & _TRAINED)
    apart += 0.1 * abs(one.year - other.year)
    doublings = [abs(math.log2(a / b)) for a, b in zip(_balance(one), _balance(other), strict=True)]
    return apart + doublings[0] + doublings[1] + 2.0 * doublings[2]


def _balance(device: Device) -> tuple[float, float, float]:
    """Return FLOPs and bytes for each clock cycle of a multiprocessor, and watts for each GHz."""
    return (
        device.peak("fp16") / cycles(device),
        device.memory_bandwidth / cycles(device),
        (device.power_w or 250.0) / cycles(device) * 1e9,
    )
