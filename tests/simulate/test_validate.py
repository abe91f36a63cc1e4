"""Predicted against measured: what is counted, what fails, and the summary by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast.errors import InputFileError, UnknownNameError
from traincast.report.validate import validation_dict
from traincast.simulate.predict import predict
from traincast.simulate.summary import fit_verdicts, grouped, summarise
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


def test_intervals_are_the_predictions_own(tmp_path: Path) -> None:
    """A part of a step, or a pass alone, has its prediction's interval, half as wide again."""
    options = {"batch": 64, "precision": "fp32", "optimizer": "momentum"}
    step = predict("resnet18", "h200", **options)
    alone = predict("resnet18", "h200", **options, inference=True)
    (row,) = rows_of(
        "model,batch,precision,optimizer,device,step_ms,bwd_ms,infer_ms\n"
        "resnet18,64,fp32,sgd,h200,20,12,6\n",
        tmp_path,
    )
    assert row.interval["step_ms"] == pytest.approx([s * 1e3 for s in step.interval_s])
    wide = [alone.seconds * 1e3 * (s / alone.seconds) ** 1.5 for s in alone.interval_s]
    assert row.interval["infer_ms"] == pytest.approx(wide)
    low, high = ((s / step.seconds) ** 1.5 for s in step.interval_s)
    backward = row.predicted["bwd_ms"]
    assert row.interval["bwd_ms"] == pytest.approx([backward * low, backward * high])
    assert (row.device, row.bound_by) == ("h200", step.bound_by)


def test_quiet_runs_are_counted_apart(tmp_path: Path) -> None:
    """Spreads of 15 %, 16 % and unknown: one quiet run, which is hit exactly."""
    ms = predict("resnet18", "h200", batch=64, optimizer="momentum").seconds * 1e3
    found = rows_of(
        "model,batch,optimizer,device,step_ms,step_p10,step_p90\n"
        f"resnet18,64,sgd,h200,{ms},{ms * 0.9},{ms * 1.04999}\n"
        f"resnet18,64,sgd,h200,{ms / 2},{ms * 0.45},{ms * 0.53}\n"
        f"resnet18,64,sgd,h200,{ms / 2},,\n",
        tmp_path,
    )
    summary = summarise(found)
    assert summary["step_ms"].rows == 3
    assert summary["step_ms"].mape == pytest.approx(2 / 3)
    assert summary["step_ms quiet"].rows == 1
    assert summary["step_ms quiet"].mape == pytest.approx(0, abs=1e-9)
    assert "step_ms quiet" not in summarise(found[2:])


def test_errors_by_group_by_hand(tmp_path: Path) -> None:
    """Errors of 0 and +100 % at batch 64, of −50 % at batch 8, and a row that fails."""
    ms = {b: predict("resnet18", "h200", batch=b, optimizer="momentum").seconds * 1e3
          for b in (8, 64)}  # fmt: skip
    found = rows_of(
        "model,batch,optimizer,device,mode,step_ms\n"
        f"resnet18,64,sgd,h200,,{ms[64]}\n"
        f"resnet18,64,sgd,h200,,{ms[64] / 2}\n"
        f"resnet18,8,sgd,h200,,{ms[8] * 2}\n"
        "resnet5,8,sgd,h200,,10\n",
        tmp_path,
    )
    groups = grouped(found, "batch")
    assert list(groups) == ["8", "64"]
    assert (groups["64"].rows, groups["64"].mape, groups["64"].bias) == (2, 0.5, 0.5)
    assert (groups["8"].rows, groups["8"].failed) == (2, 1)
    assert groups["8"].bias == pytest.approx(-0.5)
    assert list(grouped(found, "mode")) == ["eager"]
    assert set(grouped(found, "model")) == {"resnet18", "resnet5"}
    assert set(grouped(found, "bound")) <= {"compute", "memory", "launch", "–"}
    assert set(grouped(found, "device")) == {"h200"}
    with pytest.raises(UnknownNameError, match="precision"):
        grouped(found, "precison")


def test_plain_sgd_has_a_name_of_its_own(tmp_path: Path) -> None:
    """Momentum keeps a value for each of the 11,689,512 parameters: 46.8 MB in float32."""
    momentum, plain = rows_of(
        "model,batch,precision,optimizer,device,peak_gib\n"
        "resnet18,2,fp32,sgd,h200,1\n"
        "resnet18,2,fp32,plain_sgd,h200,1\n",
        tmp_path,
    )
    more = momentum.predicted["peak_gib"] - plain.predicted["peak_gib"]
    assert more * 2**30 == pytest.approx(4 * 11_689_512, rel=1e-3)


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
