"""Sizes that depend on batch and sequence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError
from traincast.graph import Size, elements

FACTOR = st.integers(-999, 999)
SIZES = st.builds(Size, FACTOR, FACTOR, FACTOR, FACTOR, st.integers(1, 99))


@pytest.mark.parametrize(
    ("text", "batch", "seq", "length"),
    [
        ("3", 5, 7, 3),
        ("B", 5, 7, 5),
        ("S", 5, 7, 7),
        ("B*S", 5, 7, 35),
        ("64*B", 5, 7, 320),
        ("2*B*S", 5, 7, 70),
        ("S+1", 5, 7, 8),
        ("S - 1", 5, 7, 6),
        ("(S+1)/2", 5, 8, 4),
        ("S/2", 5, 7, 3),
        ("-B+10", 4, 7, 6),
        ("B*S+2*B-S+3", 5, 7, 41),
    ],
)
def test_a_size_reads_as_the_formula_says(text: str, batch: int, seq: int, length: int) -> None:
    assert Size.parse(text).at(batch, seq) == length


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (Size(), "0"),
        (Size(7), "7"),
        (Size(batch=1), "B"),
        (Size(batch=-1), "-B"),
        (Size(both=1), "B*S"),
        (Size(batch=64), "64*B"),
        (Size(1, sequence=1, divisor=2), "(S+1)/2"),
        (Size(sequence=1, divisor=2), "S/2"),
        (Size(-3, 2, -1, 1), "B*S+2*B-S-3"),
    ],
)
def test_a_size_prints_as_people_write_it(size: Size, text: str) -> None:
    assert str(size) == text


@given(SIZES)
def test_text_and_json_read_back_into_the_same_size(size: Size) -> None:
    assert Size.parse(str(size)) == size
    assert Size.parse(size.to_json()) == size


def test_a_constant_is_a_number_in_json() -> None:
    assert Size(7).to_json() == 7
    assert Size(7, divisor=2).to_json() == "7/2"
    assert Size(batch=1).to_json() == "B"


@pytest.mark.parametrize(
    "text",
    ["", "x", "BS", "2B", "3*", "B+", "+", "-", "B++S", "(S+1", "S+1)", "()", "S+1/2", "B/", "B/0",
     "B/x", "B/²", "1/2/3", "S*2", "B*B", "1.5", "9" * 5000],
)  # fmt: skip
def test_text_that_is_no_size_or_reads_two_ways_is_refused(text: str) -> None:
    with pytest.raises(
        InvalidValueError, match=r"is not a size; write 3, B, 2\*B\*S or \(S\+1\)/2"
    ):
        Size.parse(text)


@pytest.mark.parametrize("value", [True, 1.0, None, [1]])
def test_other_values_are_no_sizes(value: object) -> None:
    with pytest.raises(InvalidValueError, match="is not a size; write an integer or text"):
        Size.parse(value)  # type: ignore[arg-type]


@given(
    FACTOR,
    FACTOR,
    FACTOR,
    FACTOR,
    st.lists(st.integers(1, 64), min_size=2, max_size=2, unique=True),
    st.lists(st.integers(1, 512), min_size=2, max_size=2, unique=True),
    st.integers(1, 4096),
    st.integers(1, 4096),
)
def test_fit_recovers_any_size_from_the_corners(
    c: int, b: int, s: int, m: int, batches: list[int], seqs: list[int], batch: int, seq: int
) -> None:
    def truth(batch: int, seq: int) -> int:
        return c + b * batch + s * seq + m * batch * seq

    found = Size.fit({(i, j): truth(i, j) for i in batches for j in seqs})
    assert found is not None
    assert found.at(batch, seq) == truth(batch, seq)


def test_fit_finds_a_quotient_that_is_exact_at_the_corners() -> None:
    found = Size.fit({(i, j): i * j // 4 for i in (2, 6) for j in (8, 16)})
    assert found == Size(both=1, divisor=4)
    assert found.at(3, 3) == 2


def test_fit_with_one_sequence_length_varies_the_batch_alone() -> None:
    assert Size.fit({(2, 64): 6, (5, 64): 15}) == Size(batch=3)


def test_fit_checks_further_points() -> None:
    corners = {(i, j): i * j for i in (2, 3) for j in (4, 8)}
    assert Size.fit({**corners, (5, 16): 80}) == Size(both=1)
    assert Size.fit({**corners, (5, 16): 81}) is None


def test_fit_refuses_what_no_size_describes() -> None:
    assert Size.fit({(b, 1): b * b for b in (1, 2, 3)}) is None


@given(SIZES, st.integers(1, 50), st.integers(1, 50))
def test_a_length_is_rounded_down(size: Size, batch: int, seq: int) -> None:
    total = size.constant + size.batch * batch + size.sequence * seq + size.both * batch * seq
    length = size.at(batch, seq)
    assert length * size.divisor <= total < (length + 1) * size.divisor


def test_whether_a_size_is_constant() -> None:
    assert Size(7, divisor=2).is_constant
    assert not Size(batch=1).is_constant
    assert not Size(sequence=1).is_constant
    assert not Size(both=1).is_constant


def test_elements_of_a_shape() -> None:
    assert elements((Size(batch=1), Size(3), Size(sequence=2)), 5, 7) == 5 * 3 * 14
    assert elements((), 5, 7) == 1
