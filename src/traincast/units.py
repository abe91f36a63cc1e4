"""Quantities at the edges: text to SI floats and back. Inside traincast everything is SI.

Decimal prefixes are powers of 1000 and binary ones (KiB, MiB, …) powers of 1024, for bytes only.
Bandwidth may be written in bytes or in bits: `3.35 TB/s`, `100 Gbit/s`.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

from traincast.errors import InvalidValueError

_DECIMAL = {"": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
_SMALL = {"": 1.0, "m": 1e-3, "u": 1e-6, "µ": 1e-6, "n": 1e-9}

_UNITS: dict[str, dict[str, float]] = {
    "bytes": {p + "B": f for p, f in {**_DECIMAL, **_BINARY}.items()},
    "bytes/s": {
        **{p + "B/s": f for p, f in {**_DECIMAL, **_BINARY}.items()},
        **{p + u: f / 8 for p, f in _DECIMAL.items() for u in ("bit/s", "b/s", "bps")},
    },
    "FLOP/s": {
        **{p + u: f for p, f in _DECIMAL.items() for u in ("FLOP/s", "FLOPS", "OP/s", "OPS")},
    },
    "s": {**{p + "s": f for p, f in _SMALL.items()}, "min": 60.0, "h": 3600.0},
    "Hz": {p + "Hz": f for p, f in _DECIMAL.items()},
    "W": {p + "W": f for p, f in _DECIMAL.items()},
}
_EXAMPLE = {
    "bytes": "80 GB",
    "bytes/s": "3.35 TB/s or 100 Gbit/s",
    "FLOP/s": "989 TFLOP/s",
    "s": "1.5 us",
    "Hz": "1.98 GHz",
    "W": "700 W",
}
_QUANTITY = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-zµ/]*)\s*")


def parse_quantity(text: str, unit: str) -> float:
    """Read `text` such as "3.35 TB/s" as a quantity of `unit`, returned in SI base units.

    `unit` is one of bytes, bytes/s, FLOP/s, s, Hz, W.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise InvalidValueError(f"{text!r} is not a quantity in {unit}; write {_EXAMPLE[unit]}")
    number, suffix = match.groups()
    factor = _UNITS[unit].get(suffix)
    if factor is None:
        said = f"has the unit {suffix!r}" if suffix else "has no unit"
        raise InvalidValueError(f"{text!r} {said}, expected {unit}; write {_EXAMPLE[unit]}")
    value = float(number) * factor
    if not math.isfinite(value):
        raise InvalidValueError(f"{text!r} is not a finite quantity")
    return value


def _scaled(value: float, steps: list[tuple[float, str]], digits: int) -> str:
    for factor, suffix in steps:
        # What would be rounded up to 1 of the larger unit is written in it: not 1000 ms but 1 s.
        if abs(value) >= factor * (1 - 0.5 * 10.0**-digits):
            return f"{_round(value / factor, digits)} {suffix}"
    factor, suffix = steps[-1]
    return f"{_round(value / factor, digits)} {suffix}"


def _round(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    whole = len(str(int(abs(value))))
    return f"{value:.{max(0, digits - whole)}f}"


def format_seconds(value: float, digits: int = 3) -> str:
    """Print a duration: `1.23 ms`, `45.6 s`, `3.20 h`, `12.5 days`."""
    if value >= 172_800:
        return _scaled(value, [(86_400.0, "days")], digits)
    if value >= 5_400:
        return _scaled(value, [(3_600.0, "h")], digits)
    if value >= 300:
        return _scaled(value, [(60.0, "min")], digits)
    return _scaled(value, [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")], digits)


def format_bytes(value: float, digits: int = 3) -> str:
    """Print a number of bytes with binary prefixes, as memory is sold and reported: `31.2 GiB`."""
    steps = [(2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B")]
    return _scaled(value, steps, digits)


def format_si(value: float, unit: str, digits: int = 3) -> str:
    """Print a quantity with decimal prefixes: `989 TFLOP/s`, `4.80 TB/s`, `25.6 M`."""
    steps = [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")]
    return _scaled(value, [(f, p + unit) for f, p in steps], digits).rstrip()


# A comma or underscore separates thousands only: 1,5 would be 1.5 to some and 15 to others.
_COUNT = re.compile(
    r"\s*(\+?(?:[0-9]{1,3}(?:[,_][0-9]{3})+|[0-9]+)(?:\.[0-9]*)?(?:[eE]\+?[0-9]{1,3})?)"
    r"\s*([kKmMbBgGtT]?)\s*"
)
_TOO_MANY = 10**24
_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}


def parse_count(text: str, name: str) -> int:
    """Read a whole number of at least 1 such as `1281167`, `1.28M`, `300B` or `1e6`."""
    match = _COUNT.fullmatch(text)
    value = Decimal(re.sub("[,_]", "", match[1])) * _COUNTS[match[2].lower()] if match else None
    if value is None or not 1 <= value < _TOO_MANY or value != value.to_integral_value():
        raise InvalidValueError(
            f"{name} {text!r} is not a whole number of at least 1; write 256, 1.28M or 300B"
        )
    return int(value)
