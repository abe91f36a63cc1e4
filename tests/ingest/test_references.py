"""Model references that name files, and what is said about files that cannot be read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from traincast.errors import (
    GraphError,
    IngestError,
    InputFileError,
    InvalidValueError,
    UnknownNameError,
    UsageError,
)
from traincast.graph import graph_to_dict, graph_to_json
from traincast.ingest import resolve, zoo_graph
from traincast.ingest.references import is_traced, read_json, split_reference


@pytest.fixture
def graph() -> dict[str, Any]:
    return json.loads(graph_to_json(zoo_graph("lenet5")))


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., str]:
    def write(content: object, name: str = "net.json") -> str:
        path = tmp_path / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def test_a_graph_file_gives_the_graph_back(save, graph) -> None:
    assert graph_to_dict(resolve(save(graph))) == graph_to_dict(zoo_graph("lenet5"))


def test_a_byte_order_mark_is_no_obstacle(save, graph) -> None:
    assert resolve(save(b"\xef\xbb\xbf" + json.dumps(graph).encode())).name == "lenet5"


def test_relative_files_start_from_the_root(save, graph) -> None:
    path = Path(save(graph))
    assert resolve(path.name, root=path.parent).name == "lenet5"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00\x01", "is not a text file"),
        ('{"format": "traincast-graph", "ops": [', "line 1, column 39"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[1, 2]", "neither a graph nor a network in Paleo's format"),
        ("null", "neither a graph"),
        ("{}", "neither a graph"),
        ('{"format": "other"}', "traincast-graph"),
        ('{"format": "traincast-graph", "version": 99}', "version"),
        ('{"model_type": "llama"}', "hf:"),
        ('{"layers": 3}', '"layers"'),
    ],
)
def test_what_is_wrong_with_a_json_file(save, content: object, said: str) -> None:
    path = save(content)
    with pytest.raises(InputFileError) as error:
        resolve(path)
    assert path in str(error.value)
    assert said in str(error.value)


def test_a_cycle_names_the_file_and_the_ops(save, graph) -> None:
    late = next(o for o in reversed(graph["ops"]) if len(o["inputs"]) == 1)
    early = next(o for o in graph["ops"] if len(o["inputs"]) == 1)
    early["inputs"] = late["outputs"]
    path = save(graph)
    with pytest.raises(GraphError, match="cycle") as error:
        resolve(path)
    assert path in str(error.value)
    assert early["name"] in str(error.value)


def test_an_unknown_kind_is_suggested_and_the_file_named(save, graph) -> None:
    graph["ops"][0]["kind"] = "convv"
    with pytest.raises(GraphError, match="did you mean conv") as error:
        resolve(save(graph, "mine.json"))
    assert "mine.json" in str(error.value)


@pytest.mark.parametrize(
    "change",
    [
        {"batch": 0},
        {"batch": "x"},
        {"notes": 3},
        {"fixed": "batch"},
        {"name": None},
        {"ops": []},
        {"ops": 3},
        {"ops": [{"name": 3, "kind": ["a"], "inputs": 3}]},
        {"tensors": {"a": {"shape": ["9" * 5000]}}},
        {"tensors": {"a": 3}},
    ],
)
def test_a_malformed_graph_is_a_usage_error_that_names_the_file(save, graph, change) -> None:
    with pytest.raises(UsageError, match=r"net\.json"):
        resolve(save({**graph, **change}))


@pytest.mark.parametrize("suffix", ["json", "onnx"])
def test_missing_files_and_folders(tmp_path, suffix: str) -> None:
    if suffix == "onnx":
        pytest.importorskip("onnx", reason="reading ONNX files needs onnx")
    (tmp_path / f"folder.{suffix}").mkdir()
    with pytest.raises(InputFileError, match="is a folder"):
        resolve(str(tmp_path / f"folder.{suffix}"))
    with pytest.raises(InputFileError, match="no such file"):
        resolve(str(tmp_path / f"missing.{suffix}"))


def test_a_missing_file_suggests_its_neighbours(save, graph, tmp_path) -> None:
    save(graph, "resnet_small.json")
    with pytest.raises(InputFileError, match=r"did you mean resnet_small\.json"):
        resolve(str(tmp_path / "resnet_smal.json"))


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read anything")
def test_an_unreadable_file(save, graph) -> None:
    path = save(graph)
    Path(path).chmod(0)
    with pytest.raises(InputFileError, match="Permission denied"):
        resolve(path)


def test_a_path_with_a_nul_is_no_file() -> None:
    with pytest.raises(InputFileError):
        read_json(Path("a\0.json"))


@pytest.mark.parametrize("content", [b"", b"hello", bytes(range(256)), b"\x08\x07\x12"])
def test_what_is_no_onnx_file(save, content: bytes) -> None:
    pytest.importorskip("onnx", reason="reading ONNX files needs onnx")
    with pytest.raises(InputFileError, match=r"net\.onnx"):
        resolve(save(content, "net.onnx"))


def test_an_onnx_op_without_a_formula_names_the_file(tmp_path) -> None:
    onnx = pytest.importorskip("onnx", reason="reading ONNX files needs onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    ends = [make.make_tensor_value_info(n, kind, ["N", 4]) for n in ("x", "y")]
    node = make.make_node("NoSuchOp", ["x"], ["y"], domain="mine")
    opsets = [make.make_opsetid("", 17), make.make_opsetid("mine", 1)]
    graph = make.make_graph([node], "g", ends[:1], ends[1:])
    path = tmp_path / "custom.onnx"
    onnx.save(make.make_model(graph, opset_imports=opsets), path)
    with pytest.raises(IngestError, match=r"custom\.onnx.*NoSuchOp"):
        resolve(str(path))


def test_files_take_no_arguments_and_no_image_size(save, graph) -> None:
    path = save(graph)
    with pytest.raises(InvalidValueError, match="takes no arguments"):
        resolve(f"{path}?width=3")
    with pytest.raises(InvalidValueError, match="leave out the image"):
        resolve(path, image=32)


def test_a_python_file_needs_a_function(save) -> None:
    path = save("x = 1", "model.py")
    with pytest.raises(InvalidValueError, match=r"model\.py:FUNCTION"):
        resolve(path)
    with pytest.raises(InputFileError, match="no such file"):
        resolve(path.replace("model", "other"))


@pytest.mark.parametrize("name", ["m.py:one:two", ":foo", "foo:", "a b:c", "x/y:z", "m:3"])
def test_what_is_no_reference(name: str) -> None:
    with pytest.raises(UnknownNameError, match=r"FILE\.py:FUNCTION"):
        resolve(name)


def test_aliases_are_suggested() -> None:
    with pytest.raises(UnknownNameError, match="llama-8b"):
        resolve("lama-8b")


@pytest.mark.parametrize(
    ("name", "hint"), [("net.pt", "weights"), ("net.yaml", r"\.yaml file is no model")]
)
def test_files_that_are_no_models(name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=hint):
        resolve(name)


def test_builder_arguments_are_read_as_json_or_text() -> None:
    name, options = split_reference("net?depth=3&aux=false&norm=layer&drop=None&sizes=[1,2]")
    assert name == "net"
    assert options == {
        "depth": 3, "aux": False, "norm": "layer", "drop": None, "sizes": [1, 2]
    }  # fmt: skip


def test_which_references_are_traced() -> None:
    assert not is_traced("resnet50")
    assert not is_traced("net.onnx")
    assert not is_traced("nosuch", image=64)
    assert is_traced("resnet50", image=64)
    assert is_traced("resnet50?num_classes=10")
    assert is_traced("timm:resnet50")
