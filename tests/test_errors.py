"""The exception tree, what errors say and carry, and exit statuses."""

from __future__ import annotations

import pickle
import re

import pytest

from traincast import errors
from traincast.errors import (
    GraphError,
    InputFileError,
    InvalidValueError,
    MissingExtraError,
    PredictionError,
    TraincastError,
    UnknownNameError,
    UsageError,
    near_names,
)


def drawn() -> dict[str, str | None]:
    """Return each class of the drawing at the top of the module with the class it hangs from."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([│├└─ ]*)([A-Z]\w+Error)\b", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        while above and above[-1][0] >= depth:
            above.pop()
        parents[name] = above[-1][1] if above else None
        above.append((depth, name))
    return parents


def real() -> dict[str, str | None]:
    found: dict[str, str | None] = {"TraincastError": None}

    def walk(cls: type[Exception]) -> None:
        for sub in cls.__subclasses__():
            if sub.__module__ == "traincast.errors":
                found[sub.__name__] = cls.__name__
                walk(sub)

    walk(TraincastError)
    return found


def test_the_tree_is_as_drawn() -> None:
    assert len(drawn()) > 5
    assert drawn() == real()


def test_every_class_has_a_docstring() -> None:
    for name in real():
        assert getattr(errors, name).__doc__


def test_exit_statuses_are_as_drawn() -> None:
    assert "exit status 2" in next(
        line for line in (errors.__doc__ or "").splitlines() if "UsageError" in line
    )
    for name, parent in real().items():
        cls = getattr(errors, name)
        if parent is not None:
            assert cls.exit_status == (1 if issubclass(cls, PredictionError) else 2)
            assert issubclass(cls, UsageError) != issubclass(cls, PredictionError)


def test_near_names_come_closest_first() -> None:
    assert near_names("resnet51", ["vgg16", "resnet50", "resnet101"]) == ["resnet50", "resnet101"]
    assert near_names("RESNET50", ["resnet50"]) == ["resnet50"]
    assert near_names("h200", ["H200", "b200"])[0] == "H200"
    assert near_names("llama", ["meta-llama-3.1-8b-instruct"]) == ["meta-llama-3.1-8b-instruct"]
    assert near_names("xyz", ["resnet50", "vgg16"]) == []
    assert near_names("", ["resnet50"]) == []
    assert len(near_names("resnet", [f"resnet{i}" for i in range(9)])) == 3


def test_an_unknown_name_says_what_was_meant() -> None:
    error = UnknownNameError("device", "h20O", ["h200", "a100"], "see traincast devices")
    assert str(error) == "unknown device 'h20O'; did you mean h200? see traincast devices"
    assert (error.kind, error.name, error.suggestions) == ("device", "h20O", ["h200"])
    far = UnknownNameError("device", "zzz", ["h200"], "see traincast devices")
    assert str(far) == "unknown device 'zzz'; see traincast devices"
    assert str(UnknownNameError("device", "zzz", [])) == "unknown device 'zzz'"


def test_a_file_error_carries_every_problem() -> None:
    one = InputFileError("net.json", "is empty", "write it again")
    assert str(one) == "net.json: is empty; write it again"
    assert (one.path, one.problems) == ("net.json", ["is empty"])
    two = InputFileError("net.json", ["is empty", "is old"], "write it again")
    assert str(two) == "net.json: 2 problems\n  - is empty\n  - is old\nwrite it again"


def test_a_graph_error_lists_what_is_broken() -> None:
    error = GraphError("net", ["a", "b"])
    assert str(error) == "graph 'net' is not valid:\n  - a\n  - b"


def test_a_missing_package_says_how_to_install_it() -> None:
    error = MissingExtraError("torch", "vision", "torchvision:vgg16")
    assert str(error) == (
        "torchvision:vgg16 needs the package 'torch', which is not installed; "
        "install it with: pip install 'traincast[vision]'"
    )


@pytest.mark.parametrize(
    "error",
    [
        InvalidValueError("it is so"),
        PredictionError("it is so"),
        UnknownNameError("device", "h20O", ["h200"], "see traincast devices"),
        InputFileError("net.json", ["is empty", "is old"], "write it again"),
        GraphError("net", ["a", "b"]),
        MissingExtraError("torch", "vision", "torchvision:vgg16"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_comes_back_whole_from_another_process(error: TraincastError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert again.exit_status == error.exit_status
