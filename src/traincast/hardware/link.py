"""What joins devices: inside a node, and between nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from traincast.errors import InvalidValueError

LINK_KINDS = ("pcie", "nvlink", "fabric", "socket", "ici", "ethernet", "infiniband")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link as one device sees it. Sending n bytes costs about `latency_s + n / bandwidth`."""

    name: str
    """Catalog id in kebab case, such as `nvlink4`."""
    title: str
    """Name for people, such as `NVLink 4 (18 links)`."""
    kind: str
    """Family, one of `LINK_KINDS`."""
    latency_s: float
    """Seconds from one end to the other for an empty message, >= 0."""
    bandwidth: float
    """Peak bytes/s in one direction and for one device or port, all its lanes together, > 0."""
    sources: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)
    """Citation of each figure, keyed by field; `typical` where no maker states it."""
    aliases: tuple[str, ...] = ()
    """Other names it is found under."""
    notes: str = field(default="", repr=False)
    """What a reader of the figures has to know."""

    def __post_init__(self) -> None:
        if self.kind not in LINK_KINDS:
            raise InvalidValueError(
                f"link {self.name!r}: kind {self.kind!r} is not one of {', '.join(LINK_KINDS)}"
            )
        if not (math.isfinite(self.bandwidth) and self.bandwidth > 0):
            raise InvalidValueError(
                f"link {self.name!r}: bandwidth = {self.bandwidth} has to be above zero (bytes/s)"
            )
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise InvalidValueError(
                f"link {self.name!r}: latency_s = {self.latency_s} has to be zero or more (seconds)"
            )

    def seconds(self, message_bytes: float) -> float:
        """Return the seconds that one message of `message_bytes` takes when the link is idle."""
        return self.latency_s + message_bytes / self.bandwidth
