"""The list of collective algorithms: one pure function each, found by operation and name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.network.terms import Terms

OPERATIONS = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "broadcast",
    "gather",
    "point-to-point",
    "reduce",
    "reduce-scatter",
    "scatter",
)
_ALIASES = {
    "allgather": "all-gather",
    "allreduce": "all-reduce",
    "alltoall": "all-to-all",
    "bcast": "broadcast",
    "p2p": "point-to-point",
    "reducescatter": "reduce-scatter",
    "send": "point-to-point",
    "sendrecv": "point-to-point",
}


TermsFunction: TypeAlias = Callable[..., Terms]
"""Called with n bytes, p >= 2 ranks, the wire and the algorithm's own options; pure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One way to carry out one operation."""

    op: str
    """Operation, one of `OPERATIONS`."""
    name: str
    """Name in kebab case, such as `ring`."""
    terms: TermsFunction
    """Its counts."""
    source: str
    """Who describes it."""
    options: frozenset[str] = frozenset()
    """Keyword arguments that `terms` takes."""
    neighbours: bool = False
    """True when ranks only talk to the next one, so that one rank of a node talks to others."""
    candidate: bool = True
    """Whether `fastest` may choose it; published tables that no machine runs are not."""


_REGISTRY: dict[tuple[str, str], Algorithm] = {}


def register(
    op: str,
    name: str,
    *,
    source: str,
    options: tuple[str, ...] = (),
    neighbours: bool = False,
    candidate: bool = True,
) -> Callable[[TermsFunction], TermsFunction]:
    """Return a decorator that enters a function as the algorithm `name` of `op`."""
    if op not in OPERATIONS:
        raise InvalidValueError(f"operation {op!r} is not one of {', '.join(OPERATIONS)}")
    if name in ("auto", "nccl", "hierarchical"):
        raise InvalidValueError(f"algorithm name {name!r} is reserved; choose another")
    if (op, name) in _REGISTRY:
        raise InvalidValueError(f"{op} has an algorithm {name!r} already; choose another name")

    def enter(function: TermsFunction) -> TermsFunction:
        _REGISTRY[op, name] = Algorithm(
            op=op,
            name=name,
            terms=function,
            source=source,
            options=frozenset(options),
            neighbours=neighbours,
            candidate=candidate,
        )
        return function

    return enter


def resolve_op(op: str) -> str:
    """Return the operation that `op` names: `all-reduce`, `all_reduce` and `allreduce` are one."""
    folded = op.strip().lower().replace("_", "-").replace(" ", "-")
    name = _ALIASES.get(folded.replace("-", ""), folded)
    if name not in OPERATIONS:
        raise UnknownNameError(
            "collective operation", op, OPERATIONS, f"known: {', '.join(OPERATIONS)}"
        )
    return name


def find(op: str, name: str) -> Algorithm:
    """Return the algorithm `name` of `op`."""
    op = resolve_op(op)
    folded = name.strip().lower().replace("_", "-").replace(" ", "-")
    found = _REGISTRY.get((op, folded))
    if found is None:
        known = algorithms(op)
        raise UnknownNameError(f"{op} algorithm", name, known, f"known: {', '.join(known)}")
    return found


def algorithms(op: str, *, candidates: bool = False) -> tuple[str, ...]:
    """Return the names of the algorithms of `op`, sorted; only what `fastest` tries if asked."""
    op = resolve_op(op)
    return tuple(
        sorted(a.name for a in _REGISTRY.values() if a.op == op and (a.candidate or not candidates))
    )
