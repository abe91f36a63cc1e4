"""traincast explore."""

from __future__ import annotations

import csv
import importlib.util
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

# The machine of the model's authors: 4 TFLOP/s, 50 GB/s, 10 Gbit/s, 0.5 µs.
AUTHORS = (
    "explore", "castello:alexnet", "-d", "xeon-8180", "-p", "fp32", "--batch", 256, "--nodes", 16,
    "--set", "flops=4TFLOP/s", "--set", "memory-bandwidth=50GB/s",
    "--set", "link-bandwidth=10Gbit/s", "--set", "latency=0.5us",
)  # fmt: skip


def test_all_five_axes_by_default(cli) -> None:
    data = cli(*AUTHORS, "--json").data
    assert [sweep["axes"] for sweep in data["sweeps"]] == [
        ["batch"],
        ["flops"],
        ["memory-bandwidth"],
        ["link-bandwidth"],
        ["nodes"],
    ]
    assert data["base"] == {
        "batch": 256,
        "flops_per_s": 4e12,
        "memory_bytes_per_s": 50e9,
        "link_bytes_per_s": 1.25e9,
        "nodes": 16,
        "latency_s": 0.5e-6,
    }
    # Values of the model's equations, evaluated apart: AlexNet, 16 nodes.
    row = next(r for r in data["sweeps"][0]["rows"] if r["batch"] == 64)
    assert row["data_ms"] == pytest.approx(392.293, rel=1e-5)
    assert row["model_ms"] == pytest.approx(382.556, rel=1e-5)
    assert row["faster"] == "model"
    (crossing,) = data["sweeps"][0]["crossings"]
    assert 64 < crossing["value"] < 256
    assert crossing["interval"][0] < crossing["value"] < crossing["interval"][1]
    assert (crossing["faster_below"], crossing["faster_above"]) == ("model", "data")


def test_one_axis_prints_the_crossing(cli) -> None:
    found = cli(*AUTHORS, "--axis", "batch=16:1024:log10")
    assert found.status == 0
    assert "Model parallelism is faster up to batch 65, data parallelism from 66" in found.out
    assert "uncertain between 52 and 84" in found.out
    assert "datasheet" in found.out


def test_no_crossing_is_said(cli) -> None:
    out = cli(*AUTHORS, "--axes", "nodes").out
    assert "No crossing: data parallelism is faster from 1 to 256." in out
    assert "equal" in out  # on one node there is nothing to choose


def test_two_axes_are_a_map_unless_kept_apart(cli) -> None:
    pair = ("--axes", "batch,link-bandwidth")
    together = cli(*AUTHORS, *pair, "--json").data["sweeps"]
    assert [sweep["axes"] for sweep in together] == [["batch", "link-bandwidth"]]
    assert len(together[0]["rows"]) == 81
    assert together[0]["crossings"][0]["at"] == {"link_bytes_per_s": 1.25e9 / 16}
    apart = cli(*AUTHORS, *pair, "--apart", "--json").data["sweeps"]
    assert [sweep["axes"] for sweep in apart] == [["batch"], ["link-bandwidth"]]
    assert "D data is faster, M model" in cli(*AUTHORS, *pair).out


def test_axis_sets_the_range_of_one_of_the_axes(cli) -> None:
    sweeps = cli(*AUTHORS, "--axes", "batch,nodes,flops", "--axis", "nodes=2,8", "--json").data[
        "sweeps"
    ]
    assert [row["nodes"] for row in sweeps[1]["rows"]] == [2, 8]
    assert len(sweeps[0]["rows"]) == 9


def test_overlap_helps_data_parallelism(cli) -> None:
    plain, hidden = (
        cli(*AUTHORS, "--axis", "batch=1024", *more, "--json").data["sweeps"][0]["rows"][0]
        for more in ((), ("--overlap",))
    )
    assert hidden["data_ms"] < plain["data_ms"]
    assert hidden["model_ms"] == plain["model_ms"]


def test_compat_counts_as_the_published_code(cli) -> None:
    plain, slips = (
        cli(*AUTHORS, "--axis", "nodes=8", *more, "--json").data for more in ((), ("--compat",))
    )
    assert (plain["collectives"], slips["collectives"]) == ("long", "vdg")
    row = slips["sweeps"][0]["rows"][0]
    # A tree all-reduce of every parameter: 3 rounds of twice the vector.
    tree = 3 * 61_838_248 * (2 * 3.2e-9 + 1 / 4e12) + 8 * 3 * 0.5e-6
    assert row["data_communication_ms"] == pytest.approx(tree * 1e3, rel=1e-6)
    assert "slips" in cli(*AUTHORS, "--axis", "nodes=8", "--compat").out


@pytest.mark.parametrize("model", ["resnet50", "gpt2", "mixtral-8x7b", "lstm-ptb", "unet"])
def test_any_network_on_a_gpu(cli, model: str) -> None:
    found = cli("explore", model, "-d", "h100", "--axis", "nodes=2,64", "--json")
    assert found.status == 0
    assert all(row["data_ms"] > 0 for row in found.data["sweeps"][0]["rows"])
    assert found.data["free_ops"]
    assert "Free, as the authors have it" in cli("explore", model, "--axis", "nodes=2").out


def test_charging_other_ops_takes_longer_and_leaves_none_free(cli) -> None:
    run = ("explore", "resnet50", "--axis", "nodes=8", "--json")
    plain, charged = cli(*run).data, cli(*run, "--charge-others").data
    assert charged["free_ops"] == {}
    times = [d["sweeps"][0]["rows"][0]["data_compute_ms"] for d in (plain, charged)]
    assert times[0] < times[1]


def test_csv_has_a_row_for_every_point(cli, tmp_path: Path) -> None:
    file = tmp_path / "points.csv"
    assert cli(*AUTHORS, "--csv", file).status == 0
    with file.open(encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    assert len(rows) == 5 * 9
    assert {row["swept"] for row in rows} >= {"batch", "nodes"}
    assert rows[-1]["nodes"] == "256"
    assert float(rows[-1]["batch"]) == 256


@pytest.mark.parametrize("axes", ["batch", "batch,link-bandwidth", "batch,nodes,flops"])
def test_plots_are_well_formed(cli, tmp_path: Path, axes: str) -> None:
    svg, html = tmp_path / "plot.svg", tmp_path / "plot.html"
    found = cli(*AUTHORS, "--axes", axes, "--plot", svg)
    assert f"Wrote {svg}." in found.out
    root = ET.fromstring(svg.read_text(encoding="utf-8"))
    assert root.tag.endswith("svg")
    cli(*AUTHORS, "--axes", axes, "--plot", html)
    text = html.read_text(encoding="utf-8")
    assert text.count("<figure>") == (3 if axes.count(",") == 2 else 1)
    assert "<script" not in text
    assert "https://" not in text


def test_png_names_the_package_that_it_needs(cli, tmp_path: Path) -> None:
    file = tmp_path / "plot.png"
    found = cli(*AUTHORS, "--axes", "batch", "--plot", file)
    if importlib.util.find_spec("cairosvg") is None:
        found.refused("'cairosvg'", "traincast[plot]")
        assert not file.exists()
    else:
        assert file.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--axes", "batches"), "did you mean batch"),
        (("--axes", "batch,batch"), "names an axis twice"),
        (("--axes", "batch", "--axis", "nodes=2:4"), "not among --axes batch"),
        (("--axis", "batch=1:2", "--axis", "batch=3:4"), "the same axis twice"),
        (("--axis", "batch=9:2"), "ends before it starts"),
        (("--set", "flops"), "write --set flops=4TFLOP/s"),
        (("--set", "batch=4"), "give --batch 4 instead"),
        (("--set", "latency=-1us"), "zero or more"),
        (("--collectives", "ring"), "known: long, short, best"),
        (("--plot", "out.pdf"), "end it in .svg, .html, .png"),
        (("--network", "nvlin4"), "did you mean nvlink4"),
        (("--nodes", "0"), "--nodes"),
        (("--precision", "fp3"), "fp32"),
    ],
)
def test_mistakes_are_named(cli, more: tuple[str, ...], said: str) -> None:
    cli(*AUTHORS[:4], *more).refused(said)


def test_unknown_networks_of_the_authors_are_named(cli) -> None:
    cli("explore", "castello:resnet").refused("castello:alexnet, castello:vgg16")
