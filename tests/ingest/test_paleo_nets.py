"""The networks of Qi, Sparks, Talwalkar, "Paleo" (ICLR 2017), against what they publish."""

import math

import pytest

from traincast.errors import UnknownNameError
from traincast.graph import KINDS
from traincast.graph.kinds import Arg, Case
from traincast.ingest.paleo import load_paleo, paleo_net, paleo_net_names, read_paleo

# Layers, parameters and bytes of all layer outputs at the network's own batch.
PUBLISHED = {
    "alex_v2": (15, 50_303_912, 363_569_152),
    "alex_v2_1gpu": (15, 49_566_504, 354_131_968),
    "alex_v2_2gpu": (22, 49_566_504, 360_423_424),
    "alex_v2_4gpu": (32, 49_566_504, 364_617_728),
    "alex_v2_8gpu": (52, 49_566_504, 373_006_336),
    "nin": (19, 7_595_176, 959_770_624),
    "overfeat": (15, 145_704_424, 520_766_976),
    "vgg16": (25, 138_357_544, 3_903_180_800),
    "inception_v3": (126, 23_734_312, 3_713_243_904),
}

# Forward FLOPs of the convolutions for one sample, a multiply-add counted as 2.
CONV_FLOPS = {
    "alex_v2": 1_473_111_552,
    "alex_v2_1gpu": 1_260_774_912,
    "nin": 1_938_921_728,
    "overfeat": 5_294_022_656,
    "vgg16": 30_940_528_640,
    "inception_v3": 11_274_976_448,
}

# Height, width and channels after each layer.
OUTPUTS = {
    "alex_v2": """
        conv1 54x54x64, pool1 26x26x64, conv2 26x26x192, pool2 12x12x192, conv3 12x12x384,
        conv4 12x12x384, conv5 12x12x256, pool5 5x5x256, fc6 1x1x4096, dropout6 1x1x4096,
        fc7 1x1x4096, dropout7 1x1x4096, fc8 1x1x1000, softmax 1000""",
    "nin": """
        conv1 54x54x96, cccp1 54x54x96, cccp2 54x54x96, pool0 26x26x96, conv2 26x26x256,
        cccp3 26x26x256, cccp4 26x26x256, pool2 12x12x256, conv3 12x12x384, cccp5 12x12x384,
        cccp6 12x12x384, pool3 5x5x384, drop 5x5x384, conv4 5x5x1024, cccp7 5x5x1024,
        cccp8 5x5x1000, pool4 1x1x1000, softmax 1000""",
    "overfeat": """
        conv1 56x56x64, pool1 28x28x64, conv2 24x24x256, pool2 12x12x256, conv3 12x12x512,
        conv4 12x12x1024, conv5 12x12x1024, pool5 6x6x1024, fc6 1x1x3072, dropout6 1x1x3072,
        fc7 1x1x4096, dropout7 1x1x4096, fc8 1x1x1000, softmax 1000""",
    "vgg16": """
        conv1-1 224x224x64, conv1-2 224x224x64, pool1 112x112x64, conv2-1 112x112x128,
        conv2-2 112x112x128, pool2 56x56x128, conv3-1 56x56x256, conv3-2 56x56x256,
        conv3-3 56x56x256, pool3 28x28x256, conv4-1 28x28x512, conv4-2 28x28x512,
        conv4-3 28x28x512, pool4 14x14x512, conv5-1 14x14x512, conv5-2 14x14x512,
        conv5-3 14x14x512, pool5 7x7x512, fc6 1x1x4096, dropout6 1x1x4096, fc7 1x1x4096,
        dropout7 1x1x4096, fc8 1x1x1000, softmax 1000""",
    "inception_v3": """
        Conv2d_1a_3x3 149x149x32, Conv2d_2a_3x3 147x147x32, Conv2d_2b_3x3 147x147x64,
        MaxPool_3a_3x3 73x73x64, Conv2d_3b_1x1 73x73x80, Conv2d_4a_3x3 71x71x192,
        MaxPool_5a_3x3 35x35x192, Mixed_5b/concat 35x35x256, Mixed_5c/concat 35x35x288,
        Mixed_5d/concat 35x35x288, Mixed_6a/concat 17x17x768, Mixed_6b/concat 17x17x768,
        Mixed_6c/concat 17x17x768, Mixed_6d/concat 17x17x768, Mixed_6e/concat 17x17x768,
        Mixed_7a/concat 8x8x1280, Mixed_7b/concat 8x8x2048, Mixed_7c/concat 8x8x2048,
        Logits/AvgPool_1a_8x8 1x1x2048, Logits/Conv2d_1c_1x1 1x1x1000, softmax 1000""",
}

INCEPTION_BLOCKS = {
    "Mixed_5b": 255_440, "Mixed_5c": 276_976, "Mixed_5d": 284_656, "Mixed_6a": 1_069_600,
    "Mixed_6b": 1_295_872, "Mixed_6c": 1_689_280, "Mixed_6d": 1_689_280, "Mixed_6e": 2_140_032,
    "Mixed_7a": 1_697_024, "Mixed_7b": 5_041_344, "Mixed_7c": 6_073_536,
}  # fmt: skip


def conv_flops(graph, batch=1):
    """Sum the forward FLOPs of all convolutions."""

    def arg(name):
        tensor = graph.tensors[name]
        shape = tuple(s.at(batch, 1) for s in tensor.shape)
        return Arg(shape, math.prod(shape), 4, True, tensor.role)

    return sum(
        kernel.flops
        for op in graph.ops
        if op.kind == "conv"
        for kernel in KINDS["conv"]
        .costs(Case(op.attrs, tuple(map(arg, op.inputs)), tuple(map(arg, op.outputs))))
        .forward
    )


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name):
    layers, parameters, activation_bytes = PUBLISHED[name]
    net = read_paleo(paleo_net(name), where=name)
    assert len(net.layers) == layers
    assert sum(layer.parameters for layer in net.layers) == parameters
    assert 4 * sum(math.prod(layer.output) for layer in net.layers) == activation_bytes
    assert load_paleo(paleo_net(name), where=name).parameter_count == parameters


@pytest.mark.parametrize("name", CONV_FLOPS)
def test_published_convolution_flops(name):
    assert conv_flops(load_paleo(paleo_net(name), where=name)) == CONV_FLOPS[name]


@pytest.mark.parametrize("name", OUTPUTS)
def test_published_shapes(name):
    layers = {layer.name: layer for layer in read_paleo(paleo_net(name), where=name).layers}
    for item in OUTPUTS[name].split(","):
        layer, shape = item.split()
        assert layers[layer].output[1:] == tuple(map(int, shape.split("x"))), layer


def test_inception_blocks_hold_their_published_parameters():
    net = read_paleo(paleo_net("inception_v3"), where="inception_v3")
    counted = {
        block: sum(layer.parameters for layer in net.layers if layer.name.startswith(f"{block}/"))
        for block in INCEPTION_BLOCKS
    }
    assert counted == INCEPTION_BLOCKS


def test_graph_shapes_are_channels_first_and_symbolic_in_the_batch():
    graph = load_paleo(paleo_net("alex_v2"), where="alex_v2")
    assert graph.batch == 128
    assert [str(s) for s in graph.tensors["data"].shape] == ["B", "3", "224", "224"]
    assert [str(s) for s in graph.tensors["conv1"].shape] == ["B", "64", "54", "54"]
    assert graph.tensors["conv1"].dims == ("sample", "channel", "height", "width")


def test_the_softmax_becomes_part_of_the_loss():
    graph = load_paleo(paleo_net("alex_v2"), where="alex_v2")
    last = graph.ops[-1]
    assert (last.kind, last.name, last.outputs) == ("cross_entropy", "softmax", ("loss",))
    assert graph.tensors["loss"].shape == ()
    assert graph.tensors["target"].dtype == "int64"
    assert not any(op.kind == "softmax" for op in graph.ops)
    assert "cross-entropy on the output is assumed" in graph.notes


def test_another_batch_takes_the_place_of_the_stated_one():
    net = read_paleo(paleo_net("nin"), where="nin", batch=32)
    assert {layer.output[0] for layer in net.layers} == {32}


def test_an_unknown_network_gets_a_suggestion():
    assert "vgg16" in paleo_net_names()
    with pytest.raises(UnknownNameError, match="did you mean vgg16"):
        paleo_net("vgg-16")
