"""What ops launch on a GPU beyond what their kinds list, on networks of a few ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traincast.estimate.calibrated.species import keys_of
from traincast.estimate.program import Program, kernels_of, program_of
from traincast.graph import Graph, Op, Size, Tensor, verify
from traincast.graph.precision import PRECISIONS

CONV = {"stride": (1, 1), "padding": (0, 0), "dilation": (1, 1), "groups": 1}


def tensor(name: str, *shape: int | str, **options: Any) -> Tensor:
    return Tensor(name=name, shape=tuple(map(Size.parse, shape)), **options)


def op(name: str, kind: str, inputs: str, outputs: str, **attrs: Any) -> Op:
    ins, outs = tuple(inputs.split()), tuple(outputs.split())
    return Op(name=name, kind=kind, inputs=ins, outputs=outs, attrs=attrs)


def graph(tensors: list[Tensor], ops: list[Op]) -> Graph:
    made = Graph(name="small", ops=tuple(ops), tensors={t.name: t for t in tensors}, batch=2)
    return verify(made)


Row = tuple[str, int, str, float, float]


def rows(program: Program, batch: int = 2) -> list[Row]:
    """Return op, phase, kernel, bytes read and bytes written, in order."""
    kernels = kernels_of(program, batch, 0)
    found = []
    for name, index in zip(program.names, program.op_class, strict=True):
        for i in np.flatnonzero(kernels.op_class == index):
            moved = float(kernels.read[i]), float(kernels.write[i])
            found.append((name, int(kernels.phase[i]), kernels.names[i], *moved))
    return found


def names(found: list[Row], op_name: str, phase: int | None = None) -> list[str]:
    return [r[2] for r in found if r[0] == op_name and (phase is None or r[1] == phase)]


def turned() -> Graph:
    """[B, 3, 4] → [3, B, 4] without a copy, a linear layer, back, and a norm."""
    return graph(
        [
            tensor("x", "B", 3, 4, role="input"),
            tensor("s", 4, role="parameter"),
            tensor("w", 4, 4, role="parameter"),
            tensor("b", 4, role="parameter"),
            *(tensor(n, "B", 3, 4) for n in ("h", "u", "n")),
            *(tensor(n, 3, "B", 4) for n in ("t", "y")),
        ],
        [
            op("scale", "pointwise", "x s", "h", fn="mul"),
            op("turn", "view", "h", "t", fn="permute", order=(1, 0, 2)),
            op("linear", "linear", "t w b", "y"),
            op("back", "view", "y", "u", fn="permute", order=(1, 0, 2)),
            op("norm", "layer_norm", "u", "n", axes=1),
        ],
    )


def test_a_linear_layer_on_turned_axes_copies_and_adds_its_bias_apart() -> None:
    found = rows(program_of(turned(), PRECISIONS["fp32"], "nchw"))
    size = 4 * 2 * 3 * 4
    assert [r[2:] for r in found if r[0] == "linear" and r[1] == 0] == [
        ("copy_.permute", size, size),
        ("mm", size + 4 * 16, size),
        ("add.strided", size + 4 * 4, size),
    ]


def test_a_norm_copies_what_is_not_contiguous_in_both_passes() -> None:
    found = rows(program_of(turned(), PRECISIONS["fp32"], "nchw"))
    assert names(found, "norm", 0) == ["copy_.permute", "native_layer_norm"]
    assert names(found, "norm", 1) == ["copy_.permute", "native_layer_norm_backward"]
    # The norm's gradient is contiguous, so turned back it does not fold into rows.
    assert names(found, "linear", 1) == ["copy_.permute", "mm"]


def test_without_a_layout_kernels_are_those_of_the_aten_ops() -> None:
    found = rows(program_of(turned(), PRECISIONS["fp32"]))
    assert names(found, "linear", 0) == ["addmm"]
    assert names(found, "norm") == ["native_layer_norm", "native_layer_norm_backward"]


def image(layout: str, precision: str = "amp_bf16") -> Program:
    """A convolution, batch norm, a channel shuffle, a depthwise convolution, the mean."""
    shuffled = [
        op("split", "view", "n", "g", fn="reshape"),
        op("turn", "view", "g", "t", fn="permute", order=(0, 2, 1, 3, 4)),
        op("clone", "copy", "t", "c", fn="clone"),
        op("join", "view", "c", "j", fn="reshape"),
    ]
    made = graph(
        [
            tensor("x", "B", 3, 8, 8, role="input"),
            tensor("w", 4, 3, 3, 3, role="parameter"),
            tensor("d", 4, 1, 3, 3, role="parameter"),
            tensor("db", 4, role="parameter"),
            tensor("s", 4, role="parameter"),
            tensor("b", 4, role="parameter"),
            tensor("h", "B", 4, 6, 6),
            tensor("n", "B", 4, 6, 6),
            tensor("g", "B", 2, 2, 6, 6),
            tensor("t", "B", 2, 2, 6, 6),
            tensor("c", "B", 2, 2, 6, 6),
            tensor("j", "B", 4, 6, 6),
            tensor("k", "B", 4, 4, 4),
            tensor("m", "B", 4, 1, 1),
        ],
        [
            op("conv", "conv", "x w", "h", **CONV),
            op("norm", "batch_norm", "h s b", "n"),
            *shuffled,
            op("depthwise", "conv", "j d db", "k", **{**CONV, "groups": 4}),
            op("mean", "reduce", "k", "m", fn="mean"),
        ],
    )
    return program_of(made, PRECISIONS[precision], layout)


def test_a_shuffle_leaves_channels_first_and_the_convolution_turns_them_back() -> None:
    found = rows(image("nhwc"))
    assert names(rows(image("nchw")), "clone", 0) == ["copy_.permute"]
    # Channels are innermost before, columns after, and for the convolution channels again.
    assert names(found, "clone", 0) == ["copy_.transpose"]
    assert names(found, "depthwise", 0) == ["copy_.transpose", "convolution", "convolution.bias"]
    assert names(rows(image("nchw")), "depthwise", 0) == ["convolution"]


def test_kernels_tell_channels_last() -> None:
    for layout in ("nchw", "nhwc"):
        program = image(layout)
        kernels = kernels_of(program, 2, 0)
        told = {n for n, last in zip(kernels.names, kernels.nhwc, strict=True) if last}
        if layout == "nchw":
            assert told == set()
        else:
            assert {"convolution", "native_batch_norm", "convolution_backward.weight"} <= told


def test_the_mean_of_an_image_with_channels_last_has_its_gradient_put_into_zeros() -> None:
    assert names(rows(image("nhwc")), "mean", 1) == ["zeros", "clone", "div.spread"]
    assert names(rows(image("nchw")), "mean", 1) == ["div.spread"]


def test_a_clone_that_was_asked_for_keeps_the_order() -> None:
    made = graph(
        [
            tensor("x", "B", 3, 8, 8, role="input"),
            tensor("w", 4, 3, 3, 3, role="parameter"),
            *(tensor(n, "B", 4, 6, 6) for n in ("h", "c", "y")),
        ],
        [
            op("conv", "conv", "x w", "h", **CONV),
            op("clone", "copy", "h", "c", fn="clone"),
            op("act", "pointwise", "c", "y", fn="silu"),
        ],
    )
    for layout in ("nchw", "nhwc"):
        found = rows(program_of(made, PRECISIONS["fp32"], layout))
        assert names(found, "clone") == ["clone"]


def test_a_copy_to_contiguous_is_spared_where_channels_are_last() -> None:
    """[B, C, H, W] → [B, H, W, C] lies as it should if channels are last already."""
    made = graph(
        [
            tensor("x", "B", 3, 8, 8, role="input"),
            tensor("w", 4, 3, 3, 3, role="parameter"),
            tensor("h", "B", 4, 6, 6),
            tensor("t", "B", 6, 6, 4),
            tensor("c", "B", 6, 6, 4),
        ],
        [
            op("conv", "conv", "x w", "h", **CONV),
            op("turn", "view", "h", "t", fn="permute", order=(0, 2, 3, 1)),
            op("clone", "copy", "t", "c", fn="clone"),
        ],
    )
    first, last = (
        rows(program_of(made, PRECISIONS["fp32"], layout)) for layout in ("nchw", "nhwc")
    )
    assert names(first, "clone") == ["copy_.transpose"]
    assert names(last, "clone") == []


def test_parts_are_written_into_zeros() -> None:
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("p", "B", 2),
        ],
        [op("in", "linear", "x w", "h"), op("part", "view", "h", "p", fn="slice")],
    )
    found = rows(program_of(made, PRECISIONS["fp32"], "nchw"))
    assert [r[2:] for r in found if r[0] == "part"] == [
        ("zeros", 0, 4 * 16),
        ("copy_.narrow", 4 * 4, 4 * 4),
    ]


def mixed(kind: str, **attrs: Any) -> Graph:
    """A product in the low type meets the float32 input."""
    width = 16 if kind == "concat" else 8
    return graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("y", "B", width),
        ],
        [op("in", "linear", "x w", "h"), op("meet", kind, "h x", "y", **attrs)],
    )


@pytest.mark.parametrize(("kind", "attrs"), [("pointwise", {"fn": "add"}), ("concat", {"axis": 1})])
def test_gradients_are_cast_where_types_were_mixed(kind: str, attrs: dict[str, Any]) -> None:
    """x + h is float32; h, in bfloat16, gets its 16 gradients in bfloat16."""
    found = rows(program_of(mixed(kind, **attrs), PRECISIONS["amp_bf16"]))
    assert [r[1:] for r in found if r[0] == "meet" and r[1]] == [(1, "_to_copy", 4 * 16, 2 * 16)]
    assert names(rows(program_of(mixed(kind, **attrs), PRECISIONS["fp32"])), "meet", 1) == []


def test_cross_entropy_under_autocast_casts_log_probabilities_not_logits() -> None:
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("t", "B", role="input", dtype="int64"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("loss"),
        ],
        [op("in", "linear", "x w", "h"), op("loss", "cross_entropy", "h t", "loss")],
    )
    found = [r for r in rows(program_of(made, PRECISIONS["amp_bf16"])) if r[0] == "loss"]
    assert [(r[2], r[3]) for r in found] == [
        ("_log_softmax", 2 * 16),
        ("_to_copy", 2 * 16),
        ("nll_loss_forward", 8 * 2 + 4 * 2),
        ("nll_loss_backward", 8 * 2),
        ("_to_copy", 4 * 16),
        ("_log_softmax_backward_data", 2 * 2 * 16),
    ]
    assert "_to_copy" not in names(rows(program_of(made, PRECISIONS["bf16"])), "loss")


def test_a_cast_between_types_of_equal_width_is_a_copy() -> None:
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("y", "B", 8, dtype="float16"),
        ],
        [op("in", "linear", "x w", "h"), op("cast", "copy", "h", "y", fn="cast")],
    )
    assert names(rows(program_of(made, PRECISIONS["bf16"])), "cast") == ["_to_copy", "_to_copy"]
    assert names(rows(program_of(made, PRECISIONS["fp16"])), "cast") == []


def test_shared_heads_in_float32_are_repeated_and_masked() -> None:
    """Eight heads over two: k and v become four times as large; 4 positions, 16 channels."""
    made = graph(
        [
            tensor("w", 1, role="parameter"),
            tensor("q0", "B", 8, 4, 16, role="input"),
            tensor("k", "B", 2, 4, 16, role="input"),
            tensor("q", "B", 8, 4, 16),
            tensor("y", "B", 8, 4, 16),
        ],
        [
            op("scale", "pointwise", "q0 w", "q", fn="mul"),
            op("attend", "attention", "q k k", "y", causal=True),
        ],
    )
    found = rows(program_of(made, PRECISIONS["fp32"], "nchw"))
    wide = 4 * 2 * 8 * 4 * 16
    copies = [r[3:] for r in found if r[0] == "attend" and r[2] == "copy_.permute"]
    assert copies == [(wide, wide)] * 3
    assert names(found, "attend", 0) == [
        "mul", "zeros", "tril", "zeros", "zeros", "where.strided", "copy_.permute",
        "copy_.permute", "mul", "copy_.permute", "bmm", "add.strided", "_softmax", "isneginf",
        "all", "zeros", "where.strided", "bmm",
    ]  # fmt: skip


def test_noise_has_the_type_of_what_it_is_applied_to() -> None:
    """Stochastic depth multiplies by random numbers in the type of the block's output."""
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("h", "B", 8),
            tensor("r", "B", 1),
            tensor("y", "B", 8),
        ],
        [
            op("in", "linear", "x w", "h"),
            op("noise", "fill", "", "r", fn="bernoulli"),
            op("apply", "pointwise", "h r", "y", fn="mul"),
        ],
    )
    program = program_of(made, PRECISIONS["amp_bf16"])
    last = program.classes[program.op_class[-1]]
    assert [s.dtype for s in (*last.ins, *last.outs)] == ["bfloat16"] * 3


def test_elementwise_kernels_tell_broadcast_and_mixed_operands() -> None:
    """h · s broadcasts s; h + x mixes types; gelu has one operand."""
    made = graph(
        [
            tensor("x", "B", 8, role="input"),
            tensor("w", 8, 8, role="parameter"),
            tensor("s", 8, role="parameter"),
            *(tensor(n, "B", 8) for n in ("h", "g", "m", "y")),
        ],
        [
            op("in", "linear", "x w", "h"),
            op("act", "pointwise", "h", "g", fn="gelu"),
            op("add", "pointwise", "g x", "m", fn="add"),
            op("scale", "pointwise", "m s", "y", fn="mul"),
        ],
    )
    found = rows(program_of(made, PRECISIONS["amp_bf16"], "nchw"))
    assert names(found, "act") == ["gelu", "gelu_backward"]
    assert names(found, "add") == ["add.mixed", "_to_copy"]
    # The gradient of m is broadcast as well; that of s multiplies two tensors alike, then sums.
    assert names(found, "scale") == ["mul.strided", "mul.strided", "mul", "sum"]
    plain = rows(program_of(made, PRECISIONS["amp_bf16"]))
    assert names(plain, "scale") == ["mul", "mul", "mul", "sum"]


def test_sums_of_gradients_in_two_orders() -> None:
    """h is read as it is and turned; the turned reader's gradient comes back turned."""
    made = graph(
        [
            tensor("x", "B", 3, 4, role="input"),
            tensor("w", 4, 4, role="parameter"),
            *(tensor(n, "B", 3, 4) for n in ("h", "a")),
            *(tensor(n, 3, "B", 4) for n in ("t", "c", "r")),
            *(tensor(n, "B", 3, 4) for n in ("u", "y")),
        ],
        [
            op("in", "linear", "x w", "h"),
            op("act", "pointwise", "h", "a", fn="gelu"),
            op("turn", "view", "h", "t", fn="permute", order=(1, 0, 2)),
            op("clone", "copy", "t", "c", fn="clone"),
            op("again", "pointwise", "c", "r", fn="gelu"),
            op("back", "view", "r", "u", fn="permute", order=(1, 0, 2)),
            op("sum", "pointwise", "a u", "y", fn="add"),
        ],
    )
    found = rows(program_of(made, PRECISIONS["fp32"], "nchw"))
    assert names(found, "sum") == ["add.strided"]
    # The loss's gradient is contiguous: turned, it meets what gelu kept in the other order.
    assert names(found, "again", 1) == ["gelu_backward.strided"]
    assert names(found, "h.grad") == ["add"]


def test_recurrent_layers_are_one_call_forward_and_one_back() -> None:
    made = graph(
        [
            tensor("x", "B", 5, 4, role="input"),
            tensor("w", 12, 4, role="parameter"),
            tensor("u", 12, 3, role="parameter"),
            tensor("y", "B", 5, 3),
        ],
        [op("rnn", "rnn", "x w u", "y", cell="lstm", hidden=3, batch_first=True)],
    )
    plain, lowered = (
        kernels_of(program_of(made, PRECISIONS["fp32"], layout), 2, 0) for layout in ("", "nchw")
    )
    assert list(lowered.names) == ["rnn", "rnn_backward.data"]
    assert list(lowered.launches) == [1, 1]
    assert list(lowered.space) == [5, 5]
    # Every position takes one product with each matrix, and backward two.
    forward = 2 * (2 * 5) * (12 * 4 + 12 * 3)
    assert list(lowered.flops) == [forward, 2 * forward]
    assert plain.flops.sum() == lowered.flops.sum()


@pytest.mark.parametrize(("batch", "launches"), [(3072, 2), (3073, 30)])
def test_many_indices_are_sorted_before_their_gradients_are_added(
    batch: int, launches: int
) -> None:
    made = graph(
        [
            tensor("i", "B", role="input", dtype="int64"),
            tensor("t", 9, 4, role="parameter"),
            tensor("y", "B", 4),
        ],
        [op("look", "embedding", "t i", "y")],
    )
    kernels = kernels_of(program_of(made, PRECISIONS["fp32"], "nchw"), batch, 0)
    at = kernels.names.index("embedding_dense_backward")
    assert kernels.launches[at] == launches


@pytest.mark.parametrize("precision", ["fp32", "amp_bf16"])
def test_batch_norm_of_rows_is_pytorchs_own_with_channels_last(precision: str) -> None:
    made = graph(
        [
            tensor("x", "B", 4, role="input"),
            tensor("w", 4, 4, role="parameter"),
            *(tensor(n, 4, role="parameter") for n in "sb"),
            tensor("h", "B", 4),
            tensor("y", "B", 4),
        ],
        [op("linear", "linear", "x w", "h"), op("norm", "batch_norm", "h s b", "y")],
    )
    program = program_of(made, PRECISIONS[precision], "nchw")
    kernels = kernels_of(program, 8, 0)
    norms = [i for i, name in enumerate(kernels.names) if "batch_norm" in name]
    assert kernels.nhwc[norms].all()
    assert "copy_.permute" not in kernels.names
    key = keys_of(kernels, PRECISIONS[precision], training=False)[norms[0]]
    assert key.startswith("mul.strided|")
