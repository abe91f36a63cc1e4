"""Values of an axis as users write them.

16:1024            from 16 to 1024, each twice the one before
16:1024:log10      10 values, equal ratios       16:1024:lin10   10 values, equal steps
16:1024:x4         each 4 times the one before   16,64,256       these
0.25x:4x           multiples of the base point   1 Gbit/s:100 Gbit/s
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from traincast.errors import InvalidValueError
from traincast.search.explore import Axis, Base, axis_named
from traincast.units import parse_count, parse_quantity

MOST = 1000
"""Values that an axis may have."""
FORMS = "write 16:1024, 16:1024:log10, 16:1024:lin10, 16:1024:x2, 0.25x:4x or 16,64,256"
_MULTIPLE = re.compile(r"\s*([0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)\s*[x×]\s*")
_SPACING = re.compile(r"\s*(log|lin|x|×)?\s*([0-9]+(?:\.[0-9]+)?)\s*")


def parse_axis(text: str, base: Base) -> tuple[Axis, NDArray[np.float64]]:
    """Read `NAME=RANGE`, or `NAME` for the default range around the base."""
    name, equals, given = text.partition("=")
    axis = axis_named(name)
    if not equals:
        return axis, base.default_values(axis)
    if ":" in given:
        values = _range(axis, given, base)
    else:
        values = np.array([parse_value(axis, part, base) for part in given.split(",")])
    if len(values) > MOST:
        raise InvalidValueError(f"axis {axis.name} has {len(values)} values; at most {MOST}")
    if axis.whole:
        values = np.rint(values)
    return axis, np.unique(values)


def parse_value(axis: Axis, text: str, base: Base) -> float:
    """Read one value of an axis: with its unit, or as a multiple of the base such as `4x`."""
    multiple = _MULTIPLE.fullmatch(text)
    if multiple:
        value = float(multiple[1]) * float(getattr(base, axis.key))
        value = max(round(value), 1) if axis.whole else value
    elif axis.whole:
        value = float(parse_count(text, axis.name))
    else:
        value = parse_quantity(text, axis.unit)
    if not (np.isfinite(value) and value > 0):
        raise InvalidValueError(f"{axis.name} {text.strip()!r} has to be above zero")
    return value


def _range(axis: Axis, text: str, base: Base) -> NDArray[np.float64]:
    parts = text.split(":")
    spacing = _SPACING.fullmatch(parts[2] if len(parts) > 2 else "x2")
    if len(parts) > 3 or spacing is None:
        raise InvalidValueError(f"axis {axis.name}: {text!r} is no range; {FORMS}")
    low, high = (parse_value(axis, part, base) for part in parts[:2])
    if high <= low:
        raise InvalidValueError(f"axis {axis.name}: {text!r} ends before it starts; {FORMS}")
    kind, number = spacing[1] or "log", float(spacing[2])
    if kind in ("x", "×"):
        if number <= 1 or np.log(high / low) / np.log(number) > MOST:
            raise InvalidValueError(
                f"axis {axis.name}: the factor in {text!r} is too small; {FORMS}"
            )
        steps = int(np.log(high / low) / np.log(number) * (1 + 1e-12) + 1e-9)
        return np.array([low * number**i for i in range(steps + 1)])
    if number != int(number) or not 2 <= number <= MOST:
        raise InvalidValueError(
            f"axis {axis.name}: {text!r} has {spacing[2]} values; give 2 to {MOST}"
        )
    spread = np.geomspace if kind == "log" else np.linspace
    return np.asarray(spread(low, high, int(number)), dtype=np.float64)
