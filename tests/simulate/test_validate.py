"""Predicted against measured: what is counted, what fails, and the summary by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast.errors import InputFileError
from traincast.report.validate import validation_dict
from traincast.simulate.predict import predict
from traincast.simulate.summary import fit_verdicts, summarise
from traincast.simulate.validate import read_runs, validate

HELD_OUT = Path(__file__).resolve().parents[2] / "benchmarks/data/h200/held_out_steps.csv"


def rows_of(text: str, tmp_path: Path, **options):
    path = tmp_path / "runs.csv"
    path.write_text(text)
    return list(validate(read_runs(path), root=tmp_path, **options))


def test_errors_and_coverage_by_hand(tmp_path: Path) -> None:
    """Measured at half and at four times the prediction: errors of +100 % and −75 %."""
    step = predict("resnet18", "h200", batch=64, precision="fp32", optimizer="momentum")
    ms = step.seconds * 1e3
    found = rows_of(
        "model,batch,precision,optimizer,device,step_ms\n"
        f"resnet18,64,fp32,sgd,h200,{ms / 2}\n"
        f"resnet18,64,fp32,sgd,h200,{ms * 4}\n"
        f"resnet18,64,fp32,sgd,h200,{ms}\n",
        tmp_path,
    )
    summary = summarise(found)["step_ms"]
    assert summary.rows == 3
    assert summary.failed == 0
    assert summary.mape == pytest.approx((1 + 0.75 + 0) / 3)
    assert summary.median == pytest.approx(0.75)
    assert summary.bias == pytest.approx((1 - 0.75 + 0) / 3)
    assert summary.coverage == pytest.approx(1 / 3)


def test_a_row_that_cannot_be_predicted_is_counted_and_says_why(tmp_path: Path) -> None:
    found = rows_of(
        "model,batch,device,step_ms,note\n"
        "resnet5,64,h200,10,a\n"
        "resnet18,64,h2000,10,b\n"
        "resnet18,0,h200,10,c\n"
        "resnet18,64,h200,-3,d\n"
        "resnet18,64,h200,fast,e\n"
        "resnet18,64,,10,f\n"
        "resnet18,64,h200,,g\n",
        tmp_path,
    )
    problems = [row.problem or "" for row in found]
    for problem, text in zip(
        problems,
        ("resnet50", "h200", "batch is '0'", "not above 0", "'fast'", "no device", "nothing"),
        strict=True,
    ):
        assert text in problem
    data = validation_dict(found)
    assert len(data["rows"]) == 7
    assert data["rows"][4]["note"] == "e"
    assert data["summary"]["step_ms"] == {
        "rows": 4, "failed": 4, "mape": None, "median": None, "p90": None, "bias": None,
        "coverage": None,
    }  # fmt: skip


def test_a_run_that_did_not_fit_is_right_when_so_predicted(tmp_path: Path) -> None:
    found = rows_of(
        "model,batch,seq,precision,device,step_ms,error\n"
        "llama-3.1-70b,1,4096,bf16,h200,,oom\n"
        "resnet18,2,,fp32,h200,,oom\n",
        tmp_path,
    )
    assert [row.fits for row in found] == [False, True]
    assert fit_verdicts(found) == (2, 1)


def test_several_devices_cost_communication(tmp_path: Path) -> None:
    table = (
        "model,batch,precision,optimizer,device,devices,network,step_ms\n"
        "vgg16,32,fp32,sgd,p100,1,,100\n"
        "vgg16,128,fp32,sgd,p100,4,,100\n"
        "vgg16,512,fp32,sgd,p100,16,ethernet-1g,100\n"
    )
    one, four, many = (row.predicted["step_ms"] for row in rows_of(table, tmp_path))
    assert one <= four < many


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,step_ms\nresnet18,3\n", "no column 'batch'"),
        ("model,batch\nresnet18,3\n", "no measured column"),
        ("model,batch,step_ms\n", "no rows"),
        ("", "no column 'model'"),
    ],
)
def test_a_file_that_is_no_table_of_runs(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text)
    with pytest.raises(InputFileError, match=message):
        read_runs(path)


def test_missing_and_binary_files(tmp_path: Path) -> None:
    with pytest.raises(InputFileError, match="cannot be read"):
        read_runs(tmp_path / "none.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputFileError, match="not a CSV"):
        read_runs(tmp_path / "b.csv")


@pytest.mark.slow
def test_the_roofline_on_networks_it_never_saw() -> None:
    """Real H200 steps. Not a target to tune for: a guard against a broken estimator."""
    pytest.importorskip("torch", reason="traces the networks")
    found = list(validate(read_runs(HELD_OUT), root=HELD_OUT.parent))
    summary = summarise(found)
    assert summary["step_ms"].failed == 0
    assert summary["step_ms"].mape < 0.25
    assert summary["peak_gib"].mape < 0.05
    assert summary["step_ms"].coverage > 0.75
