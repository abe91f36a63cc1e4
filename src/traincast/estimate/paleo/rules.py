"""The two generations of Paleo's rules, as switches.

`paper` is the authors' code of December 2016 (commit 755f0b8), behind the publication and the web
demo; `head` is their last commit (984bbf5, March 2018). Everything that is not a switch here is the
same in both.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincast.errors import UnknownNameError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What one generation of the code does where the two differ."""

    name: str
    """As users choose it."""
    reads_padding: bool
    """Whether the zeros around a convolution's input count as memory read."""
    adds_holes: bool
    """Whether the data gradient of a strided convolution is charged 2 more FLOPs for each value
    that stands between the holes of the spread-out gradient."""
    same_by_output: bool
    """Whether SAME pads follow from the output size. Otherwise they follow from the input size,
    which is right for stride 1 and meaningless above, so that combination is refused."""
    buffers_algo_1: bool
    """Whether cuDNN's backward-data ALGO_1 writes and reads a buffer of kh·kw values a site."""
    pipelines_hybrid_update: bool
    """Whether pipelining reaches the update of the data-parallel part in hybrid mode."""
    types: frozenset[str] | None
    """Layer types it knows; None where an unknown type passes as a free layer."""


_PAPER_TYPES = frozenset(
    {"Input", "Convolution", "Pooling", "AvgPool", "Dropout", "Concatenate", "Softmax"}
)

RULES: dict[str, Rules] = {
    "paper": Rules(
        name="paper",
        reads_padding=False,
        adds_holes=False,
        same_by_output=False,
        buffers_algo_1=False,
        pipelines_hybrid_update=False,
        types=_PAPER_TYPES,
    ),
    "head": Rules(
        name="head",
        reads_padding=True,
        adds_holes=True,
        same_by_output=True,
        buffers_algo_1=True,
        pipelines_hybrid_update=True,
        types=None,
    ),
}


def rules_named(name: str) -> Rules:
    """Return one of the two rule sets."""
    if name not in RULES:
        raise UnknownNameError("Paleo rule set", name, RULES, "use paper or head")
    return RULES[name]
