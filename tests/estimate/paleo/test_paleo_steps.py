"""Several workers: exchange, strong scaling, hybrid and model parallelism, the case studies."""

import pytest
from paleo_tables import COMMUNICATION, HYBRID, MODEL, STRONG, rows

from traincast.estimate.paleo import (
    DEVICES,
    NETWORKS,
    PaleoModel,
    SweepRow,
    layer_net,
    paleo_device,
    paleo_network,
    sweep,
    training_total,
)
from traincast.estimate.paleo.schemes import SCHEMES, exchange_seconds
from traincast.hardware import load_device, load_link

IMAGES = 1.2e6


def floats(values):
    return [float(value) for value in values]


@pytest.mark.parametrize("row", rows(COMMUNICATION), ids=lambda r: r[0])
def test_exchange_of_alex_v2(row):
    workers, _, *expected = row
    found = [
        1e3 * PaleoModel().step("alex_v2", "k40", 8, int(workers), "ethernet", s).communication_s
        for s in SCHEMES
    ]
    assert found == pytest.approx(floats(expected), abs=1e-4, rel=0)


def test_exchange_over_infiniband_with_caffe():
    def seconds(scheme, workers):
        return exchange_seconds(scheme, 30_380_704, workers, NETWORKS["infiniband"], 0.56)

    assert 1e3 * seconds("butterfly-mixing", 1) == pytest.approx(6.200144, abs=1e-6)
    assert 1e3 * seconds("one-to-all", 128) == pytest.approx(1574.836493, abs=1e-6)


@pytest.mark.parametrize("row", rows(STRONG), ids=lambda r: "-".join(r[:2]))
def test_strong_scaling(row):
    rules, workers, share, *expected = row
    step = PaleoModel(rules=rules).step(
        "alex_v2", "TITAN_X", 128, int(workers), scaling="strong", strict=True
    )
    assert (step.worker_batch, step.global_batch) == (int(share), 128)
    found = [step.forward_s, step.backward_s, step.update_s, step.compute_s]
    assert [1e3 * s for s in found] == pytest.approx(floats(expected), abs=1e-6, rel=0)


@pytest.mark.parametrize("row", rows(HYBRID), ids=lambda r: "-".join((*r[:2], r[3])))
def test_hybrid(row):
    rules, net, workers, part, *expected, whole = row
    model = PaleoModel.for_software("cuda-convnet2", rules=rules)
    step = model.step(net, "K20", 128, int(workers), "pcie2", strategy="hybrid")
    (found,) = [p for p in step.parts if p.name == part]
    assert [1e3 * s for s in found[1:]] == pytest.approx(floats(expected), abs=1e-6, rel=0)
    assert step.global_batch == 128 * int(workers)
    if part == "data":
        assert 1e3 * step.total_s == pytest.approx(float(whole), abs=5e-4)


@pytest.mark.parametrize("row", rows(MODEL), ids=lambda r: "-".join(r[:3]))
def test_model_parallel_bounds_as_in_the_original(row):
    rules, net, device, compute, comm, *expected = row
    model = PaleoModel(
        rules=rules, ppp_compute=float(compute), ppp_comm=float(comm), fetch="memory"
    )
    step = model.step(net, device, 128, strategy="model")
    found = [step.forward_s, step.upper_forward_s, step.backward_s, step.upper_backward_s]
    assert [1e3 * s for s in found] == pytest.approx(floats(expected), abs=1e-6, rel=0)
    assert step.update_s == step.communication_s == 0


def test_model_parallelism_beyond_the_original():
    """Eight splits, branches within branches, and fetches over the link."""
    over_link, in_memory = PaleoModel(), PaleoModel(fetch="memory")
    slow, fast = (
        m.step("alex_v2_8gpu", "k20", 128, network="pcie2", strategy="model")
        for m in (over_link, in_memory)
    )
    assert slow.workers == fast.workers == 8
    assert slow.forward_s > fast.forward_s
    inception = over_link.step("inception_v3", "k40", 64, strategy="model")
    serial = over_link.step("inception_v3", "k40", 64)
    assert inception.forward_s < serial.forward_s
    assert inception.upper_forward_s == pytest.approx(serial.forward_s)


@pytest.mark.parametrize(
    ("workers", "batch", "step_ms", "speedup", "hours"),
    [
        (1, 256, 1918.332, 1.0, 4.89 * 24),
        (32, 256, 123.845, 15.49, 7.58),
        (32, 1024, 303.505, 25.28, 4.64),
        (128, 1024, 148.645, 51.62, 2.27),
    ],
)
def test_firecaffe(workers, batch, step_ms, speedup, hours):
    """Network in network on K20X, 47 epochs; published: 4.9 days, 7.6 h, 4.6 h, 2.3 h."""
    model = PaleoModel.for_software("caffe")

    def run(workers, batch):
        step = model.step("nin", "K20X", batch, workers, "infiniband", "tree", "strong")
        return step, training_total(step, dataset=IMAGES, epochs=47).hours

    step, total = run(workers, batch)
    assert 1e3 * step.total_s == pytest.approx(step_ms, abs=5e-4)
    assert run(1, 256)[1] / total == pytest.approx(speedup, abs=0.005)
    assert total == pytest.approx(hours, abs=0.13 if workers == 1 else 0.006)


def test_alexnet_in_hybrid_and_data_parallelism():
    """Published hybrid hours; published data-parallel speed-ups 1.72, 3.03 and 5.40."""
    model = PaleoModel.for_software("cuda-convnet2")
    nets = {k: f"alex_v2_{k}gpu" for k in (1, 2, 4, 8)}
    found = sweep(
        model,
        nets,
        "k20",
        workers=(1, 2, 4, 8),
        batches=(128,),
        network="pcie2",
        schemes=("tree",),
        strategies=("data", "hybrid"),
    )
    data, hybrid = found[:4], found[4:]
    assert [r.step_ms for r in hybrid] == pytest.approx(
        [410.936, 422.995, 433.875, 490.642], abs=5e-4
    )
    assert [r.speedup for r in hybrid] == pytest.approx([1, 1.94, 3.79, 6.70], abs=0.005)
    assert [r.step_ms for r in data] == pytest.approx(
        [410.936, 477.025, 543.113, 609.202], abs=5e-4
    )
    assert [r.speedup for r in data] == pytest.approx([1, 1.72, 3.03, 5.40], abs=0.005)
    hours = [
        training_total(
            model.step(nets[k], "k20", 128, k, "pcie2", strategy="hybrid"),
            dataset=IMAGES,
            epochs=90,
        ).hours
        for k in nets
    ]
    assert hours == pytest.approx([96.31, 49.57, 25.42, 14.37], abs=0.006)


def test_other_studies():
    tf = PaleoModel.for_software("tensorflow")
    one = tf.step("inception_v3", "k40", 256)
    assert 1e3 * one.total_s == pytest.approx(3946.972970, abs=1e-6)
    assert 1e3 * one.update_s == pytest.approx(0.932077, abs=1e-6)
    for workers, scheme, exchange in (
        (50, "one-to-all", 10337.611449),
        (100, "one-to-all", 20886.194560),
        (100, "tree", 1476.801636),
    ):
        step = tf.step("inception_v3", "k40", 256, workers, "ethernet", scheme)
        assert 1e3 * step.communication_s == pytest.approx(exchange, abs=1e-6)
    mxnet = PaleoModel.for_software("mxnet")
    for net, batch, compute, exchange in (
        ("inception_v3", 32, 467.889250, 738.400818),
        ("alex_v2", 512, 1062.659379, 1565.010596),
    ):
        step = mxnet.step(net, "k80", batch, 128, "ethernet20")
        assert 1e3 * step.compute_s == pytest.approx(compute, abs=1e-6)
        assert 1e3 * step.communication_s == pytest.approx(exchange, abs=1e-6)
    study = PaleoModel.for_software("scaling-study")
    one, many = (
        study.step("alex_v2", "k80", 2048, k, "ethernet20", "butterfly", "strong") for k in (1, 128)
    )
    assert 1e3 * one.compute_s == pytest.approx(3351.139428, abs=1e-6)
    assert 1e3 * many.compute_s == pytest.approx(29.234323, abs=1e-6)
    assert 1e3 * many.communication_s == pytest.approx(563.403814, abs=1e-6)


def test_totals_as_the_demo_counts_them():
    """1.2 million images, 20 epochs, 0.9 dollars: 187,500 iterations of a batch of 128."""
    model = PaleoModel.for_software("tensorflow")
    step = model.step("alex_v2", "TITAN_X", 128, 8, "ethernet", "tree", "weak")
    assert 1e3 * step.total_s == pytest.approx(1539.033, abs=5e-4)
    demo, real = training_total(step, demo=True), training_total(step)
    assert demo == (187_500, 81, 583)
    assert real.iterations == 187_500 / 8
    assert real.hours == pytest.approx(80.158 / 8, abs=1e-3)
    assert real.cost_usd == pytest.approx(real.hours * 0.9 * 8)


def test_a_sweep_says_what_single_steps_say():
    model = PaleoModel.for_software("mxnet", rules="head")
    found = sweep(
        model,
        "nin",
        "titan-x",
        workers=(3, 8),
        batches=(64, 100),
        network="aws",
        schemes=tuple(SCHEMES),
        scalings=("weak", "strong"),
    )
    assert len(found) == 2 * 2 * 2 * 4
    for row in found:

        def run(workers, row=row):
            at = ("nin", "titan-x", row.batch, workers, "aws", row.scheme, row.scaling)
            return model.step(*at)

        step, alone = run(row.devices), run(1)
        gain = alone.total_s / step.total_s * (row.devices if row.scaling == "weak" else 1)
        assert row == SweepRow(
            "data",
            row.devices,
            row.scheme,
            pytest.approx(1e3 * step.compute_s),
            pytest.approx(1e3 * step.communication_s),
            pytest.approx(1e3 * step.total_s),
            pytest.approx(gain),
            pytest.approx(gain / row.devices),
            row.scaling,
            row.batch,
            step.worker_batch,
        )


def test_the_batch_of_the_network_is_assumed():
    assert PaleoModel().step("vgg16", "k40").worker_batch == 64
    assert layer_net("vgg16").batch == 64


def test_devices_and_networks_of_the_catalog_can_be_used():
    catalog = load_device("k80")  # one of the two GPUs of Paleo's board
    own = paleo_device(catalog)
    assert own.peak_flops == catalog.peak("fp32") < DEVICES["k80"].peak_flops
    assert paleo_device("K40") is paleo_device("NVIDIA k40") is DEVICES["k40"]
    assert paleo_device("TITAN_X") is DEVICES["titan-x"]
    assert paleo_device("GEFORCE_780_TI") is DEVICES["geforce-780-ti"]
    assert paleo_network("ethernet-100g").bandwidth == load_link("ethernet-100g").bandwidth
    assert (
        PaleoModel().step("vgg16", "h100", 64).total_s < PaleoModel().step("vgg16", "k40").total_s
    )
    assert paleo_device("h100").gpu
    assert not paleo_device("epyc-7742").gpu


def test_counterparts_in_the_catalog_exist():
    for device in DEVICES.values():
        assert device.catalog is None or load_device(device.catalog).name == device.catalog
    for network in NETWORKS.values():
        assert network.catalog is None or load_link(network.catalog).name == network.catalog


def test_hybrid_pipelining_spares_the_update_of_the_paper_rules():
    """Only `head` pipelines the update, and only that of the data-parallel part."""

    def updates(rules, pipeline):
        model = PaleoModel(rules=rules, pipeline=pipeline)
        return [
            part.update_s
            for part in model.step("alex_v2_2gpu", "k20", 128, 2, strategy="hybrid").parts
        ]

    assert updates("paper", True) == updates("paper", False)
    (data, model), (piped, same) = updates("head", False), updates("head", True)
    assert piped < data
    assert same == model
