"""Paleo's JSON format: blocks, splits, every layer type, and what is wrong with a file."""

import json

import pytest

from traincast.errors import InputFileError
from traincast.ingest.paleo import is_paleo, load_paleo, paleo_from_json, read_paleo

DATA = {"parents": [], "type": "Input", "tensor": [2, 8, 8, 3]}


def conv(parents, channels, kernel=3, stride=1, padding="SAME", **more):
    c_in, c_out = channels
    return {
        "parents": parents,
        "type": "Convolution",
        "filter": [kernel, kernel, c_in, c_out],
        "strides": [1, stride, stride, 1],
        "padding": padding,
        **more,
    }


def net(**layers):
    return {"name": "n", "layers": {"data": DATA, **layers}}


def after(**layers):
    """Return the only op kinds, shapes and attributes that the named layers become."""
    graph = load_paleo(net(**layers), where="n")
    return graph, {op.name: op for op in graph.ops}


def shape(graph, name):
    return [size.to_json() for size in graph.tensors[name].shape]


def problems(data):
    with pytest.raises(InputFileError) as caught:
        read_paleo(data, where="net.json")
    assert str(caught.value).startswith("net.json: ")
    return caught.value.problems


def test_a_convolution_has_a_bias_and_by_default_a_relu():
    graph, ops = after(c=conv(["data"], (3, 4)))
    assert ops["c"].inputs == ("data", "c.weight", "c.bias")
    assert shape(graph, "c.weight") == [4, 3, 3, 3]
    assert ops["c/relu"].attrs == {"fn": "relu"}
    assert ops["c/relu"].layer == "c"


@pytest.mark.parametrize("fn", [None, "tanh"])
def test_the_activation_is_what_the_file_says(fn):
    _, ops = after(c=conv(["data"], (3, 4), activation_fn=fn))
    assert ("c/tanh" in ops) == (fn == "tanh")
    assert "c/relu" not in ops


def test_same_padding_with_an_odd_total_pads_one_row_and_column_first():
    # 8 wide, kernel 3, stride 2: 4 outputs, (4 - 1)·2 + 3 - 8 = 1 zero in all, after the input.
    graph, ops = after(c=conv(["data"], (3, 4), stride=2))
    assert ops["c/pad"].kind == "copy"
    assert shape(graph, "c/pad") == ["B", 3, 9, 9]
    assert ops["c"].attrs["padding"] == (0, 0)
    assert shape(graph, "c") == ["B", 4, 4, 4]


@pytest.mark.parametrize(
    ("kernel", "stride", "padding", "side", "pads"),
    [
        (3, 1, "VALID", 6, (0, 0)),
        (3, 2, "VALID", 3, (0, 0)),
        (5, 1, "SAME", 8, (2, 2)),
        (2, 1, "SAME", 8, (0, 1)),
        (1, 2, "SAME", 4, (0, 0)),
        (3, 2, [1, 1], 4, (1, 1)),
        (7, 2, "SAME", 4, (2, 3)),
    ],
)
def test_output_sizes_and_pads(kernel, stride, padding, side, pads):
    layer = read_paleo(net(c=conv(["data"], (-1, 4), kernel, stride, padding)), where="n").layers[1]
    assert layer.output == (2, side, side, 4)
    assert layer.pads == (pads, pads)
    assert layer.channels == (3, 4)
    load_paleo(net(c=conv(["data"], (-1, 4), kernel, stride, padding)), where="n")


def test_pooling_dropout_and_concatenation():
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
    graph, ops = after(
        a={"parents": ["data"], "type": "Pooling", **window},
        b={"parents": ["data"], "type": "AvgPool", **window},
        d={"parents": ["b"], "type": "Dropout", "dropout_keep_prob": 0.8},
        c={"parents": ["a", "d"], "type": "Concatenate", "dim": 3},
    )
    assert (ops["a"].attrs["op"], ops["b"].attrs["op"]) == ("max", "avg")
    assert ops["d"].attrs["p"] == pytest.approx(0.2)
    assert ops["c"].attrs["axis"] == 1
    assert shape(graph, "c") == ["B", 6, 4, 4]


def test_inner_product_elementwise_softmax_and_the_free_layers():
    graph, ops = after(
        c=conv(["data"], (3, 3)),
        n={"parents": ["c"], "type": "BatchNorm"},
        s={"parents": ["n", "data", "c"], "type": "Elementwise"},
        r={"parents": ["s"], "type": "ReLU"},
        l={"parents": ["r"], "type": "LRN"},
        f={"parents": ["l"], "type": "InnerProduct", "num_outputs": 10},
        p={"parents": ["f"], "type": "Softmax"},
        a={"parents": ["f"], "type": "Accuracy"},
    )
    assert ops["n"].kind == "batch_norm"
    assert ops["l"].attrs == {"fn": "paleo.LRN"}
    assert ops["s"].attrs == ops["s.2"].attrs == {"fn": "add"}
    assert shape(graph, "f/flatten") == ["B", 192]
    assert shape(graph, "f.weight") == [10, 192]
    assert ops["p"].kind == "cross_entropy"
    assert "a" not in ops
    assert "a (Accuracy) is left out: it has no part in training" in graph.notes
    # 3·3·3·3 + 3 for the convolution, 192·10 + 10 for the product.
    assert graph.parameter_count == 84 + 1930


def test_reshape_deconvolution_upsampling_and_sigmoid():
    graph, ops = after(
        f={"parents": ["data"], "type": "InnerProduct", "num_outputs": 128},
        r={"parents": ["f"], "type": "Reshape", "output_shape": [-1, 4, 4, 8]},
        d={
            "parents": ["r"],
            "type": "Deconvolution",
            "filter": [5, 5, 6, 8],
            "strides": [1, 2, 2, 1],
            "padding": "SAME",
            "output_shape": [2, 8, 8, 6],
        },
        u={"parents": ["d"], "type": "UpSampling2D", "ksize": [1, 2, 2, 1]},
        g={"parents": ["u"], "type": "InnerProduct", "num_outputs": 1},
        o={"parents": ["g"], "type": "Sigmoid"},
    )
    assert shape(graph, "r") == ["B", 8, 4, 4]
    assert shape(graph, "d.weight") == [8, 6, 5, 5]
    assert shape(graph, "d.bias") == [6]
    assert shape(graph, "d") == ["B", 6, 8, 8]
    assert ops["d"].attrs["transposed"] is True
    assert shape(graph, "u") == ["B", 6, 16, 16]
    assert ops["u"].attrs["fn"] == "upsample_nearest2d"
    assert ops["o"].attrs["fn"] == "sigmoid"


def test_a_block_prefixes_its_layers_and_may_be_named_by_its_endpoint():
    block = {
        "parents": ["data"],
        "type": "Block",
        "endpoint": "concat",
        "layers": {
            "a": conv([], (3, 4)),
            "b": conv(["a"], (4, 5)),
            "concat": {"parents": ["a", "b"], "type": "Concatenate", "dim": 3},
        },
    }
    layers = {
        r.name: r for r in read_paleo(net(m=block, out=conv(["m"], (9, 2))), where="n").layers
    }
    assert list(layers) == ["data", "m/a", "m/b", "m/concat", "out"]
    assert layers["m/a"].parents == ("data",)
    assert layers["out"].parents == ("m/concat",)
    assert layers["m/concat"].output == (2, 8, 8, 9)


def test_model_parallel_layers_are_cloned_and_share_out_their_channels():
    block = {
        "parents": ["data"],
        "type": "ModelParallel",
        "splits": 2,
        "layers": {
            "a": conv([], (3, 8)),
            "mix": {"parents": ["a@all"], "type": "Concatenate", "dim": 3},
            "b": conv(["mix@self"], (8, 6)),
        },
    }
    end = {"parents": ["p/b@all"], "type": "Concatenate", "dim": 3}
    layers = {r.name: r for r in read_paleo(net(p=block, end=end), where="n").layers}
    assert layers["p/a@1"].output == (2, 8, 8, 4)
    assert layers["p/mix@1"].parents == ("p/a@0", "p/a@1")
    assert layers["p/b@1"].parents == ("p/mix@1",)
    assert layers["p/b@1"].channels == (8, 3)
    assert layers["end"].parents == ("p/b@0", "p/b@1")
    assert (layers["p/b@1"].device, layers["end"].device) == ("1", 0)


def test_several_ends_share_one_loss():
    graph, _ = after(
        a={"parents": ["data"], "type": "InnerProduct", "num_outputs": 4},
        b={"parents": ["data"], "type": "InnerProduct", "num_outputs": 5},
    )
    assert [op.kind for op in graph.ops[-3:]] == ["cross_entropy", "cross_entropy", "pointwise"]
    assert graph.tensors[graph.ops[-1].outputs[0]].shape == ()


def test_all_problems_are_reported_at_once():
    found = problems(
        net(
            a=conv(["data"], (4, 8)),
            b=conv(["nowhere"], (8, 8)),
            c={"parents": ["data"], "type": "Convolution", "filter": [3, 3, 3, 8]},
            d={"parents": ["data"], "type": "Pooling", "ksize": 2, "strides": [1, 2, 2, 1],
               "padding": "FULL"},
            e={"parents": ["data"], "type": "Convolutoin"},
            f={"parents": "data", "type": "Dropout"},
            g={"parents": ["data"]},
            h=7,
        )
    )  # fmt: skip
    text = "\n".join(found)
    for expected in (
        "layer 'a' (Convolution): its filter takes 4 channels, its input has 3; write 3",
        "layer 'b' names the parent 'nowhere', which is not there",
        "layer 'c' (Convolution) lacks \"strides\"; add [1, sh, sw, 1]",
        "layer 'c' (Convolution) lacks \"padding\"",
        "layer 'd' (Pooling): \"ksize\" is 2; write [1, kh, kw, 1]",
        'layer \'d\' (Pooling): "padding" is \'FULL\'; write "VALID", "SAME" or [ph, pw]',
        "layer 'e' has the unknown type 'Convolutoin'; did you mean Convolution?",
        "layer 'f' lacks \"parents\"; write a list of layer names",
        "layer 'g' lacks \"type\"; write one of Input, Convolution",
        "layer 'h' must be an object",
    ):
        assert expected in text
    assert len(found) == 10


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ({"a": conv(["b"], (3, 3)), "b": conv(["a"], (3, 3))}, "there is a cycle: a → b → a"),
        ({"a": conv([], (3, 3))}, "layer 'a' has no parents"),
        ({"a": conv(["data", "data"], (3, 3))}, "has 2 parents, takes one"),
        ({"a": conv(["data"], (3, 3), kernel=9, padding="VALID")}, "window of 9 does not fit"),
        ({"a": conv(["data"], (3, 2), splits=4)}, "2 output channels cannot be split 4 times"),
        (
            {"a": {"parents": ["data"], "type": "Softmax", "num_classes": 10}},
            "it takes 10 values a sample, [2, 8, 8, 3] has 192",
        ),
        (
            {"a": {"parents": ["data"], "type": "Reshape", "output_shape": [-1, 5]}},
            "[2, 8, 8, 3] cannot become [-1, 5]",
        ),
        (
            {
                "a": conv(["data"], (3, 4), stride=2),
                "c": {"parents": ["data", "a"], "type": "Concatenate", "dim": 3},
            },
            "its inputs [2, 8, 8, 3] and [2, 4, 4, 4] differ outside dim 3",
        ),
        (
            {
                "a": conv(["data"], (3, 4)),
                "c": {"parents": ["data", "a"], "type": "Elementwise"},
            },
            "must have equal shapes",
        ),
        (
            {
                "f": {"parents": ["data"], "type": "InnerProduct", "num_outputs": 3},
                "a": conv(["f"], (3, 3)),
            },
            "its input [2, 3] is flat; it needs [N, H, W, C]",
        ),
        (
            {
                "p": {
                    "parents": ["data"],
                    "type": "ModelParallel",
                    "splits": 2,
                    "layers": {"a": conv([], (3, 4)), "b": conv(["a"], (2, 4))},
                }
            },
            "it is split: write p/a@all, or @self inside the block",
        ),
        ({"p": {"parents": ["data"], "type": "Block", "layers": {}}}, "block 'p' needs \"layers\""),
    ],
)
def test_what_is_wrong_is_named_with_its_fix(layers, message):
    assert any(message in problem for problem in problems(net(**layers)))


def test_a_network_needs_its_data_layer():
    data = {"layers": {"input": DATA, "a": conv(["input"], (3, 4))}}
    assert problems(data) == ['there is no input layer; add one called "data" of the type Input']


def test_layers_must_be_an_object():
    assert problems({"layers": []}) == ['"layers" must be an object that holds the layers by name']


def test_text_that_is_no_json_names_the_place():
    with pytest.raises(InputFileError, match=r"a\.json: is not valid JSON: line 1, column 12"):
        paleo_from_json('{"layers": ', where="a.json")
    with pytest.raises(InputFileError, match="is not a JSON object"):
        paleo_from_json("[]", where="a.json")


def test_a_paleo_network_is_told_from_a_graph():
    assert is_paleo(net())
    assert not is_paleo({"format": "traincast-graph", "layers": {}})
    assert not is_paleo([])
    assert paleo_from_json(json.dumps(net(c=conv(["data"], (3, 4)))), where="n").name == "n"
