"""Sizes that depend on the batch and the sequence length.

A size is (c + b·B + s·S + m·B·S) / d, rounded down: B samples in the batch, S positions in a
sequence. Every axis met in practice is of this form: 3, B, S, B·S (tokens), 64·B (windows of
an image), S + 1, S / 2. One traced graph therefore serves every batch and sequence length.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from traincast.errors import InvalidValueError

_TERM = re.compile(r"([+-]?)(?:([0-9]{1,18})\*)?(B\*S|B|S)|([+-]?[0-9]{1,18})")
_QUOTIENT = re.compile(r"(?:\(([^()/]+)\)|(-?[^()/+-]+))/([1-9][0-9]{0,17})|([^()/]+)")


@dataclass(frozen=True, slots=True)
class Size:
    """One axis length as a function of batch B and sequence length S."""

    constant: int = 0
    """Part that depends on neither."""
    batch: int = 0
    """Factor of B."""
    sequence: int = 0
    """Factor of S."""
    both: int = 0
    """Factor of B·S."""
    divisor: int = 1
    """What the sum is divided by, rounding down; at least 1."""

    def at(self, batch: int, seq: int) -> int:
        """Return the length for a batch of `batch` samples of `seq` positions."""
        total = self.constant + self.batch * batch + self.sequence * seq + self.both * batch * seq
        return total // self.divisor

    @property
    def is_constant(self) -> bool:
        """Whether the length is the same for every batch and sequence."""
        return not (self.batch or self.sequence or self.both)

    def to_json(self) -> int | str:
        """Return an int where constant, otherwise text such as `B*S`, `64*B`, `(S+1)/2`."""
        if self.is_constant and self.divisor == 1:
            return self.constant
        return str(self)

    @staticmethod
    def parse(value: int | str) -> Size:
        """Read what `to_json` writes."""
        if isinstance(value, int) and not isinstance(value, bool):
            return Size(value)
        if not isinstance(value, str):
            raise InvalidValueError(
                f"{value!r} is not a size; write an integer or text such as B*S"
            )
        parts = {"": 0, "B": 0, "S": 0, "B*S": 0}
        # A sum is divided as a whole, so it has to stand in parentheses: S+1/2 says something else.
        whole = _QUOTIENT.fullmatch(value.replace(" ", ""))
        body = (whole[1] or whole[2] or whole[4]) if whole else ""
        terms = [_TERM.fullmatch(term) for term in re.findall(r"^[^+-]+|[+-][^+-]*", body)]
        if whole is None or None in terms:
            raise InvalidValueError(f"{value!r} is not a size; write 3, B, 2*B*S or (S+1)/2")
        for term in filter(None, terms):
            sign = -1 if term[1] == "-" else 1
            parts[term[3] or ""] += int(term[4]) if term[4] else sign * int(term[2] or 1)
        return Size(parts[""], parts["B"], parts["S"], parts["B*S"], int(whole[3] or 1))

    @staticmethod
    def fit(lengths: Mapping[tuple[int, int], int]) -> Size | None:
        """Return the size that takes the given length at each (batch, sequence), if there is one.

        Needs the corners {b1, b2} × {s1, s2}, or {b1, b2} × {s} when only the batch varies;
        further points are checked, not fitted.
        """
        points = list(lengths.items())
        (b1, s1), base = points[0]
        if all(length == base for _, length in points):
            return Size(base)
        b2 = next((b for (b, _), _ in points if b != b1), b1)
        s2 = next((s for (_, s), _ in points if s != s1), s1)
        in_batch = _slope(base, lengths[b2, s1], b1, b2)
        in_seq = _slope(base, lengths[b1, s2], s1, s2)
        cross = Fraction(0)
        if b1 != b2 and s1 != s2:
            corner = lengths[b2, s2] - lengths[b1, s2] - lengths[b2, s1] + base
            cross = Fraction(corner, (b2 - b1) * (s2 - s1))
        b = in_batch - cross * s1
        s = in_seq - cross * b1
        constant = base - b * b1 - s * s1 - cross * b1 * s1
        divisor = math.lcm(*(f.denominator for f in (constant, b, s, cross)))
        whole = [int(f * divisor) for f in (constant, b, s, cross)]
        size = Size(whole[0], whole[1], whole[2], whole[3], divisor)
        return size if all(size.at(*at) == length for at, length in points) else None

    def __str__(self) -> str:
        terms = []
        for factor, symbol in (
            (self.both, "B*S"),
            (self.batch, "B"),
            (self.sequence, "S"),
            (self.constant, ""),
        ):
            if factor == 0:
                continue
            size = str(abs(factor)) if not symbol or abs(factor) != 1 else ""
            sign = "-" if factor < 0 else "+"
            terms.append(f"{sign}{size}{'*' if size and symbol else ''}{symbol}")
        text = "".join(terms).removeprefix("+") or "0"
        if self.divisor == 1:
            return text
        return f"({text})/{self.divisor}" if len(terms) > 1 else f"{text}/{self.divisor}"


def _slope(low: int, high: int, at_low: int, at_high: int) -> Fraction:
    return Fraction(high - low, at_high - at_low) if at_high != at_low else Fraction(0)
