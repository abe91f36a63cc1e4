"""traincast measure, and validate on what it measured."""

from __future__ import annotations

import csv
import sqlite3
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="a training step needs PyTorch")

from traincast.measure.store import open_store, runs

QUICK = ("--repeats", 2, "--warmup", 1, "--device", "cpu")
MODELS = """
import torch
from torch import nn

def mlp(batch=2):
    print("built")
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(batch, 6)

class Huge(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1 << 50))

    def forward(self, x):
        return x.sum() * self.weight[0]

def huge():
    return Huge(), torch.zeros(2, 3)
"""


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "store" / "store.db"
    monkeypatch.setenv("TRAINCAST_STORE", str(path))
    return path


@pytest.fixture
def nets(tmp_path: Path) -> Path:
    path = tmp_path / "nets.py"
    path.write_text(MODELS)
    return path


def stored(path: Path) -> list[dict]:
    with open_store(path) as store:
        return runs(store)


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_json_and_the_store(cli, store: Path) -> None:
    data = cli("measure", "lenet5", "-b", 4, "--optimizer", "momentum", *QUICK, "--json").data
    assert data["model"] == "lenet5"
    assert (data["batch"], data["seq"], data["precision"]) == (4, None, "fp32")
    assert (data["optimizer"], data["params"], data["steps"]) == ("momentum", 61_706, 2)
    assert data["step_p10"] <= data["step_ms"] <= data["step_p90"]
    for name in ("fwd_ms", "bwd_ms", "opt_ms", "infer_ms", "wall_ms", "peak_gib"):
        assert data[name] > 0
    assert data["error"] is None
    assert data["depth"] is None
    (run,) = stored(store)
    assert run["model"] == "lenet5"
    assert run["step_ms"] == data["step_ms"]
    assert run["torch"] == data["torch"]
    assert run["optimizer"] == "momentum"


def test_for_people_with_a_prediction_beside_it(cli) -> None:
    out = cli("measure", "lenet5", "-b", 4, *QUICK, "--as", "epyc-7763").out
    for part in ("Step", "2 timed", "Forward", "Peak memory", "Predicted", " %)"):
        assert part in out
    alone = cli("measure", "lenet5", "-b", 4, *QUICK).out
    told = "--as DEVICE" in alone or "calibrate" in alone
    assert ("Predicted" in alone) != told


def test_depths(cli, store: Path) -> None:
    out = cli("measure", "lenet5", "-b", 4, *QUICK, "--depth", "layer", "--top", 3).out
    assert "(optimizer)" in out or "… " in out
    assert "the parts add up to the step" in out or "rough guide" in out
    data = cli("measure", "lenet5", "-b", 4, *QUICK, "--depth", "op", "--json").data
    names = {part["name"] for part in data["depth"]["parts"]}
    assert {"aten::convolution_backward", "aten::addmm"} <= names
    assert sum(part["share"] for part in data["depth"]["parts"]) == pytest.approx(1)
    depths = [run["depth"]["depth"] for run in stored(store)]
    assert depths == ["layer", "op"]


def test_a_table_for_validate(cli, tmp_path: Path, nets: Path) -> None:
    """Momentum is what tables call sgd, plain SGD has a name of its own; files are relative."""
    table = tmp_path / "tables" / "runs.csv"
    table.parent.mkdir()
    for optimizer in ("momentum", "sgd", "adamw"):
        found = cli(
            "measure", f"{nets}:mlp", "-b", 4, "--optimizer", optimizer, *QUICK, "--no-store",
            "--as", "xeon-8380", "--csv", table, "--json",
        )  # fmt: skip
        assert found.status == 0
        assert "built" not in found.out
    rows = table_of(table)
    assert [row["optimizer"] for row in rows] == ["sgd", "plain_sgd", "adamw"]
    assert {row["model"] for row in rows} == {"../nets.py:mlp"}
    data = cli("validate", table, "--json").data
    assert data["summary"]["step_ms"]["failed"] == 0
    assert data["summary"]["step_ms"]["rows"] == 3
    # measured memory says which optimizer it was, and so does the predicted one
    measured = [row["measured"]["peak_gib"] for row in data["rows"]]
    predicted = [row["predicted"]["peak_gib"] for row in data["rows"]]
    for peaks in (measured, predicted):
        assert peaks[1] < peaks[0] < peaks[2]


def test_a_table_that_has_other_columns_keeps_them(cli, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text('note,model,batch,step_ms\n"a, b",resnet18,8,12\n')
    cli("measure", "lenet5", "-b", 4, *QUICK, "--csv", table, "--json")
    first, second = table_of(table)
    assert (first["note"], first["model"], first["fwd_ms"]) == ("a, b", "resnet18", "")
    assert (second["note"], second["model"]) == ("", "lenet5")
    assert float(second["fwd_ms"]) > 0


def test_no_store(cli, store: Path) -> None:
    cli("measure", "lenet5", "-b", 4, *QUICK, "--no-store", "--json")
    assert not store.exists()


def test_out_of_memory_is_kept_and_said(cli, store: Path, nets: Path, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    found = cli("measure", f"{nets}:huge", *QUICK, "--csv", table)
    found.refused("ran out of memory", "smaller --batch", status=1)
    assert stored(store)[0]["error"] == "oom"
    assert table_of(table)[0]["error"] == "oom"
    data = cli("measure", f"{nets}:huge", *QUICK, "--no-store", "--json")
    assert data.status == 1
    assert data.data["error"] == "oom"
    assert data.data["step_ms"] is None


def test_the_store_against_predictions(cli) -> None:
    for model in ("lenet5", "mnist-small"):
        cli("measure", model, "-b", 4, *QUICK, "--as", "xeon-8380", "--json")
    data = cli("validate", "--store", "--json").data
    assert [row["model"] for row in data["rows"]] == ["lenet5", "mnist-small"]
    assert data["summary"]["step_ms"]["failed"] == 0
    assert "step_ms quiet" in data["summary"]
    alone = cli("validate", "--store", "--model", "lenet5", "--json").data
    assert [row["model"] for row in alone["rows"]] == ["lenet5"]
    cli("validate", "--store", "--model", "vgg16").refused("'vgg16'", "--model")


def test_rows_that_are_measured_now(cli, tmp_path: Path, store: Path, nets: Path) -> None:
    """What the table says was measured is not read: it is measured anew."""
    table = tmp_path / "rows.csv"
    table.write_text(
        "model,batch,optimizer,devices,step_ms,note\n"
        "lenet5,4,sgd,,123456789,a\n"
        "nets.py:mlp,4,adamw,1,,b\n"
        "lenet5,4,sgd,2,5,c\n"
        "nin,4,sgd,,5,d\n"
        "nets.py:huge,,sgd,,,e\n"
    )
    data = cli("validate", table, "--measure", "--device", "xeon-8380", "--json").data
    first, second, two, paleo, huge = data["rows"]
    assert first["measured"]["step_ms"] < 1e8
    assert (first["optimizer"], first["note"], first["device"]) == ("sgd", "a", "xeon-8380")
    assert second["model"] == "nets.py:mlp"
    assert second["problem"] is None
    assert "devices = 2" in two["problem"]
    assert "Paleo" in paleo["problem"]
    assert huge["problem"] is None
    assert huge["fits"] is False
    assert data["summary"]["step_ms"]["rows"] == 2
    assert [run["error"] for run in stored(store)] == ["", "", "oom"]


def test_models_that_are_measured_now(cli) -> None:
    data = cli("validate", "--measure", "mnist-small", "--device", "xeon-8380", "--json").data
    assert [row["model"] for row in data["rows"]] == ["mnist-small"]
    assert data["rows"][0]["batch"] == "32"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["measure", "lenet5", "--repeats", "0"], ["--repeats"]),
        (["measure", "lenet5", "--repeats", "3", "--seconds", "2"], ["either"]),
        (["measure", "lenet5", "--optimizer", "adamm"], ["'adamm'", "adamw"]),
        (["measure", "lenet5", "--precision", "bf17"], ["'bf17'", "bf16"]),
        (["measure", "lenet5", "--as", "h2000"], ["'h2000'", "h200"]),
        (["measure", "lenet5", "--depth", "deep"], ["depth", "deep"]),
        (["measure", "lenet5", "--device", "tpu"], ["device", "tpu"]),
        (["measure", "lenet5", "--csv", "none/runs.csv"], ["none/runs.csv", "no folder"]),
        (["measure", "nin"], ["nin", "Paleo"]),
        (["measure", "resnet5"], ["'resnet5'", "resnet50"]),
        (["measure"], ["MODEL"]),
        (["validate", "--store"], ["no runs", "traincast measure"]),
        (["validate"], ["table of runs", "--store"]),
        (["validate", "--store", "runs.csv"], ["--store", "alone"]),
        (["validate", "a.csv", "b.csv"], ["a.csv b.csv", "one CSV"]),
        (["validate", "none.csv", "--measure"], ["none.csv", "cannot be read"]),
        (["validate", "--measure", "lenet5", "--estimator", "rooftop"], ["'rooftop'"]),
        (["validate", "--measure", "lenet5", "--plot", "a.gif"], ["a.gif", ".svg"]),
        (["validate", "--measure", "lenet5", "--profile", "none.json"], ["none.json"]),
    ],
)
def test_bad_usage_names_the_thing_and_the_fix(cli, argv, said, store: Path) -> None:
    cli(*argv).refused(*said)
    if store.exists():
        assert stored(store) == []


def test_a_table_that_is_none_is_refused_before_anything_is_measured(cli, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    cli("measure", "lenet5", "--csv", other).refused("other.csv", "no column 'model'")
    assert other.read_text() == "a,b\n1,2\n"


def test_a_locked_store(cli, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincast.measure.store._WAIT_S", 0.05)
    with open_store(store):
        pass
    with sqlite3.connect(store) as other:
        other.execute("BEGIN EXCLUSIVE")
        cli("measure", "lenet5", "-b", 4, *QUICK).refused("store.db", "locked", "TRAINCAST_STORE")
    other.close()
