"""predict and scale with a saved plan."""

import json
from pathlib import Path

import pytest

PLAN = ("plan", "alexnet", "--cluster", "2x2xp100", "-b", "32", "-p", "fp32", "--optimizer", "sgd")


@pytest.fixture
def plan(cli, tmp_path: Path) -> Path:
    """Return the file of a plan for AlexNet on two nodes of two."""
    path = tmp_path / "plan.json"
    assert cli(*PLAN, "--objective", "published", "-o", str(path)).status == 0
    return path


def _said(plan: Path) -> dict[str, float]:
    predicted: dict[str, float] = json.loads(plan.read_text())["predicted"]
    return predicted


def test_predict_prices_a_plan_as_plan_did(cli, plan: Path) -> None:
    data, said = cli("predict", str(plan), "--json").data, _said(plan)
    assert data["cluster"] == "2x2xp100"
    assert (data["devices"], data["batch"]) == (4, 128)
    assert (data["precision"], data["optimizer"], data["scheme"]) == ("fp32", "sgd", "server")
    assert data["step_ms"] == pytest.approx(said["step_ms"])
    assert sum(data["phases_ms"].values()) == pytest.approx(said["step_ms"])
    assert data["samples_per_s"] == pytest.approx(128 / said["step_ms"] * 1e3)
    assert data["communication_bytes"]["total"] == pytest.approx(said["communication_bytes"])
    assert max(data["memory_bytes"]) == data["memory_bytes"][0] == said["memory_bytes"]
    assert len(data["memory_bytes"]) == 4
    assert data["fits"] is True
    strategies = json.loads(plan.read_text())["strategies"]
    assert data["data_parallel"]["step_ms"] == pytest.approx(strategies["data"]["step_ms"])


def test_predict_shows_a_plan(cli, plan: Path) -> None:
    result = cli("predict", str(plan), "--dataset-size", "1.28M", "--price-per-hour", "2")
    assert result.status == 0
    for part in (
        "alexnet · 2x2xp100", "batch 128 on 4 devices", "Step", "data parallelism:", "Bound by",
        "Sent a step", "Memory", "Whole run", "cost", "transfers in", "channel",
    ):  # fmt: skip
        assert part in result.out


def test_predict_prices_a_plan_elsewhere(cli, plan: Path) -> None:
    near = cli("predict", str(plan), "--cluster", "1x4xp100", "--json").data
    assert near["cluster"] == "1x4xp100"
    assert near["step_ms"] < _said(plan)["step_ms"]  # NVLink instead of the network
    twice = cli("predict", str(plan), "--batch", "64", "--json").data
    assert twice["batch"] == 256
    assert twice["phases_ms"]["forward"] > near["phases_ms"]["forward"]
    lighter = cli("predict", str(plan), "--optimizer", "adamw", "--json").data
    assert lighter["memory_bytes"][0] > near["memory_bytes"][0]


def test_what_predict_refuses_of_a_plan(cli, plan: Path) -> None:
    cli("predict", str(plan), "--cluster", "8xp100").refused(
        "the plan is for 4 devices, and 8xp100 has 8", "traincast plan alexnet --cluster 8xp100"
    )
    cli("predict", str(plan), "--device", "p100").refused("--device does not go with")
    cli("predict", str(plan), "--inference").refused("--inference does not go with")
    cli("predict", str(plan), "--batch", "max").refused("--batch max is for one device")
    cli("predict", str(plan), "--tokens", "1M").refused("alexnet has no tokens")
    cli("predict", "alexnet", "--cluster", "4xp100").refused("for a saved plan", "traincast scale")


def test_a_plan_that_is_broken_or_of_another_model(cli, plan: Path) -> None:
    text = plan.read_text()
    data = json.loads(text)

    def written(change: dict[str, object]) -> str:
        plan.write_text(json.dumps(data | change))
        return str(plan)

    cli("predict", written({"model": "vgg16"})).refused("it is a plan of another model", "vgg16")
    cli("predict", written({"layers": data["layers"][:-1]})).refused("says nothing of layers")
    first = data["layers"][0] | {"degrees": {"head": 4}}
    cli("predict", written({"layers": [first, *data["layers"][1:]]})).refused(
        "cannot be split 4 ways by head"
    )
    cli("predict", written({"setting": {"cluster": 4, "colour": "red"}})).refused(
        "cluster is 4, not text", "unknown key 'colour'"
    )
    cli("predict", written({"setting": {"pace": -1}})).refused("not a number above zero")
    cli("predict", written({"setting": {}})).refused("names no cluster", "--cluster")
    plan.write_text(text[: len(text) // 2])
    cli("predict", str(plan)).refused("is not valid JSON")
    cli("scale", str(plan)).refused("is not valid JSON")


def test_scale_sets_a_plan_beside_its_rivals(cli, plan: Path) -> None:
    rows = cli("scale", str(plan), "--json").data["rows"]
    found = {(row["strategy"], row["devices"]): row for row in rows}
    assert set(found) == {("plan", 4)} | {
        (name, n) for name in ("data", "hybrid", "model") for n in (1, 2, 4)
    }
    said = json.loads(plan.read_text())["strategies"]
    assert found["plan", 4]["step_ms"] == pytest.approx(said["layer-wise"]["step_ms"])
    for name in ("data", "hybrid", "model"):
        assert found[name, 4]["step_ms"] == pytest.approx(said[name]["step_ms"])
        assert found[name, 1]["speedup"] == pytest.approx(1.0)
    assert found["plan", 4]["batch_per_device"] == 32


def test_scale_plans_for_every_device_count(cli, plan: Path) -> None:
    rows = cli("scale", str(plan), "--strategy", "layer-wise,data", "--json").data["rows"]
    found = {(row["strategy"], row["devices"]): row["step_ms"] for row in rows}
    for n in (1, 2, 4):
        assert found["layer-wise", n] <= found["data", n] * (1 + 1e-9)
    assert found["layer-wise", 4] == pytest.approx(found["plan", 4])
    again = cli(
        "scale", "alexnet", "--strategy", "layer-wise", "--cluster", "2x2xp100", "-b", "32",
        "-p", "fp32", "--optimizer", "sgd", "--scaling", "strong", "--step-ms", "50", "--json",
    ).data["rows"]  # fmt: skip
    assert [row["devices"] for row in again] == [1, 2, 4]
    assert [row["batch_per_device"] for row in again] == [32, 16, 8]
    assert again[0]["step_ms"] == pytest.approx(50.0)


def test_what_scale_refuses_of_a_plan(cli, plan: Path) -> None:
    cli("scale", str(plan), "--devices", "1,2").refused("the plan is for 4 devices")
    cli("scale", str(plan), "--no-overlap").refused("--no-overlap does not go with")
    cli("scale", str(plan), "--strategy", "random").refused("unknown strategy 'random'", "plan")
    cli("scale", "alexnet", "--strategy", "layer-wise", "--cluster", "2x4xp100", "--devices", "6")\
        .refused("6 devices do not fill nodes of 4 evenly")  # fmt: skip
    cli("scale", "alexnet", "--strategy", "layer-wise", "--cluster", "128xp100").refused("64")
