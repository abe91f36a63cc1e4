"""Predicted against measured, run by run.

A table has one run a row. A row that cannot be predicted is counted and says why; none disappears.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from traincast.errors import InputFileError, InvalidValueError, TraincastError
from traincast.estimate.intervals import MEMORY
from traincast.estimate.registry import check_estimator
from traincast.graph import Graph
from traincast.hardware import Cluster, load_cluster, load_device
from traincast.ingest import resolve
from traincast.simulate.predict import predict
from traincast.simulate.prediction import Prediction
from traincast.simulate.scale import scale

TIMES = ("step_ms", "fwd_ms", "bwd_ms", "opt_ms", "infer_ms")
COLUMNS = (*TIMES, "peak_gib")
EFFICIENCY = "efficiency"
"""Not a column: throughput over that of one device times their number, within a `series`."""
_PHASES = {"fwd_ms": "forward", "bwd_ms": "backward", "opt_ms": "optimizer"}
_TABLE_OPTIMIZERS = {"sgd": "momentum", "plain_sgd": "sgd"}
"""In tables of runs `sgd` is SGD with momentum 0.9, as nearly everybody trains."""
_PART = 1.5
"""A part of a step is less sure than the whole: factor on its interval's width, in logarithms."""
_SPLIT = ("tp", "pp", "cp", "ep")
_NONE = ("", "none", "no", "false", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidatedRow:
    """One run; values keyed by column, in the column's unit."""

    model: str
    given: Mapping[str, str]
    """The row as it stands in the table, columns unknown to us included."""
    measured: Mapping[str, float]
    predicted: Mapping[str, float] = field(default_factory=dict)
    interval: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    problem: str | None = None
    """Why it could not be predicted."""
    out_of_memory: bool = False
    """Whether the real run did not fit."""
    fits: bool | None = None
    """Whether it is predicted to fit."""
    device: str = ""
    """The device it was predicted for."""
    bound_by: str | None = None
    """What it is predicted to be bound by: compute, memory or launch."""


def read_runs(path: Path, *, measured: bool = True) -> list[dict[str, str]]:
    """Return the rows of a table of runs; raise for a file that is none.

    With `measured` False the table may lack measured columns: its runs are yet to be made.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            rows = [{k: (v or "").strip() for k, v in row.items() if k} for row in table]
            head = table.fieldnames or []
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(path, f"is not a CSV table: {error}") from error
    missing = [name for name in ("model", "batch") if name not in head]
    if missing:
        raise InputFileError(
            path,
            [f"has no column {name!r}" for name in missing],
            "a table of runs has the columns model, batch, step_ms and, as needed, seq, "
            "precision, optimizer, layout, image, mode, device, devices, cluster, network, scheme",
        )
    if measured and not any(name in head for name in COLUMNS):
        raise InputFileError(path, f"has no measured column: one of {', '.join(COLUMNS)}")
    if not rows:
        raise InputFileError(path, "has no rows")
    return rows


def validate(
    rows: Iterable[Mapping[str, str]],
    *,
    device: str | None = None,
    estimator: str = "auto",
    profile: Path | None = None,
    root: Path | None = None,
) -> Iterator[ValidatedRow]:
    """Yield each run with its prediction; `root` is where the table's relative files start.

    `profile` is a profile's file for estimators that rest on one. Raises at once for an estimator,
    a device or a profile that does not exist; what is wrong with one row is that row's `problem`.
    """
    check_estimator(estimator)
    if device:
        load_device(device)
    how: dict[str, Any] = {"estimator": estimator}
    if profile is not None:
        from traincast.estimate.calibrated.profile import read_profile

        read_profile(profile)
        how["profile"] = profile
    return _validated(rows, device, how, root)


def _validated(
    rows: Iterable[Mapping[str, str]],
    device: str | None,
    how: Mapping[str, Any],
    root: Path | None,
) -> Iterator[ValidatedRow]:
    graphs: dict[tuple[str, ...], Graph | TraincastError] = {}
    for row in rows:
        oom = row.get("error", "").lower() == "oom"
        measured, problem = _measured(row)
        found = ValidatedRow(
            model=row.get("model", ""), given=dict(row), measured=measured, out_of_memory=oom
        )
        if problem or not (measured or oom):
            yield replace(found, problem=problem or row.get("error") or "nothing was measured")
            continue
        try:
            yield _predicted(found, row, device, how, root, graphs)
        except TraincastError as error:
            yield replace(found, problem=str(error))


def _measured(row: Mapping[str, str]) -> tuple[dict[str, float], str | None]:
    values = {}
    for name in COLUMNS:
        text = row.get(name, "")
        if not text:
            continue
        try:
            value = float(text)
        except ValueError:
            return {}, f"{name} is {text!r}, not a number"
        if not (np.isfinite(value) and value > 0):
            return {}, f"{name} is {text}, not above 0"
        values[name] = value
    return values, None


def whole_number(row: Mapping[str, str], name: str) -> int | None:
    """Return a column of a row as a whole number of at least 1; None where it is empty."""
    text = row.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.5
    if value != int(value) or value < 1:
        raise InvalidValueError(f"{name} is {text!r}, not a whole number of at least 1")
    return int(value)


def _predicted(
    found: ValidatedRow,
    row: Mapping[str, str],
    device: str | None,
    how: Mapping[str, Any],
    root: Path | None,
    graphs: dict[tuple[str, ...], Graph | TraincastError],
) -> ValidatedRow:
    seq = whole_number(row, "seq")
    for name in _SPLIT:
        if (whole_number(row, name) or 1) > 1:
            raise InvalidValueError(f"{name} = {row[name]}: this way of splitting is not modelled")
    if row.get("zero", "").lower() not in _NONE:
        raise InvalidValueError(f"zero = {row['zero']}: sharded states are not modelled")
    cluster, devices = machine_of(row, device)
    batch, accumulate = share_of(row, devices)
    graph = _graph(row, batch, seq, root, graphs)
    options: dict[str, Any] = {
        "batch": batch,
        "accumulate": accumulate,
        "seq": seq,
        "precision": row.get("precision") or None,
        "layout": row.get("layout") or "nchw",
        "compiled": row.get("mode", "") == "compile",
        "recompute": row.get("recompute", "").lower() not in _NONE,
        "optimizer": optimizer_of(row),
        **how,
    }
    prediction = predict(graph, cluster.device, **options)
    seconds = prediction.seconds
    if devices > 1:
        scaled = scale(
            graph, cluster.device, cluster, prediction.engine,
            prediction.step.program.precision, prediction.step.plan, devices=[devices],
            schemes=[row.get("scheme") or "auto"], servers=whole_number(row, "servers"),
        )  # fmt: skip
        seconds = scaled[0].step_s
    return _compare(found, prediction, seconds, options)


def _graph(
    row: Mapping[str, str],
    batch: int | None,
    seq: int | None,
    root: Path | None,
    graphs: dict[tuple[str, ...], Graph | TraincastError],
) -> Graph:
    """Return the graph of a row's network: one for all sizes, or one held to those of the row."""
    every = (row.get("model", ""), row.get("image", ""))
    key = (*every, str(batch), str(seq))
    if every not in graphs and key not in graphs:
        image = whole_number(row, "image")
        try:
            found = resolve(every[0], image=image, batch=batch, seq=seq, root=root)
        except TraincastError as error:
            graphs[key] = error
        else:
            graphs[key if found.fixed else every] = found
    graph = graphs.get(every) or graphs[key]
    if isinstance(graph, TraincastError):
        raise graph
    return graph


def machine_of(row: Mapping[str, str], device: str | None) -> tuple[Cluster, int]:
    """Return the cluster of a row and how many of its devices the run used."""
    unit = row.get("device") or device
    if not row.get("cluster") and not unit:
        raise InvalidValueError("no device: add a column device, or give --device")
    devices = whole_number(row, "devices") or whole_number(row, "dp")
    shape = row.get("cluster") or f"{devices or 1}x{unit}"
    cluster = load_cluster(shape, row.get("network") or None)
    devices = devices or cluster.devices
    if devices > cluster.devices:
        raise InvalidValueError(
            f"devices = {devices} are more than the {cluster.devices} of cluster {shape}"
        )
    return cluster, devices


def share_of(row: Mapping[str, str], devices: int) -> tuple[int | None, int]:
    """Return the samples of one device's pass, and how many passes make a step."""
    batch, micro = whole_number(row, "batch"), whole_number(row, "micro_batch")
    if batch is None:
        return micro, 1
    each = micro or max(batch // devices, 1)
    passes = batch // (each * devices)
    if passes < 1 or passes * each * devices != batch:
        micros = f"micro_batch {each} × " if micro else ""
        raise InvalidValueError(f"batch {batch} is no multiple of {micros}{devices} devices")
    return each, passes


def optimizer_of(row: Mapping[str, str]) -> str:
    """Return the optimizer of a row by the name that `predict` knows it by."""
    name = row.get("optimizer") or "adamw"
    return _TABLE_OPTIMIZERS.get(name.lower().replace("-", "_"), name)


def _compare(
    found: ValidatedRow, prediction: Prediction, seconds: float, options: Mapping[str, Any]
) -> ValidatedRow:
    predicted: dict[str, float] = {}
    bounds: dict[str, tuple[float, float]] = {}
    phases = prediction.step.phase_s
    for name in found.measured:
        judge = prediction
        if name == "step_ms":
            predicted[name] = seconds * 1e3
        elif name in _PHASES:
            predicted[name] = phases[_PHASES[name]] * 1e3
        elif name == "infer_ms":
            # Measured in eval mode without gradients, where a compiled network runs eagerly.
            eager = {**options, "compiled": False}
            judge = predict(prediction.graph, prediction.device, **eager, inference=True)
            predicted[name] = judge.seconds * 1e3
        else:
            predicted[name] = prediction.memory.peak / 2**30
        low, high = MEMORY if name == "peak_gib" else _relative_interval(judge)
        if name in (*_PHASES, "infer_ms"):
            low, high = low**_PART, high**_PART
        bounds[name] = (predicted[name] * low, predicted[name] * high)
    return replace(
        found, predicted=predicted, interval=bounds, fits=prediction.fits,
        device=prediction.device.name, bound_by=prediction.bound_by,
    )  # fmt: skip


def _relative_interval(prediction: Prediction) -> tuple[float, float]:
    low, high = prediction.interval_s
    return low / prediction.seconds, high / prediction.seconds


def with_efficiency(rows: Iterable[ValidatedRow]) -> list[ValidatedRow]:
    """Return the rows with the scaling efficiency of those that share a `series`.

    samples/s over n times the samples/s of the row of that series on one device, both measured or
    both predicted. Rows without a series, or whose series has no row on one device, stay as they
    are.
    """
    rows = list(rows)
    alone = {
        row.given["series"]: row
        for row in rows
        if row.given.get("series") and _count(row) == 1 and _timed(row)
    }
    return [
        _efficient(row, alone[row.given["series"]])
        if row.given.get("series", "") in alone and _count(row) > 1 and _timed(row)
        else row
        for row in rows
    ]


def _count(row: ValidatedRow) -> int:
    try:
        return machine_of(row.given, "h200")[1]
    except TraincastError:
        return 0


def _timed(row: ValidatedRow) -> bool:
    return row.problem is None and "step_ms" in row.measured


def _efficient(row: ValidatedRow, alone: ValidatedRow) -> ValidatedRow:
    samples = float(row.given["batch"]) / float(alone.given["batch"]) / _count(row)

    def ratio(values: Mapping[str, float], single: Mapping[str, float]) -> dict[str, float]:
        return {**values, EFFICIENCY: samples * single["step_ms"] / values["step_ms"]}

    return replace(
        row,
        measured=ratio(row.measured, alone.measured),
        predicted=ratio(row.predicted, alone.predicted),
    )
