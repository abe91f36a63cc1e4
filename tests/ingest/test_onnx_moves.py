"""ONNX ops that work elementwise, reduce or move data: the op and its shape, by hand."""

import pytest

onnx = pytest.importorskip("onnx")

import numpy as np
from onnx import numpy_helper
from test_onnx_ops import (
    BOOL,
    FLOAT,
    IMAGE,
    INT64,
    ROWS,
    ints,
    load,
    node,
    op,
    scalar,
    shape,
    weight,
)

__all__ = ["load"]


@pytest.mark.parametrize(
    ("op_type", "fn"),
    [
        ("Relu", "relu"), ("LeakyRelu", "leaky_relu"), ("Elu", "elu"), ("Selu", "elu"),
        ("Sigmoid", "sigmoid"), ("HardSigmoid", "hardsigmoid"), ("HardSwish", "hardswish"),
        ("Tanh", "tanh"), ("Gelu", "gelu"), ("Softplus", "softplus"), ("Mish", "mish"),
        ("Erf", "erf"), ("Sqrt", "sqrt"), ("Exp", "exp"), ("Log", "log"), ("Neg", "neg"),
        ("Abs", "abs"), ("Reciprocal", "reciprocal"), ("Sin", "sin"), ("Floor", "floor"),
        ("Clip", "clamp"), ("Softsign", "softsign"), ("Trilu", "triu"),
    ],
)  # fmt: skip
def test_functions_of_one_input(load, op_type, fn):
    graph = load(node(op_type, "x"), {"x": ["N", 6, 6]}, opset=20)
    assert (op(graph).kind, op(graph).attrs["fn"], shape(graph)) == ("pointwise", fn, ["B", 6, 6])


@pytest.mark.parametrize(
    ("op_type", "fn"),
    [("Add", "add"), ("Sub", "sub"), ("Mul", "mul"), ("Div", "div"), ("Pow", "pow"),
     ("Min", "minimum"), ("Max", "maximum"), ("Mod", "remainder")],
)  # fmt: skip
def test_functions_of_two_inputs_broadcast(load, op_type, fn):
    graph = load(node(op_type, "xz"), {"x": ["N", 1, 6], "z": ["N", 5, 1]})
    assert (op(graph).attrs["fn"], shape(graph)) == (fn, ["B", 5, 6])


@pytest.mark.parametrize(
    ("op_type", "fn"),
    [("Equal", "eq"), ("Less", "lt"), ("GreaterOrEqual", "ge"), ("Greater", "gt")],
)
def test_comparisons_give_truth_values(load, op_type, fn):
    graph = load(
        [node(op_type, "xz", ["c"]), node("Where", "cxz")],
        {"x": ["N", 6], "z": ["N", 6]},
    )
    assert (op(graph, "n_c").attrs["fn"], graph.tensors["c"].dtype) == (fn, "bool")
    assert (op(graph).attrs["fn"], graph.tensors["y"].dtype) == ("where", "float")


def test_logic_on_truth_values(load):
    graph = load(
        [node("And", "pq", ["a"]), node("Not", "a", ["b"]), node("Cast", "b", to=FLOAT)],
        {"p": (BOOL, ["N", 6]), "q": (BOOL, ["N", 6])},
    )
    assert [o.attrs["fn"] for o in graph.ops[:3]] == ["logical_and", "logical_not", "cast"]


@pytest.mark.parametrize(
    ("op_type", "ins", "value", "fn"),
    [
        ("Mul", "xs", 2.0, "mul_scalar"),
        ("Mul", "sx", 2.0, "mul_scalar"),
        ("Div", "xs", 2.0, "div_scalar"),
        ("Div", "sx", 2.0, "reciprocal"),
        ("Sub", "sx", 2.0, "rsub"),
        ("Add", "xs", 2.0, "add"),
        ("Pow", "xs", 2.0, "square"),
        ("Pow", "xs", 0.5, "sqrt"),
        ("Pow", "xs", 3.0, "pow"),
    ],
)
def test_a_plain_number_is_no_tensor(load, op_type, ins, value, fn):
    graph = load(node(op_type, ins), ROWS, [scalar("s", value)])
    assert (op(graph).inputs, op(graph).attrs["fn"]) == (("x",), fn)
    assert graph.parameter_count == 0


def test_sums_of_several(load):
    graph = load(node("Sum", "xxx"), ROWS)
    assert [o.attrs["fn"] for o in graph.ops[:2]] == ["add", "add"]
    mean = load(node("Mean", "xx"), ROWS)
    assert [o.attrs["fn"] for o in mean.ops[:2]] == ["add", "div_scalar"]


def test_prelu_trains_its_slope(load):
    graph = load(node("PRelu", "xw"), IMAGE, [weight("w", 3, 1, 1)])
    assert (op(graph).attrs["fn"], graph.parameter_count) == ("prelu", 3)


def test_softmax_and_its_default_axis(load):
    middle = [node("Softmax", "x", ["s"]), node("Relu", "s")]
    assert op(load(middle, {"x": ["N", 5, 6]}), "n_s").attrs == {"axis": 2}
    assert op(load(middle, {"x": ["N", 5, 6]}, opset=11), "n_s").attrs == {"axis": 1}
    log = load([node("LogSoftmax", "x", ["s"], axis=1), node("Relu", "s")], {"x": ["N", 5]})
    assert op(log, "n_s").attrs == {"axis": 1, "log": True}


def test_dropout_from_attribute_and_from_input(load):
    old = load(node("Dropout", "x", ratio=0.3), ROWS, opset=11)
    assert op(old).attrs["p"] == pytest.approx(0.3)
    new = load(node("Dropout", "xr", ["y", "mask"]), ROWS, [scalar("r", 0.25)])
    assert op(new).attrs["p"] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("op_type", "fn"),
    [("ReduceMean", "mean"), ("ReduceMax", "amax"), ("ReduceL2", "norm"), ("ReduceProd", "prod"),
     ("ReduceLogSumExp", "logsumexp"), ("ReduceMin", "amin")],
)  # fmt: skip
def test_reductions(load, op_type, fn):
    graph = load(node(op_type, "x", axes=[2], keepdims=0), {"x": ["N", 5, 6]})
    assert (op(graph).attrs["fn"], shape(graph)) == (fn, ["B", 5])
    newer = load(node(op_type, "xa"), {"x": ["N", 5, 6]}, [ints("a", [-1])], opset=18)
    assert shape(newer) == ["B", 5, 1]


def test_argmax_and_top_k_give_indices(load):
    graph = load(
        [node("ArgMax", "x", ["i"], axis=1, keepdims=0), node("TopK", "xk", ["y", "j"])],
        ROWS,
        [ints("k", [2])],
        outputs=["y", "i"],
    )
    assert (shape(graph, "i"), graph.tensors["i"].dtype) == (["B"], "int64")
    assert (op(graph).kind, shape(graph), graph.tensors["j"].dtype) == ("sort", ["B", 2], "int64")


def test_concat_split_slice_and_pad(load):
    graph = load(
        [
            node("Split", ["x", "parts"], ["a", "b"], axis=1),
            node("Concat", "aba", ["c"], axis=1),
            node("Slice", ["c", "s", "e", "ax", "st"], ["d"]),
            node("Pad", ["d", "pads"]),
        ],
        ROWS,
        [ints("parts", [2, 4]), ints("s", [1]), ints("e", [-1]), ints("ax", [1]),
         ints("st", [2]), ints("pads", [0, 1, 0, 2])],
    )  # fmt: skip
    assert (shape(graph, "a"), shape(graph, "b"), shape(graph, "c")) == (
        ["B", 2], ["B", 4], ["B", 8],
    )  # fmt: skip
    assert shape(graph, "d") == ["B", 3]  # positions 1, 3, 5 of 8
    assert shape(graph) == ["B", 6]
    assert [o.kind for o in graph.ops[:4]] == ["view", "concat", "view", "copy"]


def test_old_forms_take_their_arguments_from_attributes(load):
    graph = load(
        [
            node("Slice", "x", ["a"], starts=[0], ends=[4], axes=[1]),
            node("Unsqueeze", "a", ["b"], axes=[1]),
            node("Squeeze", "b", ["c"], axes=[1]),
            node("Split", "c", ["d", "e"], axis=1),
            node("Pad", "d", ["f"], pads=[0, 0, 0, 2]),
            node("Clip", "f", min=0.0, max=6.0),
        ],
        ROWS,
        opset=9,
    )
    assert [shape(graph, n) for n in "abcdfy"] == [
        ["B", 4], ["B", 1, 4], ["B", 4], ["B", 2], ["B", 4], ["B", 4],
    ]  # fmt: skip


def test_a_negative_step_is_a_copy(load):
    graph = load(
        node("Slice", ["x", "s", "e", "ax", "st"]),
        ROWS,
        [ints("s", [-1]), ints("e", [-(2**31)]), ints("ax", [1]), ints("st", [-1])],
    )
    assert (op(graph).kind, op(graph).attrs["fn"], shape(graph)) == ("copy", "flip", ["B", 6])


def test_gather_is_an_embedding_a_selection_or_a_lookup(load):
    table = load(
        node("Gather", ["w", "ids"]),
        {"ids": (INT64, ["N", "seq"])},
        [weight("w", 50, 8)],
    )
    assert (op(table).kind, op(table).inputs, shape(table)) == (
        "embedding", ("w", "ids"), ["B", "S", 8],
    )  # fmt: skip
    one = load(node("Gather", "xi", axis=1), {"x": ["N", 5, 6]}, [ints("i", 0)])
    assert (op(one).attrs["fn"], shape(one)) == ("select", ["B", 6])
    some = load(node("Gather", "xi", axis=2), {"x": ["N", 5, 6]}, [ints("i", [0, 2])])
    assert (op(some).attrs["fn"], shape(some)) == ("index_select", ["B", 5, 2])


def test_gather_and_scatter_by_element(load):
    inputs = {"x": ["N", 6], "i": (INT64, ["N", 2]), "u": ["N", 2]}
    picked = load(node("GatherElements", "xi", axis=1), inputs)
    assert (op(picked).attrs["fn"], shape(picked)) == ("gather", ["B", 2])
    put = load(node("ScatterElements", "xiu", axis=1), inputs)
    assert (op(put).attrs["fn"], shape(put)) == ("scatter", ["B", 6])
    added = load(node("ScatterElements", "xiu", axis=1, reduction="add"), inputs)
    assert op(added).attrs["fn"] == "scatter_add"
    nd = load(node("GatherND", "xj"), {"x": [4, 6], "j": (INT64, [3, 1])})
    assert shape(nd) == [3, 6]


def test_reshape_copies_zero_and_takes_the_rest(load):
    graph = load(node("Reshape", "xs"), {"x": ["N", 4, 6]}, [ints("s", [0, -1])])
    assert (op(graph).attrs["fn"], shape(graph)) == ("reshape", ["B", 24])


def test_merging_permuted_axes_takes_a_copy(load):
    graph = load(
        [node("Transpose", "x", ["t"], perm=[0, 2, 1]), node("Reshape", "ts")],
        {"x": ["N", 4, 6]},
        [ints("s", [0, -1])],
    )
    assert [(o.kind, o.attrs["fn"]) for o in graph.ops[:3]] == [
        ("view", "permute"), ("copy", "clone"), ("view", "reshape"),
    ]  # fmt: skip


def test_flatten_expand_and_tile(load):
    flat = load(node("Flatten", "x", axis=2), {"x": ["N", 4, 6]})
    assert shape(flat) == ["4*B", 6]
    wide = load(node("Expand", "xs"), {"x": ["N", 1, 6]}, [ints("s", [1, 5, 6])])
    assert (op(wide).attrs["fn"], shape(wide)) == ("expand", ["B", 5, 6])
    tiled = load(node("Tile", "xs"), ROWS, [ints("s", [1, 3])])
    assert (op(tiled).attrs["fn"], shape(tiled)) == ("repeat", ["B", 18])


@pytest.mark.parametrize(
    ("mode", "fn"),
    [("nearest", "upsample_nearest2d"), ("linear", "upsample_bilinear2d"),
     ("cubic", "upsample_bicubic2d")],
)  # fmt: skip
def test_resize_by_scales(load, mode, fn):
    scales = numpy_helper.from_array(np.asarray([1, 1, 2, 1.5], np.float32), "s")
    graph = load(node("Resize", ["x", "", "s"], mode=mode), IMAGE, [scales])
    assert (op(graph).kind, op(graph).attrs["fn"]) == ("interpolate", fn)
    assert shape(graph) == ["B", 3, 16, 12]
    assert graph.parameter_count == 0


def test_resize_to_sizes_and_upsample(load):
    sized = load(
        [
            node("Shape", "x", ["all"]),
            node("Slice", ["all", "zero", "two"], ["lead"]),
            node("Concat", ["lead", "hw"], ["sizes"], axis=0),
            node("Resize", ["x", "", "", "sizes"]),
        ],
        IMAGE,
        [ints("zero", [0]), ints("two", [2]), ints("hw", [5, 7])],
    )
    assert shape(sized) == ["B", 3, 5, 7]
    old = load(node("Upsample", "x", scales=[1.0, 1.0, 2.0, 2.0]), IMAGE, opset=7)
    assert shape(old) == ["B", 3, 16, 16]


def test_depth_and_space(load):
    deep = load(node("SpaceToDepth", "x", blocksize=2), IMAGE)
    assert (op(deep).attrs["fn"], shape(deep)) == ("pixel_unshuffle", ["B", 12, 4, 4])
    wide = load(node("DepthToSpace", "x", blocksize=2), {"x": ["N", 12, 4, 4]})
    assert (op(wide).attrs["fn"], shape(wide)) == ("pixel_shuffle", ["B", 3, 8, 8])


def test_cumulative_sum_and_one_hot(load):
    total = load(node("CumSum", "xa"), ROWS, [ints("a", 1)])
    assert (op(total).attrs["fn"], shape(total)) == ("cumsum", ["B", 6])
    hot = load(
        node("OneHot", ["i", "d", "v"]),
        {"i": (INT64, ["N", "seq"])},
        [ints("d", 10), numpy_helper.from_array(np.asarray([0, 1], np.float32), "v")],
    )
    assert shape(hot) == ["B", "S", 10]
