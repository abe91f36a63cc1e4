"""What kernels tell a model of them: window, stride, element width and the shape of the work."""

from __future__ import annotations

from typing import Any

import pytest
from graph_cases import arg, costs, index, weight

from traincast.graph.kinds import Costs, Kernel


def conv(**changes: Any) -> Costs:
    """Two images of 6 channels and 9 × 7 pixels; 8 kernels of 3 × 5 in two groups, stride 2."""
    attrs = {"stride": (2, 2), "padding": (1, 2), "dilation": (1, 1), "groups": 2} | changes
    x, w, y = arg(2, 6, 9, 7, each=2), weight(8, 3, 3, 5, each=2), arg(2, 8, 5, 4, each=2)
    return costs("conv", [x, w], [y], **attrs)


def test_a_convolution_in_all_phases() -> None:
    found = conv()
    (forward,), (data,), (product,) = found.forward, found.data, found.weight
    assert forward.dims == (2 * 5 * 4, 4, 3 * 15, 2)
    assert data.dims == (2 * 9 * 7, 3, 4 * 15, 2)
    assert product.dims == (4, 3 * 15, 2 * 5 * 4, 2)
    for kernel in (forward, data, product):
        assert kernel.window == (3, 5)
        assert kernel.stride == 2
        assert kernel.each == 2


def test_a_transposed_convolution_has_a_stride_below_one() -> None:
    attrs = {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x, w, y = arg(1, 8, 5, 5), weight(8, 4, 2, 2), arg(1, 4, 10, 10)
    (forward,) = costs("conv", [x, w], [y], transposed=True, **attrs).forward
    assert forward.stride == 0.5
    assert forward.window == (2, 2)


@pytest.mark.parametrize(("kernel", "window"), [((3,), (1, 3)), ((2, 3, 5), (6, 5))])
def test_windows_of_one_and_three_axes(kernel: tuple[int, ...], window: tuple[int, int]) -> None:
    one = (1,) * len(kernel)
    attrs = {"stride": one, "padding": (0,) * len(kernel), "dilation": one, "groups": 1}
    y = tuple(9 - k + 1 for k in kernel)
    found = costs("conv", [arg(1, 2, *(9,) * len(kernel)), weight(3, 2, *kernel)], [arg(1, 3, *y)],
                  **attrs)  # fmt: skip
    assert found.forward[0].window == window


def shape_of(kernel: Kernel) -> tuple[float, ...]:
    return kernel.dims[:3]


def test_rows_and_columns_of_norms() -> None:
    x = arg(2, 6, 4, 5)
    (layer,) = costs("layer_norm", [x, weight(5), weight(5)], [x], axes=1).forward
    assert shape_of(layer) == (2 * 6 * 4, 5, 0)
    (batch,) = costs("batch_norm", [x, weight(6), weight(6)], [x]).forward
    assert shape_of(batch) == (6, 2 * 4 * 5, 0)
    (group,) = costs("group_norm", [x, weight(6), weight(6)], [x], groups=3).forward
    assert shape_of(group) == (2 * 3, 2 * 4 * 5, 0)


def test_rows_and_columns_of_softmax_along_the_last_and_another_axis() -> None:
    x = arg(2, 6, 4, 5)
    assert shape_of(costs("softmax", [x], [x], axis=-1).forward[0]) == (2 * 6 * 4, 5, 0)
    assert shape_of(costs("softmax", [x], [x], axis=1).forward[0]) == (2 * 4 * 5, 6, 20)


def test_rows_and_columns_of_sums() -> None:
    """A bias's gradient adds up rows, whose values lie a row apart."""
    bias = costs("linear", [arg(12, 4), weight(5, 4), weight(5)], [arg(12, 5)]).weight[1]
    assert shape_of(bias) == (5, 12, 5)
    mean = costs("reduce", [arg(2, 6, 4, 5)], [arg(2, 6)], fn="mean").forward[0]
    assert shape_of(mean) == (12, 20, 0)


def test_attention_and_look_ups() -> None:
    q, k = arg(2, 8, 5, 16), arg(2, 2, 7, 16)
    (forward,) = costs("attention", [q, k, k], [q], causal=False).forward
    assert forward.dims == (5, 7, 16, 2 * 8)
    (rows,) = costs("embedding", [weight(9, 4), index(3)], [arg(3, 4)]).forward
    assert shape_of(rows) == (3, 4, 9)


def test_pools_tell_their_window_and_stride() -> None:
    found = costs("pool", [arg(2, 6, 8, 8)], [arg(2, 6, 4, 4)], op="avg", kernel=(3, 3))
    for kernel in (*found.forward, *found.data):
        assert (kernel.window, kernel.stride) == ((3, 3), 2)
        assert shape_of(kernel) == (2 * 6 * 4 * 4, 9, 0)


def test_a_cast_tells_the_width_of_what_it_reads() -> None:
    found = costs("copy", [arg(3, each=4)], [arg(3, each=2)], fn="cast")
    assert [k.each for k in (*found.forward, *found.data)] == [4, 2]


def test_a_chain_of_gradients_reads_one_tensor_at_a_time() -> None:
    """d(x³) = dy · (3 · x²): a power, a product with a number, a product of two."""
    x = arg(5, each=2)
    found = costs("pointwise", [x], [x], fn="pow").data
    assert [(k.name, k.read / 10, k.write / 10) for k in found] == [
        ("pow", 1, 1),
        ("mul", 1, 1),
        ("mul", 2, 1),
    ]
