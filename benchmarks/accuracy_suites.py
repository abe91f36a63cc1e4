"""The suites of runs that accuracy.py judges predictions by: their data, and what was fitted to it.

Each suite is a list of validated rows by the estimator that a user gets, the same by others, and
a few words. A suite whose data are not here says so in `missing`.
"""

from __future__ import annotations

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import published_steps
import timm_rtx3090
from traincast.errors import TraincastError
from traincast.estimate.calibrated.library import profiles_folder
from traincast.graph import Graph
from traincast.ingest import resolve
from traincast.simulate.predict import predict
from traincast.simulate.validate import ValidatedRow, read_runs, validate

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared/data/h200/train_steps.csv"
HELD_OUT = ROOT / "benchmarks/data/h200/held_out_steps.csv"
SECOND = ROOT / "benchmarks/data/h200/second_steps.csv"
THIRD, UNSEEN, FRESH, BLIND, FOURTH = (
    ROOT / f"benchmarks/data/h200/{name}_steps.csv"
    for name in ("third", "unseen", "fresh", "blind", "fourth")
)
OTHERS = ("roofline", "paleo")
"""Estimators that every suite is also predicted by."""
SETTING = ("model", "image", "batch", "precision", "layout", "optimizer")
CPU_MODELS = (
    ("torchvision:resnet18", 8), ("torchvision:resnet18", 32), ("torchvision:mobilenet_v2", 8),
    ("torchvision:vgg11", 4), ("torchvision:alexnet", 32), ("torchvision:densenet121", 4),
    ("torchvision:vit_b_32", 8), ("torchvision:convnext_tiny", 4),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Short:
    """Errors of the step; fractions but for `runs`."""

    runs: int
    mape: float
    median: float
    p90: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Runs, predicted; and what a reader has to know of them."""

    key: str
    """Part of the names of its files."""
    title: str
    about: str
    fitted: str
    """What was fitted on it."""
    estimator: str = "auto"
    rows: Sequence[ValidatedRow] = ()
    others: Mapping[str, Sequence[ValidatedRow]] = field(default_factory=dict)
    by: str = "precision"
    """What colours tell in its chart."""
    root: Path | None = None
    """Where relative files of its rows start."""
    further: Mapping[str, Short] = field(default_factory=dict)
    """Errors of the step, predicted in other ways than users get."""
    missing: str = ""
    """Why there are no rows."""


def judged(rows: Sequence[Mapping[str, str]], **options: Any) -> list[ValidatedRow]:
    """Return validated rows; what libraries warn of while networks are traced is no matter."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(validate(rows, **options))


def h200() -> list[Suite]:
    """Return the steps measured on one H200, eager and compiled apart."""
    eager = Suite(
        key="h200", title="H200, eager",
        about="Training steps of 14 networks on one H200 (SXM) in a virtual machine with 16 cores, "
        "PyTorch 2.11: batches from 1 to the largest, five precisions, both layouts.",
        fitted="With two other suites the host's factor, with four the percentiles of the "
        "interval. "
        "Some host-bound phases took part beside the host's own times in the table of what an op "
        "takes in networks (`IN_NETWORKS` in `estimate/calibrated/host.py`). No kernel: those were "
        "measured one by one "
        "(`benchmarks/data/h200/kernels*.jsonl.gz`). The errors here were looked at while the "
        "model was built, so that the held-out suite is the stricter judge.",
    )  # fmt: skip
    compiled = Suite(
        key="h200-compiled", title="H200, compiled",
        about="The same machine and networks under `torch.compile` with its defaults. Peak memory "
        "includes what compilation itself allocates.",
        fitted="The host's cost of a launch from compiled code, as a multiple of an eager op's.",
    )  # fmt: skip
    if not SHARED.is_file():
        return [replace(s, missing=_missing(SHARED)) for s in (eager, compiled)]
    table = read_runs(SHARED)
    apart = [r for r in table if r["mode"] != "compile"], [r for r in table if r["mode"]]
    return [_of_table(s, r, SHARED.parent) for s, r in zip((eager, compiled), apart, strict=True)]


def held_out() -> list[Suite]:
    """Return the steps of other networks on other machines of the kind."""
    suite = Suite(
        key="held-out", title="H200, held out",
        about="Training steps of 17 other networks on another machine of the same kind "
        "(`benchmarks/measure_steps.py`), eager.",
        fitted="Nothing.",
    )  # fmt: skip
    second = Suite(
        key="second", title="H200, by hand and more",
        about="Training steps of 28 further networks on a third machine, whose host went at a pace "
        "of 0.6 to 1.3 times the first's from run to run: 14 of torchvision, four of Transformers, "
        "and ten written by hand that no zoo has (`benchmarks/data/h200/handmade.py`).",
        fitted="The percentiles of the interval, with four other suites. No time is "
        "fitted to these steps, but their kernels were recorded, and told which ones a wrong "
        "model priced: "
        "copies that transpose, batch norm of rows, recurrent layers.",
    )  # fmt: skip
    third = Suite(
        key="third", title="H200, third",
        about="Training steps of 15 further networks of torchvision and Transformers on a fourth "
        "machine, and of the 17 held-out ones at other sizes.",
        fitted="Nothing.",
    )  # fmt: skip
    unseen = Suite(
        key="unseen", title="H200, by hand, of other kinds",
        about="Training steps of 14 networks written by hand (`benchmarks/data/h200/unseen.py`) on "
        "a fifth machine: convolutions over sequences and clips, recurrent cells in a loop, "
        "message passing, experts by einsum, attention without a softmax, embeddings.",
        fitted="The percentiles of the interval, with four others. No time is fitted to these "
        "steps, but their kernels were recorded, and told which kinds of kernels to measure.",
    )  # fmt: skip
    fresh = Suite(
        key="fresh", title="H200, by hand, last",
        about="Training steps of 11 networks written by hand after that "
        "(`benchmarks/data/h200/fresh.py`), on the same machine.",
        fitted="Nothing. Predicted for the first time, the quiet steps were 11.9 % off; the "
        "kernels were recorded then, and mended what was wrong with gradients of largest values, "
        "transposed convolutions, and sequences whose lengths loads of 16 bytes divide.",
    )  # fmt: skip
    blind = Suite(
        key="blind", title="H200, by another hand",
        about="Training steps of 18 networks that somebody else wrote "
        "(`benchmarks/data/h200/blind.py`): losses of pairs, mixers, recurrent taggers, clips, "
        "sides that 8 does not divide; on a sixth machine, whose host took 0.6 times as long "
        "as the others.",
        fitted="The percentiles of the interval, with four others. Predicted for the first time, "
        "all steps were 25.6 % off, those that the device bounds 8 %. Their kernels were recorded "
        "then, and told which kinds to measure: products and convolutions with odd sides, "
        "attention between two sequences and with masks, operands with exchanged axes. No time is "
        "fitted to a step.",
    )  # fmt: skip
    fourth = Suite(
        key="fourth", title="H200, fourth",
        about="Training steps of 26 further networks of torchvision and Transformers on that same "
        "machine, its host now at three quarters of the others' time.",
        fitted="The percentiles of the interval, with four others. Predicted for the first time, "
        "76 of the 78 steps were 14.6 % off, quiet ones 9.3 %, and two were refused; the recorded "
        "kernels told of experts in 4 bytes and of numbers on the host.",
    )  # fmt: skip
    tables = (
        (suite, HELD_OUT), (second, SECOND), (third, THIRD), (unseen, UNSEEN), (fresh, FRESH),
        (blind, BLIND), (fourth, FOURTH),
    )  # fmt: skip
    return [
        _of_table(s, read_runs(path), path.parent) if path.is_file()
        else replace(s, missing=_missing(path))
        for s, path in tables
    ]  # fmt: skip


def _missing(path: Path) -> str:
    return f"{path.name} is not here"


def _of_table(suite: Suite, table: Sequence[Mapping[str, str]], root: Path) -> Suite:
    return replace(
        suite, root=root, rows=judged(table, root=root, device="h200"),
        others={name: judged(table, root=root, device="h200", estimator=name) for name in OTHERS},
    )  # fmt: skip


def rtx3090(networks: int) -> list[Suite]:
    """Return published steps of timm's networks on an RTX 3090, predicted from other devices."""
    suite = Suite(
        key="rtx-3090", title="RTX 3090, timm", estimator="transfer", by="layout",
        about=f"{networks} networks drawn at random from those that timm publishes for an RTX 3090 "
        "(PyTorch 1.10 to 1.12, AMP in fp16, SGD, synthetic data, the largest batch that fits, "
        "`cudnn.benchmark` on). All 454: `python benchmarks/timm_rtx3090.py --transfer`.",
        fitted="Nothing for `transfer`: the profile of the most similar device, carried over by "
        "datasheet. For `adjusted`, a factor for each group of kernels, fitted to the other "
        "families of networks in each of ten folds.",
    )  # fmt: skip
    if not timm_rtx3090.DATA.is_file():
        return [replace(suite, missing=_missing(timm_rtx3090.DATA))]
    table = timm_rtx3090.today(timm_rtx3090.some(timm_rtx3090.runs(), networks))
    table = sorted(table, key=lambda row: row["model"])
    found = timm_rtx3090.evaluate(table).after
    adjusted = Short(
        runs=found.runs, mape=found.mape, median=found.median, p90=found.p90, bias=found.bias
    )
    return [
        replace(
            suite, rows=_once(table, "transfer"), others={n: _once(table, n) for n in OTHERS},
            further={"adjusted, families left out": adjusted},
        )
    ]  # fmt: skip


def _once(table: Sequence[dict[str, str]], estimator: str) -> list[ValidatedRow]:
    """Return validated rows; runs alike but for PyTorch's version are predicted once."""
    same: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in table:
        same[tuple(row[name] for name in SETTING)].append(row)
    first = judged([rows[0] for rows in same.values()], device="rtx-3090", estimator=estimator)
    return [
        replace(found, given=row, measured={"step_ms": float(row["step_ms"])})
        for found, rows in zip(first, same.values(), strict=True)
        for row in rows
    ]


PUBLISHED = {
    "neusight": (
        "Transformers of NeuSight",
        "BERT, GPT-2-like and OPT in fp32 on seven GPUs from V100 to H100 and AMD's MI series, "
        "forward and backward alone, as NeuSight publishes them.",
        "How the host's dispatch comes off NeuSight's kernel timings, on which profiles of these "
        "devices rest, was chosen with these steps in sight (see [profiles](profiles.md)).",
    ),
    "pytorch": (
        "pytorch-gpu-benchmark",
        "torchvision's networks with 12 images a step, fp32 and fp16, forward and backward alone, "
        "with the copy of the batch to the device; nobody says what the hosts were.",
        "Nothing.",
    ),
    "classic": (
        "Convolutional networks of 2015 to 2018",
        "AlexNet to ResNet-152 on GPUs from Titan X to V100, forward and backward alone, with "
        "Torch7, Caffe2, TensorFlow and PyTorch 0.3 on cuDNN 4 to 7.",
        "Nothing; but one set of assumed times for short kernels was seen to suit them.",
    ),
}
"""By the start of a table's name: title, what it is, and what was fitted on it."""


def published(place: Path) -> list[Suite]:
    """Return published steps of other GPUs, a suite for each table.

    `place` is an empty folder, for configurations of transformers.
    """
    folder = published_steps.DATA
    suites = {
        start: Suite(key=f"published-{start}", title=title, about=about, fitted=fitted, by="device")
        for start, (title, about, fitted) in PUBLISHED.items()
    }
    if not all((folder / f"{name}.csv.gz").is_file() for name in published_steps.TABLES):
        return [replace(s, missing="the published tables are not here") for s in suites.values()]
    runs = sorted(published_steps.published(folder, defaultdict(int)), key=lambda run: run.model)
    found: dict[str, dict[str, list[ValidatedRow]]] = defaultdict(lambda: defaultdict(list))
    graphs: dict[str, Graph] = {}
    for name, config in published_steps.CONFIGS.items():
        settings = {**config, "attn_implementation": "eager"}
        (place / f"{name}.json").write_text(json.dumps(settings), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for run in runs:
            for estimator, row in _published_rows(run, place, graphs):
                found[run.table.partition("_")[0]][estimator].append(row)
    return [
        replace(s, rows=found[start].pop("auto"), others=dict(found[start]), root=place)
        for start, s in suites.items()
    ]


def _published_rows(
    run: published_steps.Run, place: Path, graphs: dict[str, Graph]
) -> Iterator[tuple[str, ValidatedRow]]:
    """Yield a published run, predicted by each estimator: forward and backward, and the copy."""
    given = {
        "model": f"hf:{run.model}.json" if run.seq else run.model, "device": run.device,
        "batch": str(run.batch), "seq": str(run.seq or ""), "precision": run.precision,
        "optimizer": "plain_sgd",
    }  # fmt: skip
    bare = ValidatedRow(
        model=given["model"], given=given, measured={"step_ms": 1e3 * run.seconds},
        device=run.device,
    )  # fmt: skip
    for estimator in ("auto", *OTHERS):
        try:
            if run.model not in graphs:
                graphs[run.model] = resolve(given["model"], seq=run.seq, root=place)
            step = predict(
                graphs[run.model], run.device, batch=run.batch, seq=run.seq,
                precision=run.precision, optimizer="sgd", estimator=estimator,
            )  # fmt: skip
        except TraincastError as error:
            yield estimator, replace(bare, problem=str(error))
            continue
        clocks = [
            clock["forward"] + clock["backward"] for clock in (step.step.device_s, step.step.host_s)
        ]
        ms = 1e3 * (max(clocks) + run.copied / published_steps.PAGEABLE)
        low, high = (ms * end / step.seconds for end in step.interval_s)
        yield estimator, replace(
            bare, predicted={"step_ms": ms}, interval={"step_ms": (low, high)},
            bound_by=step.bound_by,
        )  # fmt: skip


def cpu() -> list[Suite]:
    """Measure a few networks on this machine's CPU, now, and return them."""
    from traincast.measure.steps import measure
    from traincast.measure.table import run_columns, table_row, workload_of

    device = profiles_folder() / "this-cpu.toml"
    suite = Suite(
        key="this-cpu", title="This machine's CPU", by="model",
        about="Networks measured on the machine that made this page, as `traincast measure` does.",
        fitted="Nothing: the profile rests on `traincast calibrate --device cpu`.",
    )  # fmt: skip
    if not device.with_suffix(".json").is_file() or not device.is_file():
        return [replace(suite, missing="no profile this-cpu; make one with `traincast calibrate`")]
    table = []
    for model, batch in CPU_MODELS:
        case = {"model": model, "image": "224", "batch": str(batch), "seq": "", "optimizer": "sgd",
                "precision": "fp32", "layout": "nchw"}  # fmt: skip
        found = measure(workload_of(case, unit="cpu", root=None))
        table.append(table_row(run_columns(found, str(device))) | case)
    rows = judged(table, device=str(device))
    return [replace(suite, rows=rows, others={"roofline": judged(
        table, device=str(device), estimator="roofline")})]  # fmt: skip
