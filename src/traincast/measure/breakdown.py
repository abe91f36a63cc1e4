"""Where the time of a step goes: parts that add up to the undisturbed step.

Looking into a step slows it down. The parts are therefore measured in steps of their own, and what
those take longer than the undisturbed ones is taken off again, from each part in proportion to how
often it was looked at. The rest is scaled to add up exactly.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a step."""

    name: str
    calls: float
    """How often it was looked at in a step."""
    seconds: float
    forward_s: float | None = None
    """Of the forward pass; None where phases are not told apart."""
    backward_s: float | None = None
    count: int = 1
    """How many similar layers it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The parts of a step, longest first; they add up to it."""

    depth: str
    """layer or op."""
    parts: tuple[Part, ...]
    overhead_s: float
    """How much longer a step takes while it is looked into; below 0 only by noise."""
    step_s: float
    """The undisturbed step."""

    @property
    def overhead(self) -> float:
        """The overhead as a fraction of the undisturbed step."""
        return self.overhead_s / self.step_s

    def similar(self) -> Breakdown:
        """Return it with layers put together whose paths differ in numbers only."""
        groups: dict[str, list[Part]] = {}
        for part in self.parts:
            groups.setdefault(_NUMBER.sub(".*", part.name), []).append(part)
        merged = [_sum(name, parts) for name, parts in groups.items()]
        merged.sort(key=lambda part: -part.seconds)
        return replace(self, parts=tuple(merged))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, times in milliseconds."""

        def ms(seconds: float | None) -> float | None:
            return None if seconds is None else seconds * 1e3

        return {
            "depth": self.depth,
            "overhead_ms": self.overhead_s * 1e3,
            "parts": [
                {
                    "name": p.name,
                    "calls": p.calls,
                    "ms": ms(p.seconds),
                    "share": p.seconds / self.step_s,
                    "forward_ms": ms(p.forward_s),
                    "backward_ms": ms(p.backward_s),
                }
                for p in self.parts
            ],
        }


def _sum(name: str, parts: Sequence[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    return Part(
        name=name,
        calls=sum(p.calls for p in parts),
        seconds=sum(p.seconds for p in parts),
        forward_s=sum(p.forward_s or 0.0 for p in parts),
        backward_s=sum(p.backward_s or 0.0 for p in parts),
        count=len(parts),
    )


def undisturbed(seconds: Sequence[float], calls: Sequence[float], target: float) -> list[float]:
    """Return times that add up to `target` seconds, without what looking at them cost.

    The excess over `target` is taken off in proportion to `calls`, but no time goes below zero;
    then all are scaled.
    """
    excess, looks = max(sum(seconds) - target, 0.0), sum(calls) or 1.0
    lean = [max(s - excess * c / looks, 0.0) for s, c in zip(seconds, calls, strict=True)]
    total = sum(lean)
    if not total:
        lean, total = list(seconds), sum(seconds)
    return [s * target / total for s in lean] if total else [0.0 for _ in lean]
