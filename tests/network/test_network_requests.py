"""What is refused, and how it is said."""

import pytest

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.hardware import load_cluster, load_link
from traincast.network import algorithms, bytes_sent, collective_seconds, find, register

LINK = load_link("ethernet-10g")


def test_names_of_operations() -> None:
    for name in ("all-reduce", "all_reduce", "AllReduce", "allreduce", "all reduce"):
        assert find(name, "ring").op == "all-reduce"
    assert find("p2p", "direct").op == "point-to-point"


def test_unknown_operation_suggests_a_near_one() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown collective operation 'all-reduc'; did you mean all-reduce"
    ):
        collective_seconds("all-reduc", 1, 2, LINK)


def test_unknown_algorithm_suggests_and_lists() -> None:
    with pytest.raises(
        UnknownNameError,
        match=r"unknown all-reduce algorithm 'rign'; did you mean ring\?.*known: binomial",
    ):
        collective_seconds("all-reduce", 1, 2, LINK, algorithm="rign")


@pytest.mark.parametrize("ranks", [0, -1, 1.5, float("nan"), [2, 0]])
def test_ranks_have_to_be_whole_and_positive(ranks) -> None:
    with pytest.raises(
        InvalidValueError, match=r"ranks = .* has to be a whole number of at least 1"
    ):
        collective_seconds("all-reduce", 1e6, ranks, LINK)


@pytest.mark.parametrize("size", [0, -1.0, float("inf"), float("nan"), [1e6, 0]])
def test_bytes_have_to_be_positive(size) -> None:
    with pytest.raises(
        InvalidValueError, match=r"message_bytes = .* has to be a finite number above zero"
    ):
        bytes_sent("all-reduce", size, 2)


def test_shapes_have_to_go_together() -> None:
    with pytest.raises(InvalidValueError, match="do not go together"):
        collective_seconds("all-reduce", [1, 2, 3], [2, 4], LINK)


def test_negative_gamma() -> None:
    with pytest.raises(InvalidValueError, match=r"gamma = -1.0 has to be zero or more"):
        collective_seconds("all-reduce", 1, 2, LINK, algorithm="ring", gamma=-1.0)


def test_duplicate_algorithm_is_an_error() -> None:
    with pytest.raises(InvalidValueError, match="all-reduce has an algorithm 'ring' already"):
        register("all-reduce", "ring", source="again")
    with pytest.raises(InvalidValueError, match="'nccl' is reserved"):
        register("all-reduce", "nccl", source="again")
    with pytest.raises(InvalidValueError, match="operation 'sum' is not one of"):
        register("sum", "ring", source="again")


def test_options_belong_to_their_algorithm() -> None:
    with pytest.raises(InvalidValueError, match="'ring' has no option servers; it has none"):
        collective_seconds("all-reduce", 1, 2, LINK, algorithm="ring", servers=2)
    with pytest.raises(InvalidValueError, match="servers cannot be given with algorithm 'auto'"):
        collective_seconds("all-reduce", 1, 2, LINK, servers=2)
    with pytest.raises(InvalidValueError, match=r"servers = 8 is more than the 4 ranks"):
        collective_seconds("all-reduce", 1, 4, LINK, algorithm="parameter-server", servers=8)
    with pytest.raises(InvalidValueError, match="whole number of at least 1"):
        collective_seconds("all-reduce", 1, 4, LINK, algorithm="parameter-server", servers=0)


def test_a_group_has_to_fit_its_cluster() -> None:
    cluster = load_cluster("4x8xh100")
    with pytest.raises(
        InvalidValueError, match="33 ranks, 8 in a node, need 5 nodes; cluster '4x8xh100' has 4"
    ):
        collective_seconds("all-reduce", 1e6, 33, cluster)
    with pytest.raises(InvalidValueError, match="5 ranks, 1 in a node, need 5 nodes"):
        collective_seconds("all-reduce", 1e6, 5, cluster, per_node=1)
    with pytest.raises(InvalidValueError, match="per_node = 9 has to be from 1 to 8"):
        collective_seconds("all-reduce", 1e6, 5, cluster, per_node=9)


def test_links_have_no_nodes() -> None:
    with pytest.raises(InvalidValueError, match="per_node needs a cluster"):
        collective_seconds("all-reduce", 1e6, 5, LINK, per_node=2)
    with pytest.raises(InvalidValueError, match="needs a cluster, and 'ethernet-10g' is a link"):
        collective_seconds("all-reduce", 1e6, 5, LINK, algorithm="hierarchical")


def test_every_algorithm_names_its_source() -> None:
    for name in algorithms("all-reduce"):
        assert len(find("all-reduce", name).source) > 10
    assert "castello-bta" not in algorithms("all-reduce", candidates=True)
