"""Which pointwise results never reach memory: their readers compute them on the way.

TorchInductor writes a pointwise result down only if a library reads it, it leaves the graph, or
computing it in every reader would read more than it saves: `StorageBox.mark_reuse` with
`config.realize_reads_threshold` for several readers, `realize_acc_reads_threshold` for one.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from traincast.estimate.fusion.nests import CALL, POINT, Nest, Read, probe

_SHARED, _LONG = 4, 8
"""Values that a result may be computed from and still be computed by each of several readers, or
by its only reader."""


def inlined(nests: list[Nest], leaving: Set[int]) -> list[Nest]:
    """Return nests without those whose results their readers compute; `leaving` are written."""
    users: dict[int, int] = {}
    called: set[int] = set()
    for nest in nests:
        for value in {read.value for read in nest.reads}:
            users[value] = users.get(value, 0) + 1
            if nest.pattern == CALL or nest.window:
                called.add(value)
    recipes: dict[int, Nest] = {}
    left: list[Nest] = []
    for old in nests:
        nest = _expanded(old, recipes)
        count = sum(users.get(value, 0) for value in nest.writes)
        limit = _SHARED if count > 1 else _LONG
        if (
            nest.pattern == POINT
            and len(nest.writes) == 1
            and count
            and nest.writes[0] not in leaving
            and nest.writes[0] not in called
            and len({read.value for read in nest.reads}) <= limit
        ):
            recipes[nest.writes[0]] = nest
        else:
            left.append(nest)
    return left


def _expanded(nest: Nest, recipes: dict[int, Nest]) -> Nest:
    """Return a nest that reads what its inlined values are computed from."""
    if not any(read.value in recipes for read in nest.reads):
        return nest
    found: dict[tuple[int, str], Read] = {}
    ops, slow = nest.ops, nest.slow
    for read in nest.reads:
        recipe = recipes.get(read.value)
        if recipe is None:
            found[read.value, read.name] = read
            continue
        share = probe(read.spec) / max(probe(recipe.domain), 1)
        ops += recipe.ops * min(probe(read.spec) / max(probe(nest.domain), 1), 1.0)
        if probe(read.spec) >= probe(nest.domain):
            slow = max(slow, recipe.slow)
        for part in recipe.reads:
            if share < 1 and probe(part.spec) == probe(recipe.domain):
                spec = read.spec._replace(dtype=part.spec.dtype)
                part = Read(part.value, f"{part.name}/{read.name}", spec)  # noqa: PLW2901
            found[part.value, part.name] = part
    return replace(nest, reads=tuple(found.values()), ops=ops, slow=slow)
