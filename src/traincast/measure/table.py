"""Measured steps as rows of the store and of the table that `traincast validate` reads.

In a table `sgd` means SGD with momentum 0.9, so that plain SGD is written `plain_sgd` there; in the
store, as in every command, they are `momentum` and `sgd`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincast.errors import InvalidValueError
from traincast.measure.steps import Measured
from traincast.measure.store import now
from traincast.measure.workload import Workload, located

COLUMNS = ("model", "image", "batch", "seq", "precision", "optimizer", "layout", "mode", "params",
           "step_ms", "step_p10", "step_p90", "wall_ms", "fwd_ms", "bwd_ms", "opt_ms", "peak_gib",
           "infer_ms", "n", "error", "device", "torch", "date")  # fmt: skip
TO_TABLE = {"momentum": "sgd", "sgd": "plain_sgd"}
FROM_TABLE = {name: key for key, name in TO_TABLE.items()}
_ALONE = ("devices", "dp", "tp", "pp", "cp", "ep")
_NONE = ("", "none", "no", "false", "0")


def run_columns(found: Measured, device: str) -> dict[str, Any]:
    """Return what the store keeps of a measured step; `device` is its name in the catalog."""
    w = found.workload
    columns: dict[str, Any] = {
        "model": located(w), "batch": w.batch, "seq": w.seq, "image": w.image,
        "precision": w.precision, "optimizer": w.optimizer, "layout": w.layout,
        "mode": "compile" if w.compiled else "", "device": device, "torch": found.torch,
        "params": found.parameters, "error": found.error, "date": now(),
    }  # fmt: skip
    timing = found.timing
    if timing is not None:
        forward, backward, update = timing.phases_s
        seconds = {
            "step_ms": timing.step_s, "step_p10": timing.low_s, "step_p90": timing.high_s,
            "wall_ms": timing.wall_s, "fwd_ms": forward, "bwd_ms": backward, "opt_ms": update,
        }  # fmt: skip
        columns |= {name: value * 1e3 for name, value in seconds.items()}
        columns["steps"] = timing.steps
    if found.infer_s is not None:
        columns["infer_ms"] = found.infer_s * 1e3
    if found.peak_bytes is not None:
        columns["peak_gib"] = found.peak_bytes / 2**30
    if found.breakdown is not None:
        columns["depth"] = found.breakdown.to_dict()
    return columns


def table_row(run: Mapping[str, Any]) -> dict[str, str]:
    """Return a run of the store as a row of the table; what it lacks is empty."""
    values = {**run, "n": run.get("steps")}
    row = {name: "" if values.get(name) is None else str(values[name]) for name in COLUMNS}
    row["optimizer"] = TO_TABLE.get(row["optimizer"], row["optimizer"])
    return row


def workload_of(row: Mapping[str, str], *, unit: str | None, root: Path | None) -> Workload:
    """Return what a row of a table asks to be measured; raise for what one device cannot run."""
    for name in _ALONE:
        if row.get(name, "") not in ("", "1"):
            raise InvalidValueError(f"{name} = {row[name]}: only one device is measured here")
    if row.get("micro_batch") or row.get("recompute", "").lower() not in _NONE:
        raise InvalidValueError("accumulation and recomputation are not measured here")
    optimizer = row.get("optimizer") or "adamw"
    return Workload(
        model=row.get("model", ""),
        batch=_whole(row, "batch"),
        seq=_whole(row, "seq"),
        image=_whole(row, "image"),
        precision=row.get("precision") or None,
        optimizer=FROM_TABLE.get(optimizer.lower(), optimizer),
        layout=row.get("layout") or "nchw",
        compiled=row.get("mode", "") == "compile",
        unit=unit,
        root=root,
    )


def _whole(row: Mapping[str, str], name: str) -> int | None:
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
