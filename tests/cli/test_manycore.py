"""traincast manycore and traincast calibrate --many-core."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

# Computed from the equations of Viebke et al. 2019 (HPCS, arXiv 1906.01992), seconds.
SMALL_A = {1: 33102.52, 240: 532.62, 480: 393.12}


def test_minutes_by_thread_count(cli) -> None:
    found = cli("manycore", "mnist-small", "--threads", "1,240,480")
    assert (found.status, found.err) == (0, "")
    lines = found.out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] and line.split()[0][0].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [
        ("1", "551.71"),
        ("240", "8.88"),
        ("480*", "6.55"),
    ]
    assert "recalled, unverified" in " ".join(found.out.split())
    assert "imagined with more cores" in found.out


def test_json(cli) -> None:
    data = cli("manycore", "mnist-small", "--threads", "1,240,480", "--json").data
    assert data["model"] == "viebke-a"
    assert data["machine"]["cpi"] == [1.0, 1.0, 1.5, 2.0]
    for row in data["rows"]:
        assert row["total_s"] == pytest.approx(SMALL_A[row["threads"]], abs=0.0051)


def test_csv(cli) -> None:
    text = cli("manycore", "mnist-small", "--model", "b", "--csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["threads"] for row in rows] == ["1", "15", "30", "60", "120", "240", "480"]
    assert float(rows[-2]["total_s"]) == pytest.approx(553.02, abs=0.0051)


def test_epochs_and_images(cli) -> None:
    data = cli(
        "manycore", "mnist-small", "--threads", 240, "--epochs", 560, "--images", "240k",
        "--test-images", 40000, "--json",
    ).data  # fmt: skip
    assert data["rows"][0]["total_s"] / 60 == pytest.approx(277.80, abs=0.0051)
    none = cli(
        "manycore", "mnist-small", "--test-images", 0, "--validation-images", 0, "--json"
    ).data
    assert (none["rows"][0]["test_s"], none["rows"][0]["validation_s"]) == (0, 0)


def test_another_network_on_another_cpu(cli) -> None:
    found = cli(
        "manycore", "resnet18", "--device", "epyc-9654", "--threads", "96,192",
        "--threads-per-core", 2, "--issue-rate", 1.25, "--clock", "3 GHz",
    )  # fmt: skip
    assert found.status == 0
    assert "epyc-9654" in found.out
    assert "not known" in found.out  # no interval without a measurement
    assert "1.6" in found.out


@pytest.mark.parametrize(
    ("options", "parts", "status"),
    [
        (["nosuch"], ["nosuch", "traincast models"], 2),
        (["mnist-small", "--threads", "0"], ["'0'", "at least 1"], 2),
        (["mnist-small", "--threads", "1,x"], ["'x'", "1,15,60"], 2),
        (["mnist-small", "--threads", ""], ["--threads"], 2),
        (["mnist-small", "--epochs", "0"], ["--epochs"], 2),
        (["mnist-small", "--device", "h200"], ["h200 is no CPU"], 2),
        (["mnist-small", "--model", "c"], ["--model"], 2),
        (["mnist-small", "--json", "--csv"], ["--json or --csv"], 2),
        (["resnet18", "--model", "b"], ["model b needs measured times", "calibrate"], 1),
        (["mnist-small", "--parameters", "nosuch.json"], ["nosuch.json", "no such file"], 2),
        (["mnist-small", "--parameters", "p.json", "--cores", "2"], ["--parameters"], 2),
        (["mnist-small", "--clock", "fast"], ["fast"], 2),
    ],
)
def test_what_is_refused(cli, options: list[str], parts: list[str], status: int) -> None:
    cli("manycore", *options).refused(*parts, status=status)


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_a_narrow_terminal(cli, monkeypatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = cli("manycore", "mnist-small").out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any(line.split()[:2] == ["240", "8.88"] for line in lines)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Measurements that take no time; remembers what was asked for."""
    pytest.importorskip("torch")
    from traincast.estimate.viebke import Contention, Measured, Parameters, Times, Work
    from traincast.measure import many_core
    from traincast.measure.cpu import this_cpu

    asked: list[list[str]] = []

    def measure(references, *, batch, known, done, **_):
        asked.append(list(references))
        found = known
        for name in references:
            one = Measured(
                times=Times(prepare=1.0, forward=1e-3, backward=2e-3),
                contention=Contention(((1, 0.0), (2, 1e-4))),
                work=Work(prepare=0.0, forward=1e6, backward=2e6, written=1e4),
                batch=batch,
            )
            networks = {**(found.networks if found else {}), name: one}
            found = Parameters(
                machine=many_core.machine_here(this_cpu()),
                networks=networks,
                software=many_core.software(),
            )
            done(found)
        return found

    monkeypatch.setattr(many_core, "measure_networks", measure)
    return asked


def test_calibrate_writes_what_manycore_reads(cli, tmp_path: Path, pretend) -> None:
    file = tmp_path / "here.json"
    found = cli("calibrate", "--many-core", "mnist-small", "-o", file)
    assert (found.status, found.err) == (0, "")
    assert "2.00 ms" in found.out
    assert f"--parameters {file}" in found.out
    assert list(tmp_path.iterdir()) == [file]
    rows = cli(
        "manycore", "mnist-small", "--model", "b", "--parameters", file, "--threads", "1,64",
        "--images", 1000, "--test-images", 0, "--epochs", 1, "--json",
    ).data["rows"]  # fmt: skip
    assert rows[0]["total_s"] == pytest.approx(1 + 1000 * 4e-3)
    assert rows[1]["memory_s"] == pytest.approx(1e-4 * 32 * 1000 / 64)
    cli("manycore", "resnet18", "--model", "b", "--parameters", file).refused(
        "resnet18", "calibrate", status=1
    )
    assert cli("manycore", "resnet18", "--parameters", file).status == 0


def test_calibrate_goes_on_where_it_was(cli, tmp_path: Path, pretend) -> None:
    file = tmp_path / "here.json"
    cli("calibrate", "--many-core", "mnist-small", "-o", file)
    cli("calibrate", "--many-core", "-o", file)
    found = cli("calibrate", "--many-core", "-o", file)
    assert pretend == [["mnist-small"], ["mnist-medium", "mnist-large"]]
    assert "--again" in found.out
    cli("calibrate", "--many-core", "mnist_small", "--again", "-o", file)
    assert pretend[-1] == ["mnist-small"]


def test_calibrate_prints_json(cli, tmp_path: Path, pretend) -> None:
    file = tmp_path / "here.json"
    data = cli("calibrate", "--many-core", "mnist-small", "-o", file, "--json").data
    assert data == json.loads(file.read_text())
    assert data["networks"]["mnist-small"]["contention_s"] == {"1": 0.0, "2": 1e-4}


def test_calibrate_keeps_another_machines_file(cli, tmp_path: Path, pretend) -> None:
    file = tmp_path / "there.json"
    cli("calibrate", "--many-core", "mnist-small", "-o", file)
    data = json.loads(file.read_text())
    data["machine"]["name"] = "another CPU"
    file.write_text(json.dumps(data))
    cli("calibrate", "--many-core", "-o", file).refused("another CPU", "--output", "--again")
    assert json.loads(file.read_text()) == data


def test_calibrate_is_refused_before_anything_is_measured(cli, tmp_path: Path, pretend) -> None:
    cli("calibrate", "--many-core", "--threads", "0").refused("--threads")
    cli("calibrate", "--many-core", "--batch", "0").refused("--batch")
    cli("calibrate", "--many-core", "-o", tmp_path).refused("is a folder")
    assert pretend == []
