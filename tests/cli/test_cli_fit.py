"""traincast fit, and predict and scale with what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("scipy", reason="fitting needs scipy")

QUICK = ("--seeds", 1, "--generations", 30, "--bootstrap", 30, "--folds", 4, "--no-compare")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """t = (0.3·filters + 2·[adam]) · (batch/16)^−0.5 · workers^−0.8 + 0.5, 1 % noise."""
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("fit") / "runs.csv"
    lines = ["filters,optimizer,batch,workers,epoch_s"]
    for _ in range(120):
        filters, batch = rng.choice([4, 8, 16, 32]), rng.choice([16, 32, 64, 128])
        workers, optimizer = rng.choice([1, 2, 4, 8]), rng.choice(["sgd", "adam"])
        time = 0.3 * filters + 2 * (optimizer == "adam")
        time = (time * (batch / 16) ** -0.5 * workers**-0.8 + 0.5) * np.exp(0.01 * rng.normal())
        lines.append(f"{filters},{optimizer},{batch},{workers},{time!r}")
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")
    return path


@pytest.fixture(scope="module")
def model(table: Path) -> Path:
    from traincast.cli import main

    path = table.with_name("model.json")
    assert main(["fit", str(table), "-o", str(path), *map(str, QUICK)]) == 0
    return path


def test_json_has_constants_with_intervals_and_errors_by_method(cli, table: Path) -> None:
    found = cli("fit", table, "--time", "epoch_s", "--extrinsic", "batch,workers", "--reference",
                "batch=16", "--json", *QUICK[:-1]).data  # fmt: skip
    for name, value, slack in (("batch", -0.5, 0.02), ("workers", -0.8, 0.02), ("filters", 1, 0.1)):
        entry = found["exponents"][name]
        assert entry["value"] == pytest.approx(value, abs=slack)
        low, high = entry["interval"]
        assert low <= entry["value"] <= high
    assert found["coefficients"]["optimizer=adam"]["value"] == pytest.approx(2.0, abs=0.2)
    assert found["coefficients"]["filters"]["value"] == pytest.approx(0.3, rel=0.25)
    assert found["constant"]["value"] == pytest.approx(0.5, abs=0.05)
    methods = found["cross_validation"]
    assert {"generic", "random_forest", "svr", "gradient_boosting", "power_law"} <= set(methods)
    for scores in methods.values():
        assert {"mape", "rmse", "r2"} <= set(scores)
    assert methods["generic"]["mape"] < 0.02
    assert sum(found["shares"].values()) == pytest.approx(1.0)
    assert [e["factor"] for e in found["extrapolation"]] == ["batch", "workers"]
    assert found["regularisation"]["curve"][0]["strength"] == 0
    assert found["loss"]["name"] == "relative"
    assert "Kavarakuntla" in found["style"]


def test_the_report_names_what_it_rests_on(cli, table: Path) -> None:
    out = " ".join(cli("fit", table, *QUICK[:-1]).out.split())
    for part in (
        "120 of", "time epoch_s", "Intrinsic filters, optimizer (2 levels) (guessed)",
        "Extrinsic workers, batch (guessed)", "in the style of Kavarakuntla et al.",
        "mean relative absolute error", "L1 λ =", "differential evolution, 1 seeds from 0",
        "30 bootstrap samples", "ideal strong scaling is −1", "4-fold, by run", "random forest",
        "least-squares power law", "Extrapolation: trained up to workers 4",
        "Doubling workers from", "Doubling batch from", "does not scale",
    ):  # fmt: skip
        assert part in out, part


def test_sentences_say_what_a_doubling_saves(cli, table: Path) -> None:
    found = cli("fit", table, "--json", *QUICK).data
    typical = {f["name"]: f["median"] if "median" in f else f["levels"][0]
               for f in found["factors"]}  # fmt: skip
    scalable = 0.3 * typical["filters"] + 2 * (typical["optimizer"] == "adam")
    scalable *= (typical["batch"] / 16) ** -0.5 * typical["workers"] ** -0.8
    saved = scalable * (1 - 2**-0.8) / (scalable + 0.5)
    said = next(s for s in found["sentences"] if s.startswith("Doubling workers"))
    assert said.startswith(f"Doubling workers from {typical['workers']:g} saves ")
    number = float(said.split("saves ")[1].split(" %")[0])
    assert number == pytest.approx(100 * saved, abs=1)
    assert " % ± " in said


def test_files_are_written_whole(cli, table: Path, tmp_path: Path) -> None:
    page, chart = tmp_path / "r.html", tmp_path / "p.svg"
    found = cli("fit", table, "--html", page, "--plot", chart, *QUICK)
    assert found.status == 0
    assert f"Wrote {page}." in found.out
    text = page.read_text()
    assert "<svg" in text
    assert "http" not in text.replace("http://www.w3.org", "")
    for part in ("In these runs" if "In these runs" in text else "Doubling", "95 % interval",
                 "Each run, held out"):  # fmt: skip
        assert part in text
    assert ET.fromstring(chart.read_text()).tag.endswith("svg")


def test_a_saved_model_predicts(cli, model: Path) -> None:
    setting = "batch=64,workers=4,filters=16,optimizer=sgd"
    found = cli("predict", "--fitted", model, "--set", setting, "--json").data
    expected = 0.3 * 16 * 4**-0.5 * 4**-0.8 + 0.5
    assert found["time_s"] == pytest.approx(expected, rel=0.02)
    low, high = found["interval_s"]
    assert low < expected < high
    assert found["outside"] == []
    out = cli("predict", "--fitted", model, "--set", "workers=64").out
    assert "workers 64 is outside 1 to 8: extrapolated" in out
    assert "Typical  filters=" in out


def test_scale_over_a_factor(cli, model: Path, tmp_path: Path) -> None:
    plot = tmp_path / "s.svg"
    setting = "filters=16,optimizer=sgd,batch=16"
    rows = cli("scale", "--fitted", model, "--over", "workers=1..16", "--set", setting, "--json")
    rows = rows.data["rows"]
    assert [row["workers"] for row in rows] == [1, 2, 4, 8, 16]
    times = [4.8 * w**-0.8 + 0.5 for w in (1, 2, 4, 8, 16)]
    assert [row["value"] for row in rows] == pytest.approx(times, rel=0.04)
    assert rows[1]["speedup"] == pytest.approx(times[0] / times[1], rel=0.02)
    assert rows[4]["outside"] == ["workers 16 is outside 1 to 8"]
    found = cli("scale", "--fitted", model, "--plot", plot)
    assert "extrapolated" not in found.out
    assert ET.fromstring(plot.read_text()).tag.endswith("svg")
    steps = cli("scale", "--fitted", model, "--over", "workers=2..8:3", "--json").data["rows"]
    assert [row["workers"] for row in steps] == [2, 5, 8]


REFUSED = {
    ("predict", "--fitted", "MODEL", "--set", "nodes=3"): ("unknown factor 'nodes'", "workers"),
    ("predict", "--fitted", "MODEL", "--set", "batch"): ("'batch' is not NAME=VALUE",),
    ("predict", "--fitted", "MODEL", "--set", "batch=-1"): ("batch=-1", "above 0"),
    ("predict", "--fitted", "MODEL", "--set", "batch=x"): ("'x' is no number",),
    ("predict", "--fitted", "MODEL", "--set", "optimizer=lamb"): ("unknown level", "sgd"),
    ("predict", "resnet50", "--fitted", "MODEL"): ("--fitted needs no MODEL", "--set"),
    ("predict", "--fitted", "TABLE"): ("is not JSON",),
    ("scale", "--fitted", "MODEL", "--over", "optimizer"): ("it has levels",),
    ("scale", "--fitted", "MODEL", "--over", "workers=4..1"): ("LOW..HIGH",),
    ("fit", "TABLE", "--extrinsic", "nodes"): ("unknown column 'nodes'", "workers"),
    ("fit", "TABLE", "--time", "optimizer"): ("column optimizer", "in rows 2", "is no number"),
    ("fit", "TABLE", "--loss", "cubic"): ("unknown loss", "relative"),
    ("fit", "TABLE", "--regularisation", "l3"): ("unknown regularisation", "elastic"),
    ("fit", "TABLE", "--strength", "-1"): ("--strength", "above 0"),
    ("fit", "TABLE", "--expr", "import os"): ("is no expression",),
    ("fit", "TABLE", "--expr", "a*batch", "--extrinsic", "batch"): ("--expr", "leave out roles"),
    ("fit", "TABLE", "--bounds", "batch=2"): ("LOW:HIGH",),
    ("fit", "TABLE", "--bounds", "batches=0:1"): ("nothing is called so", "batch"),
    ("fit", "TABLE", "--reference", "filters=2"): ("no extrinsic number", "batch"),
    ("fit", "TABLE", "--extrapolate", "optimizer"): ("no numeric factor", "filters"),
    ("fit", "TABLE", "--communication", "optimizer"): ("is no numeric factor", "workers"),
    ("fit", "TABLE", "--folds", "1"): ("--folds 1 has to be from 2",),
    ("fit", "TABLE", "-o", "/no/such/folder/m.json"): ("no folder",),
    ("fit", "TABLE", "--plot", "x.gif"): ("--plot", ".svg"),
    ("fit", "absent.csv"): ("absent.csv", "no such file"),
    ("fit",): ("RUNS is missing",),
}


@pytest.mark.parametrize("argv", REFUSED, ids=" ".join)
def test_what_is_refused_names_the_thing_and_the_fix(cli, table, model, argv) -> None:
    places = {"TABLE": table, "MODEL": model}
    cli(*(places.get(a, a) for a in argv)).refused(*REFUSED[argv])


def test_nothing_is_written_where_a_fit_fails(cli, tmp_path: Path) -> None:
    path = tmp_path / "short.csv"
    path.write_text("a,time_s\n1,2\n2,3\n3,4\n")
    out = tmp_path / "m.json"
    cli("fit", path, "-o", out).refused("3 usable runs", "time_s", "at least 8")
    assert not out.exists()


def test_an_own_expression_and_an_extended_form(cli, table: Path) -> None:
    source = "(a*filters + b)*batch**p*workers**q + c"
    found = cli("fit", table, "--expr", source, "--json", *QUICK).data
    assert found["expression"] == source
    assert found["exponents"]["q"]["value"] == pytest.approx(-0.8, abs=0.15)
    found = cli("fit", table, "--form", "extended", "--json", *QUICK).data
    assert "communication" in found["coefficients"]


def test_the_same_seed_prints_the_same(cli, table: Path) -> None:
    one, two = (cli("fit", table, "--seed", 3, "--json", *QUICK).out for _ in range(2))
    assert one == two


def test_without_scipy_the_extra_is_named(table: Path) -> None:
    code = (
        "import sys\nsys.modules['scipy'] = None\nsys.modules['scipy.optimize'] = None\n"
        f"from traincast.cli import main\nsys.exit(main(['fit', {str(table)!r}]))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "pip install 'traincast[fit]'" in found.stderr


def test_predicting_with_a_saved_model_needs_no_scipy(model: Path) -> None:
    code = (
        "import sys\nsys.modules['scipy'] = None\nsys.modules['sklearn'] = None\n"
        "from traincast.cli import main\n"
        f"sys.exit(main(['predict', '--fitted', {str(model)!r}, '--json']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["time"] == "epoch_s"
