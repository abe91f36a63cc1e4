"""Whole steps: the tables, the overlap, the bounds, the measured communication."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from castello_values import BELOW, FIVE_AXES, SANITY

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.castello import (
    Machine,
    Rules,
    Step,
    authors_network,
    data_parallel,
    gemm,
    im2col,
    layer_times,
    model_parallel,
    published_rules,
)

MEASURED = Path(__file__).parents[4] / "shared/data/castello_measured.csv"


def node(link_bits: float = 10e9, **more: object) -> Machine:
    given = {"flops": 4e12, "memory_bandwidth": 50e9, "link_bandwidth": link_bits / 8}
    return Machine(**{**given, **more})  # type: ignore[arg-type]


def step(mode: str, name: str, machine: Machine, batch: int, nodes: int) -> Step:
    run = data_parallel if mode == "DP" else model_parallel
    return run(authors_network(name), machine, batch=batch, nodes=nodes)


def test_networks_have_the_parameters_of_the_authors() -> None:
    assert authors_network("alexnet").parameters == 61_838_248
    assert authors_network("vgg16").parameters == 138_357_544
    with pytest.raises(UnknownNameError, match="known: alexnet, vgg16"):
        authors_network("resnet")


@pytest.mark.parametrize(("name", "gbits", "mode", "p", "compute", "comm", "total"), SANITY)
def test_sanity_table(
    name: str, gbits: int, mode: str, p: int, compute: float, comm: float, total: float
) -> None:
    found = step(mode, name, node(gbits * 1e9), 64 * p if mode == "DP" else 64, p)
    assert float(found.compute) == pytest.approx(compute, rel=1e-5)
    # The table has six decimals, which is coarser than 1e-5 for the shortest exchanges.
    assert float(found.communication) == pytest.approx(comm, rel=1e-5, abs=5.1e-7)
    assert float(found.step) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize("row", FIVE_AXES, ids=lambda row: f"{row[0]}={row[1]:g}")
def test_five_axes_table(row: tuple[str, float, float, float, float, float]) -> None:
    axis, value, *expected = row
    size = {"batch": 256, "nodes": 16}
    machine = {"link_bits": 10e9, "flops": 4e12, "memory_bandwidth": 50e9}
    (size if axis in size else machine)[axis] = value
    found = [
        float(step(mode, name, node(**machine), **size).step)
        for name in ("alexnet", "vgg16")
        for mode in ("DP", "MP")
    ]
    assert found == pytest.approx(expected, rel=1e-5)


def test_all_axes_at_once_equal_one_at_a_time() -> None:
    vgg = authors_network("vgg16")
    flops, batch = np.array([1e12, 4e12, 16e12]), np.array([[64], [256]])
    for run in (data_parallel, model_parallel):
        grid = run(vgg, node(flops=flops), batch=batch, nodes=16).step
        assert grid.shape == (2, 3)
        for i, j in np.ndindex(2, 3):
            alone = run(vgg, node(flops=flops[j]), batch=batch[i, 0], nodes=16).step
            assert grid[i, j] == pytest.approx(float(alone), rel=1e-14)


@pytest.mark.parametrize(
    ("name", "gbits", "expected"),
    [
        ("alexnet", 10, (0.251833, 0.350787, 0.425011, 0.443580)),
        ("alexnet", 100, (0.128384, 0.128389, 0.128394, 0.128397)),
        ("vgg16", 10, (2.803744, 2.803748, 2.803752, 2.803754)),
        ("vgg16", 100, (2.803739, 2.803740, 2.803742, 2.803744)),
    ],
)
def test_overlapped_all_reduces(name: str, gbits: int, expected: tuple[float, ...]) -> None:
    nodes = np.array([2, 4, 16, 64])
    network, machine = authors_network(name), node(gbits * 1e9)
    found = data_parallel(network, machine, batch=64 * nodes, nodes=nodes, overlap=True)
    assert found.step == pytest.approx(expected, rel=1e-5)
    layers = layer_times(network, machine, batch=64 * nodes, nodes=nodes, model=False)
    compute = layers.forward.sum(1) + layers.backward.sum(1)
    assert (found.step <= found.compute + found.communication).all()
    assert (found.step >= compute - 1e-15).all()
    last = layers.forward.sum(1) + layers.backward[:, -1] + layers.reduce.sum(1)
    assert (found.step >= last - 1e-15).all()


def test_overlap_equals_the_queue_played_layer_by_layer() -> None:
    network, machine = authors_network("alexnet"), node(25e9)
    forward, backward, _, reduce = layer_times(network, machine, batch=64, nodes=4, model=False)
    now, free = float(forward.sum()), 0.0
    for i in reversed(range(len(network.layers))):
        now += float(backward[i])
        free = max(now, free) + float(reduce[i])
    found = data_parallel(network, machine, batch=64, nodes=4, overlap=True)
    assert float(found.step) == pytest.approx(max(now, free), rel=1e-12)


@pytest.mark.parametrize("name", BELOW)
def test_batch_below_which_a_layer_sends_less_when_split(name: str) -> None:
    layers = authors_network(name).layers
    found = [(int(x.weights), int(x.outputs), int(x.inputs)) for x in layers]
    assert found == [row[:3] for row in BELOW[name]]
    assert [x.model_below for x in layers] == pytest.approx([r[3] for r in BELOW[name]], abs=5.1e-4)
    assert [x.kind for x in layers if x.model_below > 64] == ["dense"] * 3


def test_model_parallel_compute_stops_shrinking() -> None:
    """Unfolding is not shared out: 2.80 s on one node, 2.08 s and not 0.04 s on 64."""
    found = model_parallel(authors_network("vgg16"), node(), batch=64, nodes=[1, 64]).compute
    assert found == pytest.approx([2.803737, 2.082614], rel=1e-5)


def test_a_layer_uses_no_more_processes_than_it_has_kernels() -> None:
    network = authors_network("alexnet")
    at_64, beyond = (
        layer_times(network, node(), batch=64, nodes=p, model=True) for p in (64, 1024)
    )
    assert beyond.forward[0] == at_64.forward[0]  # 64 kernels
    assert beyond.forward[5] < at_64.forward[5]  # 4096 neurons
    # The first layer's outputs go to the second, whose 192 kernels run on 192 processes.
    wide = layer_times(network, node(), batch=64, nodes=192, model=True)
    assert beyond.gather[0] == wide.gather[0]


def test_the_grain_of_the_mpi_program_limits_processes() -> None:
    """512 neurons or 8 kernels a process: 64 kernels on 8 processes, 1000 neurons on 2."""
    rules = Rules(least_kernels=8, least_neurons=512)
    network, machine = authors_network("alexnet"), node()
    coarse = layer_times(network, machine, batch=64, nodes=64, model=True, rules=rules)
    for layer, used in ((0, 8), (7, 2)):
        alone = layer_times(network, machine, batch=64, nodes=used, model=True)
        assert coarse.forward[layer] == alone.forward[layer]


def test_on_a_gpu_nothing_is_unfolded() -> None:
    network = authors_network("vgg16")
    gpu = data_parallel(network, node(), batch=64, nodes=1, rules=Rules(unfold=False)).compute
    cpu = data_parallel(network, node(), batch=64, nodes=1).compute
    # im2col forward for all 13 convolutions, col2im backward for all but the first.
    moved = sum(x.unfolded * 64 * 4 * (2 if i else 1) for i, x in enumerate(network.layers))
    assert float(cpu - gpu) == pytest.approx(moved / 50e9, rel=1e-9)


def test_compat_reproduces_the_slips_of_the_published_code() -> None:
    network, machine = authors_network("alexnet"), node()
    first = gemm(64, 64 * 3025, 363, machine)
    unfold = im2col(363, 64 * 3025, machine)
    second = gemm(192, 64 * 729, 1600, machine)
    fc = gemm(64, 4096, 9216, machine)
    found = layer_times(network, machine, batch=64, nodes=1, model=False, rules=published_rules())
    # im2col is free; the first convolution folds, the others have two products and do not fold.
    assert float(found.forward[0]) == pytest.approx(float(first), rel=1e-6)
    assert float(found.backward[0]) == pytest.approx(float(first + unfold), rel=1e-6)
    assert float(found.backward[1]) == pytest.approx(2 * float(second), rel=1e-6)
    assert float(found.backward[5]) == pytest.approx(2 * float(fc), rel=1e-6)
    gpu = layer_times(
        network, machine, batch=64, nodes=1, model=False, rules=published_rules(unfold=False)
    )
    assert float(gpu.backward[0]) == 0.0  # even the weight gradient
    assert float(gpu.backward[1]) == pytest.approx(2 * float(second), rel=1e-6)


def test_compat_keeps_single_precision_and_reduces_by_tree() -> None:
    network, machine = authors_network("vgg16"), node()
    found = layer_times(network, machine, batch=64, nodes=8, model=False, rules=published_rules())
    assert (found.forward == found.forward.astype(np.float32)).all()
    n = network.layers[13].weights
    tree = 3 * (0.5e-6 + n * (2 * 32 / 10e9 + 1 / 4e12))
    assert float(found.reduce[13]) == pytest.approx(tree, rel=1e-6)


def test_sizes_that_are_not_whole_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"batch = 0.5 has to be whole and at least 1"):
        data_parallel(authors_network("vgg16"), node(), batch=0.5, nodes=1)
    with pytest.raises(InvalidValueError, match=r"nodes = 0 has to be whole and at least 1"):
        model_parallel(authors_network("vgg16"), node(), batch=1, nodes=0)


@pytest.mark.skipif(not MEASURED.is_file(), reason="the authors' measured runs are not at hand")
def test_measured_forward_communication_fits_the_authors_collectives() -> None:
    """github.com/adcastel/model_parallelism: gather plus scatter-all-gather broadcast.

    3·(p−1)/p·M bytes of every convolution's outputs, at 1.9 to 3.0 GB/s for both networks and all
    process counts; one bandwidth for all of them is off by less than 27 %.
    """
    with MEASURED.open(encoding="utf-8") as file:
        rows = [r for r in csv.DictReader(file) if r["layer_type"] == "conv"]
    assert len(rows) == 18 * 8
    rates = []
    for row in rows:
        p, size = int(row["processes"]), 4 * 64 * int(row["outputs_per_sample"])
        layer = authors_network(row["net"]).layers[int(row["layer"]) - 1]
        assert layer.outputs == int(row["outputs_per_sample"])
        rates.append(3 * (p - 1) / p * size / float(row["fp_comm_s"]))
    assert min(rates) >= 1.9e9
    assert max(rates) <= 3.0e9
    # A machine with that one bandwidth, latency left out, by the model's own gather and broadcast.
    from traincast.estimate.castello import collective

    rate = float(np.exp(np.mean(np.log(rates))))
    for row in rows:
        n, p = 64 * int(row["outputs_per_sample"]), int(row["processes"])
        link = {"latency_s": 0.0, "send_s": 4 / rate, "add_s": 0.0}
        gathered = collective("all-gather", n, p, **link)  # to the root: the same bytes arrive
        found = float(gathered + collective("broadcast", n, p, family="vdg", **link))
        assert found / float(row["fp_comm_s"]) == pytest.approx(1, abs=0.27)
