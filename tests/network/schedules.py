"""Message schedules of collectives, played rank by rank on real numbers, in plain Python.

A rank holds a list of p blocks, each the set of ranks whose contribution it contains (a multiset,
so that adding twice is seen). A round is a list of messages; all messages of a round go at once, a
rank sends one and receives one. A round takes α, its longest message, and what is then added.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Play:
    """Counts of messages, bytes and additions, in blocks, on the longest path and in all."""

    ranks: int
    messages: float = 0
    moved: float = 0
    reduced: float = 0
    sent: Counter = field(default_factory=Counter)

    def round(self, messages: list[tuple[int, int, float]], added: float = 0) -> None:
        """Play one round of (from, to, blocks); `added` is the most that any rank adds after it."""
        sources = [m[0] for m in messages]
        targets = [m[1] for m in messages]
        assert len(set(sources)) == len(sources), "a rank sends one message a round"
        assert len(set(targets)) == len(targets), "a rank receives one message a round"
        assert all(a != b for a, b, _ in messages)
        self.messages += 1
        self.moved += max(m[2] for m in messages)
        self.reduced += added
        for source, _, size in messages:
            self.sent[source] += size

    @property
    def busiest(self) -> float:
        return max(self.sent.values())

    @property
    def total(self) -> float:
        return sum(self.sent.values())


def vectors(p: int) -> list[list[Counter]]:
    return [[Counter({rank: 1}) for _ in range(p)] for rank in range(p)]


def full(p: int) -> Counter:
    return Counter(dict.fromkeys(range(p), 1))


def ring_all_reduce(p: int) -> Play:
    play, held = Play(p), vectors(p)
    for step in range(p - 1):
        moving = [(r, (r - step) % p, held[r][(r - step) % p].copy()) for r in range(p)]
        play.round([(r, (r + 1) % p, 1) for r in range(p)], added=1)
        for r, block, value in moving:
            held[(r + 1) % p][block] += value
    assert all(held[r][(r + 1) % p] == full(p) for r in range(p))
    for step in range(p - 1):
        moving = [(r, (r + 1 - step) % p, held[r][(r + 1 - step) % p].copy()) for r in range(p)]
        play.round([(r, (r + 1) % p, 1) for r in range(p)])
        for r, block, value in moving:
            held[(r + 1) % p][block] = value
    assert all(block == full(p) for rank in held for block in rank)
    return play


def doubling_all_reduce(p: int) -> Play:
    """Whole vectors (p blocks), the ranks beyond the power of two folded into the first ones."""
    play, held = Play(p), [Counter({r: 1}) for r in range(p)]
    power = 1 << (p.bit_length() - 1)
    rest = p - power
    if rest:
        play.round([(power + i, i, p) for i in range(rest)], added=p)
        for i in range(rest):
            held[i] += held[power + i]
    distance = 1
    while distance < power:
        play.round([(r, r ^ distance, p) for r in range(power)], added=p)
        held[:power] = [held[r] + held[r ^ distance] for r in range(power)]
        distance *= 2
    if rest:
        play.round([(i, power + i, p) for i in range(rest)])
        for i in range(rest):
            held[power + i] = held[i]
    assert all(value == full(p) for value in held)
    return play


def butterfly_all_reduce(p: int) -> Play:
    """Windows that double, or double less one, each round (Bar-Noy, Kipnis and Schieber)."""
    play = Play(p)
    rounds = (p - 1).bit_length()
    own = [Counter({r: 1}) for r in range(p)]
    window, short = list(own), [Counter() for _ in own]
    width = 1
    for t in range(1, rounds + 1):
        target = -(-p // (1 << (rounds - t)))
        doubled = target == 2 * width
        gap = width if doubled else width - 1
        given = window if doubled else short
        moving = [(r - gap) % p for r in range(p)]
        last, first, power = t == rounds, t == 1, p & (p - 1) == 0
        adds = 1 if power or last or first else 2
        if gap:
            play.round([((r - gap) % p, r, p) for r in range(p)], added=adds * p)
        else:  # the window stays, as from 1 to 1
            raise AssertionError("no round is empty")
        window, short = (
            [window[r] + given[moving[r]] for r in range(p)],
            [short[r] + given[moving[r]] for r in range(p)],
        )
        width = target
    assert width == p
    assert all(value == full(p) for value in window)
    return play


def rabenseifner_all_reduce(p: int) -> Play:
    """Vectors of p' equal parts; sizes in units of 1/p' of the vector."""
    power = 1 << (p.bit_length() - 1)
    rest = p - power
    play = Play(p)
    held = [[Counter({r: 1}) for _ in range(power)] for r in range(p)]
    half = power / 2
    if rest:
        pairs = [(i, power + i) for i in range(rest)]
        play.round([m for a, b in pairs for m in ((a, b, half), (b, a, half))], added=half)
        play.round([(b, a, half) for a, b in pairs])
        for a, b in pairs:
            held[a] = [x + y for x, y in zip(held[a], held[b], strict=True)]
    spans = dict.fromkeys(range(power), (0, power))
    distance = power // 2
    while distance:
        size = (spans[0][1] - spans[0][0]) / 2
        play.round([(r, r ^ distance, size) for r in range(power)], added=size)
        before = [list(v) for v in held]
        for r in range(power):
            low, high = spans[r]
            middle = (low + high) // 2
            spans[r] = (middle, high) if r & distance else (low, middle)
            for k in range(*spans[r]):
                held[r][k] = before[r][k] + before[r ^ distance][k]
        distance //= 2
    distance = 1
    while distance < power:
        size = spans[0][1] - spans[0][0]
        play.round([(r, r ^ distance, size) for r in range(power)])
        before, old = [list(v) for v in held], dict(spans)
        for r in range(power):
            for k in range(*old[r ^ distance]):
                held[r][k] = before[r ^ distance][k]
            both = (*old[r], *old[r ^ distance])
            spans[r] = (min(both), max(both))
        distance *= 2
    if rest:
        play.round([(i, power + i, power) for i in range(rest)])
        for i in range(rest):
            held[power + i] = held[i]
    assert all(block == full(p) for vector in held for block in vector)
    return play


def _groups(p: int) -> tuple[int, int, list[set[int]]]:
    """Return p', r and the blocks that each of the p' ranks stands for: its own and its guest's."""
    power = 1 << (p.bit_length() - 1)
    rest = p - power
    return power, rest, [{r, power + r} if r < rest else {r} for r in range(power)]


def doubling_all_gather(p: int) -> Play:
    power, rest, held = _groups(p)
    play = Play(p)
    if rest:
        play.round([(power + i, i, 1) for i in range(rest)])
    distance = 1
    while distance < power:
        play.round([(r, r ^ distance, len(held[r])) for r in range(power)])
        held = [held[r] | held[r ^ distance] for r in range(power)]
        distance *= 2
    if rest:
        play.round([(i, power + i, p - 1) for i in range(rest)])
    assert all(blocks == set(range(p)) for blocks in held)
    return play


def halving_reduce_scatter(p: int) -> Play:
    power, rest, own = _groups(p)
    play = Play(p)
    held = [{k: Counter({r: 1}) for k in range(p)} for r in range(p)]
    if rest:
        play.round([(power + i, i, p) for i in range(rest)], added=p)
        for i in range(rest):
            held[i] = {k: v + held[power + i][k] for k, v in held[i].items()}
    distance = power // 2
    while distance:
        # What each keeps: the blocks of the ranks that agree with it in this bit and all above.
        keep = [
            set().union(*(own[q] for q in range(power) if q // distance == r // distance))
            for r in range(power)
        ]
        play.round(
            [(r, r ^ distance, len(keep[r ^ distance])) for r in range(power)],
            added=max(map(len, keep)),
        )
        before = [dict(v) for v in held]
        for r in range(power):
            held[r] = {k: before[r][k] + before[r ^ distance][k] for k in keep[r]}
        distance //= 2
    if rest:
        play.round([(i, power + i, 1) for i in range(rest)])
    for r in range(power):
        assert set(held[r]) == own[r]
        assert all(value == full(p) for value in held[r].values())
    return play


def bruck_all_to_all(p: int) -> Play:
    """Blocks travel by the bits of their distance."""
    play = Play(p)
    at = {(source, (source + d) % p): source for source in range(p) for d in range(p)}
    bit = 1
    while bit < p:
        moves = [(s, t) for (s, t) in at if ((t - s) % p) & bit]
        sizes = Counter(at[m] for m in moves)
        play.round([(r, (r + bit) % p, sizes[r]) for r in range(p)])
        for m in moves:
            at[m] = (at[m] + bit) % p
        bit *= 2
    assert all(place == target for (_, target), place in at.items())
    return play


def bruck_all_gather(p: int) -> Play:
    play, held = Play(p), [[r] for r in range(p)]
    while len(held[0]) < p:
        have = len(held[0])
        count = min(have, p - have)
        play.round([((r + have) % p, r, count) for r in range(p)])
        held = [held[r] + held[(r + have) % p][:count] for r in range(p)]
    assert all(sorted(blocks) == list(range(p)) for blocks in held)
    return play


def ring_all_to_all(p: int) -> Play:
    play = Play(p)
    for step in range(1, p):
        play.round([(r, (r + 1) % p, p - step) for r in range(p)])
    return play


def binomial_scatter(p: int) -> Play:
    """Event by event, not in rounds: a rank serves its children in turn, largest subtree first."""
    play = Play(p)
    blocks: Counter = Counter()
    finish = []

    def serve(rank: int, span: int, messages: int, moved: int) -> None:
        while span > 1:
            span //= 2
            child = rank + span
            if child >= p:
                continue
            size = min(span, p - child)
            messages, moved = messages + 1, moved + size
            blocks[rank] += size
            finish.append((messages, moved))
            serve(child, span, messages, moved)

    serve(0, 1 << (p - 1).bit_length(), 0, 0)
    play.messages, play.moved = max(m for m, _ in finish), max(b for _, b in finish)
    play.sent = blocks
    return play
