"""Boxes, grids and views against what PyTorch does to a whole tensor."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError
from traincast.execute.layout import Layout, even, overlap, planned, within
from traincast.execute.views import Expand, Narrow, Permute, Reshape
from traincast.parallel.strategy import LayerSplit

DIMS = {"sample": 0, "channel": 1, "height": 2, "width": 3}


def test_part_k_lies_on_device_k_in_row_major_order() -> None:
    split = LayerSplit("x", "conv", {"width": 2, "channel": 2})
    boxes = planned(split, (2, 6, 5, 7), DIMS).boxes(5)
    assert boxes == (
        ((0, 2), (0, 3), (0, 5), (0, 3)),
        ((0, 2), (0, 3), (0, 5), (3, 7)),
        ((0, 2), (3, 6), (0, 5), (0, 3)),
        ((0, 2), (3, 6), (0, 5), (3, 7)),
        None,
    )


def test_a_split_that_a_layer_has_not_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="'x' cannot be split by head: its conv can be"):
        planned(LayerSplit("x", "conv", {"head": 2}), (2, 6, 5, 7), DIMS)
    with pytest.raises(InvalidValueError, match="channel 8 is more than the 6 positions"):
        planned(LayerSplit("x", "conv", {"channel": 8}), (2, 6, 5, 7), DIMS)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    cuts = tuple(even(n, draw(st.integers(1, n))) for n in shape)
    return Layout(cuts, tuple(draw(st.permutations(range(len(shape))))))


VIEWS = {
    "permute": ((3, 4, 2), Permute((2, 0, 1)), lambda t: t.permute(2, 0, 1)),
    "narrow": ((3, 6, 2), Narrow(1, 2, 3), lambda t: t[:, 2:5]),
    "expand": ((3, 1, 2), Expand((3, 1, 2), (3, 4, 2)), lambda t: t.expand(3, 4, 2)),
    "flatten": ((3, 4, 2), Reshape((3, 4, 2), (3, 8)), lambda t: t.reshape(3, 8)),
    "merge": ((3, 4, 2), Reshape((3, 4, 2), (12, 2)), lambda t: t.reshape(12, 2)),
    "heads": ((3, 12), Reshape((3, 12), (3, 1, 4, 3)), lambda t: t.reshape(3, 1, 4, 3)),
    "regroup": ((6, 4), Reshape((6, 4), (8, 3)), lambda t: t.reshape(8, 3)),
}


@pytest.mark.parametrize("name", VIEWS)
@given(data=st.data())
def test_a_box_of_a_view_comes_from_the_box_that_it_names(name: str, data: st.DataObject) -> None:
    shape, step, view = VIEWS[name]
    whole = torch.arange(torch.Size(shape).numel()).reshape(shape)
    shown = view(whole)
    for box in data.draw(layouts(tuple(shown.shape))).boxes(40):
        if box is None:
            continue
        source = step.back(box)
        part = step.apply(whole[tuple(slice(*r) for r in source)], source, box)
        assert torch.equal(part, shown[tuple(slice(*r) for r in box)])


@pytest.mark.parametrize("name", VIEWS)
@given(data=st.data())
def test_the_layout_of_a_view_holds_every_element_once(name: str, data: st.DataObject) -> None:
    shape, step, view = VIEWS[name]
    shown = view(torch.zeros(shape))
    pushed = step.push(data.draw(layouts(shape)))
    count = torch.zeros(shown.shape)
    for box in pushed.boxes(200):
        if box is not None:
            count[tuple(slice(*r) for r in box)] += 1
    assert bool((count == 1).all())


def test_overlap_and_its_place() -> None:
    both = overlap(((0, 4), (2, 6)), ((3, 9), (0, 3)))
    assert both == ((3, 4), (2, 3))
    assert within(both, ((3, 9), (0, 3))) == (slice(0, 1), slice(2, 3))
    assert overlap(((0, 4),), ((4, 5),)) is None
