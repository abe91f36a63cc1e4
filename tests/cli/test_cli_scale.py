"""traincast scale."""

from __future__ import annotations

import csv
import gzip
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

DEMO = Path(__file__).resolve().parents[3] / "shared/data/paleo_demo_times.csv.gz"
AUTHORS = {"one-to-all": "OneToAll", "tree": "TreeAllReduce", "butterfly": "ButterflyAllReduce"}
PALEO = (
    "scale", "alex_v2", "--estimator", "paleo", "--rules", "paper", "--device", "k20",
    "--network", "ethernet", "--software", "caffe", "--batch", 128, "--devices",
    "1,2,4,8,16,32,64,128", "--scheme", "one-to-all,tree,butterfly",
)  # fmt: skip


@pytest.mark.skipif(not DEMO.is_file(), reason="the demo data of Paleo's authors are not at hand")
@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_paleo_gives_the_numbers_of_its_authors(cli, scaling: str) -> None:
    with gzip.open(DEMO, "rt", encoding="utf-8", newline="") as file:
        published = {
            (row["comm_scheme"], int(row["workers"])): row
            for row in csv.DictReader(file)
            if (row["net"], row["device"], row["network"], row["software"], row["batch"])
            == ("alex_v2", "K20", "ethernet", "caffe", "128")
            and (row["scaling"], row["use_cudnn"]) == (scaling, "false")
        }
    rows = cli(*PALEO, "--scaling", scaling, "--json").data["rows"]
    assert len(rows) == len(published) == 24
    for row in rows:
        theirs = published[AUTHORS[row["scheme"]], row["devices"]]
        assert row["step_ms"] == pytest.approx(float(theirs["iter_time_ms"]), abs=0.00051)
        assert row["speedup"] == pytest.approx(float(theirs["speedup"]), abs=0.00051)
        assert row["efficiency"] == pytest.approx(row["speedup"] / row["devices"])
        assert row["compute_ms"] + row["communication_ms"] == pytest.approx(row["step_ms"])
        assert row["strategy"] == "data"


def test_paleo_splits_its_authors_alexnet(cli) -> None:
    """Hybrid AlexNet on 1 to 8 K20: steps of the authors' own code."""
    rows = cli(
        "scale", "alex_v2_1gpu", "--estimator", "paleo", "--device", "k20", "--network", "pcie2",
        "--software", "cuda-convnet2", "--strategy", "hybrid", "--devices", "1,2,4,8", "--json",
    ).data["rows"]  # fmt: skip
    assert [round(row["step_ms"], 3) for row in rows] == [410.936, 422.995, 433.875, 490.642]
    assert {row["scheme"] for row in rows} == {"tree"}


def test_paleo_model_parallelism_works_on_one_batch(cli) -> None:
    rows = cli(
        "scale", "paleo:alex_v2_1gpu", "--estimator", "paleo", "--device", "k20", "--network",
        "pcie2", "--strategy", "model", "--devices", "1,2,4,8", "--json",
    ).data["rows"]  # fmt: skip
    for row in rows:
        assert row["samples_per_s"] == pytest.approx(128 / row["step_ms"] * 1e3)


def test_strategies_schemes_and_counts_make_the_rows(cli) -> None:
    data = cli(
        "scale", "alexnet", "--cluster", "2x4xp100", "-p", "fp32", "--strategy",
        "data,model,hybrid", "--scheme", "ring,parameter-server", "--devices", "1,8,8", "--json",
    ).data  # fmt: skip
    keys = [(r["strategy"], r["scheme"], r["devices"]) for r in data["rows"]]
    assert len(set(keys)) == len(keys) == 3 * 2 * 2
    assert {"compute_ms", "communication_ms", "step_ms", "speedup", "efficiency"} <= set(
        data["rows"][0]
    )
    assert len(data["stops_paying"]) == 6


def test_a_whole_run_costs_hours_times_price(cli) -> None:
    rows = cli(
        "scale", "resnet18", "-d", "v100", "--devices", "1,4", "--dataset-size", "1281167",
        "--epochs", 90, "--price-per-hour", 3, "--json",
    ).data["rows"]  # fmt: skip
    for row in rows:
        hours = 1281167 * 90 / row["samples_per_s"] / 3600
        assert row["hours"] == pytest.approx(hours)
        assert row["cost"] == pytest.approx(hours * 3 * row["devices"])


def test_a_measured_step_replaces_compute(cli) -> None:
    ours = ("scale", "vgg16", "--cluster", "1x8xp100", "-p", "fp32", "-b", 64, "--json")
    rows = cli(*ours, "--step-ms", 415.58).data["rows"]
    assert {round(row["compute_ms"], 6) for row in rows} == {415.58}
    assert rows[0]["step_ms"] == pytest.approx(415.58)
    apart = cli(*ours, "--step-ms", 415.58, "--no-overlap").data["rows"]
    for row in apart:
        assert row["step_ms"] == pytest.approx(415.58 + row["communication_ms"])


def test_no_column_wraps_at_any_width(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    argv = (
        "scale", "gpt2", "--cluster", "4x8xh100", "--strategy", "data,hybrid", "--dataset-size",
        "10M", "--epochs", 3, "--price-per-hour", 2.5,
    )  # fmt: skip
    for width in (60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        lines = cli(*argv).out.splitlines()
        assert max(map(len, lines)) <= width
        table = lines[2 : 2 + 12]
        assert all(line.startswith(("data", "hybrid")) for line in table)
        for head in ("strategy", "devices", "step", "speed-up", "whole run", "cost"):
            assert head in lines[1]


def test_files_hold_all_rows(cli, tmp_path: Path) -> None:
    argv = ("scale", "alexnet", "-d", "p100", "--devices", "1,2,4,8,16", "--strategy", "data,model")
    rows = cli(*argv, "--json").data["rows"]
    table, chart, page = (tmp_path / name for name in ("a.csv", "a.svg", "a.html"))
    out = cli(*argv, "--csv", table, "--plot", chart).out
    assert f"Wrote {table}." in out.replace("\n", "")
    with table.open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(r["step_ms"]) for r in read] == [r["step_ms"] for r in rows]
    texts = [t.text for t in ET.parse(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert {"ideal", "data", "model", "1", "2", "4", "8", "16"} <= set(texts)
    assert cli(*argv, "--plot", page).status == 0
    html = page.read_text()
    assert html.count("<svg") == 1
    assert html.count("<tr>") == 1 + len(rows)


def test_what_does_not_fit_is_said(cli) -> None:
    found = cli("scale", "llama-3.1-8b", "-d", "h100", "--devices", "1,8")
    assert found.status == 0
    assert "too much" in found.out
    assert "Does not fit" in found.out


def test_a_network_that_no_device_needs_is_said(cli) -> None:
    argv = ("scale", "resnet18", "-d", "v100", "--network", "ethernet-10g", "--devices")
    assert "plays no part" in cli(*argv, "1,2").out
    assert "plays no part" not in cli(*argv, "1,64").out


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--devices", "0"], ["'0'", "1,2,4,8"]),
        (["--devices", "2.5"], ["'2.5'"]),
        (["--devices", "2,"], ["empty place"]),
        (["--devices", "99999999999"], ["1,000,000"]),
        (["--strategy", "pipeline"], ["'pipeline'", "data, model, hybrid"]),
        (["--scheme", "rings", "--devices", "1"], ["'rings'", "ring"]),
        (["--scaling", "hard"], ["'hard'", "weak, strong"]),
        (["--estimator", "palio"], ["'palio'", "paleo"]),
        (["--network", "ethernett"], ["'ethernett'", "ethernet-100g"]),
        (["--layout", "chwn"], ["'chwn'", "nchw"]),
        (["--software", "caffe"], ["--estimator paleo"]),
        (["--cluster", "2x4xp100", "--devices", "16"], ["16", "8 of 2x4xp100"]),
        (["--scaling", "strong", "-b", "10", "--devices", "4"], ["batch 10", "4 devices", "12"]),
        (["--servers", "0"], ["--servers"]),
        (["--step-ms", "-3"], ["--step-ms"]),
        (["--epochs", "3"], ["--dataset-size"]),
        (["--plot", "chart.gif"], [".svg"]),
        (["--plot", "no/such/folder/x.svg"], ["folder"]),
        (["--csv", "no/such/folder/x.csv"], ["folder"]),
        (["--estimator", "paleo", "--software", "cafe"], ["'cafe'", "caffe"]),
        (["--estimator", "paleo", "--network", "token-ring"], ["'token-ring'", "ethernet"]),
        (["--estimator", "paleo", "--scheme", "ring"], ["'ring'", "butterfly"]),
        (["--estimator", "paleo", "--rules", "old"], ["'old'", "head"]),
        (["--estimator", "paleo", "--algorithms", "winograd"], ["'winograd'", "cudnn4"]),
        (["--estimator", "paleo", "--strategy", "hybrid"], ["paleo:alex_v2_1gpu"]),
        (["--estimator", "paleo", "--cluster", "4xk20"], ["device and network"]),
        (["--estimator", "paleo", "--step-ms", "4"], ["--estimator roofline"]),
        (
            ["--estimator", "paleo", "--scaling", "strong", "-b", "10", "--devices", "4"],
            ["batch 10", "4 devices"],
        ),
    ],
)
def test_bad_input_names_the_thing_and_the_fix(cli, argv: list[str], said: list[str]) -> None:
    cli("scale", "alex_v2", *argv).refused(*said)


def test_an_unknown_network_of_paleo_lists_those_there_are(cli) -> None:
    cli("scale", "paleo:alexnet", "--estimator", "paleo").refused("'alexnet'", "alex_v2_1gpu")
