"""ONNX files as a whole: batch and sequence, losses, known networks, and files that are wrong."""

import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper
from test_onnx_ops import FLOAT, INT64, flops, ints, node, save, scalar, shape, weight

from traincast.errors import (
    IngestError,
    InvalidValueError,
)
from traincast.ingest.onnx_file import load_onnx


def conv(name, x, y, channels, kernel, **attrs):
    """Return the node and weights of a convolution with a bias."""
    c_in, c_out = channels
    stored = [weight(f"{name}.weight", c_out, c_in, kernel, kernel), weight(f"{name}.bias", c_out)]
    made = helper.make_node(
        "Conv", [x, f"{name}.weight", f"{name}.bias"], [y], name=f"/{name}/Conv", **attrs
    )
    return made, stored


def lenet(batch="N"):
    """Return LeNet-5 on 32 × 32 images, with average pooling and tanh."""
    c1, w1 = conv("c1", "x", "a", (1, 6), 5)
    c3, w3 = conv("c3", "d", "e", (6, 16), 5)
    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        c1,
        node("Tanh", "a", ["b"]),
        node("AveragePool", "b", ["d"], **pool),
        c3,
        node("Tanh", "e", ["f"]),
        node("AveragePool", "f", ["g"], **pool),
        node("Flatten", "g", ["h"]),
    ]
    stored = [*w1, *w3]
    last = "h"
    for name, (wide, out) in {"f5": (400, 120), "f6": (120, 84), "f7": (84, 10)}.items():
        nodes.append(node("Gemm", [last, f"{name}.weight", f"{name}.bias"], [name], transB=1))
        stored += [weight(f"{name}.weight", out, wide), weight(f"{name}.bias", out)]
        last = name
    return nodes, {"x": (FLOAT, [batch, 1, 32, 32])}, stored, [last]


def test_lenet_by_hand(tmp_path):
    nodes, inputs, stored, outputs = lenet()
    graph = load_onnx(save(tmp_path, nodes, inputs, stored, outputs))
    # Weights and biases: 156 + 2,416 + 48,120 + 10,164 + 850.
    assert graph.parameter_count == 61_706
    products = 6 * 28 * 28 * 25 + 16 * 10 * 10 * 150 + 400 * 120 + 120 * 84 + 84 * 10
    assert flops(graph) == 2 * products
    assert flops(graph, batch=7) == 7 * 2 * products
    assert graph.ops[-1].kind == "cross_entropy"
    assert graph.tensors["target"].dtype == "int64"
    assert graph.notes == ("cross-entropy on the output is assumed",)
    assert graph.ops[0].layer == "c1"


def test_a_residual_block_by_hand(tmp_path):
    a, wa = conv("conv1", "x", "a", (8, 16), 3, strides=[2, 2], pads=[1, 1, 1, 1])
    b, wb = conv("conv2", "r", "b", (16, 16), 3, pads=[1, 1, 1, 1])
    c, wc = conv("short", "x", "c", (8, 16), 1, strides=[2, 2])
    norm = [weight(n, 16) for n in ("g", "o", "mean", "var")]
    nodes = [
        a,
        node("BatchNormalization", ["a", "g", "o", "mean", "var"], ["n"]),
        node("Relu", "n", ["r"]),
        b,
        c,
        node("Add", "bc", ["s"]),
        node("Relu", "s", ["t"]),
        node("GlobalAveragePool", "t", ["p"]),
        node("Flatten", "p"),
    ]
    graph = load_onnx(
        save(tmp_path, nodes, {"x": (FLOAT, ["N", 8, 14, 14])}, [*wa, *wb, *wc, *norm])
    )
    assert graph.parameter_count == (1152 + 16) + 32 + (2304 + 16) + (128 + 16)
    assert flops(graph) == 2 * 49 * (1152 + 2304 + 128)
    assert shape(graph) == ["B", 16]
    assert graph.tensors["s"].dims == ("sample", "channel", "height", "width")


def test_a_fixed_batch_becomes_free_where_shapes_allow(tmp_path):
    nodes, inputs, stored, outputs = lenet(batch=4)
    graph = load_onnx(save(tmp_path, nodes, inputs, stored, outputs))
    assert (graph.batch, graph.fixed) == (4, ())
    assert shape(graph, "x") == ["B", 1, 32, 32]


def test_a_batch_that_is_written_into_a_reshape_is_held(tmp_path):
    nodes = [node("Reshape", "xs", ["h"]), node("MatMul", "hw")]
    stored = [ints("s", [4, 12]), weight("w", 12, 5)]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, [4, 3, 4])}, stored))
    assert (graph.batch, graph.fixed) == (4, ("batch",))
    assert shape(graph) == [4, 5]
    assert graph.notes[0].startswith("the batch is held at 4, as in the file (node 'n_h' (Reshape)")


def test_inputs_with_different_first_axes_hold_the_batch(tmp_path):
    graph = load_onnx(
        save(tmp_path, [node("MatMul", "xz")], {"x": (FLOAT, [4, 3]), "z": (FLOAT, [3, 5])})
    )
    assert (graph.batch, graph.fixed) == (4, ("batch",))


def language_model(batch="batch", seq="sequence"):
    """Token and position embeddings, with the positions computed from the shape of the ids."""
    nodes = [
        node("Gather", ["tokens", "ids"], ["t"]),
        node("Shape", ["ids"], ["shape"]),
        node("Gather", ["shape", "one"], ["length"], axis=0),
        node("Range", ["zero", "length", "one"], ["positions"]),
        node("Unsqueeze", ["positions", "axis"], ["row"]),
        node("Gather", ["places", "row"], ["p"]),
        node("Add", "tp", ["h"]),
        node("MatMul", ["h", "head"]),
    ]
    stored = [
        weight("tokens", 100, 8), weight("places", 64, 8), weight("head", 8, 100),
        ints("zero", 0), ints("one", 1), ints("axis", [0]),
    ]  # fmt: skip
    return nodes, {"ids": (INT64, [batch, seq])}, stored


def test_batch_and_sequence_follow_through_shape_arithmetic(tmp_path):
    graph = load_onnx(save(tmp_path, *language_model()))
    assert shape(graph, "h") == ["B", "S", 8]
    assert shape(graph, "p") == [1, "S", 8]
    assert shape(graph) == ["B", "S", 100]
    assert graph.seq == 128
    assert not graph.fixed
    # Positions are a constant of S numbers, neither an op nor a parameter.
    assert graph.tensors["row"].role == "buffer"
    assert graph.parameter_count == 800 + 512 + 800
    loss = graph.ops[-1]
    assert shape(graph, loss.inputs[0]) == ["B*S", 100]
    assert shape(graph, "target") == ["B*S"]


def test_unnamed_open_axes_of_tokens_are_batch_and_sequence(tmp_path):
    graph = load_onnx(save(tmp_path, *language_model(batch=None, seq=None)))
    assert shape(graph) == ["B", "S", 100]


def test_a_fixed_sequence_becomes_free_where_shapes_allow(tmp_path):
    graph = load_onnx(save(tmp_path, *language_model(batch=2, seq=32)))
    assert (graph.batch, graph.seq, graph.fixed) == (2, 32, ())
    assert shape(graph) == ["B", "S", 100]


def test_a_sequence_that_only_fits_one_length_is_held(tmp_path):
    nodes = [node("Gather", ["w", "ids"], ["t"]), node("Add", "tp", ["h"]), node("Relu", "h")]
    stored = [weight("w", 100, 8), weight("p", 32, 8)]
    graph = load_onnx(save(tmp_path, nodes, {"ids": (INT64, ["batch", 32])}, stored))
    assert (graph.seq, graph.fixed) == (32, ("seq",))
    assert shape(graph) == ["B", 32, 8]
    assert any("the sequence length is held at 32" in note for note in graph.notes)


def test_halved_lengths_stay_symbolic(tmp_path):
    pool = node("MaxPool", "x", kernel_shape=[2], strides=[2])
    graph = load_onnx(save(tmp_path, [pool], {"x": (FLOAT, ["N", 4, "length"])}))
    assert shape(graph) == ["B", 4, "S/2"]


def test_an_absent_past_has_no_positions(tmp_path):
    graph = load_onnx(
        save(
            tmp_path,
            [node("Concat", "px", axis=1)],
            {"p": (FLOAT, ["batch", "past_sequence_length", 8]), "x": (FLOAT, ["batch", "seq", 8])},
        )
    )
    assert shape(graph) == ["B", "S", 8]
    assert any("'past_sequence_length' is taken as 0" in note for note in graph.notes)


def test_other_open_axes_need_a_length(tmp_path):
    path = save(tmp_path, [node("Relu", "x")], {"x": (FLOAT, ["N", 3, "height", "width"])})
    with pytest.raises(IngestError, match=r"axis 2 \('height'\) of the input 'x' and of axis 3"):
        load_onnx(path)
    assert shape(load_onnx(path, axes={"height": 32, "width": 48})) == ["B", 3, 32, 48]
    with pytest.raises(InvalidValueError, match="'height' is given the length -1"):
        load_onnx(path, axes={"height": -1, "width": 48})


def test_a_final_softmax_is_part_of_the_loss(tmp_path):
    nodes = [node("MatMul", "xw", ["h"]), node("Softmax", "h")]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, ["N", 6])}, [weight("w", 6, 4)]))
    assert [o.kind for o in graph.ops] == ["linear", "cross_entropy"]
    assert graph.ops[-1].name == "n_y"
    assert "the final softmax is computed within the cross-entropy" in graph.notes


def test_an_output_without_classes_is_averaged(tmp_path):
    nodes = [node("ReduceSum", ["x", "a"], keepdims=0)]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, ["N", 6])}, [ints("a", [1])]))
    assert (graph.ops[-1].kind, graph.ops[-1].attrs) == ("reduce", {"fn": "mean"})
    assert any("the mean of the output 'y'" in note for note in graph.notes)


def test_the_first_of_several_outputs_carries_the_loss(tmp_path):
    nodes = [node("Relu", "x"), node("Tanh", "x", ["z"])]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, ["N", 6])}, (), ["y", "z"]))
    assert graph.ops[-1].inputs[0] == "y"
    assert "the loss is taken on the first output, 'y', alone" in graph.notes


def test_state_without_a_gradient_is_no_parameter(tmp_path):
    nodes = [node("Mul", ["x", "rotary.inv_freq"])]
    stored = [weight("rotary.inv_freq", 6)]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, ["N", 6])}, stored))
    assert graph.parameter_count == 0
    assert graph.tensors["rotary.inv_freq"].role == "buffer"


def test_bounds_and_masks_are_no_parameters(tmp_path):
    nodes = [node("Clip", ["x", "low", "high"], ["c"]), node("Max", ["c", "floor"])]
    stored = [scalar("low", 0.0), scalar("high", 6.0), weight("floor", 6)]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, ["N", 6])}, stored))
    assert graph.parameter_count == 0


def test_nodes_that_nothing_reads_are_left_out(tmp_path):
    nodes = [node("Tanh", "x", ["dead"]), node("Relu", "x")]
    graph = load_onnx(save(tmp_path, nodes, {"x": (FLOAT, ["N", 6])}))
    assert not any(o.attrs.get("fn") == "tanh" for o in graph.ops)


def test_weights_kept_outside_the_file_are_not_needed(tmp_path):
    stored = weight("w", 6, 4)
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    entry = stored.external_data.add()
    entry.key, entry.value = "location", "missing.bin"
    graph = load_onnx(save(tmp_path, [node("MatMul", "xw")], {"x": (FLOAT, ["N", 6])}, [stored]))
    assert graph.parameter_count == 24


def test_half_precision_weights_follow_the_training_precision(tmp_path):
    stored = numpy_helper.from_array(np.ones((6, 4), np.float16), "w")
    path = save(tmp_path, [node("MatMul", "xw")], {"x": (TensorProto.FLOAT16, ["N", 6])}, [stored])
    graph = load_onnx(path)
    assert graph.tensors["w"].dtype == graph.tensors["y"].dtype == "float"


def test_local_functions_are_inlined(tmp_path):
    body = [helper.make_node("Relu", ["a"], ["b"])]
    opset = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "Twice", ["a"], ["b"], body, opset)
    call = helper.make_node("Twice", ["x"], ["y"], domain="local", name="call")
    graph = helper.make_graph(
        [call],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["N", 6])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    imports = [*opset, helper.make_opsetid("local", 1)]
    model = helper.make_model(graph, opset_imports=imports, functions=[function])
    path = tmp_path / "functions.onnx"
    path.write_bytes(model.SerializeToString())
    assert load_onnx(path).ops[0].attrs == {"fn": "relu"}


@pytest.mark.slow
def test_an_exported_resnet18_has_its_known_parameters_and_flops(tmp_path):
    torch = pytest.importorskip("torch")
    sources = pytest.importorskip("traincast.ingest.pytorch.sources")
    sources.declare_torchvision_ops()
    torchvision = pytest.importorskip("torchvision")
    path = tmp_path / "resnet18.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            torchvision.models.resnet18(),
            torch.zeros(2, 3, 224, 224),
            path,
            dynamo=False,
            training=torch.onnx.TrainingMode.TRAINING,
            do_constant_folding=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
    graph = load_onnx(path)
    # torchvision's documentation: 11,689,512 parameters, 1.814 billion multiply-adds.
    assert graph.parameter_count == 11_689_512
    assert flops(graph) == 2 * 1_814_073_344
