"""How names of devices and links are compared: case, separators and vendor words do not count."""

from __future__ import annotations

import re

_VENDOR_WORDS = {
    "amd", "apple", "aws", "geforce", "google", "instinct", "intel", "nvidia", "quadro", "radeon",
    "tesla",
}  # fmt: skip
_SEPARATORS = re.compile(r"[\s_\-]+")


def fold(name: str) -> str:
    """Return the form under which names are compared: "NVIDIA GeForce RTX-3090" is "rtx3090"."""
    joined = _SEPARATORS.sub("", name.strip().lower())
    while found := next((w for w in _VENDOR_WORDS if joined.startswith(w) and joined != w), None):
        joined = joined.removeprefix(found)
    return joined
