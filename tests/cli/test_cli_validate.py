"""traincast validate."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHMARK = ROOT / "benchmarks" / "cnn_scaling.py"
PUBLISHED = ROOT.parent / "shared/data/published/cnn_scaling_tf_mxnet.csv.gz"
# ResNet-50 on a DGX-1, 64 images a GPU, TensorFlow's benchmarks.md of May 2017.
DGX1 = """\
model,batch,precision,optimizer,device,devices,cluster,scheme,series,step_ms
resnet50,64,fp32,sgd,p100,1,1x1xp100,parameter-server,dgx1,292.24
resnet50,128,fp32,sgd,p100,2,1x2xp100,parameter-server,dgx1,303.32
resnet50,512,fp32,sgd,p100,8,1x8xp100,parameter-server,dgx1,295.27
resnet50,512,fp32,sgd,p100,8,1x8xp100,ring,,295.27
"""


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "runs.csv"
        path.write_text(text)
        return path

    return write


def test_efficiency_within_a_series(cli, table) -> None:
    """219, 422 and 1734 images/s: 96.3 % and 99.0 % of 2 and 8 times the first."""
    data = cli("validate", table(DGX1), "--json").data
    measured = [row["measured"].get("efficiency") for row in data["rows"]]
    assert measured[0] is None
    assert measured[1] == pytest.approx(422 / 438, abs=1e-3)
    assert measured[2] == pytest.approx(1734 / 1752, abs=1e-3)
    assert measured[3] is None  # of no series
    steps = [row["predicted"]["step_ms"] for row in data["rows"]]
    assert data["rows"][2]["predicted"]["efficiency"] == pytest.approx(steps[0] / steps[2])
    summary = data["summary"]["efficiency"]
    assert (summary["rows"], summary["failed"], summary["coverage"]) == (2, 0, None)


def test_scheme_and_network_are_honoured(cli, table) -> None:
    rows = cli("validate", table(DGX1), "--json").data["rows"]
    assert rows[2]["predicted"]["step_ms"] != rows[3]["predicted"]["step_ms"]
    text = (
        "model,batch,precision,cluster,network,scheme,step_ms\n"
        "vgg16,512,fp32,4x4xp100,1xethernet-1g,ring,100\n"
        "vgg16,512,fp32,4x4xp100,1xethernet-10g,ring,100\n"
        "vgg16,512,fp32,4x4xp100,1xethernet-10g,sing,100\n"
    )
    slow, fast, wrong = cli("validate", table(text), "--json").data["rows"]
    assert slow["predicted"]["step_ms"] > 2 * fast["predicted"]["step_ms"]
    assert "'sing'" in wrong["problem"]


def test_rows_agree_with_scale(cli, table) -> None:
    rows = cli("validate", table(DGX1), "--json").data["rows"]
    found = cli(
        "scale", "resnet50", "--cluster", "1x8xp100", "-b", 64, "-p", "fp32", "--optimizer",
        "momentum", "--scheme", "parameter-server", "--devices", 8, "--json",
    ).data["rows"]  # fmt: skip
    assert rows[2]["predicted"]["step_ms"] == pytest.approx(found[0]["step_ms"])
    assert rows[2]["predicted"]["efficiency"] == pytest.approx(found[0]["efficiency"])


def test_micro_batches_are_passes_of_one_step(cli, table) -> None:
    text = (
        "model,batch,micro_batch,precision,device,devices,step_ms\n"
        "resnet18,64,64,fp32,v100,1,100\n"
        "resnet18,256,64,fp32,v100,1,100\n"
        "resnet18,256,60,fp32,v100,1,100\n"
        "resnet18,250,,fp32,v100,4,100\n"
    )
    one, four, *bad = cli("validate", table(text), "--json").data["rows"]
    ratio = four["predicted"]["step_ms"] / one["predicted"]["step_ms"]
    assert 3.8 < ratio < 4  # one update instead of four
    assert "batch 256 is no multiple of micro_batch 60" in bad[0]["problem"]
    assert "batch 250 is no multiple of 4 devices" in bad[1]["problem"]


def test_what_is_not_modelled_fails_its_row(cli, table) -> None:
    text = (
        "model,batch,device,devices,tp,zero,cluster,step_ms\n"
        "gpt2,8,h100,8,8,,,100\n"
        "gpt2,8,h100,8,,3,,100\n"
        "gpt2,16,h100,16,,,1x8xh100,100\n"
    )
    found = cli("validate", table(text), "--json").data
    said = [row["problem"] for row in found["rows"]]
    assert "tp = 8" in said[0]
    assert "zero = 3" in said[1]
    assert "16" in said[2]
    assert found["summary"]["step_ms"]["failed"] == 3
    out = cli("validate", table(text)).out
    assert "3 rows could not be predicted" in out


def test_tables_for_people(cli, table, monkeypatch: pytest.MonkeyPatch) -> None:
    out = cli("validate", table(DGX1), "--all").out
    lines = [line for line in out.splitlines() if line.startswith("resnet50")]
    assert [line.split()[3] for line in lines] == ["1", "2", "8", "8"]  # in the table's order
    assert "96%" in lines[1]
    assert "Every row" in out
    assert out.count("resnet50") == 4
    assert cli("validate", table(DGX1), "--worst", 1).out.count("resnet50") == 1
    monkeypatch.setenv("COLUMNS", "70")
    narrow = cli("validate", table(DGX1), "--all").out
    assert max(map(len, narrow.splitlines())) <= 70


def test_errors_by_group(cli, table) -> None:
    data = cli("validate", table(DGX1), "--by", "batch", "--json").data
    assert data["by"] == "batch"
    assert list(data["groups"]) == ["64", "128", "512"]
    assert data["groups"]["512"]["rows"] == 2
    assert set(data["groups"]["512"]) == set(data["summary"]["step_ms"])
    out = cli("validate", table(DGX1), "--by", "device").out
    assert "The step by device" in out
    assert "groups" not in cli("validate", table(DGX1), "--json").data


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_a_plot(cli, table, tmp_path: Path, kind: str) -> None:
    """A point and an interval for each row, three lines, and the row in words."""
    file = tmp_path / f"plot.{kind}"
    assert "Wrote" in cli("validate", table(DGX1), "--plot", file, "--by", "batch").out
    text = file.read_text()
    assert text.count("<circle") == 4
    assert text.count('stroke-opacity="0.25"') == 4
    assert text.count("stroke-dasharray") == 2
    assert "resnet50 128 fp32: measured 303.3 ms, predicted" in text
    if kind == "html":
        assert "<td>303.32</td>" in text


def test_a_plot_of_nothing(cli, table, tmp_path: Path) -> None:
    """Rows that cannot be predicted leave an empty chart, not an error."""
    file = tmp_path / "plot.svg"
    found = cli("validate", table("model,batch,step_ms,device\nresnet5,8,3,h200\n"), "--plot", file)
    assert found.status == 0
    assert "<circle" not in file.read_text()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--by", "colour"], ["colour"]),
        (["--plot", "a.gif"], ["a.gif", ".svg"]),
        (["--plot", "none/a.svg"], ["none"]),
        (["--profile", "none.json"], ["none.json", "cannot be read"]),
        (["--estimator", "rooftop"], ["'rooftop'", "roofline"]),
        (["--device", "h2000"], ["'h2000'", "h200"]),
        (["--worst", "few"], ["--worst"]),
    ],
)
def test_bad_input_names_the_thing_and_the_fix(cli, table, argv, said) -> None:
    cli("validate", table(DGX1), *argv).refused(*said)


def test_a_missing_table(cli, tmp_path: Path) -> None:
    cli("validate", tmp_path / "none.csv").refused("none.csv", "cannot be read")


def test_the_benchmark_says_that_the_data_are_not_there(tmp_path: Path) -> None:
    found = subprocess.run(
        [sys.executable, BENCHMARK, "--data", tmp_path], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "--data" in found.stderr
    assert "Traceback" not in found.stderr


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published runs are not at hand")
def test_published_scaling_of_real_gpus(cli, tmp_path: Path) -> None:
    """ResNet-50, VGG-16 and AlexNet on 1 to 8 P100: what docs/scale.md says of them."""
    path = tmp_path / "runs.csv"
    subprocess.run([sys.executable, BENCHMARK, "--csv", path], check=True)
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if "?" not in row["model"]]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    data = cli("validate", path, "--json").data
    assert data["summary"]["step_ms"]["failed"] == 0
    servers = [r for r in data["rows"] if r["scheme"] == "parameter-server"]
    errors = [
        abs(r["predicted"]["efficiency"] / r["measured"]["efficiency"] - 1)
        for r in servers
        if "efficiency" in r["measured"]
    ]
    assert len(errors) >= 6
    assert sum(errors) / len(errors) < 0.05
    assert data["summary"]["efficiency"]["median"] < 0.15
