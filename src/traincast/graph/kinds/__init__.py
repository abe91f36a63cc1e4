"""The registry of op kinds; importing it registers all of them."""

from traincast.graph.kinds import dense, movement, normal, pairs, pointwise, scans, special
from traincast.graph.kinds.base import (
    DATA,
    FORWARD,
    KINDS,
    PHASES,
    WEIGHT,
    Arg,
    Case,
    Costs,
    Kernel,
    Kind,
    MisfitError,
)

__all__ = [
    "DATA",
    "FORWARD",
    "KINDS",
    "PHASES",
    "WEIGHT",
    "Arg",
    "Case",
    "Costs",
    "Kernel",
    "Kind",
    "MisfitError",
    "dense",
    "movement",
    "normal",
    "pairs",
    "pointwise",
    "scans",
    "special",
]
