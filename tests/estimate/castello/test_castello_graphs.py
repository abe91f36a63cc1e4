"""Any graph as layers, and what must hold for every machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import traincast
from traincast.estimate.castello import (
    Layer,
    Machine,
    Network,
    Rules,
    authors_network,
    data_parallel,
    layer_times,
    model_parallel,
    network_of,
)
from traincast.estimate.castello.estimator import Castello
from traincast.estimate.program import kernels_of, program_of
from traincast.graph.precision import precision_named

FLOPS = st.floats(1e9, 1e16)
RATES = st.floats(1e6, 1e14)
SIZES = st.integers(1, 4096)
NETWORKS = st.sampled_from(
    [authors_network("alexnet"), authors_network("vgg16")]
    + [network_of(traincast.resolve(name)) for name in ("resnext50_32x4d", "gpt2", "dlrm")]
)


def machine(flops: float = 4e12, memory: float = 50e9, link: float = 1.25e9) -> Machine:
    return Machine(flops=flops, memory_bandwidth=memory, link_bandwidth=link)


def run(network: Network, model: bool, where: Machine, batch: int, nodes: int) -> float:
    step = model_parallel if model else data_parallel
    return float(step(network, where, batch=batch, nodes=nodes).step)


@pytest.mark.parametrize(
    ("name", "parameters", "gmacs"),
    [
        # torchvision's documentation of the weights: parameters and GFLOPS (multiply-adds).
        ("resnet50", 25_557_032, 4.09),
        ("resnext50_32x4d", 25_028_904, 4.23),
        ("mobilenet_v2", 3_504_872, 0.30),
        ("vgg16", 138_357_544, 15.47),
    ],
)
def test_graphs_have_the_published_work(name: str, parameters: int, gmacs: float) -> None:
    network = network_of(traincast.resolve(name))
    assert network.parameters == parameters
    assert network.flops / 2e9 == pytest.approx(gmacs, abs=0.012)


def test_the_zoos_vgg16_has_the_authors_layers() -> None:
    ours = [x for x in network_of(traincast.resolve("vgg16")).layers if x.units]
    theirs = authors_network("vgg16").layers
    assert len(ours) == len(theirs) == 16
    for own, their in zip(ours, theirs, strict=True):
        # A graph knows pooling, so the gradient of a layer's input is what was really read.
        assert replace(own, name="", inputs=0) == replace(their, name="", inputs=0)


def test_what_is_free_is_listed_and_can_be_charged() -> None:
    network = network_of(traincast.resolve("resnet50"))
    assert dict(network.free)["batch_norm"] == 53
    plain = data_parallel(network, machine(), batch=32, nodes=1).compute
    charged = data_parallel(
        network, machine(), batch=32, nodes=1, rules=Rules(charge_others=True)
    ).compute
    # Each of 53 normalisations reads its input twice and writes it once forward, and moves five
    # times its size backward: 11.1 M elements a sample in all.
    normed = 8 * 4 * 32 * 11.1e6 / 50e9
    assert float(charged - plain) > normed


def test_ops_that_the_authors_do_not_model_say_what_is_assumed() -> None:
    assert any("attention" in text for text in network_of(traincast.resolve("gpt2")).assumed)
    assert network_of(traincast.resolve("resnet50")).assumed == ()


def test_tied_weights_are_reduced_once() -> None:
    network = network_of(traincast.resolve("gpt2"))
    assert network.parameters == 124_439_808
    by_name = {layer.name: layer for layer in network.layers}
    assert by_name["transformer.wte"].weights == 50257 * 768
    assert by_name["lm_head"].weights == 0


def test_grouped_convolution_unfolds_its_own_groups_only() -> None:
    """32 groups on 32 nodes: each has one group, so all work is shared out evenly."""
    layer = Layer(
        name="g", kind="conv", columns=128, depth=36, sites=3136, groups=32, units=128,
        unfolded=128 * 9 * 3136, weights=4608, outputs=128 * 3136, inputs=128 * 3136,
    )  # fmt: skip
    network = Network("g", (layer,))
    one, split = (model_parallel(network, machine(), batch=8, nodes=p).compute for p in (1, 32))
    assert float(one / split) == pytest.approx(32, rel=1e-12)
    dense = replace(layer, groups=1, depth=1152)
    one, split = (
        layer_times(Network("d", (dense,)), machine(), batch=8, nodes=p, model=True)
        for p in (1, 32)
    )
    unfold = 4 * 8 * dense.unfolded / 50e9
    assert float(split.forward[0]) > unfold


def test_a_transposed_convolution_folds_forward() -> None:
    graph = traincast.resolve("unet")
    kinds = [x for x in network_of(graph).layers if x.transposed]
    assert len(kinds) == 4
    # 2×2 stride 2: each input site gives 4 sites of output, and none overlap.
    assert kinds[0].unfolded == kinds[0].outputs


@settings(deadline=None)
@given(network=NETWORKS, model=st.booleans(), flops=FLOPS, memory=RATES, link=RATES,
       factor=st.floats(1, 1e3), batch=SIZES, nodes=SIZES)  # fmt: skip
def test_a_better_machine_is_never_slower(
    network: Network, model: bool, flops: float, memory: float, link: float, factor: float,
    batch: int, nodes: int,
) -> None:  # fmt: skip
    base = run(network, model, machine(flops, memory, link), batch, nodes)
    for better in ((factor, 1, 1), (1, factor, 1), (1, 1, factor)):
        faster = machine(flops * better[0], memory * better[1], link * better[2])
        assert run(network, model, faster, batch, nodes) <= base * (1 + 1e-12)


@settings(deadline=None)
@given(network=NETWORKS, batches=st.tuples(SIZES, SIZES), nodes=SIZES)
def test_data_parallel_communication_is_that_of_any_batch(
    network: Network, batches: tuple[int, int], nodes: int
) -> None:
    found = data_parallel(network, machine(), batch=batches, nodes=nodes)
    assert found.communication[0] == found.communication[1]


@settings(deadline=None)
@given(network=NETWORKS, batch=SIZES)
def test_on_one_node_there_is_nothing_to_choose(network: Network, batch: int) -> None:
    data = data_parallel(network, machine(), batch=batch, nodes=1)
    model = model_parallel(network, machine(), batch=batch, nodes=1)
    assert data == model
    assert float(data.communication) == 0


@settings(deadline=None)
@given(name=st.sampled_from(["alexnet", "vgg16"]), power=st.integers(0, 3), batch=SIZES)
def test_model_parallel_arithmetic_sums_to_the_whole(name: str, power: int, batch: int) -> None:
    """Where kernels divide evenly and memory is no limit, p nodes do 1/p each."""
    nodes = 2**power
    network, fast = authors_network(name), machine(memory=1e30)
    whole = model_parallel(network, fast, batch=batch, nodes=1).compute
    part = model_parallel(network, fast, batch=batch, nodes=nodes).compute
    # col2im alone is not shared out; its additions are one to every 2·co of the product.
    folded = sum(x.unfolded for x in network.layers[1:]) * batch / 4e12
    assert float(part - folded) * nodes == pytest.approx(float(whole) - folded, rel=1e-9)


@settings(deadline=None)
@given(network=NETWORKS, batch=SIZES, nodes=SIZES)
def test_more_nodes_never_compute_longer(network: Network, batch: int, nodes: int) -> None:
    for step in (data_parallel, model_parallel):
        found = step(network, machine(), batch=batch, nodes=[nodes, nodes + 1]).compute
        assert found[1] <= found[0] * (1 + 1e-12)


@settings(deadline=None)
@given(network=NETWORKS, batch=SIZES, nodes=SIZES, link=RATES)
def test_overlap_is_between_compute_and_the_blocking_step(
    network: Network, batch: int, nodes: int, link: float
) -> None:
    where = machine(link=link)
    hidden = data_parallel(network, where, batch=batch, nodes=nodes, overlap=True)
    assert float(hidden.compute) * (1 - 1e-12) <= float(hidden.step)
    assert float(hidden.step) <= float(hidden.compute + hidden.communication) * (1 + 1e-12)


def test_as_an_estimator_it_prices_kernels_like_layers() -> None:
    """One node, float32: matrix kernels and unfolding of the estimator are the network's."""
    device = traincast.load_device("xeon-8180")
    graph, batch = traincast.resolve("vgg16"), 16
    program = program_of(graph, precision_named("fp32"))
    kernels = kernels_of(program, batch, 0)
    pricing = Castello().price(kernels, device, precision_named("fp32"))
    times = np.bincount(program.op_class, minlength=len(program.classes))[kernels.op_class]
    product = kernels.flops > 0
    where = machine(device.peak("fp32"), device.memory_bandwidth)
    layers = tuple(x for x in network_of(graph).layers if x.kind in ("conv", "dense"))
    found = data_parallel(Network("vgg", layers), where, batch=batch, nodes=1).compute
    assert (pricing.seconds * times)[product].sum() == pytest.approx(float(found), rel=1e-9)
