"""ONNX files that are wrong: what is named, and that nothing else than our errors comes out."""

import random
import sys

import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper
from test_onnx_file import language_model, lenet
from test_onnx_ops import FLOAT, INT64, ints, node, save, weight

from traincast.errors import IngestError, InputFileError, MissingExtraError, TraincastError
from traincast.ingest.onnx_file import load_onnx


@pytest.mark.parametrize(
    ("nodes", "inputs", "stored", "message"),
    [
        (
            [node("Conv", "xw")],
            {"x": (FLOAT, ["N", 3, 8, 8])},
            [weight("w", 4, 5, 3, 3)],
            r"node 'n_y' \(Conv\): the weight \(4, 5, 3, 3\) does not fit the input",
        ),
        (
            [node("Conv", "xw", kernel_shape=[9, 9])],
            {"x": (FLOAT, ["N", 3, 8, 8])},
            [weight("w", 4, 3, 9, 9)],
            r"\(Conv\): its window \(9, 9\) does not fit into the input",
        ),
        (
            [node("MatMul", "xw")],
            {"x": (FLOAT, ["N", 6])},
            [weight("w", 5, 4)],
            r"\(MatMul\): \(\d, 6\) and \(5, 4\) cannot be multiplied",
        ),
        (
            [node("Add", "xz")],
            {"x": (FLOAT, ["N", 6]), "z": (FLOAT, ["N", 5])},
            [],
            r"\(Add\): its inputs of shapes .* do not broadcast",
        ),
        (
            [node("Reshape", "xs")],
            {"x": (FLOAT, ["N", 6]), "s": (INT64, [2])},
            [],
            "input 's' decides a shape but depends on data",
        ),
        (
            [node("Relu", "q")],
            {"x": (FLOAT, ["N", 6])},
            [],
            r"node 'n_y' \(Relu\) reads 'q', which no input, initialiser or earlier node makes",
        ),
        (
            [node("NonZero", "x")],
            {"x": (FLOAT, ["N", 6])},
            [],
            "size of its output depends on data",
        ),
        (
            [helper.make_node("Magic", ["x"], ["y"], name="spell", domain="my.ops")],
            {"x": (FLOAT, ["N", 6])},
            [],
            r"node 'spell' \(Magic\): traincast has no formula for this op",
        ),
        (
            [node("Relu", "x"), node("Tanh", "x")],
            {"x": (FLOAT, ["N", 6])},
            [],
            "it writes 'y', which is there already",
        ),
        (
            [node("Concat", "xx", axis=5)],
            {"x": (FLOAT, ["N", 6])},
            [],
            "axis 5 is not one of the 2 axes",
        ),
        ([node("Gemm", "x")], {"x": (FLOAT, ["N", 6])}, [], "its input number 2 is missing"),
        (
            [node("Tile", "xs")],
            {"x": (FLOAT, ["N", 6])},
            [ints("s", [1, 2, 3])],
            r"\(Tile\): its attributes do not fit its inputs",
        ),
    ],
)
def test_a_node_that_is_wrong_is_named(tmp_path, nodes, inputs, stored, message):
    with pytest.raises(IngestError, match=message):
        load_onnx(save(tmp_path, nodes, inputs, stored))


def test_control_flow_is_refused_with_a_way_out(tmp_path):
    branch = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["z"])],
        "branch",
        [],
        [helper.make_tensor_value_info("z", FLOAT, None)],
    )
    choice = helper.make_node(
        "If", ["c"], ["y"], name="choice", then_branch=branch, else_branch=branch
    )
    path = save(tmp_path, [choice], {"x": (FLOAT, ["N", 6]), "c": (TensorProto.BOOL, [])})
    with pytest.raises(IngestError, match=r"node 'choice' \(If\): control flow .* tracing it"):
        load_onnx(path)


@pytest.mark.parametrize("opset", [6, 29])
def test_other_opsets_are_refused(tmp_path, opset):
    path = save(tmp_path, [node("Relu", "x")], {"x": (FLOAT, ["N", 6])}, opset=opset)
    with pytest.raises(InputFileError, match=f"uses version {opset} .* 7 to 28 are read"):
        load_onnx(path)


def test_files_that_are_no_models(tmp_path):
    whole = save(tmp_path, *lenet()).read_bytes()
    cases = {
        "empty": (b"", "is empty"),
        "text": (b"hello, this is no model\n", "is a text file, not an ONNX model"),
        "json": (b'{"layers": {}}', "is a text file, not an ONNX model"),
        "cut": (whole[: len(whole) // 2], "is not an ONNX model, or is cut short"),
        "noise": (bytes(range(255, 0, -1)), "is not an ONNX model, or is cut short"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(InputFileError, match=message):
            load_onnx(path)
    with pytest.raises(InputFileError, match="there is no such file"):
        load_onnx(tmp_path / "absent.onnx")
    with pytest.raises(InputFileError, match="is a folder, not a file"):
        load_onnx(tmp_path)


def test_a_model_without_nodes_is_refused(tmp_path):
    path = save(tmp_path, [], {"x": (FLOAT, ["N", 6])}, outputs=["x"])
    with pytest.raises(InputFileError, match="holds no nodes"):
        load_onnx(path)


def test_a_model_that_computes_nothing_is_refused(tmp_path):
    path = save(tmp_path, [node("Identity", "x")], {"x": (FLOAT, ["N", 6])})
    with pytest.raises(IngestError, match="computes nothing"):
        load_onnx(path)


def test_an_input_without_a_shape_is_refused(tmp_path):
    graph = helper.make_graph(
        [node("Relu", "x")],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, None)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
    )
    path = tmp_path / "shapeless.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    with pytest.raises(IngestError, match="input 'x' has no shape"):
        load_onnx(path)


def test_without_the_package_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtraError, match=r"traincast\[onnx\]"):
        load_onnx(tmp_path / "a.onnx")


def mutate(model, chance):
    """Change one thing at random: an attribute, an op, an input or the shape of a weight."""
    node = chance.choice(model.graph.node)
    stored = chance.choice(model.graph.initializer)
    change = chance.randrange(5)
    if change == 0 and node.attribute:
        attribute = chance.choice(node.attribute)
        attribute.i = chance.choice([-9, 0, 7, 1 << 40])
        if attribute.ints:
            attribute.ints[0] = chance.choice([-9, 0, 7, 1 << 40])
    elif change == 1:
        node.op_type = chance.choice(["Gemm", "Conv", "Concat", "Split", "Resize", "LSTM", "Tile"])
    elif change == 2:
        node.input.pop()
    elif change == 3 and stored.dims:
        stored.dims[0] = chance.choice([0, 1, 3, 1 << 40])
    else:
        node.input.append(node.input[0])


def test_damaged_models_raise_nothing_but_our_errors(tmp_path):
    chance = random.Random(7)
    models = [
        onnx.ModelProto.FromString(save(tmp_path, *args).read_bytes())
        for args in (lenet(), language_model())
    ]
    refused = 0
    for _ in range(200):
        model = onnx.ModelProto()
        model.CopyFrom(chance.choice(models))
        mutate(model, chance)
        path = tmp_path / "damaged.onnx"
        path.write_bytes(model.SerializeToString())
        try:
            load_onnx(path)
        except TraincastError:
            refused += 1
    assert refused > 50
