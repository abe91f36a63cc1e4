"""Which device this machine's is: one of the catalog, or one that was calibrated here."""

from __future__ import annotations

import re

from traincast.errors import UnknownNameError

_DECORATION = re.compile(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*", re.IGNORECASE)


OWN_CPU = "this-cpu"
"""What `traincast calibrate` calls a CPU that the catalog lacks, or a part of one."""


def catalog_name(unit: str, name: str) -> str | None:
    """Return the id of the device that calls itself `name`; None where nothing is known of it.

    A CPU counts only where all of its cores may be used: a part of one is another device, which
    `traincast calibrate` may have measured.
    """
    from traincast.hardware.lookup import load_device, resolve_device_name

    try:
        found = resolve_device_name(" ".join(_DECORATION.sub(" ", name).split()))
    except UnknownNameError:
        return _own(name) if unit == "cpu" else None
    if unit == "cpu":
        from traincast.measure.cpu import this_cpu

        if len(this_cpu().cores) != load_device(found).units:
            return _own(name)
    return found


def _own(name: str) -> str | None:
    """Return the name of this CPU where it was calibrated, with as many cores as now."""
    from traincast.hardware.lookup import load_device, own_device
    from traincast.measure.cpu import this_cpu

    if not own_device(OWN_CPU).is_file():
        return None
    known = load_device(OWN_CPU)
    return OWN_CPU if (known.title, known.units) == (name, len(this_cpu().cores)) else None
