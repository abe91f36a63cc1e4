"""ONNX ops on matrix units, norms, pools, losses: the op, its shape and weights, by hand."""

import math

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper

from traincast.graph import KINDS
from traincast.graph.kinds import Arg, Case
from traincast.ingest.onnx_file import load_onnx

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def weight(name, *shape):
    return numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)


def ints(name, values):
    return numpy_helper.from_array(np.asarray(values, np.int64), name)


def scalar(name, value):
    return numpy_helper.from_array(np.asarray(value, np.float32), name)


def node(op, ins, outs=("y",), **attrs):
    return helper.make_node(op, list(ins), list(outs), name=f"n_{outs[0]}", **attrs)


def save(tmp_path, nodes, inputs, stored=(), outputs=("y",), opset=17):
    """Write a model of these nodes; outputs need no declared shape."""
    infos = [
        helper.make_tensor_value_info(name, kind, list(shape))
        for name, (kind, shape) in inputs.items()
    ]
    outs = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs]
    graph = helper.make_graph(list(nodes), "g", infos, outs, list(stored))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture
def load(tmp_path):
    def run(nodes, inputs, stored=(), outputs=("y",), opset=17):
        nodes = nodes if isinstance(nodes, list) else [nodes]
        inputs = {k: v if isinstance(v, tuple) else (FLOAT, v) for k, v in inputs.items()}
        return load_onnx(save(tmp_path, nodes, inputs, stored, outputs, opset))

    return run


def shape(graph, name="y"):
    return [size.to_json() for size in graph.tensors[name].shape]


def op(graph, name="n_y"):
    return next(o for o in graph.ops if o.name == name)


def flops(graph, batch=1, seq=1):
    def arg(name):
        tensor = graph.tensors[name]
        lengths = tuple(s.at(batch, seq) for s in tensor.shape)
        return Arg(lengths, math.prod(lengths), 4, True, tensor.role)

    return sum(
        kernel.flops
        for o in graph.ops
        for kernel in KINDS[o.kind]
        .costs(Case(o.attrs, tuple(map(arg, o.inputs)), tuple(map(arg, o.outputs))))
        .forward
    )


IMAGE = {"x": ["N", 3, 8, 8]}
ROWS = {"x": ["N", 6]}


def test_convolution_with_groups_stride_and_dilation(load):
    graph = load(
        node("Conv", "xwb", group=3, strides=[2, 1], dilations=[1, 2], pads=[1, 2, 1, 2]),
        IMAGE,
        [weight("w", 6, 1, 3, 3), weight("b", 6)],
    )
    # (8 + 2 - 3)//2 + 1 = 4 rows, (8 + 4 - 5)//1 + 1 = 8 columns
    assert shape(graph) == ["B", 6, 4, 8]
    assert op(graph).attrs == {
        "stride": (2, 1),
        "padding": (1, 2),
        "dilation": (1, 2),
        "groups": 3,
    }
    assert graph.parameter_count == 6 * 9 + 6
    assert flops(graph) == 2 * (6 * 4 * 8) * 9


@pytest.mark.parametrize(
    ("attrs", "padded", "padding"),
    [
        ({"pads": [0, 0, 1, 1]}, [9, 9], (0, 0)),
        ({"pads": [1, 0, 2, 0]}, [9, 8], (1, 0)),
        ({"auto_pad": "SAME_UPPER"}, [9, 9], (0, 0)),
        ({"auto_pad": "SAME_LOWER"}, [9, 9], (0, 0)),
    ],
)
def test_uneven_padding_of_a_convolution_is_a_copy_first(load, attrs, padded, padding):
    graph = load(node("Conv", "xw", strides=[2, 2], **attrs), IMAGE, [weight("w", 4, 3, 3, 3)])
    first = graph.ops[0]
    assert (first.kind, first.attrs["fn"]) == ("copy", "pad")
    assert shape(graph, first.outputs[0]) == ["B", 3, *padded]
    assert graph.ops[1].attrs["padding"] == padding


def test_valid_auto_pad_pads_nothing(load):
    graph = load(node("Conv", "xw", auto_pad="VALID"), IMAGE, [weight("w", 4, 3, 3, 3)])
    assert shape(graph) == ["B", 4, 6, 6]


@pytest.mark.parametrize(
    ("attrs", "side"),
    [
        ({}, 17),  # (8 - 1)·2 + 3
        ({"pads": [1, 1, 1, 1], "output_padding": [1, 1]}, 16),
        ({"pads": [0, 0, 1, 1]}, 16),
        ({"output_shape": [16, 16]}, 16),
        ({"auto_pad": "SAME_UPPER"}, 16),
    ],
)
def test_transposed_convolution(load, attrs, side):
    graph = load(
        node("ConvTranspose", "xw", strides=[2, 2], **attrs), IMAGE, [weight("w", 3, 5, 3, 3)]
    )
    assert shape(graph) == ["B", 5, side, side]
    assert op(graph).attrs["transposed"] is True
    # Each of the 64 input sites meets every weight once.
    assert flops(graph) == 2 * 64 * 3 * 5 * 9


def test_one_and_three_dimensional_convolutions(load):
    line = load(node("Conv", "xw"), {"x": ["N", 3, 10]}, [weight("w", 4, 3, 3)])
    assert shape(line) == ["B", 4, 8]
    volume = load(node("Conv", "xw"), {"x": ["N", 3, 5, 6, 7]}, [weight("w", 4, 3, 3, 3, 3)])
    assert shape(volume) == ["B", 4, 3, 4, 5]


def test_gemm_with_either_layout_of_the_weight_is_a_linear_layer(load):
    plain = load(node("Gemm", "xwb", transB=1), ROWS, [weight("w", 4, 6), weight("b", 4)])
    assert (op(plain).kind, op(plain).inputs, op(plain).attrs) == ("linear", ("x", "w", "b"), {})
    turned = load(node("Gemm", "xw"), ROWS, [weight("w", 6, 4)])
    assert op(turned).attrs == {"transposed": True}
    assert shape(turned) == ["B", 4]
    assert flops(plain) == flops(turned) == 2 * 6 * 4


def test_gemm_of_activations_is_a_product(load):
    graph = load(
        node("Gemm", "xzc", transA=1, transB=1),
        {"x": [6, 5], "z": [4, 6], "c": [5, 4]},
    )
    assert [o.kind for o in graph.ops[:4]] == ["view", "view", "matmul", "pointwise"]
    assert shape(graph) == [5, 4]


def test_a_product_with_a_weight_and_its_bias_are_one_linear_layer(load):
    graph = load(
        [node("MatMul", "xw", ["h"]), node("Add", "bh")],
        {"x": ["N", "seq", 6]},
        [weight("w", 6, 4), weight("b", 4)],
    )
    assert op(graph, "n_h").inputs == ("x", "w", "b")
    assert op(graph, "n_h").attrs == {"transposed": True}
    assert shape(graph) == ["B", "S", 4]
    assert not any(o.kind == "pointwise" for o in graph.ops)


def test_a_product_that_is_read_twice_keeps_its_sum_apart(load):
    graph = load(
        [node("MatMul", "xw", ["h"]), node("Add", "hb", ["s"]), node("Mul", "hs")],
        ROWS,
        [weight("w", 6, 4), weight("b", 4)],
    )
    assert op(graph, "n_h").inputs == ("x", "w")
    assert op(graph, "n_s").kind == "pointwise"


def test_a_transposed_weight_is_the_weight_itself(load):
    graph = load(
        [node("Transpose", "w", ["t"], perm=[1, 0]), node("MatMul", "xt")],
        ROWS,
        [weight("w", 4, 6)],
    )
    assert op(graph).inputs == ("x", "w")
    assert op(graph).attrs == {}
    assert shape(graph, "w") == [4, 6]


def test_a_transposed_weight_elsewhere_is_a_view(load):
    graph = load(
        [node("Transpose", "w", ["t"]), node("Add", "xt")],
        {"x": ["N", 6, 4]},
        [weight("w", 4, 6)],
    )
    assert graph.ops[0].attrs == {"fn": "permute", "order": (1, 0)}
    assert shape(graph) == ["B", 6, 4]


def test_a_product_of_activations_broadcasts(load):
    graph = load(node("MatMul", "xz"), {"x": ["N", 4, 5, 6], "z": ["N", 1, 6, 7]})
    assert op(graph).kind == "matmul"
    assert shape(graph) == ["B", 4, 5, 7]
    assert flops(graph) == 2 * 4 * 5 * 6 * 7


@pytest.mark.parametrize(
    ("equation", "a", "b", "out", "work"),
    [
        ("bhqd,bhkd->bhqk", ["N", 2, 5, 4], ["N", 2, 7, 4], ["B", 2, 5, 7], 2 * 2 * 5 * 7 * 4),
        ("bqhd,bkhd->bhqk", ["N", 5, 2, 4], ["N", 7, 2, 4], ["B", 2, 5, 7], 2 * 2 * 5 * 7 * 4),
        ("bij,bjk->bik", ["N", 5, 4], ["N", 4, 3], ["B", 5, 3], 2 * 5 * 4 * 3),
        ("bij,bjk->bki", ["N", 5, 4], ["N", 4, 3], ["B", 3, 5], 2 * 5 * 4 * 3),
        ("bi,bi->b", ["N", 5], ["N", 5], ["B"], 2 * 5),
        ("bi,bi->bi", ["N", 5], ["N", 5], ["B", 5], 0),
        ("bi,bj->bij", ["N", 5], ["N", 3], ["B", 5, 3], 2 * 5 * 3),
    ],
)  # fmt: skip
def test_einsum_of_two_activations(load, equation, a, b, out, work):
    graph = load(node("Einsum", "xz", equation=equation), {"x": a, "z": b})
    assert shape(graph) == out
    assert flops(graph) == work


def test_einsum_with_a_weight_is_a_linear_layer(load):
    graph = load(
        node("Einsum", "xw", equation="bsd,de->bse"), {"x": ["N", 5, 6]}, [weight("w", 6, 4)]
    )
    assert any(o.kind == "linear" for o in graph.ops)
    assert flops(graph) == 2 * 5 * 6 * 4


def test_einsum_of_one_operand(load):
    turned = load(node("Einsum", "x", equation="abc->acb"), {"x": ["N", 5, 6]})
    assert op(turned).attrs == {"fn": "permute", "order": (0, 2, 1)}
    summed = load(node("Einsum", "x", equation="abc->ab"), {"x": ["N", 5, 6]})
    assert (op(summed).kind, shape(summed)) == ("reduce", ["B", 5])


@pytest.mark.parametrize(
    ("op_type", "weights", "kind", "attrs"),
    [
        ("LayerNormalization", 2, "layer_norm", {"axes": 1}),
        ("RMSNormalization", 1, "rms_norm", {"axes": 1}),
    ],
)
def test_normalisation_over_the_last_axis(load, op_type, weights, kind, attrs):
    stored = [weight(name, 6) for name in "wb"[:weights]]
    graph = load(node(op_type, "xwb"[: 1 + weights]), {"x": ["N", 5, 6]}, stored, opset=23)
    assert (op(graph).kind, op(graph).attrs) == (kind, attrs)
    assert graph.parameter_count == 6 * weights


def test_batch_normalisation_trains_scale_and_offset_alone(load):
    stored = [weight(name, 3) for name in "wbmv"]
    graph = load(node("BatchNormalization", "xwbmv"), IMAGE, stored)
    assert op(graph).inputs == ("x", "w", "b")
    assert graph.parameter_count == 6


def test_group_and_instance_normalisation(load):
    stored = [weight("w", 4), weight("b", 4)]
    image = {"x": ["N", 4, 8, 8]}
    groups = load(node("GroupNormalization", "xwb", num_groups=2), image, stored, opset=21)
    assert (op(groups).kind, op(groups).attrs) == ("group_norm", {"groups": 2})
    instance = load(node("InstanceNormalization", "xwb"), image, stored)
    assert (op(instance).kind, op(instance).attrs) == ("group_norm", {"groups": 4})


@pytest.mark.parametrize(
    ("op_type", "attrs", "side", "kind"),
    [
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2]}, 3, "max"),
        ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, 4, "max"),
        (
            "MaxPool",
            {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
            4,
            "max",
        ),
        ("AveragePool", {"kernel_shape": [2, 2], "strides": [2, 2]}, 4, "avg"),
        ("AveragePool", {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 8, "avg"),
        ("MaxPool", {"kernel_shape": [2, 2], "dilations": [3, 3]}, 5, "max"),
    ],
)
def test_pooling(load, op_type, attrs, side, kind):
    graph = load(node(op_type, "x", **attrs), IMAGE)
    assert shape(graph) == ["B", 3, side, side]
    assert op(graph).attrs["op"] == kind
    assert len(op(graph).outputs) == (2 if kind == "max" else 1)


def test_global_pooling(load):
    mean = load(node("GlobalAveragePool", "x"), IMAGE)
    assert (op(mean).kind, op(mean).attrs["fn"], shape(mean)) == ("reduce", "mean", ["B", 3, 1, 1])
    largest = load(node("GlobalMaxPool", "x"), IMAGE)
    assert (op(largest).kind, op(largest).attrs["kernel"]) == ("pool", (8, 8))


@pytest.mark.parametrize(
    ("cell", "gates", "ways"),
    [("LSTM", 4, 1), ("LSTM", 4, 2), ("GRU", 3, 1), ("RNN", 1, 2)],
)
def test_recurrent_layers(load, cell, gates, ways):
    h, i = 5, 3
    attrs = {"hidden_size": h, "direction": "bidirectional" if ways == 2 else "forward"}
    graph = load(
        node(cell, "xwrb", **attrs),
        {"x": ["seq", "batch", i]},
        [weight("w", ways, gates * h, i), weight("r", ways, gates * h, h),
         weight("b", ways, 2 * gates * h)],
    )  # fmt: skip
    assert shape(graph) == ["S", ways, "B", h]
    assert op(graph).attrs["cell"] == cell.lower()
    assert graph.parameter_count == ways * gates * h * (i + h + 2)
    # In each position and direction every weight of a matrix is used once.
    assert flops(graph, batch=2, seq=7) == 2 * 2 * 7 * ways * gates * h * (i + h)


@pytest.mark.parametrize("packed", [False, True])
def test_attention(load, packed):
    heads, shared, d = 4, 2, 8
    attrs = {"is_causal": 1}
    if packed:
        attrs |= {"q_num_heads": heads, "kv_num_heads": shared}
        q, kv = ["N", "seq", heads * d], ["N", "seq", shared * d]
    else:
        q, kv = ["N", heads, "seq", d], ["N", shared, "seq", d]
    graph = load(node("Attention", "qkv", **attrs), {"q": q, "k": kv, "v": kv}, opset=23)
    attention = next(o for o in graph.ops if o.kind == "attention")
    assert attention.attrs == {"causal": True}
    assert shape(graph) == (["B", "S", 32] if packed else ["B", 4, "S", 8])
    assert flops(graph, 1, 10) == 2 * 2 * heads * 10 * 10 * d


def test_losses_of_the_file_are_kept(load):
    inputs = {"x": ["N", 10], "t": (INT64, ["N"])}
    entropy = load(node("SoftmaxCrossEntropyLoss", "xt"), inputs)
    assert (op(entropy).kind, shape(entropy), len(entropy.ops)) == ("cross_entropy", [], 1)
    assert entropy.notes == ()
    likelihood = load(
        [node("LogSoftmax", "x", ["l"]), node("NegativeLogLikelihoodLoss", "lt")], inputs
    )
    assert op(likelihood).attrs["fn"] == "nll_loss_forward"


def test_an_op_without_a_formula_is_kept_under_its_name(load):
    graph = load(node("LpNormalization", "x", axis=1), ROWS)
    assert (op(graph).kind, op(graph).attrs, shape(graph)) == (
        "unknown", {"fn": "onnx.LpNormalization"}, ["B", 6],
    )  # fmt: skip
