"""Which nests share a kernel, by TorchInductor's rules.

Nests join the kernel that makes what they read, or that reads what they read, if both loop over
as many elements (`SIMDScheduling.can_fuse`). A kernel that reduces whole rows also takes what
follows over the same rows, since a row is still at hand, and sums of columns of the same matrix
(`MixOrderReduction`); other sums of columns are split over the device and stay alone, but for
others like them and small work on their results. No fusion may make a kernel wait for its own
result.
"""

from __future__ import annotations

from dataclasses import dataclass

from traincast.estimate.fusion.nests import CALL, COLUMNS, POINT, ROWS, Nest, probe

MIXED = "mixed"
"""A kernel that reduces rows and sums columns of the same matrix."""
_NEAR = 12
"""How many of the latest readers of a value are tried for fusion without a shared result."""


@dataclass(slots=True, eq=False)
class Region:
    """Nests that form one kernel."""

    nests: list[Nest]
    pattern: str
    size: int
    """Elements of its loop, at a sample size."""
    rows: int
    """Elements that its reduction leaves."""
    direct: set[int]
    """Regions whose results it reads."""
    before: int
    """Regions that must run first, as a bit set."""
    created: int
    touched: int
    """When its first and last nest came, counted in nests."""


def regions_of(nests: list[Nest]) -> list[Region]:
    """Return nests grouped into kernels, in an order in which they can run."""
    return _Grouping().group(nests)


class _Grouping:
    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.into: list[int] = []
        """Where each region went: itself, or the one that it was merged into."""
        self.live: dict[int, None] = {}
        """Regions by when they were last touched."""
        self.maker: dict[int, int] = {}
        self.readers: dict[int, list[int]] = {}

    def group(self, nests: list[Nest]) -> list[Region]:
        for clock, nest in enumerate(nests):
            self._place(nest, clock)
        order = sorted(self.live, key=lambda i: (self.regions[i].before.bit_count(), i))
        return [self.regions[i] for i in order]

    def _find(self, index: int) -> int:
        while self.into[index] != index:
            index = self.into[index]
        return index

    def _place(self, nest: Nest, clock: int) -> None:
        makers = {self._find(self.maker[r.value]) for r in nest.reads if r.value in self.maker}
        before = 0
        for i in makers:
            before |= self.regions[i].before | 1 << i
        home = len(self.regions)
        size, rows = probe(nest.domain), probe(nest.rows)
        self.regions.append(
            Region([nest], nest.pattern, size, rows, set(makers), before, clock, clock)
        )
        self.into.append(home)
        self.live[home] = None
        if nest.pattern != CALL:
            beside = {
                self._find(i)
                for r in nest.reads
                if 4 * probe(r.spec) >= size
                for i in self.readers.get(r.value, [])[-_NEAR:]
            }
            for other in (*sorted(makers, reverse=True), *sorted(beside - makers, reverse=True)):
                home = self._merge(self._find(other), home, clock)
        for value in nest.writes:
            self.maker[value] = home
        for read in nest.reads:
            self.readers.setdefault(read.value, []).append(home)

    def _merge(self, one: int, two: int, clock: int) -> int:
        """Merge two regions if they may be one kernel, and return where the second now is."""
        if one == two:
            return two
        first, second = (two, one) if self.regions[one].before >> two & 1 else (one, two)
        a, b = self.regions[first], self.regions[second]
        fits = _fits(a, b)
        if fits is None or self._between(first, second) or self._between(second, first):
            return two
        self.into[second] = first
        direct = {self._find(i) for i in a.direct | b.direct} - {first}
        before = (a.before | b.before) & ~(1 << first | 1 << second)
        since = min(a.created, b.created)
        self.regions[first] = Region(a.nests + b.nests, *fits, direct, before, since, clock)
        del self.live[second], self.live[first]
        both = 1 << first | 1 << second
        for i in reversed(self.live):
            other = self.regions[i]
            if other.touched < since:
                break
            if other.before & both:
                other.before = (other.before | before | 1 << first) & ~(1 << second)
        self.live[first] = None
        return first

    def _between(self, first: int, second: int) -> bool:
        """Tell whether the second waits for the first through a third region."""
        direct = {self._find(i) for i in self.regions[second].direct} - {first, second}
        return any(self.regions[i].before >> first & 1 for i in direct)


def _fits(a: Region, b: Region) -> tuple[str, int, int] | None:
    """Return pattern, size and rows of two regions in one kernel, `a` first; None if unfit."""
    patterns = {a.pattern, b.pattern}
    if CALL in patterns:
        return None
    if b.pattern == POINT and a.pattern in (ROWS, COLUMNS) and b.size == a.rows:
        return a.pattern, a.size, a.rows
    if a.size != b.size or patterns == {POINT, COLUMNS}:
        return None
    if a.pattern == b.pattern:
        return (a.pattern, a.size, a.rows) if a.rows == b.rows else None
    if COLUMNS in patterns:
        return MIXED, a.size, b.rows if a.pattern == COLUMNS else a.rows
    if MIXED in patterns:
        # What was not part of the reduction to rows comes too late.
        return (MIXED, a.size, a.rows) if a.pattern == MIXED and _follows(a, b) else None
    return ROWS, a.size, a.rows if a.pattern == ROWS else b.rows


def _follows(a: Region, b: Region) -> bool:
    """Tell whether the second reads what the first has left of each row."""
    sums = {value for nest in a.nests if nest.pattern == ROWS for value in nest.writes}
    return any(read.value in sums for nest in b.nests for read in nest.reads)
