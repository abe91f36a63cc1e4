"""traincast models and traincast devices."""

from __future__ import annotations

import json

import pytest

from traincast.hardware import device_names, link_names
from traincast.ingest import zoo_names

RESNET50_PARAMETERS = 25_557_032  # torchvision's documentation of resnet50
RESNET50_FORWARD_FLOPS = 8_178_368_512  # 4,089,184,256 multiply-adds, as fvcore counts them


def test_models_lists_every_built_in_name(cli) -> None:
    lines = cli("models").out.splitlines()
    listed = [line.split()[0] for line in lines[1 : len(zoo_names()) + 1]]
    assert sorted(listed) == zoo_names()
    assert f"{len(zoo_names())} built-in models" in cli("models").out


def test_models_as_json(cli) -> None:
    found = {entry["name"]: entry for entry in cli("models", "--json").data}
    assert sorted(found) == zoo_names()
    assert found["resnet50"]["parameters"] == RESNET50_PARAMETERS
    assert found["resnet50"]["forward_flops_per_sample"] == RESNET50_FORWARD_FLOPS


def test_a_model_is_shown_with_its_source(cli) -> None:
    text = cli("models", "show", "resnet50").out
    for part in ("25,557,032", "8.18 GFLOP forward", "He et al. 2016", "torchvision:resnet50"):
        assert part in text


def test_a_sequence_length_scales_what_is_shown(cli) -> None:
    short, long = (
        cli("models", "show", "gpt2", "--seq", s, "--json").data["forward_flops_per_sample"]
        for s in (256, 512)
    )
    assert 2 < long / short < 2.3


def test_devices_lists_every_device(cli) -> None:
    lines = cli("devices").out.splitlines()
    assert sorted(line.split()[0] for line in lines[1 : len(device_names()) + 1]) == device_names()
    assert [d["name"] for d in cli("devices", "--json").data] == device_names()


def test_links(cli) -> None:
    assert [link["name"] for link in cli("devices", "--links", "--json").data] == link_names()
    assert "nvlink4" in cli("devices", "--links").out


def test_each_figure_of_a_device_points_at_its_source(cli) -> None:
    text = cli("devices", "show", "h200").out
    assert "4.80 TB/s  [1]" in text
    assert text.count("[1] NVIDIA H200 datasheet") == 1
    assert cli("devices", "show", "h200", "--json").data["memory_bandwidth_bytes_per_s"] == 4.8e12


def test_links_and_clusters_are_shown(cli) -> None:
    assert "450 GB/s each way" in cli("devices", "show", "nvlink4").out
    text = cli("devices", "show", "4x8xh100", "--network", "2xethernet-100g").out
    for part in ("4 nodes × 8", "32 in all", "nvlink4", "ethernet-100g", "2 ports a node"):
        assert part in text
    data = cli("devices", "show", "4x8xh100", "--json").data
    assert (data["nodes"], data["devices"]) == (4, 32)


def test_a_device_whose_name_looks_like_a_cluster(cli) -> None:
    assert cli("devices", "show", "7900xtx", "--json").data["name"] == "rx-7900-xtx"


@pytest.mark.parametrize("model", ["resnet18", "gpt2", "lstm-ptb", "dlrm", "nin"])
def test_an_exported_graph_predicts_the_same(cli, tmp_path, model: str) -> None:
    file = tmp_path / "graph.json"
    found = cli("models", "export", model, "-o", file)
    assert (found.status, found.err) == (0, "")
    assert f"traincast predict {file}" in found.out
    assert list(tmp_path.iterdir()) == [file]
    for options in (["--json"], ["--batch", "7", "--json"], ["--batch", "max", "--json"]):
        assert cli("predict", file, *options).data == cli("predict", model, *options).data


def test_export_prints_the_graph_that_it_would_write(cli, tmp_path) -> None:
    file = tmp_path / "graph.json"
    cli("models", "export", "resnet18", "-o", file)
    printed = cli("models", "export", "resnet18").out
    assert printed == file.read_text()
    assert json.loads(printed)["name"] == "resnet18"


def test_a_failed_export_leaves_the_old_file(cli, tmp_path) -> None:
    file = tmp_path / "graph.json"
    file.write_text("old")
    cli("models", "export", "nosuch", "-o", file).refused("nosuch")
    assert file.read_text() == "old"
    cli("models", "export", "resnet18", "-o", tmp_path).refused(str(tmp_path), "is a folder")


@pytest.mark.parametrize(
    "command", ["models", "devices", "devices --links", "devices show h200", "predict gpt2"]
)
@pytest.mark.parametrize("columns", [40, 60, 80])
def test_narrow_output_stays_in_its_columns(cli, monkeypatch, command: str, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = cli(*command.split()).out.splitlines()
    assert max(map(len, lines)) <= columns
    assert not any(line.endswith(" ") for line in lines)


def test_a_narrow_table_keeps_whole_names_and_drops_columns(cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    text = cli("predict", "gpt2", "--by", "type", "--top", "all").out
    assert "cross_entropy" in text
    assert "backward" in text
    assert "FLOP  " not in text
    assert "mobilenet_v3_small" in cli("models").out
    assert "xeon-e5-2699-v4" in cli("devices").out
