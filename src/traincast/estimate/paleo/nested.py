"""A network as a nested list: layers in a row, and tuples of branches that could run side by side.

The walk starts at the roots. A layer that feeds one other is followed by it; one that feeds several
is followed by a tuple of branches. A branch ends at a joint (a layer with several parents) that
other branches lead to as well, and the joint goes on when all of its parents are done. A skip
edge adds no branch of its own. Branches may branch again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

Nested = list["str | tuple[Nested, ...]"]


def nested(parents: Mapping[str, Sequence[str]]) -> Nested:
    """Return the nested list of a network given as layer → parents, roots without parents."""
    children: dict[str, list[str]] = {name: [] for name in parents}
    for name, above in parents.items():
        for parent in above:
            children[parent].append(name)
    edges = {name: len(above) for name, above in parents.items()}
    roots = [name for name, above in parents.items() if not above]
    return _walk(roots, children, edges, forked=len(roots) > 1)[0]


def _walk(
    ready: list[str],
    children: Mapping[str, Sequence[str]],
    edges: Mapping[str, int],
    *,
    forked: bool = False,
) -> tuple[Nested, Counter[str]]:
    """Walk until nothing more is ready; return the list and the edges into joints still open."""
    row: Nested = []
    arrived: Counter[str] = Counter()
    while ready:
        if len(ready) > 1 or forked:
            branches = []
            for head in ready:
                branch, reached = _walk([head], children, edges)
                branches.append(branch)
                arrived += reached
            row.append(tuple(branches))
            forked = False
        else:
            row.append(ready[0])
            arrived.update(children[ready[0]])
            forked = len(children[ready[0]]) > 1
        ready = [name for name, count in arrived.items() if count == edges[name]]
        for name in ready:
            del arrived[name]
    return row, arrived


def flatten(row: Nested) -> list[str]:
    """Return the layers in an order in which they can run."""
    names: list[str] = []
    for item in row:
        if isinstance(item, str):
            names.append(item)
        else:
            names += [name for branch in item for name in flatten(branch)]
    return names


def width(row: Nested, among: Callable[[str], bool]) -> int:
    """Return the most layers for which `among` holds that can run side by side."""
    return max(
        (
            int(among(item))
            if isinstance(item, str)
            else sum(width(branch, among) for branch in item)
            for item in row
        ),
        default=0,
    )


def bounds(
    row: Nested, seconds: Mapping[str, float], among: Callable[[str], bool]
) -> tuple[float, float]:
    """Return the least and the most time of the layers for which `among` holds.

    Branches run side by side at best (the longest counts) and one after another at worst.
    """
    low = high = 0.0
    for item in row:
        if isinstance(item, str):
            spent = seconds[item] if among(item) else 0.0
            low, high = low + spent, high + spent
            continue
        parts = [bounds(branch, seconds, among) for branch in item]
        low += max((part[0] for part in parts), default=0.0)
        high += sum(part[1] for part in parts)
    return low, high
