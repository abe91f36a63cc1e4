"""Kinds outside the matrix units, against hand derivations; 4 bytes an element unless said."""

from __future__ import annotations

from typing import Any

import pytest
from graph_cases import arg, costs, index, shapes, weight

from traincast.estimate.program import FAMILIES
from traincast.graph import KINDS, Op
from traincast.graph.kinds import Arg, Costs, Kernel
from traincast.graph.kinds.pointwise import NOT_DIFFERENTIABLE, RULES


def moved(kernel: Kernel) -> tuple[float, float]:
    """Return elements of 4 bytes read and written."""
    return kernel.read / 4, kernel.write / 4


def names(kernels: tuple[Kernel, ...]) -> list[str]:
    return [k.name for k in kernels]


def only(kernels: tuple[Kernel, ...]) -> Kernel:
    (kernel,) = kernels
    return kernel


X = arg(2, 6, 4, 5)  # 240 elements


@pytest.mark.parametrize(
    ("kind", "aten", "attrs", "affine", "statistics"),
    [
        # Mean and inverse deviation of each of 6 channels.
        ("batch_norm", "native_batch_norm", {}, (6, 6), 2 * 6),
        # Of each of 2·6·4 rows.
        ("layer_norm", "native_layer_norm", {"axes": 1}, (5, 5), 2 * 48),
        # Of each of 2·6 images.
        ("layer_norm", "native_layer_norm", {"axes": 2}, (20, 20), 2 * 12),
        # Of 3 groups in each of 2 samples.
        ("group_norm", "native_group_norm", {"groups": 3}, (6, 6), 2 * 6),
        # The root mean square alone, of each of 48 rows.
        ("rms_norm", "_fused_rms_norm", {"axes": 1}, (5,), 48),
    ],
)
def test_normalisation(
    kind: str, aten: str, attrs: dict[str, Any], affine: tuple[int, ...], statistics: int
) -> None:
    """Forward reads the input for the statistics and for the values; backward both again."""
    found = costs(kind, [X, *(weight(n) for n in affine)], [X], **attrs)
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, forward.family, forward.flops) == (aten, "norm", 0)
    assert moved(forward) == (2 * 240 + sum(affine), 240)
    assert (back.name, back.family) == (f"{aten}_backward", "norm")
    assert moved(back) == (2 * 240 + 2 * 240, 240 + sum(affine))
    assert found.weight == ()
    assert found.saved == (0, 1)
    # Statistics are kept in float32.
    assert found.extra == 4 * statistics
    assert shapes(kind, [X], **attrs) == (X.shape,)


@pytest.mark.parametrize("kind", ["batch_norm", "rms_norm"])
def test_a_norm_without_parameters_keeps_its_input_alone(kind: str) -> None:
    found = costs(kind, [X], [X], **({"axes": 1} if kind == "rms_norm" else {}))
    assert moved(only(found.forward)) == (480, 240)
    assert found.saved == (0,)


def test_softmax() -> None:
    found = costs("softmax", [X], [X], axis=-1)
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, moved(forward)) == ("_softmax", (240, 240))
    # From its own output and the gradient.
    assert (back.name, moved(back)) == ("_softmax_backward_data", (480, 240))
    assert found.saved == (~0,)
    assert names(costs("softmax", [X], [X], axis=-1, log=True).forward) == ["_log_softmax"]
    assert shapes("softmax", [X], axis=-1) == (X.shape,)


def test_cross_entropy() -> None:
    """Log-probabilities of 8 × 10 logits, then the value at each of 8 targets (int64)."""
    found = costs("cross_entropy", [arg(8, 10), index(8)], [arg()])
    assert names(found.forward) == ["_log_softmax", "nll_loss_forward"]
    assert moved(found.forward[0]) == (80, 80)
    assert found.forward[1].read >= 8 * 8
    assert found.forward[1].write == 4
    assert names(found.data) == ["nll_loss_backward", "_log_softmax_backward_data"]
    # Zeros but at the targets, then the logits' gradient out of that and the probabilities.
    assert (found.data[0].read, found.data[0].write) == (8 * 8, 4 * 80)
    assert moved(found.data[1]) == (160, 80)
    assert found.saved == (1,)
    assert found.extra == 4 * 80
    assert found.workspace == 4 * 80


def test_max_pooling_keeps_where_each_maximum_was() -> None:
    """3 × 3 windows over 4 × 5 with padding: the output has 2·6·2·3 = 72 elements, int64 places."""
    y, places = arg(2, 6, 2, 3), index(2, 6, 2, 3)
    found = costs("pool", [X], [y, places], op="max", kernel=(3, 3))
    forward, back = only(found.forward), only(found.data)
    assert forward.name == "max_pool2d_with_indices"
    assert (forward.ops, forward.flops) == (9 * 72, 0)
    assert (forward.read, forward.write) == (4 * 240, 4 * 72 + 8 * 72)
    # Gradient and places in; zeros, then the values on top of them, out.
    assert (back.read, back.write) == (4 * 72 + 8 * 72, 2 * 4 * 240)
    assert found.saved == (0, ~1)


def test_average_pooling() -> None:
    found = costs("pool", [X], [arg(2, 6, 2, 2)], op="avg", kernel=(2, 3))
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, forward.ops) == ("avg_pool2d", 6 * 48)
    assert moved(forward) == (240, 48)
    assert (back.name, moved(back)) == ("avg_pool2d_backward", (48, 240))
    assert found.saved == (0,)


def test_a_pooling_kernel_may_be_named() -> None:
    found = costs("pool", [X], [arg(2, 6, 1, 1)], op="avg", kernel=(4, 5), aten="mean")
    assert names(found.forward) == ["mean"]


def pointwise(fn: str, *ins: Arg, out: Arg = X) -> Costs:
    return costs("pointwise", list(ins), [out], fn=fn)


@pytest.mark.parametrize(
    ("fn", "backward", "saved"),
    [
        ("relu", "threshold_backward", (~0,)),
        ("sigmoid", "sigmoid_backward", (~0,)),
        ("tanh", "tanh_backward", (~0,)),
        ("gelu", "gelu_backward", (0,)),
        ("silu", "silu_backward", (0,)),
        ("hardswish", "hardswish_backward", (0,)),
        ("leaky_relu", "leaky_relu_backward", (0,)),
    ],
)
def test_activations(fn: str, backward: str, saved: tuple[int, ...]) -> None:
    """Forward is one pass; backward reads the gradient and what was kept, writes a gradient."""
    found = pointwise(fn, X)
    assert names(found.forward) == [fn]
    assert moved(only(found.forward)) == (240, 240)
    assert names(found.data) == [backward]
    assert moved(only(found.data)) == (480, 240)
    assert found.weight == ()
    assert found.saved == saved
    assert found.extra == 0


def test_a_sum_passes_its_gradient_on_without_a_kernel() -> None:
    found = pointwise("add", X, X)
    assert moved(only(found.forward)) == (480, 240)
    assert found.data == ()
    assert found.saved == ()


def test_a_broadcast_operand_gets_the_sum_of_the_gradient() -> None:
    bias = weight(5)
    found = pointwise("add", X, bias)
    assert moved(only(found.forward)) == (245, 240)
    assert names(found.data) == ["sum"]
    assert moved(only(found.data)) == (240, 5)
    assert shapes("pointwise", [X, bias], fn="add") == (X.shape,)


def test_a_difference_negates_the_second_gradient() -> None:
    found = pointwise("sub", X, X)
    assert names(found.data) == ["neg"]
    assert moved(only(found.data)) == (240, 240)


def test_a_product_needs_the_other_factor() -> None:
    found = pointwise("mul", X, X)
    assert names(found.data) == ["mul", "mul"]
    # Each reads the gradient and one factor and writes one gradient.
    assert [moved(k) for k in found.data] == [(480, 240), (480, 240)]
    assert found.saved == (0, 1)


def test_a_product_with_a_constant_keeps_the_constant_only() -> None:
    scale = arg(5, grad=False)
    found = pointwise("mul", X, scale)
    assert names(found.data) == ["mul"]
    assert moved(only(found.data)) == (240 + 5, 240)
    assert found.saved == (1,)


def test_the_gradient_of_a_scale_is_a_product_and_a_sum() -> None:
    scale = weight(5)
    found = pointwise("mul", arg(2, 6, 4, 5, grad=False), scale)
    assert names(found.data) == ["mul", "sum"]
    assert [moved(k) for k in found.data] == [(480, 240), (240, 5)]
    assert found.saved == (0,)


def test_a_quotient() -> None:
    """d(a/b)/da = dy / b; d(a/b)/db = -dy · (a / b) / b, four kernels."""
    found = pointwise("div", X, X)
    assert names(found.data) == ["div", "neg", "div", "div", "mul"]
    assert moved(found.data[0]) == (480, 240)
    assert found.saved == (0, 1)
    assert pointwise("div", X, arg(2, 6, 4, 5, grad=False)).saved == (1,)


def test_a_power() -> None:
    """dy · e · x^(e-1) for the base, dy · x^e · log x for the exponent: four kernels."""
    found = pointwise("pow", X, X)
    assert names(found.data) == ["pow", "mul", "mul", "pow", "log", "mul", "mul"]


def test_a_cumulative_sum_is_arithmetic_and_a_clone_is_not() -> None:
    sums, clone = (only(costs("copy", [X], [X], fn=fn).forward) for fn in ("cumsum", "clone"))
    assert (sums.ops, clone.ops) == (240, 0)
    assert names(costs("copy", [X], [X], fn="cumsum").data) == ["flip", "cumsum", "flip"]


def test_where_keeps_its_condition() -> None:
    """One byte for each element of the condition, read by the gradient of each branch."""
    condition = arg(2, 6, 4, 5, each=1, grad=False)
    found = pointwise("where", condition, X, X)
    assert only(found.forward).read == 240 + 2 * 4 * 240
    assert names(found.data) == ["where", "where"]
    assert [k.read for k in found.data] == [4 * 240 + 240] * 2
    assert found.saved == (0,)


def test_a_masked_fill_keeps_its_mask() -> None:
    mask = arg(2, 6, 4, 5, each=1, grad=False)
    found = pointwise("masked_fill", X, mask)
    assert names(found.data) == ["masked_fill"]
    assert only(found.data).read == 4 * 240 + 240
    assert found.saved == (1,)


@pytest.mark.parametrize("fn", sorted(RULES))
def test_no_gradient_no_backward(fn: str) -> None:
    still = arg(2, 6, 4, 5, grad=False)
    found = pointwise(fn, still, still)
    assert (found.data, found.saved) == ((), ())


@pytest.mark.parametrize("fn", sorted(NOT_DIFFERENTIABLE))
def test_comparisons_and_roundings_stop_the_gradient(fn: str) -> None:
    op = Op(name="op", kind="pointwise", inputs=("a",), outputs=("b",), attrs={"fn": fn})
    assert not KINDS["pointwise"].differentiable(op)
    assert fn not in RULES


def test_an_unknown_function_is_priced_as_one_pass_each_way() -> None:
    found = pointwise("bessel", X)
    assert moved(only(found.forward)) == (240, 240)
    assert len(found.data) == 1
    assert found.saved == (0,)


def test_shapes_are_broadcast() -> None:
    assert shapes("pointwise", [arg(3, 1, 5), arg(4, 1)], fn="add") == ((3, 4, 5),)
    assert shapes("pointwise", [arg(3), arg(4)], fn="add") == (None,)


def test_an_op_in_place_shares_its_input() -> None:
    for inplace in (True, False):
        attrs = {"fn": "relu", "inplace": inplace}
        op = Op(name="op", kind="pointwise", inputs=("a",), outputs=("b",), attrs=attrs)
        assert KINDS["pointwise"].alias(op) is inplace


def test_dropout_keeps_a_mask_of_one_byte_an_element() -> None:
    found = costs("dropout", [X], [X], p=0.1)
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, forward.read, forward.write) == ("native_dropout", 960, 960 + 240)
    assert (back.name, back.read, back.write) == ("native_dropout_backward", 960 + 240, 960)
    assert found.saved == ()
    assert found.extra == 240
    assert costs("dropout", [arg(5, grad=False)], [arg(5)], p=0.1).extra == 0


def test_concatenation_copies_forward_and_slices_backward() -> None:
    found = costs("concat", [arg(2, 3), arg(2, 5)], [arg(2, 8)], axis=1)
    assert names(found.forward) == ["cat"]
    assert moved(only(found.forward)) == (16, 16)
    assert found.data == ()
    assert shapes("concat", [arg(2, 3), arg(2, 5)], axis=1) == ((2, 8),)
    assert shapes("concat", [arg(2, 3), arg(4, 3)], axis=-2) == ((6, 3),)


@pytest.mark.parametrize("fn", ["reshape", "permute", "transpose", "squeeze"])
def test_other_axes_on_the_same_memory_are_free(fn: str) -> None:
    found = costs("view", [X], [arg(240)], fn=fn)
    assert (found.forward, found.data, found.saved) == ((), (), ())


def test_a_slice_is_written_back_into_zeros() -> None:
    found = costs("view", [arg(8, 5)], [arg(2, 5)], fn="slice")
    assert found.forward == ()
    assert names(found.data) == ["slice_backward"]
    # 40 zeros, then 10 values on top.
    assert moved(only(found.data)) == (10, 40 + 10)
    assert costs("view", [arg(8, 5)], [arg(8, 5)], fn="slice").data == ()


def test_a_split_is_concatenated_and_an_expansion_summed_back() -> None:
    parts = costs("view", [arg(8, 5)], [arg(4, 5), arg(4, 5)], fn="split")
    assert names(parts.data) == ["cat"]
    assert moved(only(parts.data)) == (40, 40)
    wide = costs("view", [arg(1, 5)], [arg(8, 5)], fn="expand")
    assert names(wide.data) == ["sum"]
    assert moved(only(wide.data)) == (40, 5)


def test_a_view_without_gradient_runs_nothing() -> None:
    assert costs("view", [arg(8, 5, grad=False)], [arg(2, 5)], fn="slice").data == ()


def test_a_cast_copies_each_way() -> None:
    found = costs("copy", [arg(10)], [arg(10, each=2)], fn="cast")
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, forward.read, forward.write) == ("_to_copy", 40, 20)
    assert (back.name, back.read, back.write) == ("_to_copy", 20, 40)
    assert costs("copy", [arg(10)], [arg(10)], fn="cast").forward == ()


def test_copies() -> None:
    clone = costs("copy", [X], [X], fn="clone")
    assert moved(only(clone.forward)) == (240, 240)
    assert clone.data == ()
    pad = costs("copy", [arg(4, 4)], [arg(6, 6)], fn="pad")
    assert (names(pad.forward), moved(only(pad.forward))) == (["constant_pad_nd"], (16, 36))
    assert (names(pad.data), moved(only(pad.data))) == (["constant_pad_nd"], (36, 16))
    repeat = costs("copy", [arg(4)], [arg(12)], fn="repeat")
    assert (names(repeat.data), moved(only(repeat.data))) == (["sum"], (12, 4))


def test_embedding() -> None:
    """Six rows of 4 out of 100; the dense gradient is 100 rows of zeros and six added to."""
    found = costs("embedding", [weight(100, 4), index(2, 3)], [arg(2, 3, 4)])
    forward, back = only(found.forward), only(found.weight)
    assert (forward.name, forward.family) == ("embedding", "gather")
    assert (forward.read, forward.write) == (4 * 24 + 8 * 6, 4 * 24)
    assert back.name == "embedding_dense_backward"
    assert (back.read, back.write) == (4 * 24 + 8 * 6, 4 * 400 + 4 * 24)
    assert found.data == ()
    assert found.saved == (1,)


def test_an_embedding_bag_reads_a_row_for_each_index() -> None:
    """Twelve rows of 4, summed three at a time into four."""
    (forward,) = costs("embedding", [weight(100, 4), index(12), index(4)], [arg(4, 4)]).forward
    assert (forward.read, forward.write) == (4 * 48 + 8 * 12, 4 * 16)


def test_gathering() -> None:
    found = costs("gather", [arg(100, 4), index(6)], [arg(6, 4)], fn="index")
    forward = only(found.forward)
    assert (forward.read, forward.write) == (4 * 24 + 8 * 6, 4 * 24)
    assert names(found.data) == ["index_put"]
    assert found.saved == (1,)


def test_scattering_reads_what_it_writes_into() -> None:
    ins = [arg(100, 4), index(6), arg(6, 4)]
    forward = only(costs("gather", ins, [arg(100, 4)], fn="index_add").forward)
    # A copy of the table; then 24 values, 6 indices and what is added to, read and written.
    assert (forward.read, forward.write) == (4 * 400 + 4 * 24 + 8 * 6 + 4 * 24, 4 * 400 + 4 * 24)


def test_filling() -> None:
    assert moved(only(costs("fill", [], [X], fn="zeros").forward)) == (0, 240)
    assert costs("fill", [], [X], fn="empty").forward == ()
    op = Op(name="op", kind="fill", inputs=(), outputs=("a",), attrs={"fn": "zeros"})
    assert not KINDS["fill"].differentiable(op)


@pytest.mark.parametrize(
    ("fn", "taps"),
    [
        ("upsample_nearest2d", 1),
        ("upsample_linear1d", 2),
        ("upsample_bilinear2d", 4),
        ("upsample_trilinear3d", 8),
        ("upsample_bicubic2d", 16),
    ],
)
def test_interpolation(fn: str, taps: int) -> None:
    """Each of 8 × 8 outputs is a weighted sum of so many inputs."""
    found = costs("interpolate", [arg(1, 1, 4, 4)], [arg(1, 1, 8, 8)], fn=fn)
    forward, back = only(found.forward), only(found.data)
    assert (moved(forward), forward.ops) == ((16, 64), 2 * taps * 64)
    assert (back.name, moved(back)) == (f"{fn}_backward", (64, 16))
    assert found.saved == ()


def test_sorting_for_routing() -> None:
    """The two best of 8 experts for each of 6 tokens; the places chosen are kept."""
    found = costs("sort", [arg(6, 8)], [arg(6, 2), index(6, 2)], fn="topk")
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, forward.family) == ("topk", "sort")
    # Not less than reading the scores and writing values and places once.
    assert forward.read >= 4 * 48
    assert forward.write >= 4 * 12 + 8 * 12
    assert back.write == 4 * 48
    assert found.saved == (~1,)


def test_reductions() -> None:
    total = costs("reduce", [X], [arg()], fn="sum")
    assert (moved(only(total.forward)), total.data) == ((240, 1), ())
    mean = costs("reduce", [X], [arg(2, 6)], fn="mean")
    assert names(mean.data) == ["div"]
    assert moved(only(mean.data)) == (12, 240)
    assert costs("reduce", [X], [arg(2)], fn="argmax").data == ()
    assert costs("reduce", [X], [arg(2)], fn="norm").saved == (0, ~0)


def test_an_op_without_a_formula_is_bounded_by_its_traffic() -> None:
    found = costs("unknown", [X, arg(7)], [arg(3), arg(2)], fn="fancy")
    forward, back = only(found.forward), only(found.data)
    assert (forward.name, forward.family) == ("fancy", "unknown")
    assert moved(forward) == (247, 5)
    assert back.name == "fancy_backward"
    assert moved(back) == (247 + 5, 247)
    assert found.saved == (0, 1)


def test_gradients_of_several_readers_are_added_up() -> None:
    """Three readers: two sums, each of two operands."""
    found = costs("accumulate", [X], [], readers=3)
    assert found.forward == ()
    assert names(found.data) == ["add", "add"]
    assert [moved(k) for k in found.data] == [(480, 240)] * 2


EVERY_KIND: dict[str, tuple[list[Arg], list[Arg], dict[str, Any]]] = {
    "accumulate": ([X], [], {"readers": 2}),
    "attention": ([arg(1, 2, 4, 8)] * 3, [arg(1, 2, 4, 8)], {"causal": True}),
    "batch_norm": ([X, weight(6), weight(6)], [X], {}),
    "concat": ([X, X], [arg(4, 6, 4, 5)], {"axis": 0}),
    "conv": (
        [X, weight(8, 6, 1, 1)],
        [arg(2, 8, 4, 5)],
        {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1},
    ),
    "copy": ([X], [X], {"fn": "clone"}),
    "cross_entropy": ([arg(8, 10), index(8)], [arg()], {}),
    "dropout": ([X], [X], {"p": 0.5}),
    "embedding": ([weight(9, 4), index(3)], [arg(3, 4)], {}),
    "fill": ([], [X], {"fn": "zeros"}),
    "gather": ([X, index(3)], [arg(3)], {"fn": "index"}),
    "group_norm": ([X, weight(6), weight(6)], [X], {"groups": 2}),
    "grouped_matmul": ([arg(12, 4), weight(3, 4, 5)], [arg(12, 5)], {}),
    "interpolate": ([X], [arg(2, 6, 8, 10)], {"fn": "upsample_nearest2d"}),
    "layer_norm": ([X, weight(5), weight(5)], [X], {"axes": 1}),
    "linear": ([X, weight(3, 5)], [arg(2, 6, 4, 3)], {}),
    "matmul": ([arg(2, 3), arg(3, 4)], [arg(2, 4)], {}),
    "pointwise": ([X], [X], {"fn": "relu"}),
    "pool": ([X], [arg(2, 6, 2, 2)], {"op": "avg", "kernel": (2, 2)}),
    "reduce": ([X], [arg()], {"fn": "sum"}),
    "rms_norm": ([X, weight(5)], [X], {"axes": 1}),
    "rnn": (
        [arg(7, 2, 3), weight(20, 3), weight(20, 5)],
        [arg(7, 2, 5)],
        {"cell": "lstm", "hidden": 5},
    ),
    "softmax": ([X], [X], {"axis": 1}),
    "sort": ([X], [X, index(2, 6, 4, 5)], {"fn": "sort"}),
    "unknown": ([X], [X], {"fn": "fancy"}),
    "view": ([X], [X], {"fn": "reshape"}),
}


def test_every_kind_is_in_the_table_below() -> None:
    assert set(EVERY_KIND) == set(KINDS)


@pytest.mark.parametrize("kind", sorted(EVERY_KIND))
def test_what_holds_for_every_kind(kind: str) -> None:
    ins, outs, attrs = EVERY_KIND[kind]
    least, most = KINDS[kind].inputs
    assert least <= len(ins) <= (most or len(ins))
    assert set(KINDS[kind].attrs) <= set(attrs)
    found = costs(kind, ins, outs, **attrs)
    for kernel in (*found.forward, *found.data, *found.weight):
        assert kernel.family in FAMILIES
        assert min(kernel.flops, kernel.ops, kernel.read, *kernel.dims) >= 0
        assert kernel.write > 0
        # A recurrent layer runs its 7 positions one after the other.
        assert kernel.launches == (7 if kind == "rnn" else 1)
        assert 0 < kernel.done <= 1
    assert all(-len(outs) <= i < len(ins) for i in found.saved)
    still = [a._replace(grad=False) for a in ins]
    frozen = costs(kind, still, outs, **attrs)
    assert frozen.forward == found.forward
    if kind != "accumulate":
        assert (frozen.data, frozen.weight, frozen.saved, frozen.extra) == ((), (), (), 0)


def test_what_was_computed_in_place_has_a_gradient_of_its_own() -> None:
    """A ReLU in place: its output's gradient and its input's, of 240 floats each, live at once."""
    assert costs("pointwise", [X], [X], fn="relu", inplace=True).workspace == 960
    assert costs("pointwise", [X], [X], fn="relu").workspace == 0
    # The gradient of a sum is the sum's gradient: nothing is made.
    assert costs("pointwise", [X, X], [X], fn="add", inplace=True).workspace == 0
