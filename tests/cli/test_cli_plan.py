"""traincast plan."""

import json
from pathlib import Path

from traincast.parallel.strategy import read_strategy

ARGS = ("plan", "vgg16", "--cluster", "1x4xp100", "-b", "32", "-p", "fp32")


def test_a_table_of_folded_layers_and_its_rivals(cli) -> None:
    result = cli(*ARGS, "--objective", "published", "--top", "3")
    assert result.status == 0
    for part in (
        "features.0 … features.30", "13 conv, 5 pool", "sample 4", "channel 4", "layer-wise",
        "hybrid", "uniform", "of gradient traffic a step",
        "Next best, with no other strategy between them (proven):",
    ):  # fmt: skip
        assert part in result.out


def test_json_has_its_keys(cli) -> None:
    data = cli(*ARGS, "--objective", "published", "--json").data
    assert list(data["strategies"]) == ["layer-wise", "data", "model", "hybrid", "uniform"]
    for row in data["strategies"].values():
        assert row["step_ms"] >= data["strategies"]["layer-wise"]["step_ms"] > 0
        assert row["communication_bytes"] >= 0
    assert data["layers"][0] == {"name": "features.0", "op": "conv", "degrees": {"sample": 4}}
    assert data["optimal"] is True
    assert data["bound_ms"] <= data["strategies"]["layer-wise"]["step_ms"] * (1 + 1e-9)
    assert data["search_s"] > 0


def test_one_parameter_server_puts_the_last_block_on_fewer_devices(cli) -> None:
    data = cli(*ARGS, "--objective", "published", "--server-bandwidth", "2GB/s", "--json").data
    split = {layer["name"]: layer["degrees"] for layer in data["layers"]}
    assert split["features.0"] == {"sample": 4}
    assert split["features.28"] == {"channel": 2}
    assert split["classifier.0"] == {"channel": 4}


def test_a_saved_plan_is_read_back(cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    assert cli(*ARGS, "--fix", "classifier.3:channel=2", "-o", str(path)).status == 0
    strategy = read_strategy(path)
    assert (strategy.model, strategy.batch, strategy.devices) == ("vgg16", 128, 4)
    assert len(strategy.layers) == 22
    split = strategy.split("classifier.3")
    assert split is not None
    assert split.degree("channel") == 2
    assert json.loads(path.read_text())["predicted"]["step_ms"] > 0


def test_a_drawing(cli, tmp_path: Path) -> None:
    for name in ("plan.svg", "plan.html"):
        assert cli(*ARGS, "--plot", str(tmp_path / name)).status == 0
        text = (tmp_path / name).read_text()
        assert "classifier.0" in text
        assert "device 3: " in text
        assert "A step under each strategy" in text


def test_what_cannot_be(cli, tmp_path: Path) -> None:
    cli(*ARGS, "--objective", "cheapest").refused("unknown objective 'cheapest'", "overlap")
    cli(*ARGS, "--scheme", "pigeon").refused("unknown scheme 'pigeon'", "server")
    cli(*ARGS, "--degrees", "odd").refused("'odd'", "powers, all")
    cli(*ARGS, "--fix", "classifier.3").refused("LAYER:DIM=N")
    cli(*ARGS, "--fix", "nothing:channel=2").refused("unknown layer 'nothing'")
    cli(*ARGS, "--fix", "classifier.3:rows=2").refused("unknown dim 'rows'")
    cli(*ARGS, "--max-memory", "lots").refused("lots")
    cli(*ARGS, "--server-bandwidth", "2").refused("'2' has no unit", "bytes/s")
    cli(*ARGS, "--server-bandwidth", "0GB/s").refused("above zero")
    cli(*ARGS, "--server-bandwidth", "2GB/s").refused("for the scheme server, not auto")
    cli(*ARGS, "--estimator", "paleo").refused("prices whole layers", "roofline")
    cli("plan", "vgg16", "--cluster", "128x8xh100").refused("1024 devices", "64")
    cli(*ARGS, "-o", str(tmp_path / "no" / "plan.json")).refused("there is no folder")


def test_too_little_memory_is_no_usage_error(cli) -> None:
    cli(*ARGS, "--max-memory", "50MB").refused("does not fit", status=1)
