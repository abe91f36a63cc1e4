"""Matrix kinds against hand derivations and, for convolution, a count tap by tap."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from graph_cases import arg, costs, shapes, weight
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.graph.kinds import Arg


def test_linear() -> None:
    """y[6, 5] = x[6, 4] · W[5, 4]ᵀ + b, the 6 rows being 2 × 3; 4 bytes an element."""
    x, w, b, y = arg(2, 3, 4), weight(5, 4), weight(5), arg(2, 3, 5)
    found = costs("linear", [x, w, b], [y])
    (forward,) = found.forward
    assert forward.name == "addmm"
    assert forward.family == "gemm"
    assert forward.flops == 2 * 6 * 5 * 4
    assert forward.read == 4 * (6 * 4 + 5 * 4 + 5)
    assert forward.write == 4 * 6 * 5
    assert forward.dims == (6, 5, 4, 1)
    (data,) = found.data
    assert (data.name, data.flops) == ("mm", 2 * 6 * 5 * 4)
    assert (data.read, data.write) == (4 * (6 * 5 + 5 * 4), 4 * 6 * 4)
    assert data.dims == (6, 4, 5, 1)
    product, bias = found.weight
    assert (product.name, product.flops) == ("mm", 2 * 6 * 5 * 4)
    assert (product.read, product.write) == (4 * (6 * 5 + 6 * 4), 4 * 5 * 4)
    assert product.dims == (5, 4, 6, 1)
    assert (bias.name, bias.family, bias.flops) == ("sum", "reduction", 0)
    assert (bias.read, bias.write) == (4 * 6 * 5, 4 * 5)
    assert found.saved == (0, 1)
    assert shapes("linear", [x, w, b]) == ((2, 3, 5),)


def test_linear_without_bias_and_with_a_transposed_weight() -> None:
    found = costs("linear", [arg(6, 4), weight(4, 5)], [arg(6, 5)], transposed=True)
    assert found.forward[0].name == "mm"
    assert found.forward[0].flops == 2 * 6 * 5 * 4
    assert len(found.weight) == 1
    assert shapes("linear", [arg(6, 4), weight(4, 5)], transposed=True) == ((6, 5),)


def test_the_first_linear_layer_has_no_data_gradient() -> None:
    """The input's gradient is not wanted, so the weight need not be kept."""
    found = costs("linear", [arg(6, 4, grad=False), weight(5, 4)], [arg(6, 5)])
    assert found.data == ()
    assert len(found.weight) == 1
    assert found.saved == (0,)


def test_a_frozen_linear_layer_passes_the_gradient_on() -> None:
    found = costs("linear", [arg(6, 4), weight(5, 4, grad=False)], [arg(6, 5)])
    assert len(found.data) == 1
    assert found.weight == ()
    assert found.saved == (1,)


def test_matmul() -> None:
    """Six products [4, 5] · [5, 7]; each gradient is one more of the same work."""
    a, b, y = arg(2, 3, 4, 5), arg(2, 3, 5, 7), arg(2, 3, 4, 7)
    found = costs("matmul", [a, b], [y])
    (forward,) = found.forward
    assert (forward.name, forward.flops) == ("bmm", 2 * 6 * 4 * 5 * 7)
    assert (forward.read, forward.write) == (4 * 6 * (20 + 35), 4 * 6 * 28)
    assert forward.dims == (4, 7, 5, 6)
    left, right = found.data
    assert left.flops == right.flops == 2 * 6 * 4 * 5 * 7
    assert (left.read, left.write) == (4 * 6 * (28 + 35), 4 * 6 * 20)
    assert (right.read, right.write) == (4 * 6 * (28 + 20), 4 * 6 * 35)
    assert found.weight == ()
    assert found.saved == (0, 1)


def test_matmul_with_one_gradient_keeps_the_other_factor() -> None:
    found = costs("matmul", [arg(4, 5), arg(5, 7, grad=False)], [arg(4, 7)])
    assert [k.name for k in found.data] == ["mm"]
    assert found.saved == (1,)


def test_matmul_of_a_matrix_and_a_vector() -> None:
    (forward,) = costs("matmul", [arg(4, 5), arg(5)], [arg(4)]).forward
    assert forward.flops == 2 * 4 * 5


def test_matmul_with_an_added_bias_sums_its_gradient() -> None:
    found = costs("matmul", [arg(2, 4, 5), arg(2, 5, 7), arg(7)], [arg(2, 4, 7)])
    assert found.forward[0].name == "baddbmm"
    assert [k.name for k in found.data] == ["bmm", "bmm", "sum"]
    assert (found.data[2].read, found.data[2].write) == (4 * 2 * 4 * 7, 4 * 7)


def test_grouped_matmul_works_as_much_as_one_dense_product() -> None:
    """12 rows of 4 features, spread over 3 experts with 4 × 5 weights each: 2·12·4·5."""
    x, w, y = arg(12, 4, each=2), weight(3, 4, 5, each=2), arg(12, 5, each=2)
    found = costs("grouped_matmul", [x, w], [y])
    (forward,), (data,), (product,) = found.forward, found.data, found.weight
    assert forward.flops == data.flops == product.flops == 2 * 12 * 4 * 5
    assert (forward.read, forward.write) == (2 * (48 + 60), 2 * 60)
    assert (data.read, data.write) == (2 * (60 + 60), 2 * 48)
    assert (product.read, product.write) == (2 * (60 + 48), 2 * 60)
    assert forward.dims == (4, 5, 4, 3)
    assert found.saved == (0, 1)


def convolve(
    size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> tuple[tuple[int, ...], int]:
    """Count window positions on each axis and all taps, padding included, by walking over them."""
    positions = []
    for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True):
        starts = range(-p, n + p, s)
        positions.append([a for a in starts if a + d * (k - 1) <= n + p - 1])
    taps = sum(
        1 for _ in itertools.product(*positions) for _ in itertools.product(*map(range, kernel))
    )
    return tuple(map(len, positions)), taps


AXES = st.integers(1, 3)


@st.composite
def convolutions(draw: Any) -> dict[str, Any]:
    rank = draw(AXES)
    small = st.integers(1, 3)

    def per_axis(values: Any) -> tuple[int, ...]:
        return tuple(draw(values) for _ in range(rank))

    made = {
        "batch": draw(small),
        "groups": draw(small),
        "in_each": draw(small),
        "out_each": draw(small),
        "kernel": per_axis(small),
        "stride": per_axis(small),
        "padding": per_axis(st.integers(0, 2)),
        "dilation": per_axis(st.integers(1, 2)),
    }
    # Large enough for one window, without padding.
    made["size"] = tuple(
        d * (k - 1) + 1 + draw(st.integers(0, 4))
        for k, d in zip(made["kernel"], made["dilation"], strict=True)
    )
    return made


@settings(max_examples=150)
@given(convolutions())
def test_convolution_counts_as_many_multiply_adds_as_a_loop_over_taps(c: dict[str, Any]) -> None:
    c_in, c_out = c["in_each"] * c["groups"], c["out_each"] * c["groups"]
    attrs = {a: c[a] for a in ("stride", "padding", "dilation", "groups")}
    size, taps = convolve(c["size"], c["kernel"], c["stride"], c["padding"], c["dilation"])
    x, w = arg(c["batch"], c_in, *c["size"]), weight(c_out, c["in_each"], *c["kernel"])
    y = arg(c["batch"], c_out, *size)
    assert shapes("conv", [x, w], **attrs) == (y.shape,)
    found = costs("conv", [x, w], [y], **attrs)
    # Every output channel sees the input channels of its own group.
    work = 2 * c["batch"] * c_out * c["in_each"] * taps
    kernels = [*found.forward, *found.data, *found.weight]
    assert [k.flops for k in kernels] == pytest.approx([work] * 3)


@settings(max_examples=100)
@given(convolutions())
def test_transposed_convolution_is_the_data_gradient_of_a_convolution(c: dict[str, Any]) -> None:
    """Its input takes the place of the convolution's output and the other way round."""
    c_in, c_out = c["in_each"] * c["groups"], c["out_each"] * c["groups"]
    attrs = {a: c[a] for a in ("stride", "padding", "dilation", "groups")}
    size, taps = convolve(c["size"], c["kernel"], c["stride"], c["padding"], c["dilation"])
    x, w = arg(c["batch"], c_out, *size), weight(c_out, c["in_each"], *c["kernel"])
    y = arg(c["batch"], c_in, *c["size"])
    # Several sizes convolve to the same one; output_padding tells which was meant.
    exact = [
        (n - 1) * s - 2 * p + d * (k - 1) + 1
        for n, s, p, d, k in zip(
            size, c["stride"], c["padding"], c["dilation"], c["kernel"], strict=True
        )
    ]
    extra = tuple(n - e for n, e in zip(c["size"], exact, strict=True))
    given_attrs = {**attrs, "transposed": True, "output_padding": extra}
    assert shapes("conv", [x, w], **given_attrs) == (y.shape,)
    found = costs("conv", [x, w], [y], **given_attrs)
    work = 2 * c["batch"] * c_out * c["in_each"] * taps
    kernels = [*found.forward, *found.data, *found.weight]
    assert [k.flops for k in kernels] == pytest.approx([work] * 3)


def conv2d(x: Arg, w: Arg, y: Arg, *bias: Arg, **attrs: Any) -> Any:
    given_attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1} | attrs
    assert shapes("conv", [x, w, *bias], **given_attrs) == (y.shape,)
    return costs("conv", [x, w, *bias], [y], **given_attrs)


def test_a_strided_dilated_convolution_by_hand() -> None:
    """ResNet's first layer: 224 → (224 + 6 - 6 - 1) // 2 + 1 = 112; 118,013,952 multiply-adds.

    64 · 112 · 112 outputs of 3 · 7 · 7 taps. It has 9,408 weights and no bias.
    """
    x, w, y = arg(1, 3, 224, 224, grad=False), weight(64, 3, 7, 7), arg(1, 64, 112, 112)
    found = conv2d(x, w, y, stride=(2, 2), padding=(3, 3))
    (forward,) = found.forward
    assert (forward.name, forward.family) == ("convolution", "conv")
    assert forward.flops == 2 * 118_013_952
    assert forward.read == 4 * (150_528 + 9_408)
    assert forward.write == 4 * 802_816
    assert found.data == ()
    (product,) = found.weight
    assert product.name == "convolution_backward.weight"
    assert (product.read, product.write) == (4 * (802_816 + 150_528), 4 * 9_408)
    assert found.saved == (0, 1)


def test_a_convolution_with_a_bias_passes_over_its_output_once_more() -> None:
    x, w, b, y = arg(2, 3, 5, 5), weight(4, 3, 3, 3), weight(4), arg(2, 4, 3, 3)
    found = conv2d(x, w, y, b)
    product, bias = found.forward
    assert product.read == 4 * (150 + 108)
    assert (bias.name, bias.flops, bias.ops) == ("convolution.bias", 0, 72)
    assert (bias.read, bias.write) == (4 * (72 + 4), 4 * 72)
    (data,) = found.data
    assert (data.read, data.write) == (4 * (72 + 108), 4 * 150)
    assert [k.name for k in found.weight] == [
        "convolution_backward.weight",
        "convolution_backward.bias",
    ]
    assert (found.weight[1].read, found.weight[1].write) == (4 * 72, 4 * 4)


def test_a_depthwise_convolution() -> None:
    """Each of 8 channels by its own 3 × 3: 2·8·9 FLOPs a pixel, 64 times less than dense."""
    x, w, y = arg(1, 8, 4, 4), weight(8, 1, 3, 3), arg(1, 8, 4, 4)
    (forward,) = conv2d(x, w, y, padding=(1, 1), groups=8).forward
    assert forward.flops == 2 * 8 * 9 * 16
    assert forward.dims == (16, 1, 9, 8)


def test_convolutions_over_one_and_three_axes() -> None:
    one = {"stride": (2,), "padding": (1,), "dilation": (2,), "groups": 1}
    # (10 + 2 - 2·2 - 1) // 2 + 1 = 4
    x, w = arg(2, 3, 10), weight(5, 3, 3)
    assert shapes("conv", [x, w], **one) == ((2, 5, 4),)
    assert costs("conv", [x, w], [arg(2, 5, 4)], **one).forward[0].flops == 2 * 2 * 5 * 4 * 3 * 3
    three = {"stride": (1, 2, 2), "padding": (0, 1, 1), "dilation": (1, 1, 1), "groups": 1}
    x, w = arg(1, 2, 4, 6, 6), weight(3, 2, 2, 3, 3)
    assert shapes("conv", [x, w], **three) == ((1, 3, 3, 3, 3),)
    (forward,) = costs("conv", [x, w], [arg(1, 3, 3, 3, 3)], **three).forward
    assert forward.flops == 2 * 3 * 27 * 2 * 18


def test_a_transposed_convolution_by_hand() -> None:
    """U-Net's up-convolution, 2 × 2 with stride 2: each input pixel makes four, so 5 → 10."""
    attrs = {"stride": (2, 2), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    x, w, y = arg(1, 8, 5, 5), weight(8, 4, 2, 2), arg(1, 4, 10, 10)
    assert shapes("conv", [x, w], transposed=True, **attrs) == (y.shape,)
    (forward,) = costs("conv", [x, w], [y], transposed=True, **attrs).forward
    assert forward.flops == 2 * 25 * 8 * 4 * 4


# Two samples, three heads, five queries over seven keys, 8 channels for q and k, 6 for v.
Q, K, V, O = arg(2, 3, 5, 8), arg(2, 3, 7, 8), arg(2, 3, 7, 6), arg(2, 3, 5, 6)
QK = 2 * 6 * 5 * 7 * 8
PV = 2 * 6 * 5 * 7 * 6


def test_fused_attention() -> None:
    """Two products forward; backward makes the scores again, then dV, dP, dQ and dK."""
    found = costs("attention", [Q, K, V], [O], causal=False)
    (forward,), (back,) = found.forward, found.data
    assert forward.family == back.family == "attention"
    assert forward.flops == QK + PV
    assert back.flops == (QK + QK + QK) + (PV + PV)
    read = 4 * (240 + 336 + 252)
    assert (forward.read, forward.write) == (read, 4 * 180)
    # Backward reads q, k, v, the output and its gradient and writes three gradients.
    assert (back.read, back.write) == (read + 2 * 4 * 180, read)
    assert found.weight == ()
    assert found.saved == (0, 1, 2, ~0)
    # One float32 for each query: the logarithm of the sum of exponentials.
    assert found.extra == 4 * 2 * 3 * 5
    assert forward.done == back.done == 1
    assert shapes("attention", [Q, K, V], causal=False) == (O.shape,)


@pytest.mark.parametrize("length", [1, 4, 64])
def test_causal_attention_does_the_lower_triangle(length: int) -> None:
    q = arg(1, 2, length, 8)
    (forward,) = costs("attention", [q, q, q], [q], causal=True).forward
    pairs = sum(1 for i in range(length) for j in range(length) if j <= i)
    assert forward.done == pytest.approx(pairs / length**2)
    assert forward.flops == 2 * 2 * 2 * length * length * 8


def test_attention_with_shared_heads_reads_fewer_keys() -> None:
    """Eight query heads over two of keys and values: the work of eight, the traffic of two."""
    q, kv = arg(1, 8, 4, 16, each=2), arg(1, 2, 4, 16, each=2)
    (forward,) = costs("attention", [q, kv, kv], [q], causal=False).forward
    assert forward.flops == 2 * (2 * 8 * 4 * 4 * 16)
    assert forward.read == 2 * (512 + 128 + 128)


def test_attention_with_a_mask_reads_and_keeps_it() -> None:
    mask = arg(2, 1, 5, 7, grad=False)
    plain = costs("attention", [Q, K, V], [O], causal=False)
    masked = costs("attention", [Q, K, V, mask], [O], causal=False)
    assert masked.forward[0].read == plain.forward[0].read + 4 * 70
    assert masked.saved == (0, 1, 2, ~0, 3)


def test_attention_by_separate_products() -> None:
    """The 6 · 5 · 7 scores go to memory: q·kᵀ, scaling, softmax, ·v; back four products."""
    scores = 4 * 6 * 5 * 7
    found = costs("attention", [Q, K, V], [O], causal=False, algorithm="math")
    assert [(k.name, k.flops) for k in found.forward] == [
        ("bmm", QK),
        ("mul", 0),
        ("_softmax", 0),
        ("bmm", PV),
    ]
    q, k, v, y = 4 * 240, 4 * 336, 4 * 252, 4 * 180
    assert [(n.read, n.write) for n in found.forward] == [
        (q + k, scores),
        (scores, scores),
        (scores, scores),
        (scores + v, y),
    ]
    products = [(n.read, n.write) for n in found.data if n.name == "bmm"]
    # dP = dY·Vᵀ, dV = Pᵀ·dY, dQ = dS·K, dK = dSᵀ·Q
    assert products == [(y + v, scores), (scores + y, v), (scores + k, q), (scores + q, k)]
    assert sum(k.flops for k in found.data) == 2 * QK + 2 * PV
    assert [k.name for k in found.data].count("_softmax_backward_data") == 1
    assert found.saved == (0, 1, 2)
    assert found.extra == scores


def test_attention_without_gradients_keeps_nothing() -> None:
    q = arg(1, 2, 4, 8, grad=False)
    for algorithm in ("fused", "math"):
        found = costs("attention", [q, q, q], [q], causal=False, algorithm=algorithm)
        assert (found.data, found.saved, found.extra) == ((), (), 0)


def recurrent(gates: int, layers: int = 1, directions: int = 1) -> list[Arg]:
    """Weights of a recurrent network with 3 features and a state of 5."""
    made = []
    for layer in range(layers):
        for _ in range(directions):
            inner = 3 if layer == 0 else 5 * directions
            made += [
                weight(gates * 5, inner),
                weight(gates * 5, 5),
                weight(gates * 5),
                weight(gates * 5),
            ]
    return made


@pytest.mark.parametrize(("cell", "gates"), [("lstm", 4), ("gru", 3), ("rnn", 1)])
def test_recurrent_layers(cell: str, gates: int) -> None:
    """7 positions × 2 samples, each by [gates·5, 3] and [gates·5, 5]: 2·14·gates·5·8 FLOPs."""
    x, y, weights = arg(7, 2, 3), arg(7, 2, 5), recurrent(gates)
    found = costs("rnn", [x, *weights], [y], cell=cell, hidden=5)
    (forward,), (data,), (product,) = found.forward, found.data, found.weight
    work = 2 * 14 * gates * 5 * (3 + 5)
    assert forward.flops == data.flops == product.flops == work
    held = 4 * (gates * 5 * (3 + 5) + 2 * gates * 5)
    assert (forward.read, forward.write) == (4 * 42 + held, 4 * 70)
    assert (data.read, data.write) == (4 * 70 + held, 4 * 42)
    assert (product.read, product.write) == (4 * (42 + 70), held)
    # One position after the other, so as many launches.
    assert forward.launches == 7
    assert {0, ~0} <= set(found.saved)
    # At least every gate's value is kept for backward.
    assert found.extra >= 4 * 14 * 5 * gates


def test_a_recurrent_layer_with_the_batch_first_has_the_same_work() -> None:
    weights = recurrent(4)
    (a,) = costs("rnn", [arg(7, 2, 3), *weights], [arg(7, 2, 5)], cell="lstm", hidden=5).forward
    (b,) = costs(
        "rnn", [arg(2, 7, 3), *weights], [arg(2, 7, 5)], cell="lstm", hidden=5, batch_first=True
    ).forward
    assert a == b


def test_two_layers_in_two_directions() -> None:
    """Layer 1 sees 3 features, layer 2 both directions' 5: 2·14·20·(2·(3 + 5) + 2·(10 + 5))."""
    (forward,) = costs(
        "rnn",
        [arg(7, 2, 3), *recurrent(4, 2, 2)],
        [arg(7, 2, 10)],
        cell="lstm",
        hidden=5,
        layers=2,
        bidirectional=True,
    ).forward
    assert forward.flops == 2 * 14 * 20 * (2 * 8 + 2 * 15)
    assert forward.launches == 7 * 2 * 2


def test_half_precision_halves_every_byte_and_no_flop() -> None:
    attrs = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}
    wide = costs("conv", [arg(1, 3, 5, 5), weight(4, 3, 3, 3)], [arg(1, 4, 3, 3)], **attrs)
    slim = costs(
        "conv",
        [arg(1, 3, 5, 5, each=2), weight(4, 3, 3, 3, each=2)],
        [arg(1, 4, 3, 3, each=2)],
        **attrs,
    )
    for a, b in zip(
        (*wide.forward, *wide.data, *wide.weight),
        (*slim.forward, *slim.data, *slim.weight),
        strict=True,
    ):
        assert (a.flops, a.read, a.write) == (b.flops, 2 * b.read, 2 * b.write)
