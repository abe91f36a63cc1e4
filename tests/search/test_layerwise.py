"""Layer-wise plans against what the authors of the method published.

Z. Jia, S. Lin, C. R. Qi, A. Aiken, "Exploring Hidden Dimensions in Parallelizing Convolutional
Neural Networks", ICML 2018: figure 8 (GiB moved in a step), table 5 (a strategy), section 5.
"""

import sys
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from traincast.errors import InvalidValueError, PredictionError, UnknownNameError
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_for
from traincast.graph import Graph
from traincast.graph.precision import precision_named
from traincast.hardware import load_cluster
from traincast.ingest import resolve
from traincast.search.elimination import solve
from traincast.search.layerwise import BASELINES, Plan, make_plan
from traincast.simulate.layerwise import Setting, build_tables, evaluate
from traincast.simulate.step import Plan as Step

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from plan_published import CLUSTERS, SERVER, VOLUME, faster_rows, network, setting_of

NETS = ("alexnet", "vgg16", "inception_v3")


@cache
def graph_of(name: str) -> Graph:
    return network(name)


@cache
def plan_of(name: str, devices: int, objective: str = "published") -> Plan:
    return make_plan(graph_of(name), setting_of(CLUSTERS[devices], objective))


@pytest.mark.parametrize(
    ("name", "strategy", "error"),
    [
        ("alexnet", "data", 0.005),
        ("vgg16", "data", 0.005),
        ("inception_v3", "data", 0.005),
        ("vgg16", "hybrid", 0.015),
        ("inception_v3", "hybrid", 0.005),
    ],
)
def test_volumes_of_data_and_hybrid_parallelism(name: str, strategy: str, error: float) -> None:
    """Figure 8; the published hybrid of AlexNet fits no formula from four devices on."""
    for devices, published in zip(CLUSTERS, VOLUME[name, strategy], strict=True):
        moved = plan_of(name, devices).baselines[strategy].communication_bytes / 2**30
        assert moved == pytest.approx(published, rel=error)


def test_the_published_parameter_server() -> None:
    """Figure 3: the gradients of Inception-v3's last layer, milliseconds on 2 to 16 devices."""
    for shape, published in zip(CLUSTERS.values(), (16.4, 32.8, 65.5, 131.0), strict=True):
        setting = replace(setting_of(shape), server_bandwidth=SERVER)
        tables = build_tables(graph_of("inception_v3"), setting)
        index = next(i for i, x in enumerate(tables.network.layers) if x.name == "fc")
        by_sample = tables.configs[index].nearest({"sample": setting.cluster.devices})
        assert tables.sync[index][by_sample] * 1e3 == pytest.approx(published, rel=0.005)


def test_a_server_has_a_bandwidth_only_as_a_server() -> None:
    setting = replace(setting_of("1x2xp100"), scheme="ring", server_bandwidth=SERVER)
    with pytest.raises(InvalidValueError, match="for the scheme server, not ring"):
        build_tables(graph_of("alexnet"), setting)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("devices", CLUSTERS)
@pytest.mark.parametrize("objective", ["published", "overlap"])
def test_layer_wise_is_the_fastest(name: str, devices: int, objective: str) -> None:
    plan = plan_of(name, devices, objective)
    assert set(plan.baselines) == set(BASELINES)
    for rival in plan.baselines.values():
        assert plan.best.step_s <= rival.step_s
    assert plan.bound_s <= plan.best.step_s
    if objective == "published":
        assert plan.optimal
    assert evaluate(plan.tables, plan.best.choice) == plan.best


def test_the_plan_of_vgg16_on_four_devices() -> None:
    """Published: samples in the first blocks, fc6 and fc7 by channel on all, fc8 on no more."""
    split = {layer.name: layer for layer in plan_of("vgg16", 4).layers}
    for layer in split.values():
        if layer.op in ("conv", "pool") and int(layer.name.split(".")[1]) < 24:
            assert layer.degrees == {"sample": 4}
    assert split["classifier.0"].degrees == split["classifier.3"].degrees == {"channel": 4}
    assert split["classifier.6"].degree("channel") == 2
    assert split["classifier.6"].parts <= 4


def test_the_plan_of_vgg16_with_the_published_parameter_server() -> None:
    """Table 5: samples early, fewer devices in the last block, dense layers 4, 4 and 2 channels.

    The paper has four devices with height 2 and width 2 in the last block; its text says "on fewer
    devices and split in height and width".
    """
    setting = replace(setting_of("1x4xp100"), server_bandwidth=SERVER)
    plan = make_plan(graph_of("vgg16"), setting)
    assert plan.optimal
    split = {layer.name: layer for layer in plan.layers}
    for layer in split.values():
        if layer.op in ("conv", "pool"):
            at = int(layer.name.split(".")[1])
            if at <= 16:
                assert layer.degrees == {"sample": 4}
            elif at >= 24:
                assert layer.parts == 2
    assert split["classifier.0"].degrees == split["classifier.3"].degrees == {"channel": 4}
    assert split["classifier.6"].degrees == {"channel": 2}


def test_rows_of_the_last_block_are_split_if_that_is_as_fast_as_published() -> None:
    """Figure 1: a convolution takes 18.1 ms split by height, 24.3 ms by sample."""
    for layer in faster_rows(graph_of("vgg16")).layers:
        if layer.op in ("conv", "pool"):
            late = int(layer.name.split(".")[1]) >= 24
            assert layer.degrees == ({"sample": 2, "height": 2} if late else {"sample": 4})


def test_order_of_strategies_on_sixteen_devices() -> None:
    """Published: layer-wise, then hybrid, then data; model last for the two large networks."""
    for name in NETS:
        plan = plan_of(name, 16)
        hybrid, data = plan.baselines["hybrid"], plan.baselines["data"]
        assert plan.best.step_s < min(hybrid.step_s, data.step_s)
        # By ours hybrid is 2 % slower than data for Inception-v3, by measurement 3 % faster.
        assert hybrid.step_s < data.step_s * (1.05 if name == "inception_v3" else 1.0)
    for name in ("vgg16", "inception_v3"):
        plan = plan_of(name, 16)
        assert max(plan.baselines, key=lambda k: plan.baselines[k].step_s) == "model"
    few, many = (plan_of("inception_v3", n).baselines["model"] for n in (4, 16))
    assert 16 * 32 / many.step_s < 4 * 32 / few.step_s


@pytest.mark.parametrize("name", [*NETS, "resnet50", "unet"])
def test_published_networks_collapse_to_two_nodes(name: str) -> None:
    tables = build_tables(graph_of(name), setting_of("1x2xp100"))
    edges = {pair: p.seconds for pair, p in tables.edges.items()}
    assert solve(tables.shards.forward, edges).final == 2


def test_the_first_dense_layer_of_vgg16_on_two_devices() -> None:
    """By sample its 102,764,544 weights are synchronised; by channel none of them."""
    tables = build_tables(graph_of("vgg16"), setting_of("1x2xp100"))
    index = next(i for i, x in enumerate(tables.network.layers) if x.name == "classifier.0")
    configs = tables.configs[index]
    sample, channel = configs.nearest({"sample": 2}), configs.nearest({"channel": 2})
    assert tables.synced[index][sample] == 2 * 2 * 4 * 102_764_544
    assert tables.synced[index][channel] == 0
    (source,) = (u for u, v in tables.edges if v == index)
    before = tables.configs[source].nearest({"sample": 2})
    moved = tables.edges[source, index].moved
    assert moved[before, sample] == 0
    # Each device lacks half of 64 samples of 25,088 features, there and back.
    assert moved[before, channel] == 2 * 2 * 32 * 25_088 * 4


def test_splits_of_space_do_not_spare_synchronisation() -> None:
    tables = build_tables(graph_of("vgg16"), setting_of("1x4xp100"))
    configs, synced = tables.configs[3], tables.synced[3]
    by = {dim: synced[configs.nearest({dim: 4})] for dim in ("sample", "height", "width")}
    assert len(set(by.values())) == 1
    half = synced[configs.nearest({"sample": 2, "channel": 2})]
    # Half the weights on each device, each on two instead of four.
    assert half == by["sample"] / 2
    assert synced[configs.nearest({"channel": 4})] == 0


def test_what_passes_between_layers_that_are_split_alike() -> None:
    """Nothing to a pool by channel or sample; all channels to a convolution; halos by height."""
    tables = build_tables(graph_of("vgg16"), setting_of("1x4xp100"))
    names = [layer.name for layer in tables.network.layers]

    def moved(source: str, target: str, degrees: dict[str, int]) -> float:
        u, v = names.index(source), names.index(target)
        at = (tables.configs[i].nearest(degrees) for i in (u, v))
        return float(tables.edges[u, v].moved[tuple(at)])

    for dim in ("channel", "sample"):
        assert moved("features.2", "features.4", {dim: 4}) == 0
    assert moved("features.0", "features.2", {"sample": 4}) == 0
    # 128 samples of 64 × 224 × 224: each of four devices lacks three quarters, there and back.
    whole = 128 * 64 * 224 * 224 * 4
    assert moved("features.0", "features.2", {"channel": 4}) == 2 * 4 * 0.75 * whole
    # Three borders between four strips, one row needed on either side of each.
    assert moved("features.0", "features.2", {"height": 4}) == 2 * 6 * whole / 224


def test_data_parallelism_computes_what_one_device_does() -> None:
    from traincast.simulate.step import program_for, simulate_step

    setting = setting_of("1x4xp100")
    graph = graph_of("inception_v3")
    alone = Step(batch=32, seq=0, optimizer=setting.plan.optimizer)
    device = setting.cluster.device
    program = program_for(graph, setting.precision, device, setting.estimator, alone)
    step = simulate_step(program, device, setting.estimator, alone)
    data = plan_of("inception_v3", 4).baselines["data"]
    assert data.compute_s == pytest.approx(float(step.op_seconds.sum()), rel=0.01)


def test_memory_limits_are_kept() -> None:
    setting = setting_of("1x4xp100")
    free = plan_of("vgg16", 4).best
    limit = free.memory_bytes - 50e6
    tight = make_plan(graph_of("vgg16"), setting, max_memory=limit)
    assert tight.best.memory_bytes <= limit
    assert tight.best.step_s >= free.step_s
    assert free.step_s <= tight.bound_s * (1 + 1e-9)
    with pytest.raises(PredictionError, match="does not fit"):
        make_plan(graph_of("vgg16"), setting, max_memory=1e8)


def test_fixed_layers() -> None:
    setting, graph = setting_of("1x4xp100"), graph_of("vgg16")
    plan = make_plan(graph, setting, fixed=[("classifier.3", {"channel": 2})])
    held = next(x for x in plan.layers if x.name == "classifier.3")
    assert held.degree("channel") == 2
    assert plan.best.step_s >= plan_of("vgg16", 4).best.step_s
    with pytest.raises(UnknownNameError, match="unknown layer 'fc99'"):
        make_plan(graph, setting, fixed=[("fc99", {"channel": 2})])
    with pytest.raises(InvalidValueError, match="no configuration has channel=3"):
        make_plan(graph, setting, fixed=[("classifier.3", {"channel": 3})])


def test_the_next_best_are_worse_and_in_order() -> None:
    plan = make_plan(graph_of("alexnet"), setting_of("1x4xp100"), top=5)
    steps = [plan.best.step_s, *(o.step_s for o in plan.others)]
    assert len(steps) == 5
    assert steps == sorted(steps)
    assert len({plan.best.choice, *(o.choice for o in plan.others)}) == 5


@pytest.mark.parametrize("name", ["gpt2", "swin_t", "vit_b_16", "mixtral-8x7b", "t5-small", "dlrm"])
def test_networks_of_every_kind_have_a_plan(name: str) -> None:
    graph = resolve(name)
    cluster = load_cluster("2x2xh100")
    setting = Setting(
        cluster=cluster,
        estimator=estimator_for("roofline", cluster.device),
        precision=precision_named("amp_bf16"),
        plan=Step(batch=16, seq=min(graph.seq, 512), optimizer=optimizer_named("adamw")),
    )
    plan = make_plan(graph, setting)
    assert plan.bound_s <= plan.best.step_s <= min(o.step_s for o in plan.baselines.values())


def test_a_graph_too_dense_for_tables_is_bounded() -> None:
    """A dense block joins every layer with every later one: no table of all of them fits."""
    plan = make_plan(graph_of("densenet121"), setting_of("1x4xp100"))
    assert len(plan.tables.edges) > 3 * len(plan.tables.configs)
    assert 0.95 * plan.best.step_s < plan.bound_s <= plan.best.step_s
