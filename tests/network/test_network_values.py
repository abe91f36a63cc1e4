"""Times worked out by hand, and the two published tables."""

import math

import pytest

from traincast.hardware import Cluster, Link, load_cluster, load_device
from traincast.network import bytes_sent, collective_seconds, fastest

# 1 µs, 1 GB/s: a MB takes 1 ms.
LINK = Link(name="test", title="test", kind="ethernet", latency_s=1e-6, bandwidth=1e9)
N = 8e6


def ms(op: str, name: str, p: int, gamma: float = 0.0, **options: float) -> float:
    return collective_seconds(op, N, p, LINK, algorithm=name, gamma=gamma, **options) * 1e3


@pytest.mark.parametrize(
    ("op", "name", "p", "expected_ms"),
    [
        # ring, 4 ranks: 6 steps of 2 MB
        ("all-reduce", "ring", 4, 6 * 2.001),
        # 3 down and 3 up the binomial tree of 8, whole vectors
        ("all-reduce", "binomial", 8, 6 * 8.001),
        # 5 ranks: 2 rounds among 4, one more before and one after
        ("all-reduce", "recursive-doubling", 5, 4 * 8.001),
        ("all-reduce", "butterfly", 5, 3 * 8.001),
        # 4 ranks: 4 + 2 + 2 + 4 MB in 4 messages
        ("all-reduce", "rabenseifner", 4, 12 + 0.004),
        # 6 ranks: fold 2 x 4 MB, then as 4 ranks, then 8 MB back: 7 messages
        ("all-reduce", "rabenseifner", 6, 8 + 12 + 8 + 0.007),
        ("all-reduce", "flat", 4, 6 * 8.001),
        ("broadcast", "binomial", 5, 3 * 8.001),
        ("broadcast", "flat", 4, 3 * 8.001),
        # scatter 6 MB in 2 messages, ring of 3 steps of 2 MB
        ("broadcast", "van-de-geijn", 4, 6 + 0.002 + 6 + 0.003),
        ("reduce", "binomial", 4, 2 * 8.001),
        ("reduce", "rabenseifner", 4, 12 + 0.004),
        ("scatter", "binomial", 4, 6 + 0.002),
        ("scatter", "flat", 4, 6 + 0.003),
        ("gather", "binomial", 8, 7 + 0.003),
        ("all-gather", "ring", 4, 3 * 2.001),
        ("all-gather", "bruck", 4, 6 + 0.002),
        ("all-gather", "recursive-doubling", 4, 6 + 0.002),
        ("all-gather", "binomial", 4, 6 + 16 + 0.004),
        ("reduce-scatter", "pairwise", 4, 3 * 2.001),
        # 3 ranks: whole vector, then the larger part of two to three blocks, then a block
        ("reduce-scatter", "recursive-halving", 3, 8 + 16 / 3 + 8 / 3 + 0.003),
        ("all-to-all", "pairwise", 4, 3 * 2.001),
        ("all-to-all", "bruck", 4, 2 * 4.001),
        ("point-to-point", "direct", 2, 8.001),
    ],
)
def test_by_hand(op: str, name: str, p: int, expected_ms: float) -> None:
    assert ms(op, name, p) == pytest.approx(expected_ms, rel=1e-12)


def test_reduction_adds_its_bytes() -> None:
    # 4 ranks: 6 MB added by the ring, 16 by the tree, 24 by the root alone; 2 ns a byte
    assert ms("all-reduce", "ring", 4, 2e-9) - ms("all-reduce", "ring", 4) == pytest.approx(12)
    assert ms("all-reduce", "binomial", 4, 2e-9) - ms("all-reduce", "binomial", 4) == pytest.approx(
        32
    )
    assert ms("reduce", "flat", 4, 2e-9) - ms("reduce", "flat", 4) == pytest.approx(48)


def test_double_tree_at_its_best_number_of_pieces() -> None:
    # broadcast among 8: h = 3, (sqrt(n beta) + sqrt(2 h alpha))^2
    expected = (math.sqrt(8e-3) + math.sqrt(6e-6)) ** 2
    assert ms("broadcast", "double-tree", 8) == pytest.approx(expected * 1e3)
    # in 10 pieces: 16 steps of 0.8 MB
    assert ms("broadcast", "double-tree", 8, segments=10) == pytest.approx(16 * 0.801)
    # a chain of 5 in 4 pieces: 7 steps of 2 MB
    assert ms("broadcast", "chain", 5, segments=4) == pytest.approx(7 * 2.001)


def test_parameter_server() -> None:
    # 4 workers, one of them the server: 3 vectors in, 3 out
    assert ms("all-reduce", "parameter-server", 4) == ms("all-reduce", "flat", 4)
    # sharded over all four: 3 shares of 2 MB each way
    assert ms("all-reduce", "parameter-server", 4, servers=4) == pytest.approx(6 * 2.001)
    # two machines of their own: each handles 4 shares of 4 MB each way
    own = ms("all-reduce", "parameter-server", 4, servers=2, dedicated=True)
    assert own == pytest.approx(8 * 4.001)
    # OptCNN counts 2 n r bytes for r replicas (Jia et al., ICML 2018): 8 n P for 4-byte floats
    sent = bytes_sent("all-reduce", N, 4, "parameter-server", every_rank=True, dedicated=True)
    assert sent == 2 * N * 4


# PyDTNN's table at n = 1e6 floats, 10 Gbit/s, 0.5 µs, 4 TFLOP/s, evaluated from its equations.
PYDTNN = {
    "all-reduce": (0.00560321875, 0.01920225, 0.005336126629, 0.01920225),
    "reduce": (0.00960225, 0.00560321875, 0.00960225, 0.005336126629),
    "broadcast": (0.0096045, 0.005605, 0.0096045, 0.005337125815),
    "gather": (0.0096045, 0.005605, 0.0096045, 0.005337125815),
    "scatter": (0.0028015, 0.0028015, 0.002668166667, 0.002667959148),
    "all-gather": (0.0028035, 0.002806, 0.002669166667, 0.002672666667),
    "reduce-scatter": (0.00280371875, 0.00280371875, 0.002669375, 0.002669375),
}


@pytest.mark.parametrize("op", PYDTNN)
def test_castello_table(op: str) -> None:
    link = Link(name="10g", title="", kind="ethernet", latency_s=0.5e-6, bandwidth=1.25e9)
    got = [
        collective_seconds(op, 4e6, p, link, algorithm=f"castello-{label}", gamma=1 / 4e12 / 4)
        for p in (8, 6)
        for label in ("bta", "vdg")
    ]
    assert got == pytest.approx(PYDTNN[op], rel=1e-9)


def test_castello_long_vector_all_reduce_is_rabenseifner_for_a_power_of_two() -> None:
    for p in (2, 4, 8, 16, 64):
        assert ms("all-reduce", "castello-bta", p, 1e-9) == pytest.approx(
            ms("all-reduce", "rabenseifner", p, 1e-9)
        )


def test_paleo_schemes() -> None:
    # Without latency: 2 D (K-1) / B, 2 h D / B and h D / B with h = ceil(log2 K); K = 6, h = 3
    link = Link(name="x", title="", kind="ethernet", latency_s=0.0, bandwidth=1e9)
    for name, factor in (("flat", 10), ("binomial", 6), ("butterfly", 3)):
        got = collective_seconds("all-reduce", N, 6, link, algorithm=name)
        assert got == pytest.approx(factor * 8e-3)


def cluster(nodes: int = 4, devices: int = 8, ports: int = 4) -> Cluster:
    inside = Link(name="in", title="", kind="socket", latency_s=1e-6, bandwidth=100e9)
    outside = Link(name="out", title="", kind="infiniband", latency_s=5e-6, bandwidth=10e9)
    return Cluster(
        name="test",
        device=load_device("xeon-8380"),
        nodes=nodes,
        devices_per_node=devices,
        intra_link=inside,
        inter_link=outside,
        ports_per_node=ports,
    )


def test_hierarchical_all_reduce_by_hand() -> None:
    # 8 MB over 4 nodes of 8: 7 steps of 1 MB at 100 GB/s twice, and between nodes 6 steps of
    # 0.25 MB at 5 GB/s (4 ports of 10 GB/s for 8 devices)
    inside = 7 * (1e-6 + 1e6 / 100e9)
    outside = 6 * (5e-6 + 0.25e6 / 5e9)
    got = collective_seconds(
        "all-reduce", N, 32, cluster(), algorithm="hierarchical", intra="ring", inter="ring"
    )
    assert got == pytest.approx(2 * inside + outside)
    sent = bytes_sent("all-reduce", N, 32, "hierarchical", cluster=cluster())
    assert sent == pytest.approx(2 * 7e6 + 1.5e6)


def test_hierarchical_all_to_all_and_broadcast_by_hand() -> None:
    got = collective_seconds(
        "all-to-all", N, 32, cluster(), algorithm="hierarchical", intra="pairwise", inter="pairwise"
    )
    assert got == pytest.approx(7 * (1e-6 + 1e6 / 100e9) + 3 * (5e-6 + 2e6 / 5e9))
    # one leader in a node has a whole port: 10 GB/s
    got = collective_seconds(
        "broadcast", N, 32, cluster(), algorithm="hierarchical", intra="binomial", inter="binomial"
    )
    assert got == pytest.approx(2 * (5e-6 + N / 10e9) + 3 * (1e-6 + N / 100e9))


def test_a_flat_ring_leaves_each_node_once() -> None:
    # 62 steps of 8/32 MB; one rank of each node sends out, over all 4 ports: 40 GB/s
    got = collective_seconds("all-reduce", N, 32, cluster(), algorithm="ring")
    assert got == pytest.approx(62 * (5e-6 + 0.25e6 / 40e9))
    # one rank in each node has its share of 5 GB/s
    got = collective_seconds("all-reduce", N, 4, cluster(), algorithm="ring", per_node=1)
    assert got == pytest.approx(6 * (5e-6 + 2e6 / 5e9))
    # inside a node, the inner link
    got = collective_seconds("all-reduce", N, 8, cluster(), algorithm="ring")
    assert got == pytest.approx(14 * (1e-6 + 1e6 / 100e9))


def test_fastest_changes_with_the_size() -> None:
    small, large = fastest("all-reduce", 1e3, 16, LINK), fastest("all-reduce", 1e9, 16, LINK)
    assert small.algorithm == "butterfly"
    assert small.seconds == pytest.approx(4 * 2e-6)
    assert large.algorithm == "rabenseifner"
    assert fastest("all-reduce", 1e9, 12, LINK).algorithm == "ring"


def test_auto_is_nccl_on_gpus_and_the_fastest_elsewhere() -> None:
    gpus = load_cluster("8xh100")
    assert collective_seconds("all-reduce", 1e8, 8, gpus) == collective_seconds(
        "all-reduce", 1e8, 8, gpus, algorithm="nccl"
    )
    cpus = cluster()
    assert (
        collective_seconds("all-reduce", 1e8, 8, cpus)
        == fastest("all-reduce", 1e8, 8, cpus).seconds
    )
