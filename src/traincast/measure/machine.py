"""Which device of the catalog this machine's is."""

from __future__ import annotations

import re

from traincast.errors import UnknownNameError

_DECORATION = re.compile(r"\((R|TM)\)|\bCPU\b|\bProcessor\b|\b\d+-Core\b|@.*", re.IGNORECASE)


def catalog_name(unit: str, name: str) -> str | None:
    """Return the id of the device that calls itself `name`; None where the catalog lacks it.

    A CPU counts only where all of its cores may be used: a part of one is another device.
    """
    from traincast.hardware.lookup import load_device, resolve_device_name

    try:
        found = resolve_device_name(" ".join(_DECORATION.sub(" ", name).split()))
    except UnknownNameError:
        return None
    if unit == "cpu":
        from traincast.measure.cpu import this_cpu

        if len(this_cpu().cores) != load_device(found).units:
            return None
    return found
