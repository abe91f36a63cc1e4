"""Every split of every op, in 2 and 4 processes, trains as one process does."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from crew import Crew, assert_same, crew_of, strategy_of
from split_cases import (
    ONE_AXIS,
    OPS,
    THREE_AXES,
    Refused,
    block,
    branches,
    dense,
    grouped,
    heads,
    image,
    odd,
)
from torch.nn import functional as F  # noqa: N812

from traincast.errors import InvalidValueError
from traincast.execute.engine import Engine
from traincast.execute.wire import Wire


@pytest.fixture(scope="module")
def two() -> Iterator[Crew]:
    with crew_of(2) as crew:
        yield crew


@pytest.fixture(scope="module")
def four() -> Iterator[Crew]:
    with crew_of(4) as crew:
        yield crew


def _pairs(dims: tuple[str, ...]) -> list[dict[str, int]]:
    """Four parts: every dim 4 ways, every pair of dims 2 by 2, and an uneven 3."""
    return [*({d: 4} for d in dims), *({a: 2, b: 2} for a, b in itertools.combinations(dims, 2))]


IMAGE = ("sample", "channel", "height", "width")


@pytest.mark.parametrize("dim", IMAGE)
@pytest.mark.parametrize("op", OPS)
def test_an_op_in_two_parts_trains_as_one(two: Crew, op: str, dim: str) -> None:
    if op == "group_norm" and dim in ("height", "width"):
        pytest.skip("a group is normalised over the whole image")
    if op == "softmax" and dim != "sample":
        pytest.skip("the planner splits softmax by sample alone")
    assert_same(two, image(op), strategy_of(2, 4, op={dim: 2}))


@pytest.mark.parametrize("op", [*ONE_AXIS, *THREE_AXES])
def test_other_numbers_of_axes(two: Crew, op: str) -> None:
    dims = ("length",) if op in ONE_AXIS else ("depth", "height", "width")
    for dim in ("channel", *dims):
        assert_same(two, image(op), strategy_of(2, 4, op={dim: 2}))


@pytest.mark.parametrize("degrees", _pairs(IMAGE), ids=str)
@pytest.mark.parametrize("op", ["conv", "max_pool", "batch_norm"])
def test_an_op_in_four_parts_trains_as_one(four: Crew, op: str, degrees: dict[str, int]) -> None:
    assert_same(four, image(op), strategy_of(4, 4, stem={"sample": 4}, op=degrees))


@pytest.mark.parametrize("degrees", [{"sample": 3}, {"channel": 3}, {"height": 3}], ids=str)
def test_parts_may_be_uneven(four: Crew, degrees: dict[str, int]) -> None:
    for op in ("conv_stride", "avg_pool_inside", "batch_norm"):
        assert_same(four, image(op), strategy_of(4, 5, stem={"width": 2}, op=degrees))


@pytest.mark.parametrize("first", [{"sample": 2}, {"channel": 2}], ids=str)
@pytest.mark.parametrize("second", [{"sample": 2}, {"channel": 2}, {}], ids=str)
def test_dense_layers(two: Crew, first: dict[str, int], second: dict[str, int]) -> None:
    answers = assert_same(two, dense, strategy_of(2, 6, a=first, b=second, c=first), "adamw")
    rows = answers[1][2]["a.weight"][0]
    assert rows == (4 if "channel" in first else 8)


def test_redistribution_between_any_two_splits(four: Crew) -> None:
    kinds = [{"sample": 4}, {"channel": 2, "sample": 2}, {"height": 2, "width": 2}, {}]
    for a, b in itertools.permutations(kinds, 2):
        strategy = strategy_of(4, 4, a=a, b=b, c=a, head={"channel": 2})
        assert_same(four, branches, strategy, "momentum")


@pytest.mark.parametrize("attn", [{"sample": 2}, {"head": 2}, {"sequence": 2}], ids=str)
@pytest.mark.parametrize("causal", [True, False])
def test_attention(two: Crew, attn: dict[str, int], causal: bool) -> None:
    layers = {"words": {"channel": 2}, "qkv": {"channel": 2}, "attn": attn, "up": {"sequence": 2}}
    assert_same(two, partial(block, causal), strategy_of(2, 4, 6, **layers), "adam")


@pytest.mark.parametrize("dim", ["sample", "head", "sequence"])
def test_multi_head_attention_of_pytorch(two: Crew, dim: str) -> None:
    layers = {"attn": {"channel": 2}, "attn.attention": {dim: 2}, "attn.linear": {"sample": 2}}
    assert_same(two, heads, strategy_of(2, 4, 6, **layers))


@pytest.mark.parametrize("dim", ["sample", "head", "sequence"])
def test_heads_that_share_keys(two: Crew, dim: str) -> None:
    norm = "sequence" if dim == "head" else dim
    assert_same(two, grouped, strategy_of(2, 4, 6, norm={norm: 2}, attn={dim: 2}))


def test_a_transformer_block_in_four_parts(four: Crew) -> None:
    layers = {
        "words": {"sample": 4}, "qkv": {"channel": 4}, "attn": {"head": 2, "sequence": 2},
        "proj": {"sample": 2, "channel": 2}, "up": {"channel": 4}, "down": {"sequence": 3},
        "head": {"channel": 4}, "cross_entropy": {"sample": 4},
    }  # fmt: skip
    assert_same(four, block, strategy_of(4, 4, 6, **layers), "adamw")


def test_functions_without_a_rule_run_whole_on_device_0(two: Crew) -> None:
    strategy = strategy_of(2, 4, a={"channel": 2}, head={"sample": 2})
    answers = assert_same(two, odd, strategy)
    assert [a[2]["mix"] for a in answers] == [(8, 8), (0,)]
    assert [a[2]["lstm.weight_hh_l0"] for a in answers] == [(32, 8), (0,)]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (lambda x: x[x > 0], "torch's getitem cannot be run split over processes, as its result"),
        (lambda x: x.topk(2), "torch's topk .* it returns other things than tensors of one type"),
        (lambda x: F.alpha_dropout(x, 0.5, True), "torch's alpha_dropout .* it draws random"),
        (lambda x: x * (2 if x.sum() > 0 else 1), "branches on values that lie on several"),
        (lambda x: x * float(x.amax(1).sum()), "the model reads values that lie on several"),
    ],
)
def test_what_cannot_be_run_is_named(run: Any, why: str) -> None:
    module, x = Refused(run), torch.zeros(1, 8)
    wire = Wire(0, 2, connected=False)
    with pytest.raises(InvalidValueError, match=why):
        Engine(module, strategy_of(2, 4, a={"channel": 2}), ((x,), {}), wire)


def test_the_slices_of_a_channel_split_are_all_that_a_process_holds(two: Crew) -> None:
    answers = assert_same(two, image("conv"), strategy_of(2, 4, op={"channel": 2}))
    assert [a[2]["op.weight"] for a in answers] == [(3, 4, 3, 3), (3, 4, 3, 3)]


def test_traffic_is_what_the_overlap_of_boxes_says(two: Crew) -> None:
    """Stem and op split by height: a 3×3 window needs one row of the other part, both ways.

    Steps × rows (1 each way) × samples × channels × width × 8 bytes, and the head's input once.
    """
    strategy = strategy_of(2, 4, stem={"height": 2}, op={"height": 2}, head={})
    answers = assert_same(two, image("conv"), strategy)
    halo = 4 * 4 * 9 * 8
    upper = 4 * 6 * 5 * 9 * 8  # rows 4 to 8 of the op's output go to process 0
    assert answers[1][3][0] == 10 * (2 * halo + upper)
    assert answers[0][3][0] == 10 * (2 * halo + upper)
