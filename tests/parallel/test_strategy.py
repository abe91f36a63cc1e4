"""Strategies and their file."""

import json
from pathlib import Path

import pytest

from traincast.errors import InputFileError, InvalidValueError
from traincast.parallel.strategy import (
    LayerSplit,
    Strategy,
    bounds,
    read_strategy,
    strategy_to_json,
)


def test_parts_are_counted_in_row_major_order() -> None:
    split = LayerSplit("conv1", "conv", {"width": 2, "sample": 2, "height": 1, "channel": 3})
    assert split.parts == 12
    assert list(split.degrees) == ["sample", "channel", "width"]
    assert split.place(0) == {"sample": 0, "channel": 0, "width": 0}
    assert split.place(7) == {"sample": 1, "channel": 0, "width": 1}
    assert str(split) == "sample 2 channel 3 width 2"


def test_uneven_parts_differ_by_one_and_cover_the_axis() -> None:
    assert [bounds(7, 3, i) for i in range(3)] == [(0, 2), (2, 4), (4, 7)]


def test_a_file_comes_back_as_it_was(tmp_path: Path) -> None:
    layers = (LayerSplit("a", "conv", {"sample": 4}), LayerSplit("b", "linear", {"channel": 2}))
    strategy = Strategy("vgg16", 128, 4, layers, image=224, source="by hand")
    path = tmp_path / "plan.json"
    path.write_text(strategy_to_json(strategy, {"predicted": {"step_ms": 3.5}}))
    assert read_strategy(path) == strategy
    assert json.loads(path.read_text())["predicted"] == {"step_ms": 3.5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "other"}, "is no plan"),
        ({"devices": 2}, "4 parts, but there are 2 devices"),
        ({"layers": [{"name": "a", "degrees": {"rows": 2}}]}, "no dim is called 'rows'"),
        ({"layers": [{"name": "a"}, {"name": "a"}]}, "listed twice"),
        ({"batch": "many"}, "batch"),
    ],
)
def test_a_malformed_file_says_what_is_wrong(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    strategy = Strategy("vgg16", 128, 4, (LayerSplit("a", "conv", {"sample": 4}),))
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(json.loads(strategy_to_json(strategy)) | change))
    with pytest.raises(InputFileError, match=message):
        read_strategy(path)


def test_degrees_are_whole_numbers() -> None:
    with pytest.raises(InvalidValueError, match="has to be a whole number"):
        LayerSplit("a", "conv", {"sample": 0})
