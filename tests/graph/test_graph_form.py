"""The JSON form: what is written is read back, and what is malformed is named."""

from __future__ import annotations

import copy
import json
from dataclasses import fields
from typing import Any

import pytest
from graph_cases import graph, op, perceptron, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from traincast.errors import GraphError, InputFileError, TraincastError
from traincast.graph import (
    Graph,
    graph_from_dict,
    graph_from_json,
    graph_to_dict,
    graph_to_json,
    verify,
)
from traincast.ingest import zoo_graph


def assert_same(a: Graph, b: Graph) -> None:
    for field in fields(Graph):
        assert getattr(a, field.name) == getattr(b, field.name), field.name


def rich() -> Graph:
    """A graph that uses every field of tensors, ops and the graph itself."""
    return graph(
        [
            tensor("x", "B", "2*S", 6, role="input", dims=("sample", "sequence", "channel")),
            tensor("mask", "B", "2*S", 1, role="buffer", dtype="bool"),
            tensor("w", 4, 6, role="parameter", trainable=False, dtype="float32"),
            tensor("half", "B", "S", 6),
            tensor("y", "B", "S", 4),
            tensor("z", "B", "S", 4),
        ],
        [
            op("cut", "view", "x", "half", fn="slice"),
            op("project", "linear", "half w", "y", layer="block.0"),
            op("drop", "dropout", "y", "z", p=0.1, names=("é", "→"), sizes=(1, 2), flag=True),
        ],
        batch=3,
        seq=16,
        source="by hand",
        notes=("one", "two"),
        fixed=("seq",),
        loss="z",
    )


@pytest.mark.parametrize("make", [perceptron, rich])
def test_a_graph_reads_back_equal(make: Any) -> None:
    made = verify(make())
    assert_same(graph_from_dict(graph_to_dict(made)), made)
    assert_same(graph_from_json(graph_to_json(made)), made)


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "dlrm", "lstm-ptb", "t5-small"])
def test_a_network_of_the_zoo_reads_back_equal(name: str) -> None:
    made = zoo_graph(name)
    assert_same(graph_from_json(graph_to_json(made)), made)


def test_defaults_are_left_out_and_a_line_holds_one_entry() -> None:
    text = graph_to_json(perceptron())
    assert '\n"h":{"shape":["B",8]},\n' in text
    line = '{"name":"relu","kind":"pointwise","inputs":["h"],"outputs":["r"],"attrs":{"fn":"relu"}}'
    assert f"\n{line},\n" in text
    assert text.endswith("]}\n")


def form() -> dict[str, Any]:
    return json.loads(graph_to_json(perceptron()))


def test_another_format_is_refused() -> None:
    with pytest.raises(InputFileError) as caught:
        graph_from_dict({**form(), "format": "onnx"}, where="net.json")
    assert str(caught.value) == (
        'net.json: is no graph: "format" is \'onnx\', not "traincast-graph"'
    )


def test_another_version_is_refused() -> None:
    with pytest.raises(InputFileError) as caught:
        graph_from_dict({**form(), "version": 2}, where="net.json")
    assert str(caught.value) == (
        "net.json: has the graph version 2; this traincast reads 1; "
        "write it again with this version"
    )


@pytest.mark.parametrize(("key", "value"), [("tensors", []), ("ops", {}), ("ops", None)])
def test_tensors_and_ops_must_be_there(key: str, value: object) -> None:
    with pytest.raises(InputFileError, match='"tensors" must be an object and "ops" a list'):
        graph_from_dict({**form(), key: value})


def test_every_malformed_entry_is_reported_at_once() -> None:
    data = form()
    data["tensors"]["x"]["shape"] = ["B*", 4]
    data["tensors"]["w1"]["shape"] = 4
    data["tensors"]["w2"]["role"] = 7
    data["tensors"]["b1"]["shape"] = [True]
    data["tensors"]["b2"]["trainable"] = "false"
    data["tensors"]["o"] = ["B", 3]
    del data["tensors"]["h"]["shape"]
    del data["ops"][0]["kind"]
    data["ops"][1]["attrs"]["fn"] = {"name": "relu"}
    data["ops"][2]["inputs"] = "r w2 b2"
    data["ops"][3] = None
    data["batch"] = 0
    with pytest.raises(InputFileError) as caught:
        graph_from_dict(data, where="net.json")
    assert caught.value.path == "net.json"
    assert sorted(caught.value.problems) == sorted(
        [
            "tensor 'x': 'B*' is not a size; write 3, B, 2*B*S or (S+1)/2",
            "tensor 'w1': \"shape\" is 4, which is not a list of sizes",
            "tensor 'w2': \"role\" is 7, which is not text",
            "tensor 'b1': True is not a size; write an integer or text such as B*S",
            "tensor 'b2': \"trainable\" is 'false', which is neither true nor false",
            "tensor 'o': is not an object of the expected form",
            "tensor 'h': lacks 'shape'",
            "op number 0: lacks 'kind'",
            "op number 1: attribute 'fn' is {'name': 'relu'}; use a number, text, true, false or "
            "a list of either integers or texts",
            "op number 2: \"inputs\" is 'r w2 b2', which is not a list of texts",
            "op number 3: is not an object of the expected form",
            '"batch" is 0; it must be an integer of at least 1',
        ]
    )
    assert str(caught.value).startswith("net.json: 12 problems\n  - ")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("batch", 0, '"batch" is 0; it must be an integer of at least 1'),
        ("batch", True, '"batch" is True; it must be an integer of at least 1'),
        ("seq", -1, '"seq" is -1; it must be an integer of at least 0'),
        ("seq", 1.5, '"seq" is 1.5; it must be an integer of at least 0'),
        ("name", None, '"name" is None, which is not text'),
        ("notes", None, '"notes" is None, which is not a list of texts'),
        ("fixed", "batch", "\"fixed\" is 'batch', which is not a list of texts"),
    ],
)
def test_a_malformed_head_is_named(key: str, value: object, said: str) -> None:
    with pytest.raises(InputFileError) as caught:
        graph_from_dict({**form(), key: value}, where="net.json")
    assert str(caught.value) == f"net.json: {said}"


def test_one_size_read_before_does_not_let_true_pass_as_one() -> None:
    data = form()
    data["tensors"]["loss"]["shape"] = [1, True]
    with pytest.raises(InputFileError, match="True is not a size"):
        graph_from_dict(data)


def test_truncated_json_is_named_by_line_and_column() -> None:
    text = graph_to_json(perceptron())
    lines = text[:200].split("\n")
    with pytest.raises(InputFileError) as caught:
        graph_from_json(text[:200], where="net.json")
    # Python's parser points at the place where something is missing or unterminated, on that line.
    assert f"net.json: is not valid JSON: line {len(lines)}, column " in str(caught.value)


def test_a_syntax_error_is_named_where_it_stands() -> None:
    with pytest.raises(InputFileError) as caught:
        graph_from_json('{"format": "traincast-graph",\n  "version": }', where="net.json")
    assert "line 2, column 14" in str(caught.value)


@pytest.mark.parametrize("text", ["[]", "3", '"graph"', "null"])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(InputFileError, match="is not a JSON object"):
        graph_from_json(text)


def test_json_nested_without_end_is_refused() -> None:
    with pytest.raises(InputFileError, match="is nested too deeply"):
        graph_from_json("[" * 100_000)


def test_a_file_is_verified_unless_trusted() -> None:
    data = form()
    data["ops"][1]["attrs"] = {}
    with pytest.raises(GraphError, match="lacks the attribute 'fn'"):
        graph_from_dict(data)
    assert len(graph_from_dict(data, trusted=True).ops) == 4


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(["", "B", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    entries = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in entries:
        if isinstance(value, dict | list):
            found += places(value, (*path, key))
        else:
            found.append((*path, key))
    return found


PLACES = places(form())


@settings(max_examples=400)
@given(st.sampled_from(PLACES), VALUES)
def test_no_change_to_a_file_ends_in_a_traceback(path: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(form())
    target = data
    for key in path[:-1]:
        target = target[key]
    target[path[-1]] = value
    try:
        read = graph_from_dict(data)
    except TraincastError:
        return
    assert_same(graph_from_json(graph_to_json(read)), read)
