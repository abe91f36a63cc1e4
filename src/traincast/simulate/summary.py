"""Errors of predictions over many runs: by column, by group, and whether runs fitted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from traincast.errors import UnknownNameError
from traincast.simulate.validate import COLUMNS, EFFICIENCY, ValidatedRow

QUIET = 0.15
"""A run is quiet whose steps between the 10th and the 90th percentile lie within this fraction of
their median; a noisy one would come out otherwise when run again."""
QUIET_STEPS = "step_ms quiet"
GROUPS = ("model", "precision", "layout", "batch", "mode", "device", "bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one column over all rows that have it; fractions."""

    rows: int
    failed: int
    mape: float | None
    median: float | None
    p90: float | None
    bias: float | None
    """Mean signed relative error; above 0 where predictions are too long."""
    coverage: float | None
    """Share of measured values inside their 90 % interval."""


def summarise(rows: Iterable[ValidatedRow]) -> dict[str, Summary]:
    """Return the errors of each measured column, and of the efficiency where there is one.

    Where the spread of steps is known, `step_ms quiet` has those of the quiet runs alone.
    """
    rows = list(rows)
    result: dict[str, Summary] = {}
    for name in (*COLUMNS, EFFICIENCY):
        having = [r for r in rows if name in r.measured]
        if having:
            result[name] = _errors(having, name)
        spreads = [spread(r) for r in having] if name == "step_ms" else []
        if any(s is not None for s in spreads):
            quiet = zip(having, spreads, strict=True)
            result[QUIET_STEPS] = _errors(
                [r for r, s in quiet if s is not None and s <= QUIET], name
            )
    return result


def _errors(rows: Sequence[ValidatedRow], name: str) -> Summary:
    good = [r for r in rows if r.problem is None]
    if not good:
        return Summary(
            rows=len(rows), failed=len(rows), mape=None, median=None, p90=None, bias=None,
            coverage=None,
        )  # fmt: skip
    error = np.array([r.predicted[name] / r.measured[name] - 1 for r in good])
    bounded = [r for r in good if name in r.interval]
    inside = [r.interval[name][0] <= r.measured[name] <= r.interval[name][1] for r in bounded]
    return Summary(
        rows=len(rows),
        failed=len(rows) - len(good),
        mape=float(abs(error).mean()),
        median=float(np.median(abs(error))),
        p90=float(np.quantile(abs(error), 0.9)),
        bias=float(error.mean()),
        coverage=float(np.mean(inside)) if inside else None,
    )


def spread(row: ValidatedRow) -> float | None:
    """Return (p90 − p10) / median of a run's steps; None where the table does not tell."""
    try:
        low, high = float(row.given["step_p10"]), float(row.given["step_p90"])
        return (high - low) / row.measured["step_ms"]
    except (KeyError, ValueError):
        return None


def grouped(rows: Iterable[ValidatedRow], by: str) -> dict[str, Summary]:
    """Return the errors of the step by model, precision, layout, batch, mode, device or bound."""
    groups: dict[str, list[ValidatedRow]] = {}
    for row in rows:
        label = group_of(row, by)
        if "step_ms" in row.measured:
            groups.setdefault(label, []).append(row)
    order = sorted(groups, key=_batches) if by == "batch" else sorted(groups)
    return {label: _errors(groups[label], "step_ms") for label in order}


def group_of(row: ValidatedRow, by: str) -> str:
    """Return which group a row is in."""
    if by not in GROUPS:
        raise UnknownNameError("group", by, GROUPS, f"(known: {', '.join(GROUPS)})")
    if by == "model":
        return row.model
    if by == "bound":
        return row.bound_by or "–"
    if by == "device":
        return row.device or row.given.get("device") or "–"
    return row.given.get(by) or {"mode": "eager"}.get(by, "–")


def _batches(label: str) -> tuple[float, str]:
    try:
        return float(label), ""
    except ValueError:
        return float("inf"), label


def fit_verdicts(rows: Iterable[ValidatedRow]) -> tuple[int, int]:
    """Return how many rows tell whether a run fitted, and for how many that was predicted."""
    judged = [r for r in rows if r.fits is not None and r.problem is None]
    right = sum(r.fits != r.out_of_memory for r in judged)
    return len(judged), right
