"""Graphs of traincast as layers that Paleo prices."""

from dataclasses import replace

import pytest
from paleo_nets import DECONVOLUTION

from traincast.errors import InvalidValueError
from traincast.estimate.paleo import PaleoModel, layer_net, paleo_from_graph
from traincast.graph import Graph
from traincast.ingest import zoo_graph
from traincast.ingest.builder import BATCH, SEQUENCE, GraphBuilder, sizes
from traincast.ingest.paleo import load_paleo, paleo_net


@pytest.mark.parametrize("rules", ["paper", "head"])
@pytest.mark.parametrize("name", ["alex_v2", "nin", "overfeat", "vgg16", "inception_v3"])
def test_a_graph_costs_what_its_source_costs(name, rules):
    graph = load_paleo(paleo_net(name), where=name)
    model = PaleoModel(rules=rules)
    from_graph, from_file = (model.step(net, "titan-x", 32, 4) for net in (graph, name))
    for part in ("forward_s", "backward_s", "update_s", "communication_s"):
        assert getattr(from_graph, part) == pytest.approx(getattr(from_file, part)), part


def test_the_choices_of_cudnn_4_hold_for_the_graphs_too():
    model = PaleoModel(algorithms="cudnn4")
    net = paleo_from_graph(zoo_graph("nin"))
    assert model.step(net, "k40", 64).total_s == pytest.approx(model.step("nin", "k40", 64).total_s)


def test_biases_are_counted_and_normalisation_is_not():
    """ResNet-50 of the authors' converter has 25,530,472 parameters, and so has PyTorch's here."""
    graph = zoo_graph("resnet50")
    net = paleo_from_graph(graph)
    assert net.parameters == 25_530_472
    assert net.notes == (
        "53,120 parameters of layers other than convolutions and dense ones are not counted",
    )
    assert not net.unpriced


def test_everything_free_is_listed():
    graph = zoo_graph("resnet50")
    net = paleo_from_graph(graph)
    priced = {layer.type for layer in net.layers} - {layer.type for layer in net.free}
    assert priced == {"Convolution", "Pooling", "AvgPool", "InnerProduct"}
    counted = {op.name for op in graph.ops if "num_batches_tracked" not in "".join(op.inputs)}
    assert counted <= set(net.by_name)
    free = [r for r in PaleoModel().layers(net, "k40", 2) if r.free]
    assert {r.type for r in free} >= {"batch_norm", "pointwise", "cross_entropy"}
    assert all(r.forward_s == r.backward_s == 0 for r in free)


def test_matrix_work_without_a_formula_is_named():
    net = paleo_from_graph(zoo_graph("gpt2"))
    assert {layer.type for layer in net.unpriced} == {"attention"}
    assert len(net.unpriced) == 12
    assert "12 ops (attention)" in net.notes[-1]
    assert "underestimated" in net.notes[-1]


def test_dense_layers_run_once_a_position():
    """GPT-2's first dense layer: 768 → 2304 for 8 × 1024 tokens, hand-counted."""
    rows = PaleoModel(rules="head").layers(zoo_graph("gpt2"), "titan-x", 8)
    first = next(r for r in rows if r.type == "InnerProduct")
    assert first.forward_compute_s == pytest.approx(2 * 8 * 1024 * 768 * 2304 / 6144e9)
    short = paleo_from_graph(zoo_graph("gpt2"), seq=128)
    again = next(r for r in PaleoModel().layers(short, "titan-x", 8) if r.type == "InnerProduct")
    assert again.forward_compute_s == pytest.approx(first.forward_compute_s / 8)


def built(fill, *shape, batch=2):
    builder = GraphBuilder("net")
    x = builder.tensor("x", sizes(BATCH, *shape), role="input")
    builder.end_in_loss([fill(builder, x)])
    return builder.build(batch=batch)


def conv(builder, name, x, weight, out, **attrs):
    rank = len(weight) - 2
    known = {
        "stride": (1,) * rank,
        "padding": (0,) * rank,
        "dilation": (1,) * rank,
        "groups": 1,
    }
    w = builder.parameter(f"{name}.weight", *weight)
    return builder.op("conv", name, [x, w], sizes(BATCH, *out), attrs=known | attrs)


def row(net, name, rules="head", batch=2):
    return next(r for r in PaleoModel(rules=rules).layers(net, "titan-x", batch) if r.layer == name)


@pytest.mark.parametrize("rules", ["paper", "head"])
def test_groups_are_so_many_smaller_convolutions(rules):
    def grouped(builder, x):
        y = conv(builder, "a", x, (16, 16, 1, 1), (16, 32, 32))
        return conv(builder, "b", y, (64, 4, 3, 3), (64, 32, 32), padding=(1, 1), groups=4)

    def one(builder, x):
        y = conv(builder, "a", x, (4, 16, 1, 1), (4, 32, 32))
        return conv(builder, "b", y, (16, 4, 3, 3), (16, 32, 32), padding=(1, 1))

    four = row(built(grouped, 16, 32, 32), "b", rules)
    single = row(built(one, 16, 32, 32), "b", rules)
    assert list(four[2:10]) == pytest.approx([4 * s for s in single[2:10]])
    assert paleo_from_graph(built(grouped, 16, 32, 32)).parameters == 16 * 17 + 64 * (36 + 1)


def test_a_dilated_filter_costs_what_a_dense_one_of_as_many_weights_costs():
    def dilated(builder, x):
        return conv(builder, "a", x, (8, 4, 3, 3), (8, 32, 32), padding=(2, 2), dilation=(2, 2))

    def dense(builder, x):
        return conv(builder, "a", x, (8, 4, 3, 3), (8, 32, 32), padding=(1, 1))

    assert row(built(dilated, 4, 32, 32), "a") == row(built(dense, 4, 32, 32), "a")


def test_what_cannot_be_said_in_two_axes_is_named():
    def volume(builder, x):
        return conv(builder, "a", x, (8, 4, 3, 3, 3), (8, 6, 6, 6))

    net = paleo_from_graph(built(volume, 4, 8, 8, 8))
    assert [layer.name for layer in net.unpriced] == ["a"]
    assert "1 ops (conv)" in net.notes[-1]


def test_a_signal_is_an_image_of_width_one():
    def signal(builder, x):
        y = conv(builder, "a", x, (8, 4, 1), (8, 100))
        return conv(builder, "b", y, (16, 8, 5), (16, 48), stride=(2,))

    found = row(built(signal, 4, 100), "b")
    assert found.forward_compute_s == pytest.approx(2 * 5 * 8 * 48 * 16 * 2 / 6144e9)


def test_only_a_convolution_on_the_data_skips_its_data_gradient():
    def padded(builder, x):
        y = builder.op("copy", "pad", [x], sizes(BATCH, 3, 34, 34), attrs={"fn": "pad"})
        y = conv(builder, "a", y, (8, 3, 3, 3), (8, 32, 32))
        return conv(builder, "b", y, (8, 8, 3, 3), (8, 30, 30))

    graph = built(padded, 3, 32, 32)
    assert row(graph, "a").data_compute_s == 0
    assert row(graph, "b").data_compute_s > 0


def test_a_deconvolution_costs_what_the_same_in_a_file_costs():
    def up(builder, x):
        attrs = {"stride": (2, 2), "transposed": True, "output_padding": (1, 1), "padding": (2, 2)}
        return conv(builder, "up", x, (64, 32, 5, 5), (32, 16, 16), **attrs)

    graph = built(up, 64, 8, 8, batch=16)
    in_graph, in_file = row(graph, "up", batch=16), row(DECONVOLUTION, "up", batch=16)
    assert in_graph.forward_compute_s == pytest.approx(in_file.forward_compute_s)
    assert in_graph.filter_compute_s == pytest.approx(in_file.filter_compute_s)
    assert paleo_from_graph(graph).parameters == layer_net(DECONVOLUTION).parameters
    with pytest.raises(InvalidValueError, match=r'\'up\'.*Deconvolution.*rules="head"'):
        PaleoModel().step(graph, "k40")


def test_a_shared_weight_is_counted_once():
    builder = GraphBuilder("tied")
    x = builder.tensor("x", sizes(BATCH, SEQUENCE, 32), role="input")
    w = builder.parameter("w", 32, 32)
    for name in ("a", "b"):
        x = builder.op("linear", name, [x, w], sizes(BATCH, SEQUENCE, 32))
    builder.end_in_loss([x])
    net = paleo_from_graph(builder.build(batch=2, seq=10))
    assert net.parameters == 32 * 33
    assert row(net, "a").filter_compute_s == row(net, "b").filter_compute_s > 0


def test_a_graph_of_one_batch_is_priced_at_that_batch_only():
    graph = zoo_graph("lenet5")
    tensors = {
        name: replace(t, shape=tuple(replace(s, constant=s.at(32, 0), batch=0) for s in t.shape))
        for name, t in graph.tensors.items()
    }
    fixed = Graph("fixed", graph.ops, tensors, batch=32, fixed=("batch",), loss=graph.loss)
    at_32 = PaleoModel().step(fixed, "k40", 32)
    assert at_32.total_s == pytest.approx(PaleoModel().step(graph, "k40", 32).total_s)
    with pytest.raises(InvalidValueError, match="batch of 32 only, not for 16"):
        PaleoModel().step(fixed, "k40", 16)


@pytest.mark.parametrize(
    "name", ["densenet121", "mobilenet_v2", "efficientnet_b0", "swin_t", "unet", "lstm-ptb", "dlrm"]
)
def test_networks_of_all_kinds_can_be_priced(name):
    graph = zoo_graph(name)
    for strategy in ("data", "model", "hybrid"):
        step = PaleoModel(rules="head").step(graph, "h100", 4, strategy=strategy)
        assert step.total_s > 0
        assert step.upper_forward_s >= step.forward_s > 0
