"""Networks, sizes of gradients and nested lists, against the publication's code."""

import pytest
from paleo_nets import CONVERTED, conv, data, plain

from traincast.estimate.paleo import Layer, layer_net
from traincast.estimate.paleo.geometry import forward_conv, gradients
from traincast.estimate.paleo.nested import flatten
from traincast.estimate.paleo.rules import RULES

# Layers, parameters and bytes of all layer outputs at the network's own batch.
COUNTS = {
    "alex_v2": (15, 50_303_912, 363_569_152),
    "alex_v2_1gpu": (15, 49_566_504, 354_131_968),
    "alex_v2_2gpu": (22, 49_566_504, 360_423_424),
    "alex_v2_4gpu": (32, 49_566_504, 364_617_728),
    "alex_v2_8gpu": (52, 49_566_504, 373_006_336),
    "nin": (19, 7_595_176, 959_770_624),
    "overfeat": (15, 145_704_424, 520_766_976),
    "vgg16": (25, 138_357_544, 3_903_180_800),
    "inception_v3": (126, 23_734_312, 3_713_243_904),
    "resnet50": (74, 25_530_472, 64_852_544),
    "densenet": (159, 1_159_338, 21_609_592),
}


def net_of(name):
    return layer_net(CONVERTED.get(name, name))


@pytest.mark.parametrize("name", COUNTS)
def test_layers_parameters_and_activations(name):
    net = net_of(name)
    assert (len(net.layers), net.parameters, net.activation_bytes()) == COUNTS[name]
    assert net.weight_bytes == 4 * net.parameters
    assert net.activation_bytes(2 * net.batch) == 2 * net.activation_bytes()


# Input, filter, stride, padding; pad, output, spread-out gradient before and after lengthening,
# pad of the data gradient. Height, or width where the kernel is flat.
GEOMETRY = [
    ((224, 224, 3), (11, 11), 96, 4, "VALID", 0, 54, 214, 10),
    ((5, 5, 256), (5, 5), 4096, 1, "VALID", 0, 1, 1, 4),
    ((26, 26, 64), (5, 5), 192, 1, "SAME", 2, 26, 26, 2),
    ((299, 299, 3), (3, 3), 32, 2, "VALID", 0, 149, 297, 2),
    ((17, 17, 128), (1, 7), 128, 1, "SAME", 3, 17, 17, 3),
]


def layer_like(shape, kernel, out, stride, padding):
    spec = {
        "data": data(128, *shape),
        "conv": conv("data", 1, out, stride, padding)
        | {"filter": [*kernel, shape[2], out], "strides": [1, stride, stride, 1]},
    }
    return layer_net({"name": "one", "layers": spec}).by_name["conv"]


@pytest.mark.parametrize("rules", ["paper", "head"])
@pytest.mark.parametrize("case", GEOMETRY)
def test_worked_gradient_geometry(case, rules):
    shape, kernel, out, stride, padding, pad, size, spread, data_pad = case
    layer = layer_like(shape, kernel, out, stride, padding)
    found = forward_conv(layer, 128, RULES[rules])
    grads = gradients(layer, found, RULES[rules])
    assert (found.pw, found.ow, found.co) == (pad, size, out)
    assert (grads.data.w, grads.data.pw) == (spread, data_pad)


def test_worked_geometry_of_strided_same_padding_under_head():
    layer = layer_like((224, 224, 3), (7, 7), 64, 2, "SAME")
    found = forward_conv(layer, 1, RULES["head"])
    grads = gradients(layer, found, RULES["head"])
    assert (found.ph, found.oh, grads.data.h, grads.data.ph) == (2, 112, 224, 3)


@pytest.mark.parametrize(
    ("name", "rules"),
    [(name, "head") for name in COUNTS] + [(n, "paper") for n in COUNTS if n not in CONVERTED],
)
def test_gradients_have_the_shapes_they_must_have(name, rules):
    for layer in net_of(name).layers:
        if layer.type != "Convolution":
            continue
        n = 8
        found = forward_conv(layer, n, RULES[rules])
        grads = gradients(layer, found, RULES[rules])
        d, f = grads.data, grads.filter
        assert (d.n, d.oh, d.ow, d.co) == (n, *layer.inputs[0])
        assert (d.h + 2 * d.ph - d.kh + 1, d.w + 2 * d.pw - d.kw + 1) == (d.oh, d.ow)
        assert (f.oh, f.ow) == layer.kernel
        assert (f.h + 2 * f.ph - f.kh + 1, f.w + 2 * f.pw - f.kw + 1) == layer.kernel


@pytest.mark.parametrize("rules", ["paper", "head"])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "pad"),
    [(224, 11, 4, 2), (225, 11, 4, 0), (57, 2, 5, 1), (32, 5, 3, 0), (7, 1, 2, 0), (6, 1, 1, 1)],
)
def test_strides_that_leave_rows_over_still_give_the_right_shapes(size, kernel, stride, pad, rules):
    out = (size + 2 * pad - kernel) // stride + 1
    layer = Layer(
        name="conv",
        type="Convolution",
        parents=("data",),
        inputs=((size, size, 4),),
        output=(out, out, 8),
        kernel=(kernel, kernel),
        channels=(4, 8),
        strides=(stride, stride),
        padding=(pad, pad),
    )
    grads = gradients(layer, forward_conv(layer, 2, RULES[rules]), RULES[rules])
    assert (grads.data.oh, grads.filter.oh) == (size, kernel)
    assert grads.data.h + 2 * grads.data.ph - kernel + 1 == size


def c(parent):
    return conv(parent, 1, 4)


def chain(**layers):
    return layer_net({"name": "net", "layers": {"data": data(1, 8, 8, 4), **layers}}).nested


def unordered(row):
    """A nested list whose branches compare in any order."""
    return [x if isinstance(x, str) else frozenset(map(str, map(unordered, x))) for x in row]


SPLIT = {
    "type": "ModelParallel",
    "parents": ["conv1"],
    "splits": 2,
    "layers": {
        "conv2a": c("") | {"parents": []},
        "mix": plain("Concatenate", "conv2a@all", dim=3),
    },
}
BLOCK = {
    "type": "Block",
    "parents": ["conv1"],
    "endpoint": "concat",
    "layers": {
        "conv2a": c("") | {"parents": []},
        "conv2b": c("") | {"parents": []},
        "concat": plain("Concatenate", "conv2a", "conv2b", dim=3),
    },
}


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (
            {"conv1": c("data"), "conv2": c("conv1")},
            ["data", "conv1", "conv2"],
        ),
        (
            {
                "conv1": c("data"),
                "conv2": c("data"),
                "output": plain("Concatenate", "conv1", "conv2", dim=3),
            },
            ["data", (["conv1"], ["conv2"]), "output"],
        ),
        (
            {"conv1": c("data"), "output": plain("Concatenate", "conv1", "data", dim=3)},
            ["data", (["conv1"],), "output"],
        ),
        (
            {"conv1": c("data"), "conv2": BLOCK, "output": c("conv2")},
            [
                "data",
                "conv1",
                (["conv2/conv2a"], ["conv2/conv2b"]),
                "conv2/concat",
                "output",
            ],
        ),
        (
            {
                "conv1": c("data"),
                "conv2": SPLIT,
                "output": plain("Concatenate", "conv2/mix@all", dim=3),
            },
            [
                "data",
                "conv1",
                (["conv2/conv2a@0"], ["conv2/conv2a@1"]),
                (["conv2/mix@0"], ["conv2/mix@1"]),
                "output",
            ],
        ),
    ],
)
def test_nested_lists(layers, expected):
    assert unordered(chain(**layers)) == unordered(expected)


def test_branches_within_branches_nest():
    found = chain(
        a=c("data"),
        b=c("data"),
        b1=c("b"),
        b2=c("b"),
        inner=plain("Concatenate", "b1", "b2", dim=3),
        outer=plain("Concatenate", "a", "inner", dim=3),
    )
    assert found == ["data", (["a"], ["b", (["b1"], ["b2"]), "inner"]), "outer"]


def test_a_joint_stays_outside_the_branch_that_reaches_it_last():
    found = chain(
        a=c("data"),
        b=c("data"),
        b1=c("b"),
        b2=c("b"),
        outer=plain("Concatenate", "a", "b1", "b2", dim=3),
    )
    assert found == ["data", (["a"], ["b", (["b1"], ["b2"])]), "outer"]


@pytest.mark.parametrize("name", COUNTS)
def test_the_walk_visits_every_layer_once_after_its_parents(name):
    net = net_of(name)
    order = flatten(net.nested)
    place = {layer: i for i, layer in enumerate(order)}
    assert sorted(order) == sorted(net.by_name)
    assert all(place[p] < place[layer.name] for layer in net.layers for p in layer.parents)
