"""The node's roofline and the collectives, against values from the equations."""

from __future__ import annotations

import math

import numpy as np
import pytest
from castello_values import COLLECTIVES
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.estimate.castello import Machine, col2im, collective, gemm, im2col
from traincast.estimate.castello.collectives import FAMILIES, OPERATIONS

NODE = Machine(flops=4e12, memory_bandwidth=50e9, link_bandwidth=10e9 / 8)
LINK = {"latency_s": 0.5e-6, "send_s": 32 / 10e9, "add_s": 1 / 4e12}


def test_a_product_of_a_dense_layer_is_bound_by_memory() -> None:
    assert float(gemm(4096, 64, 25088, NODE)) == pytest.approx(0.008370258, rel=1e-6)
    fast = Machine(flops=4e12, memory_bandwidth=1e20, link_bandwidth=1)
    assert float(gemm(4096, 64, 25088, fast)) == pytest.approx(0.003288334, rel=1e-6)


def test_a_product_of_a_convolution_is_bound_by_compute() -> None:
    assert float(gemm(512, 12544, 4608, NODE)) == pytest.approx(0.014797505, rel=1e-6)
    fast = Machine(flops=1e30, memory_bandwidth=50e9, link_bandwidth=1)
    assert float(gemm(512, 12544, 4608, fast)) == pytest.approx(0.005326766, rel=1e-6)


def test_unfolding_and_folding_cost_the_matrix_they_write() -> None:
    for kernel in (im2col, col2im):
        assert float(kernel(4608, 12544, NODE)) == pytest.approx(0.004624220, rel=1e-6)


def test_plain_flops_over_peak_as_in_the_groups_dummytf_tables() -> None:
    """github.com/adcastel/dummyTF at 90dda93: AlexNet conv1, batch 64, on three devices, µs."""
    for peak, published in ((125e12, 71.963), (4.48e12, 2007.909), (45e12, 199.898)):
        device = Machine(flops=peak, memory_bandwidth=1e30, link_bandwidth=1)
        seconds = float(gemm(64, 64 * 3025, 363, device))
        assert seconds * 1e6 == pytest.approx(published, abs=5e-4)


@pytest.mark.parametrize(("operation", "processes", "family", "seconds"), COLLECTIVES)
def test_collectives(operation: str, processes: int, family: str, seconds: float) -> None:
    found = collective(operation, 10**6, processes, family=family, **LINK)
    assert float(found) == pytest.approx(seconds, rel=1e-9)


def test_the_published_scatter_takes_the_natural_logarithm() -> None:
    right, slip = (
        float(collective("scatter", 0, 8, family="vdg", natural_log=slip, **LINK))
        for slip in (False, True)
    )
    assert right == pytest.approx(3 * 0.5e-6)
    assert slip == pytest.approx(math.log(8) * 0.5e-6)


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_but_for_latency() -> None:
    free = {**LINK, "latency_s": 0.0}
    whole = collective("all-reduce", 1e6, 6, family="bta", **free)
    parts = sum(collective(op, 1e6, 6, **free) for op in ("reduce-scatter", "all-gather"))
    assert float(whole) == pytest.approx(float(parts), rel=1e-12)


def test_labels_of_the_all_reduce_are_exchanged_in_the_published_code() -> None:
    names = {"long": "bta", "short": "vdg"}
    for ours, theirs in names.items():
        found = (collective("all-reduce", 1e6, 6, family=f, **LINK) for f in (ours, theirs))
        assert len({float(x) for x in found}) == 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_process_says_nothing(operation: str, family: str) -> None:
    assert float(collective(operation, 1e6, 1, family=family, **LINK)) == 0


@given(
    operation=st.sampled_from(OPERATIONS),
    elements=st.floats(1, 1e9),
    processes=st.integers(1, 4096),
)
def test_best_is_never_beaten(operation: str, elements: float, processes: int) -> None:
    best, *others = (
        float(collective(operation, elements, processes, family=f, **LINK))
        for f in ("best", "long", "short")
    )
    assert best == min(others)


def test_everything_broadcasts() -> None:
    found = collective("all-reduce", np.ones((3, 1)), np.array([2, 4]), **LINK)
    assert found.shape == (3, 2)
    machine = Machine(flops=[1e12, 2e12], memory_bandwidth=1e9, link_bandwidth=1)
    assert gemm(np.ones((3, 1)), 5, 5, machine).shape == (3, 2)


def test_bad_values_are_named() -> None:
    with pytest.raises(InvalidValueError, match=r"flops = 0 has to be finite and above zero"):
        Machine(flops=0, memory_bandwidth=1, link_bandwidth=1)
    with pytest.raises(InvalidValueError, match=r"latency_s = -1 .* zero or more"):
        Machine(flops=1, memory_bandwidth=1, link_bandwidth=1, latency_s=-1)
    with pytest.raises(UnknownNameError, match=r"collective 'allreduce'; did you mean all-reduce"):
        collective("allreduce", 1, 2, **LINK)
    with pytest.raises(UnknownNameError, match=r"known: long, short, best, bta, vdg"):
        collective("all-reduce", 1, 2, family="ring", **LINK)
