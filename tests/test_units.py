"""Quantities at the edges: text to SI floats and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError
from traincast.units import format_bytes, format_seconds, format_si, parse_count, parse_quantity


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80 GB", "bytes", 80e9),
        ("80GiB", "bytes", 80 * 2**30),
        ("1.5 MiB", "bytes", 1.5 * 2**20),
        ("512 B", "bytes", 512),
        ("4 KiB", "bytes", 4096),
        ("2 TiB", "bytes", 2 * 2**40),
        ("3.35 TB/s", "bytes/s", 3.35e12),
        ("100 Gbit/s", "bytes/s", 12.5e9),
        ("10 Gb/s", "bytes/s", 1.25e9),
        ("10Gbps", "bytes/s", 1.25e9),
        ("989 TFLOP/s", "FLOP/s", 989e12),
        ("1.4 PFLOPS", "FLOP/s", 1.4e15),
        ("275 TOPS", "FLOP/s", 275e12),
        ("1.5 us", "s", 1.5e-6),
        ("1.5 µs", "s", 1.5e-6),
        ("20 ms", "s", 0.02),
        ("2 min", "s", 120),
        ("3 h", "s", 10800),
        ("1.98 GHz", "Hz", 1.98e9),
        ("700 W", "W", 700),
        ("  .5 kW ", "W", 500),
        ("1e3 W", "W", 1000),
        ("-2 s", "s", -2),
    ],
)
def test_a_quantity_reads_in_base_units(text: str, unit: str, value: float) -> None:
    assert parse_quantity(text, unit) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "unit", "said"),
    [
        ("80", "bytes", "'80' has no unit, expected bytes; write 80 GB"),
        ("80 W", "bytes", "'80 W' has the unit 'W', expected bytes; write 80 GB"),
        (
            "3 GiB",
            "bytes/s",
            "'3 GiB' has the unit 'GiB', expected bytes/s; write 3.35 TB/s or 100 Gbit/s",
        ),
        ("5 kib", "bytes", "'5 kib' has the unit 'kib', expected bytes; write 80 GB"),
        ("fast", "FLOP/s", "'fast' is not a quantity in FLOP/s; write 989 TFLOP/s"),
        ("", "s", "'' is not a quantity in s; write 1.5 us"),
        ("1,5 s", "s", "'1,5 s' is not a quantity in s; write 1.5 us"),
        ("1.2.3 Hz", "Hz", "'1.2.3 Hz' is not a quantity in Hz; write 1.98 GHz"),
        ("1e999 W", "W", "'1e999 W' is not a finite quantity"),
    ],
)
def test_what_is_no_quantity_is_refused(text: str, unit: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_quantity(text, unit)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 µs"),
        (1.5e-6, "1.50 µs"),
        (0.00123, "1.23 ms"),
        (0.0456, "45.6 ms"),
        (0.789, "789 ms"),
        (45.6, "45.6 s"),
        (299, "299 s"),
        (600, "10.0 min"),
        (7200, "2.00 h"),
        (1_080_000, "12.5 days"),
    ],
)
def test_a_duration_reads_in_its_own_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (512, "512 B"),
        (1024, "1.00 KiB"),
        (1.5 * 2**20, "1.50 MiB"),
        (31.25 * 2**30, "31.2 GiB"),
        (3 * 2**40, "3.00 TiB"),
    ],
)
def test_bytes_read_with_binary_prefixes(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (989e12, "FLOP/s", "989 TFLOP/s"),
        (4.8e12, "B/s", "4.80 TB/s"),
        (25.6e6, "", "25.6 M"),
        (7, "", "7.00"),
        (1e18, "FLOP", "1.00 EFLOP"),
    ],
)
def test_other_quantities_read_with_decimal_prefixes(value: float, unit: str, text: str) -> None:
    assert format_si(value, unit) == text


@given(st.floats(1e-6, 299))
def test_durations_survive_printing_and_reading(seconds: float) -> None:
    assert parse_quantity(format_seconds(seconds, 9), "s") == pytest.approx(seconds, rel=1e-6)


@given(st.floats(1, 1e15))
def test_bytes_survive_printing_and_reading(count: float) -> None:
    assert parse_quantity(format_bytes(count, 9), "bytes") == pytest.approx(count, rel=1e-6)


@given(st.floats(1, 1e20))
def test_rates_survive_printing_and_reading(rate: float) -> None:
    text = format_si(rate, "FLOP/s", 9)
    assert parse_quantity(text, "FLOP/s") == pytest.approx(rate, rel=1e-6)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("256", 256),
        ("1281167", 1_281_167),
        ("1,281,167", 1_281_167),
        ("1_281_167", 1_281_167),
        ("1.28M", 1_280_000),
        ("1.281167 m", 1_281_167),
        ("300B", 300 * 10**9),
        ("15T", 15 * 10**12),
        ("2k", 2000),
        ("1e6", 1_000_000),
        ("+5", 5),
    ],
)
def test_a_count_reads_exactly(text: str, count: int) -> None:
    assert parse_count(text, "tokens") == count


@given(st.integers(1, 10**18))
def test_any_whole_number_is_a_count(count: int) -> None:
    assert parse_count(str(count), "n") == count
    assert parse_count(f"{count:,}", "n") == count
    assert parse_count(f"{count:_}", "n") == count


@pytest.mark.parametrize(
    "text",
    ["", "0", "-1", "1.5", "0.5", "1000000.5", "1,5", "1,28M", "1__0", "many", "3 4", "5 GB", "inf",
     "nan", "1e999", "1.2345k", "²"],
)  # fmt: skip
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        parse_count(text, "tokens")
    assert str(caught.value) == (
        f"tokens {text!r} is not a whole number of at least 1; write 256, 1.28M or 300B"
    )
