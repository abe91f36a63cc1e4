"""Why a prediction is off, as far as it can be computed from the run and from the profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traincast.estimate.calibrated.estimator import Calibrated, group_of
from traincast.estimate.calibrated.species import features_of, keys_of
from traincast.estimate.fusion import compiled_layout
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.program import FAMILIES, program_of
from traincast.estimate.registry import estimator_for
from traincast.estimate.roofline import Estimator
from traincast.graph import Graph
from traincast.graph.precision import precision_named
from traincast.hardware import Device, load_device
from traincast.ingest import resolve
from traincast.simulate.fit import default_precision
from traincast.simulate.step import Plan, Step, program_for, simulate_step
from traincast.simulate.summary import QUIET, spread
from traincast.simulate.validate import ValidatedRow, optimizer_of

FAR = float(np.exp(-2.0))
"""Likeness to the nearest measured shape below which a kernel counts as not measured: two of the
distances over which its model takes shapes to be alike."""
UNMEASURED = 0.2
"""Share of the device's time in such kernels from which they are the cause."""
CLOSE = 0.15
"""The two clocks are close where the slower one takes less than this much longer."""
RELEASE = 1.5
"""Times by which another release of PyTorch has to be faster to be the cause."""
_PHASES = {"fwd_ms": "forward", "bwd_ms": "backward", "opt_ms": "optimizer"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A run with all that it takes to predict it by any engine."""

    row: ValidatedRow
    graph: Graph
    device: Device
    plan: Plan

    def step(self, engine: Estimator) -> Step:
        """Return the step as an engine has it."""
        name = self.row.given.get("precision")
        how = precision_named(name) if name else default_precision(self.device)
        return simulate_step(
            program_for(self.graph, how, self.device, engine, self.plan),
            self.device,
            engine,
            self.plan,
        )


def cases(rows: Sequence[ValidatedRow], root: Path | None) -> list[Case]:
    """Return the rows that were predicted and ran, ready to be predicted again."""
    graphs: dict[tuple[str, str], Graph] = {}
    found = []
    for row in rows:
        if row.problem is not None or "step_ms" not in row.measured:
            continue
        given = row.given
        key = (row.model, given.get("image", ""))
        seq = int(given["seq"]) if given.get("seq") else None
        if key not in graphs:
            graphs[key] = resolve(row.model, image=int(key[1]) if key[1] else None, root=root)
        plan = Plan(
            batch=int(given["batch"]), seq=seq or 0, optimizer=optimizer_named(optimizer_of(given)),
            layout=given.get("layout") or "nchw", eager=given.get("mode") != "compile",
        )  # fmt: skip
        device = load_device(row.device or given["device"])
        found.append(Case(row=row, graph=graphs[key], device=device, plan=plan))
    return found


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What can be said of one run without looking at it."""

    measured_s: float
    device_s: float
    host_s: float
    groups: Mapping[str, float]
    """Share of each group of kernels in the device's time, largest first."""
    unmeasured: float
    """Share of the device's time in kernels unlike any that was measured."""
    spread: float | None
    """(p90 − p10) / median of the measured steps."""
    release: float = 0.0
    """Times as long as under the other PyTorch that runs it fastest; 0 where none ran it."""
    phase: str
    """The phase that most of the error is in, with its error in ms; empty where unknown."""

    @property
    def noisy(self) -> bool:
        """Whether the run itself would come out otherwise when run again."""
        return self.spread is not None and self.spread > QUIET

    @property
    def host_bound(self) -> bool:
        """Whether the host is predicted to be the slower clock."""
        return self.host_s > self.device_s

    @property
    def cause(self) -> str:
        """The first of the known causes that applies."""
        clocks = sorted((self.device_s, self.host_s))
        alone, off = (abs(c / self.measured_s - 1) for c in (self.device_s, clocks[1]))
        if self.noisy:
            return "noisy run" + (", host-bound" if self.host_bound else "")
        if self.release >= RELEASE:
            return f"release of PyTorch: another is {self.release:.1f} times as fast"
        if self.host_bound:
            return "host taken for too slow" if alone < off / 2 else "host's pace"
        if self.unmeasured >= UNMEASURED:
            return "shapes not measured"
        if clocks[1] < (1 + CLOSE) * clocks[0]:
            return "both clocks close"
        return f"{next(iter(self.groups))} kernels"


def facts_of(case: Case, estimator: str, rows: Sequence[ValidatedRow] = ()) -> Facts:
    """Return what the profile, the run and other runs of its suite tell of a case."""
    engine = estimator_for(estimator, case.device)
    step = case.step(engine)
    device, host = sum(step.device_s.values()), sum(step.host_s.values())
    groups: dict[str, float] = {}
    unmeasured = 0.0
    if isinstance(engine, Calibrated):
        groups, unmeasured = _by_group(step, case.device, engine)
    return Facts(
        measured_s=case.row.measured["step_ms"] / 1e3, device_s=device, host_s=host,
        groups=groups, unmeasured=unmeasured, spread=spread(case.row), phase=_phase(case.row),
        release=_release(case.row, rows),
    )  # fmt: skip


def _release(row: ValidatedRow, rows: Sequence[ValidatedRow]) -> float:
    """Return a run's time over the shortest of the same network under another PyTorch, a sample."""
    names = ("model", "image", "layout", "precision", "seq")
    other = [
        run.measured["step_ms"] / float(run.given["batch"])
        for run in rows
        if run.given.get("torch") != row.given.get("torch")
        and all(run.given.get(name) == row.given.get(name) for name in names)
    ]
    return row.measured["step_ms"] / float(row.given["batch"]) / min(other, default=np.inf)


def _phase(row: ValidatedRow) -> str:
    off = {
        name: row.predicted[column] - row.measured[column]
        for column, name in _PHASES.items()
        if column in row.measured
    }
    if not off:
        return ""
    sign = np.sign(row.predicted["step_ms"] - row.measured["step_ms"])
    worst = max(off, key=lambda name: sign * off[name])
    return f"{worst} {off[worst]:+.1f}"


def _by_group(step: Step, device: Device, engine: Calibrated) -> tuple[dict[str, float], float]:
    """Return shares of the device's time by group, and in kernels unlike any measured one."""
    kernels, program, plan = step.kernels, step.program, step.plan
    whole = program_of(program.graph, program.precision)
    layout = plan.layout if plan.eager else compiled_layout(whole, plan.layout)
    seconds = engine.price(kernels, device, program.precision, layout).seconds
    seconds = (
        seconds * np.bincount(program.op_class, minlength=len(program.classes))[kernels.op_class]
    )
    total = float(seconds.sum()) + step.update_s
    by_key: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, key in enumerate(keys_of(kernels, program.precision, layout)):
        by_key[key, int(kernels.family[i])].append(i)
    groups: dict[str, float] = defaultdict(float)
    groups["optimizer"] = step.update_s / total
    unmeasured = 0.0
    for (key, code), rows in by_key.items():
        index, family = np.array(rows), FAMILIES[code]
        groups[group_of(key, family)] += float(seconds[index].sum()) / total
        model = engine.model(key, family)[0]
        known = np.ones(len(index))
        if model.residual is not None:
            features = features_of(family, kernels, index, device.units)
            same = features.shape[1] == len(model.residual.scales)
            known = model.residual.at(features)[1] if same else np.zeros(len(index))
        unmeasured += float(seconds[index[known < FAR]].sum()) / total
    ordered = sorted(groups.items(), key=lambda item: -item[1])
    return dict(ordered), unmeasured


def worst(rows: Sequence[ValidatedRow], count: int) -> list[ValidatedRow]:
    """Return the rows that are furthest off, one for each setting; largest error first."""
    timed = [r for r in rows if r.problem is None and "step_ms" in r.measured]
    timed.sort(key=lambda r: -abs(error_of(r)))
    seen: set[tuple[str, ...]] = set()
    found = []
    for row in timed:
        names = ("model", "image", "batch", "seq", "precision", "layout", "mode", "device")
        key = tuple(row.given.get(n, "") for n in names)
        if key not in seen:
            seen.add(key)
            found.append(row)
    return found[:count]


def error_of(row: ValidatedRow) -> float:
    """Return the relative error of the step."""
    return row.predicted["step_ms"] / row.measured["step_ms"] - 1.0


def shares(found: Sequence[tuple[ValidatedRow, Facts]]) -> list[tuple[str, int, float, float]]:
    """Return for each cause its rows, their mean |error|, and their share of all |error|."""
    by_cause: dict[str, list[float]] = defaultdict(list)
    for row, facts in found:
        by_cause[facts.cause].append(abs(error_of(row)))
    total = sum(sum(errors) for errors in by_cause.values()) or 1.0
    rows = [(c, len(e), sum(e) / len(e), sum(e) / total) for c, e in by_cause.items()]
    return sorted(rows, key=lambda row: -row[3])
