"""Measured steps of a user's own runs improve a profile: one factor for each group of kernels.

A step's seconds are the longer of two sums, of kernels on the device and of what the host takes to
issue them. With a factor exp(θ) for each group, log(measured / predicted) has the derivative
"share of the group in the step", so that a few networks with different shares tell the factors.
θ is held near 0 by a prior, an outlier pulls no more than linearly (Huber), and what the runs
cannot tell stays as it is. Whether it helped is judged on whole families of networks left out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from traincast.errors import InvalidValueError, TraincastError
from traincast.estimate.calibrated.estimator import Calibrated, groups_of
from traincast.estimate.calibrated.library import COMPLETE, shipped
from traincast.estimate.calibrated.profile import Profile
from traincast.estimate.calibrated.species import group_depth, keys_of
from traincast.estimate.program import FAMILIES, Flags, Floats
from traincast.hardware import Device, load_device
from traincast.ingest import resolve
from traincast.measure.group_fit import Fit, Seen, Table, fit_factors, left_out
from traincast.simulate.predict import predict
from traincast.simulate.step import Step, program_for, simulate_step
from traincast.simulate.validate import (
    machine_of,
    optimizer_of,
    read_runs,
    share_of,
    whole_number,
)

Progress = Callable[[int, int], None]
"""Is told how many rows of how many are done."""
COLUMNS = ("step_ms", "fwd_ms", "infer_ms")
_LEAST = 3
"""Networks without which nothing can be left out and judged."""
_REGIME = 8
"""Runs of a regime (bound by the device or by the host) from which its errors are taken."""
_Z = 1.645
"""Where 95 % of a normal distribution lie below."""
_VARIANT = re.compile(
    r"^(tf|gluon|ssl|swsl|ig|legacy|tv|jx|ens|adv|eca|dm|nf|cs|ese|gc|se|sk)_", re.IGNORECASE
)
"""Heads of a network's name that tell weights or small variants, not what it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far predicted steps lie from measured ones; fractions."""

    runs: int
    mape: float
    median: float
    p90: float
    bias: float
    """Mean signed relative error; above 0 where predictions are too long."""
    rank: float
    """Spearman's rank correlation of predicted and measured samples/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjustment:
    """What measured runs made of a profile."""

    profile: Profile
    """The adjusted profile; with the factors it had where adjusting did not help."""
    adjusted: bool
    """Whether the factors were changed."""
    before: Errors
    """With the profile as it was."""
    after: Errors
    """On networks left out while the factors were fitted to the others."""
    factors: Mapping[str, tuple[float, float]]
    """By group: the factor, and the standard error of its logarithm."""
    refused: Mapping[str, str]
    """Groups that the runs cannot tell, and why."""
    rows: int
    """Rows that were used."""
    networks: int
    folds: int
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Why rows were left aside, and how many for each reason."""

    @property
    def verdict(self) -> str:
        """One sentence on what came of it."""
        fell = (
            f"error on networks left out: {self.before.mape:.1%} before, {self.after.mape:.1%} "
            f"after ({self.rows} runs of {self.networks} networks, {self.folds} folds)"
        )
        if self.adjusted:
            return fell
        return f"nothing was adjusted, as it helps no more than chance would; {fell}"

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the profile's models, for JSON."""
        return {
            "device": self.profile.device,
            "adjusted": self.adjusted,
            "verdict": self.verdict,
            "rows": self.rows,
            "networks": self.networks,
            "folds": self.folds,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "factors": {
                name: {"value": value, "log_error": error}
                for name, (value, error) in self.factors.items()
            },
            "refused": dict(self.refused),
            "skipped": dict(self.skipped),
            "errors": {k: list(v) for k, v in self.profile.errors.items()},
        }


def adjust_to_runs(
    profile: Profile, path: Path, *, device: str | None = None, progress: Progress | None = None
) -> Adjustment:
    """Return what the measured runs of a table, in the form of `validate`, make of a profile.

    `device` is for rows that name none; by default the profile's.
    """
    return adjust_to_rows(
        profile, read_runs(path), device=device or profile.device, root=path.parent,
        source=path.name, progress=progress,
    )  # fmt: skip


def adjust_to_rows(
    profile: Profile,
    rows: Sequence[Mapping[str, str]],
    *,
    device: str,
    root: Path | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> Adjustment:
    """Return what measured runs make of a profile; `root` is where relative files start."""
    unit = load_device(device)
    own = profile.device == unit.name
    base = None if profile.device == COMPLETE else shipped(COMPLETE)
    if not profile.models and base is None:
        raise InvalidValueError(f"the profile of {profile.device} has no kernel models to adjust")
    engine = Calibrated(profile, own=own, base=base)
    skipped: Counter[str] = Counter()
    seen = list(_observe(rows, unit, engine, root, skipped, progress))
    networks = len({s.network for s in seen})
    if networks < _LEAST:
        said = "; ".join(f"{why} ({n})" for why, n in skipped.most_common(3))
        raise InvalidValueError(
            f"{source or 'the table'} has runs of {networks} networks that can be used, and it "
            f"takes {_LEAST} to judge by those left out" + (f"; left aside: {said}" if said else "")
        )
    table = Table(seen)
    guess, bound, folds = left_out(table)
    as_it_was = np.zeros(table.size)
    plain = table.predicted(as_it_was)
    before, after = _errors(table, plain), _errors(table, guess)
    fit = fit_factors(table, np.arange(len(seen)))
    better = bool(fit.kept) and after.mape < before.mape and _beyond_chance(table, plain, guess)
    factors = {name: (float(np.exp(fit.theta[i])), float(fit.error[i])) for name, i in fit.kept}
    found = Adjustment(
        profile=profile, adjusted=better, before=before, after=after, factors=factors,
        refused=_reasons(table, fit), rows=len({s.row for s in seen}), networks=networks,
        folds=folds, skipped=dict(skipped),
    )  # fmt: skip
    if not better:
        guess, bound = plain, table.host_bound(as_it_was)
    return replace(found, profile=_applied(found, _spread(table, guess, bound), source))


def family_of(model: str) -> str:
    """Return the family of a network by its reference: resnet50 and resnet101 are of one."""
    name = model.partition("?")[0]
    if ".py:" in name:
        return name
    name = re.split(r"[:/\\]", name)[-1].lower()
    while (short := _VARIANT.sub("", name)) != name:
        name = short
    found = re.match(r"[a-z]+", name)
    return found.group() if found else name


def _observe(
    rows: Sequence[Mapping[str, str]], device: Device, engine: Calibrated, root: Path | None,
    skipped: Counter[str], progress: Progress | None,
) -> Iterator[Seen]:  # fmt: skip
    """Yield every measured time of the rows that can be used, with its parts as predicted."""
    known: dict[tuple[Any, ...], tuple[dict[tuple[str, ...], float], float]] = {}
    # Rows of one network follow each other, so that it is read and laid out once.
    order = sorted(range(len(rows)), key=lambda i: (rows[i].get("model", ""), i))
    for done, i in enumerate(order, 1):
        row = rows[i]
        try:
            why = _unfit(row, device)
            if why is None:
                options = _options(row)
                graph = resolve(
                    row["model"], image=whole_number(row, "image"), batch=options["batch"],
                    seq=options["seq"], root=root,
                )  # fmt: skip
                for column, seconds in _times(row):
                    infer = column == "infer_ms"
                    key = (row["model"], row.get("image"), column, *options.items())
                    if key not in known:
                        step = _step(
                            predict(graph, device, **options, inference=infer).step, device, engine
                        )
                        known[key] = _parts(step, device, engine, column)
                    parts, host = known[key]
                    yield Seen(
                        row=i, network=row["model"], family=family_of(row["model"]),
                        column=column, samples=options["batch"] * options["accumulate"],
                        seconds=seconds, parts=parts, host=host,
                    )  # fmt: skip
        except TraincastError as error:
            why = str(error)
        if why is not None:
            skipped[why] += 1
        if progress is not None:
            progress(done, len(rows))


def _unfit(row: Mapping[str, str], device: Device) -> str | None:
    """Return why a row tells nothing of single kernels on this device; None if it does."""
    if row.get("error"):
        return f"the run ended with {row['error']}"
    if row.get("mode") == "compile":
        return "a compiled step runs other kernels"
    cluster, count = machine_of(row, device.name)
    if count > 1:
        return "a run on several devices"
    if cluster.device.name != device.name:
        return f"a run on {cluster.device.name}, not {device.name}"
    return None if any(_times(row)) else "no measured step_ms, fwd_ms or infer_ms"


def _options(row: Mapping[str, str]) -> dict[str, Any]:
    batch, accumulate = share_of(row, 1)
    return {
        "batch": batch or 1,
        "accumulate": accumulate,
        "seq": whole_number(row, "seq"),
        "precision": row.get("precision") or None,
        "layout": row.get("layout") or "nchw",
        "recompute": row.get("recompute", "").lower() not in ("", "none", "no", "false", "0"),
        "optimizer": optimizer_of(row),
        "estimator": "roofline",
    }


def _times(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yield measured columns and their seconds."""
    for column in COLUMNS:
        text = row.get(column, "")
        try:
            value = float(text) / 1e3 if text else 0.0
        except ValueError:
            raise InvalidValueError(f"{column} is {text!r}, not a number") from None
        if text and not (np.isfinite(value) and value > 0):
            raise InvalidValueError(f"{column} is {text}, not above 0")
        if value:
            yield column, value


def _step(step: Step, device: Device, engine: Calibrated) -> Step:
    """Return the same step by the profile; the datasheet's served to lay it out."""
    made = step.program
    program = program_for(made.graph, made.precision, device, engine, step.plan)
    return simulate_step(program, device, engine, step.plan)


def _parts(
    step: Step, device: Device, engine: Calibrated, column: str
) -> tuple[dict[tuple[str, ...], float], float]:
    """Return a step's device seconds by groups of kernels, and its host seconds."""
    plan, kernels, program = step.plan, step.kernels, step.program
    priced = engine.price(kernels, device, program.precision, plan.layout, plan.training)
    whole = column == "step_ms"
    forward, backward = (
        np.bincount(program.op_class, times, len(program.classes))[kernels.op_class]
        for times in (1.0 + whole * step.again, np.full(len(step.again), float(whole)))
    )
    ran = np.where(kernels.phase == 0, forward, backward)
    seconds = priced.seconds * ran * plan.accumulate
    parts: dict[tuple[str, ...], float] = {}
    depth = group_depth(kernels)
    for i, key in enumerate(keys_of(kernels, program.precision, plan.layout, plan.training)):
        groups = groups_of(key, FAMILIES[kernels.family[i]], float(depth[i]))
        parts[groups] = parts.get(groups, 0.0) + float(seconds[i])
    if whole:
        parts["vector",] = parts.get(("vector",), 0.0) + step.update_s
    host = step.host_s
    return parts, sum(host.values()) if whole else host["forward"]


def _errors(table: Table, guess: Floats) -> Errors:
    """Return the errors of guessed seconds: of whole steps, where there are any."""
    chosen = np.array([s.column == "step_ms" for s in table.seen])
    if not chosen.any():
        chosen[:] = True
    samples = np.array([s.samples for s in table.seen])[chosen]
    measured, guess = table.seconds[chosen], guess[chosen]
    off = guess / measured - 1.0
    return Errors(
        runs=len(off), mape=float(abs(off).mean()), median=float(np.median(abs(off))),
        p90=float(np.quantile(abs(off), 0.9)), bias=float(off.mean()),
        rank=rank_correlation(samples / guess, samples / measured),
    )  # fmt: skip


def _beyond_chance(table: Table, plain: Floats, guess: Floats) -> bool:
    """Tell whether errors fell by more than the standard error of the mean over networks."""
    fell = abs(plain / table.seconds - 1.0) - abs(guess / table.seconds - 1.0)
    names = np.array([s.network for s in table.seen])
    means = np.array([fell[names == name].mean() for name in np.unique(names)])
    return bool(means.mean() > means.std(ddof=1) / np.sqrt(len(means)))


def _reasons(table: Table, fit: Fit) -> dict[str, str]:
    """Return why groups keep their factor: the largest share that they have in any run."""
    share = table.shares(np.zeros(table.size)).max(axis=0)
    return {
        name: f"at most {share[i]:.0%} of any run: the runs cannot tell its factor"
        if share[i] < 0.5
        else "the runs cannot tell its factor from the others'"
        for name, i in fit.refused
    }


def _applied(found: Adjustment, errors: Mapping[str, tuple[float, float]], source: str) -> Profile:
    """Return the profile with the factors, the errors of runs left out, and where they are from."""
    profile = found.profile
    factors = dict(profile.factors)
    if found.adjusted:
        for name, (value, _) in found.factors.items():
            factors[name] = float(f"{factors.get(name, 1.0) * value:.4g}")
    note = {
        "table": source,
        "rows": found.rows,
        "networks": found.networks,
        "date": date.today().isoformat(),
        "factors_changed": found.adjusted,
        "mape_before": round(found.before.mape, 4),
        "mape_left_out": round(found.after.mape, 4),
        "rank_left_out": round(found.after.rank, 4),
    }
    earlier = profile.provenance.get("adjusted", [])
    return replace(
        profile,
        factors=factors,
        errors={**profile.errors, **errors},
        spread=0.0 if "device" in errors else profile.spread,
        provenance={**profile.provenance, "adjusted": [*earlier, note]},
    )


def _spread(table: Table, guess: Floats, bound: Flags) -> dict[str, tuple[float, float]]:
    """Return the 5th and 95th percentile of measured over guessed steps, by regime.

    Few runs are widened as Student's t distribution widens a normal one: t ≈ z + (z³ + z) / 4n.
    A prediction lies inside its own interval: runs that were left out may all be off to one side.
    """
    ratio = np.log(table.seconds / guess)
    steps = np.array([s.column != "fwd_ms" for s in table.seen])
    result = {}
    for regime, chosen in (("host", steps & bound), ("device", steps & ~bound)):
        n = int(chosen.sum())
        if n < _REGIME:
            continue
        low, middle, high = np.quantile(ratio[chosen], [0.05, 0.5, 0.95])
        wider = (1.0 + (_Z**2 + 1.0) / (4.0 * (n - 1))) * np.sqrt(1.0 + 1.0 / n)
        ends = np.exp([middle + wider * (low - middle), middle + wider * (high - middle)])
        low, high = min(ends[0], 1.0), max(ends[1], 1.0)
        result[regime] = (float(f"{low:.4g}"), float(f"{high:.4g}"))
    return result


def rank_correlation(one: Floats, other: Floats) -> float:
    """Return Spearman's rank correlation; 0 where one of the two does not vary."""

    def ranks(values: Floats) -> Floats:
        _, place, count = np.unique(values, return_inverse=True, return_counts=True)
        result: Floats = (np.cumsum(count) - (count - 1) / 2.0)[place]
        return result

    a, b = ranks(one), ranks(other)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])
