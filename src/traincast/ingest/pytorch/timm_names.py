"""Names that timm's networks had in earlier releases, as published tables still have them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_RENAMED = (
    (re.compile(r"^swin_v2_cr_"), "swinv2_cr_"),
    (re.compile(r"^ig_"), ""),  # its list of old names has another width for some of these
    (re.compile(r"_iabn$"), ""),
)
"""Renamed without an entry in timm's own list of old names."""


def current_name(timm: Any, name: str) -> str:
    """Return the name that the installed timm knows a network by; the same where it has none.

    A tag, which names weights, is left out where timm does not have it: it changes no network.
    """
    known = set(timm.list_models())
    if name.partition(".")[0] in known:
        return name
    for pattern, new in _RENAMED:
        renamed = pattern.sub(new, name)
        if renamed != name and renamed in known:
            return renamed
    registry: Mapping[str, str | None] = getattr(timm.models._registry, "_deprecated_models", {})
    found = registry.get(name)
    if not found or found.partition(".")[0] not in known:
        return name
    base = found.partition(".")[0]
    return found if found == base or found in timm.list_pretrained(f"{base}.*") else base
