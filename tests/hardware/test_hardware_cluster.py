"""Shapes of clusters: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traincast.errors import InvalidValueError, UnknownNameError, UsageError
from traincast.hardware import Cluster, load_cluster, load_device, load_link


@pytest.mark.parametrize(
    ("shape", "nodes", "per_node", "intra", "inter", "ports"),
    [
        ("h100", 1, 1, "nvlink4", "infiniband-ndr", 1),
        ("8xh100", 1, 8, "nvlink4", "infiniband-ndr", 8),
        ("16xp100", 4, 4, "nvlink1", "infiniband-edr", 1),
        ("4x4xp100", 4, 4, "nvlink1", "infiniband-edr", 1),
        ("4x8xh100", 4, 8, "nvlink4", "infiniband-ndr", 8),
        ("12xh100", 2, 6, "nvlink4", "infiniband-ndr", 6),
        (" 2 × 4 x NVIDIA A100 ", 2, 4, "nvlink3", "infiniband-hdr", 4),
        ("16xk80", 4, 4, "pcie3-x16", "ethernet-10g", 1),
        ("8x3090", 2, 4, "pcie4-x16", "ethernet-10g", 1),
        ("8x7900xtx", 4, 2, "pcie4-x16", "ethernet-10g", 1),
        ("4xxeon-phi-7120p", 4, 1, "pcie2-x16", "infiniband-fdr", 1),
        ("2xepyc-7742", 2, 1, "xgmi2", "ethernet-10g", 1),
        ("2xcore-i5-661", 2, 1, "ethernet-1g", "ethernet-1g", 1),
        ("64xtpu-v4", 1, 64, "ici-v4", "ethernet-100g", 16),
        ("144xgb200", 2, 72, "nvlink5", "infiniband-ndr", 72),
    ],
)
def test_a_shape(shape: str, nodes: int, per_node: int, intra: str, inter: str, ports: int) -> None:
    cluster = load_cluster(shape)
    assert (cluster.nodes, cluster.devices_per_node) == (nodes, per_node)
    assert cluster.devices == nodes * per_node
    assert (cluster.intra_link.name, cluster.inter_link.name) == (intra, inter)
    assert cluster.ports_per_node == ports
    assert cluster.name == shape.strip()


def test_the_network_can_be_chosen_and_its_ports_counted() -> None:
    usual = load_cluster("2x8xh100")
    assert usual.inter_bandwidth == 50e9  # one NDR port a device
    slow = load_cluster("2x8xh100", network="ethernet-100g")
    assert (slow.inter_link.name, slow.ports_per_node) == ("ethernet-100g", 8)
    shared = load_cluster("2x8xh100", network="1xethernet-100g")
    assert shared.inter_bandwidth == 12.5e9 / 8
    link = load_link("qdr")
    assert load_cluster("4xp100", network=link).inter_link is link
    again = load_cluster(usual, network="2xhdr")
    assert (again.inter_link.name, again.ports_per_node) == ("infiniband-hdr", 2)
    assert load_cluster(usual) is usual


def test_a_shape_may_end_in_a_device_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "h100"\n')
    cluster = load_cluster(f"4x8x{path}")
    assert (cluster.nodes, cluster.devices_per_node, cluster.device.name) == (4, 8, "mine")


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ("0xh100", "has a count of 0, which has to be 1 or more; write DEVICE, COUNTxDEVICE"),
        ("4x0xh100", "has a count of 0"),
        ("-2xh100", "has a count of -2"),
        ("4x", "'4x' names no device; write DEVICE"),
        ("4x8x", "names no device"),
        ("x", "names no device"),
        ("", "names no device"),
        ("h100x8", "has a count behind the device; write 8xh100"),
        ("2xh100x8", "write 2x8xh100"),
        ("9xh100", "9 devices do not fill 2 nodes evenly (a node of h100 holds up to 8)"),
        ("9xh100", "such as 3x3xh100"),
    ],
)
def test_a_bad_shape_is_refused_with_the_fix(shape: str, said: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        load_cluster(shape)
    assert said in str(caught.value)


def test_unknown_names_in_a_cluster() -> None:
    with pytest.raises(UnknownNameError, match="unknown device 'h101'; did you mean h100"):
        load_cluster("4xh101")
    with pytest.raises(UnknownNameError, match="unknown link 'ethernt-10g'; did you mean ether"):
        load_cluster("4xh100", network="ethernt-10g")
    with pytest.raises(InvalidValueError, match=r"has no ports; write 1xethernet-10g"):
        load_cluster("4xh100", network="0xethernet-10g")


def test_a_cluster_needs_something_in_it() -> None:
    link = load_link("nvlink4")
    with pytest.raises(InvalidValueError, match="'c': nodes = 0 has to be 1 or more"):
        Cluster(
            name="c",
            device=load_device("h100"),
            nodes=0,
            devices_per_node=1,
            intra_link=link,
            inter_link=link,
        )


@given(nodes=st.integers(1, 99), per_node=st.integers(1, 99))
def test_an_explicit_shape_means_itself(nodes: int, per_node: int) -> None:
    cluster = load_cluster(f"{nodes}x{per_node}xa100")
    assert (cluster.nodes, cluster.devices_per_node) == (nodes, per_node)


@given(count=st.integers(1, 500))
def test_a_count_is_spread_evenly_or_refused_with_a_shape_that_works(count: int) -> None:
    try:
        cluster = load_cluster(f"{count}xv100")
    except InvalidValueError as error:
        cluster = load_cluster(str(error).rpartition(" ")[2])
    assert cluster.devices == count
    assert cluster.devices_per_node <= 8


@given(shape=st.text(max_size=20))
def test_any_text_gives_a_cluster_or_a_usage_error(shape: str) -> None:
    with contextlib.suppress(UsageError):
        load_cluster(shape)
