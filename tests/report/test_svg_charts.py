"""Charts are well-formed SVG whose marks lie where the values say."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.report.svg import Line, Mark, bar_chart, heat_map, line_chart, stack
from traincast.report.svg_axes import Scale, plain_format, powers_of_two, si_format, ticks

NS = "{http://www.w3.org/2000/svg}"


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)


def texts(root: ET.Element) -> list[str]:
    return [node.text or "" for node in root.iter(f"{NS}text")]


def test_lines_are_drawn_in_equal_ratios_on_log_axes() -> None:
    line = Line(name="a", x=[1, 2, 4], y=[1, 10, 100])
    root = parsed(line_chart([line], log_x=True, log_y=True, title="T"))
    dots = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{NS}circle")]
    (x1, y1), (x2, y2), (x3, y3) = dots
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.2)
    assert y1 > y3
    assert {"T", "a"} <= set(texts(root))


def test_a_value_that_is_not_finite_leaves_a_gap() -> None:
    line = Line(name="a", x=[1, 2, 3, 4], y=[1, 2, math.nan, 4])
    root = parsed(line_chart([line]))
    path = next(root.iter(f"{NS}path")).get("d", "")
    assert path.count("M") == 2
    assert len(list(root.iter(f"{NS}circle"))) == 3


def test_names_from_users_are_text() -> None:
    root = parsed(line_chart([Line(name="<b>&", x=[1, 2], y=[1, 2])], title='a < b & "c"'))
    assert "<b>&" in texts(root)
    assert 'a < b & "c"' in texts(root)


def test_marks_and_stacks() -> None:
    chart = line_chart(
        [Line(name="a", x=[1, 10], y=[1, 2])], marks=[Mark(x=5, label="here", low=4, high=6)]
    )
    assert "here" in texts(parsed(chart))
    sheet = parsed(stack([(chart, 720, 420)] * 3, columns=2))
    assert sheet.get("viewBox") == "0 0 1440 840"
    assert len(sheet.findall(f"{NS}svg")) == 3


def test_bars_are_as_high_as_their_values() -> None:
    root = parsed(bar_chart(["x", "y"], [("a", [1, 2]), ("b", [3, 4])], stacked=True))
    bars = [r for r in root.iter(f"{NS}rect") if r.find(f"{NS}title") is not None]
    heights = [float(r.get("height", 0)) for r in bars]
    assert heights[1] / heights[0] == pytest.approx(3, rel=0.02)
    assert heights[3] / heights[0] == pytest.approx(4, rel=0.02)
    side = parsed(bar_chart(["x"], [("a", [1]), ("b", [3])]))
    lefts = [
        float(r.get("x", 0)) for r in side.iter(f"{NS}rect") if r.find(f"{NS}title") is not None
    ]
    assert lefts[0] < lefts[1]


def test_a_heat_map_tells_the_sides_apart() -> None:
    root = parsed(heat_map([1, 2], [1, 2], [[-1, 1], [0, 0]], curve=[(1.4, 1), (1.5, 2)]))
    cells = [r for r in root.iter(f"{NS}rect") if r.find(f"{NS}title") is not None]
    fills = [cell.get("fill") for cell in cells]
    assert fills[0] == "#2468b4"
    assert fills[1] == "#d9730d"
    assert fills[2] == fills[3]


@given(low=st.floats(1e-9, 1e9), ratio=st.floats(1.001, 1e12), log=st.booleans())
def test_ticks_lie_inside_and_are_few(low: float, ratio: float, log: bool) -> None:
    found = ticks(low, low * ratio, log)
    assert len(found) <= 12
    slack = 1e-6 * low * ratio  # less than a pixel
    assert all(low - slack <= v <= low * ratio + slack for v in found)
    assert found == sorted(found)


def test_formats() -> None:
    assert [si_format("s")(v) for v in (0, 0.01, 2.5e-6, 1)] == ["0 s", "10 ms", "2.5 µs", "1 s"]
    assert si_format("B/s")(1.25e9) == "1.25 GB/s"
    assert [plain_format(v) for v in (4096, 0.5, 12)] == ["4,096", "0.5", "12"]
    assert powers_of_two(3, 40) == [4, 8, 16, 32]
    assert Scale(1, 100, 0, 10, True)(10) == pytest.approx(5)
