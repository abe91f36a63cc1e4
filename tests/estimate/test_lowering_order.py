"""Strides of results, against PyTorch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch says which strides it gives")

from hypothesis import given
from hypothesis import strategies as st

from traincast.estimate.order import Laid, contiguous, elementwise, image, preserved

LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=5)


def laid(tensor: torch.Tensor) -> Laid:
    return Laid(tuple(tensor.shape), tuple(tensor.stride()))


@st.composite
def tensors(draw: st.DrawFn, shape: list[int] | None = None) -> torch.Tensor:
    """Tensors in any order of axes, some of them broadcast or cut out of larger ones."""
    lengths = draw(LENGTHS) if shape is None else shape
    order = draw(st.permutations(range(len(lengths))))
    stored = [lengths[order.index(i)] for i in range(len(lengths))]
    made = torch.empty([n + draw(st.integers(0, 1)) for n in stored])
    made = made[tuple(slice(0, n) for n in stored)]
    return made.permute(order)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    one = draw(tensors())
    small = [draw(st.sampled_from((1, n))) for n in one.shape]
    two = draw(tensors(small))
    return one, two.expand(one.shape) if draw(st.booleans()) else two


@given(pairs())
def test_elementwise_results(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    for a, b in (pair, pair[::-1]):
        assert elementwise(tuple((a + b).shape), (laid(a), laid(b))) == laid(a + b)


@given(tensors())
def test_clones_keep_the_order(x: torch.Tensor) -> None:
    assert preserved(laid(x)) == laid(x.clone())


@given(tensors())
def test_contiguous_or_channels_last(x: torch.Tensor) -> None:
    assert laid(x).contiguous == x.is_contiguous()
    if x.dim() == 4:
        last = torch.channels_last
        assert laid(x).channels_last == x.is_contiguous(memory_format=last)
        like = torch._prims_common.suggest_memory_format(x)
        assert laid(x).prefers_channels_last == (like == last)
        fresh = torch.empty(x.shape, memory_format=last)
        assert image(tuple(x.shape), last=True) == laid(fresh)
    assert contiguous(tuple(x.shape)) == laid(torch.empty(x.shape))


@given(tensors(), st.data())
def test_views_of_another_shape(x: torch.Tensor, data: st.DataObject) -> None:
    n = x.numel()
    first = data.draw(st.sampled_from([d for d in range(1, n + 1) if n % d == 0]))
    rest = n // first
    second = data.draw(st.sampled_from([d for d in range(1, rest + 1) if rest % d == 0]))
    shape = (first, second, rest // second)
    try:
        real = laid(x.view(shape))
    except RuntimeError:
        real = None
    assert laid(x).viewed(shape) == real


@given(tensors(), st.data())
def test_permuted_and_expanded_views(x: torch.Tensor, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(x.dim())))
    assert laid(x).permuted(order) == laid(x.permute(order))
    wider = (3, *(n if n > 1 else 5 for n in x.shape))
    assert laid(x).expanded(wider) == laid(x.expand(wider))
