"""Names of axes: in the networks of the zoo, and rule by rule on small graphs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graph_cases import graph, op, tensor

from traincast.graph import Graph, Op, Tensor, name_dims
from traincast.ingest import zoo_graph

IMAGE = ("sample", "channel", "height", "width")
TEXT = ("sample", "sequence", "channel")
HEADS = ("sample", "head", "sequence", "head_channel")


def bare(name: str) -> Graph:
    """Return a network without any names but those that its axes' sizes tell."""
    made = zoo_graph(name)
    return replace(made, tensors={n: replace(t, dims=()) for n, t in made.tensors.items()})


@pytest.fixture(scope="module", params=["stored", "derived"])
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def named(name: str, source: str) -> Graph:
    return zoo_graph(name) if source == "stored" else name_dims(bare(name))


def dims_of(made: Graph, kind: str) -> set[tuple[str, ...]]:
    outputs = (made.tensors[o.outputs[0]] for o in made.ops if o.kind == kind)
    return {t.dims for t in outputs if t.shape}


def test_images_keep_their_names_through_a_residual_network(source: str) -> None:
    made = named("resnet18", source)
    assert dims_of(made, "conv") == {IMAGE}
    assert dims_of(made, "batch_norm") == {IMAGE}
    assert dims_of(made, "pool") == {IMAGE}
    assert dims_of(made, "pointwise") == {IMAGE}
    assert dims_of(made, "linear") == {("sample", "channel")}
    weights = {t.dims for t in made.parameters if len(t.shape) == 4}
    assert weights == {("channel", "in_channel", "kernel_height", "kernel_width")}


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b"])
def test_sequences_keep_their_names_through_a_transformer(name: str, source: str) -> None:
    made = named(name, source)
    assert dims_of(made, "attention") == {HEADS}
    assert dims_of(made, "embedding") <= {TEXT, ("", "sequence", "channel")}
    residual = [
        t.dims
        for o in made.ops
        for t in [made.tensors[o.outputs[0]]]
        if o.kind == "pointwise" and len(t.shape) == 3 and t.shape[2].constant in (768, 2048)
    ]
    assert len(residual) > 20
    assert set(residual) == {TEXT}


def test_heads_are_split_off_and_merged_again(source: str) -> None:
    made = named("llama-3.2-1b", source)
    for o in made.ops:
        if o.kind == "attention":
            queries = made.tensors[o.inputs[0]]
            assert queries.dims == HEADS


def small(tensors: list[Tensor], *ops: Op) -> dict[str, tuple[str, ...]]:
    named = name_dims(graph(tensors, list(ops), seq=8))
    return {name: t.dims for name, t in named.tensors.items()}


def test_inputs_are_named_by_their_sizes() -> None:
    found = small(
        [
            tensor("image", "B", 3, 8, 8, role="input"),
            tensor("volume", "B", 3, 4, 8, 8, role="input"),
            tensor("signal", "B", 3, 8, role="input"),
            tensor("features", "B", 13, role="input"),
            tensor("tokens", "B", "S", role="input", dtype="int64"),
            tensor("flat", "B*S", 7, role="input"),
            tensor("y", "B", 3, 8, 8),
        ],
        op("act", "pointwise", "image", "y", fn="relu"),
    )
    assert found["image"] == IMAGE
    assert found["volume"] == ("sample", "channel", "depth", "height", "width")
    assert found["signal"] == ("sample", "channel", "length")
    assert found["features"] == ("sample", "channel")
    assert found["tokens"] == ("sample", "sequence")
    assert found["flat"] == ("token", "")


def test_names_that_are_given_stay() -> None:
    found = small(
        [
            tensor("x", "B", 3, 8, 8, role="input", dims=("sample", "time", "row", "column")),
            tensor("y", "B", 3, 8, 8),
        ],
        op("act", "pointwise", "x", "y", fn="relu"),
    )
    assert found["x"] == found["y"] == ("sample", "time", "row", "column")


def test_a_channel_axis_splits_into_heads_and_back() -> None:
    found = small(
        [
            tensor("x", "B", "S", 12, role="input", dims=TEXT),
            tensor("split", "B", "S", 3, 4),
            tensor("heads", "B", 3, "S", 4),
            tensor("back", "B", "S", 3, 4),
            tensor("merged", "B", "S", 12),
        ],
        op("split", "view", "x", "split", fn="reshape"),
        op("swap", "view", "split", "heads", fn="permute", order=(0, 2, 1, 3)),
        op("swap back", "view", "heads", "back", fn="permute", order=(0, 2, 1, 3)),
        op("merge", "view", "back", "merged", fn="reshape"),
    )
    assert found["split"] == ("sample", "sequence", "head", "head_channel")
    assert found["heads"] == HEADS
    assert found["back"] == found["split"]
    assert found["merged"] == TEXT


def test_positions_flatten_into_tokens_and_unfold_again() -> None:
    found = small(
        [
            tensor("x", "B", "S", 12, role="input", dims=TEXT),
            tensor("w", 7, 12, role="parameter"),
            tensor("flat", "B*S", 12),
            tensor("y", "B*S", 7),
            tensor("z", "B", "S", 7),
        ],
        op("flatten", "view", "x", "flat", fn="reshape"),
        op("linear", "linear", "flat w", "y"),
        op("unfold", "view", "y", "z", fn="reshape"),
    )
    assert found["flat"] == ("token", "channel")
    assert found["y"] == ("token", "channel")
    assert found["z"] == TEXT
    assert found["w"] == ("channel", "in_channel")


def test_a_square_of_scores_has_one_sequence_to_split() -> None:
    found = small(
        [
            tensor("q", "B", 3, "S", 4, role="input", dims=HEADS),
            tensor("k", "B", 3, 4, "S", role="input", dims=("sample", "head", "", "sequence")),
            tensor("scores", "B", 3, "S", "S"),
        ],
        op("product", "matmul", "q k", "scores"),
    )
    assert found["scores"] == ("sample", "head", "sequence", "")


def test_a_transposed_weight_has_its_channels_the_other_way_round() -> None:
    found = small(
        [
            tensor("x", "B", 4, role="input"),
            tensor("w", 4, 7, role="parameter"),
            tensor("b", 7, role="parameter"),
            tensor("y", "B", 7),
        ],
        op("linear", "linear", "x w b", "y", transposed=True),
    )
    assert found["w"] == ("in_channel", "channel")
    assert found["b"] == ("channel",)


def test_an_axis_that_no_rule_names_stays_empty() -> None:
    found = small(
        [tensor("x", "B", 6, 8, 8, role="input"), tensor("y", 5, 7)],
        op("odd", "unknown", "x", "y", fn="odd"),
    )
    assert found["y"] == ()
