"""What a fitted model says, in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from traincast.fit.constants import Constant
from traincast.fit.factors import Factor
from traincast.fit.fitting import Fit
from traincast.fit.generic import GenericForm
from traincast.fit.model import Model
from traincast.fit.reading import (
    PAYS,
    Change,
    best_count,
    double,
    serial_share,
    shares,
    stops_paying,
    typical_point,
    workers_of,
)
from traincast.fit.roles import is_extrinsic, is_workers

STYLE = "in the style of Kavarakuntla et al. (IEEE Access 12, 2024)"


def short(value: float | None, digits: int = 3) -> str:
    """Return a number with a few digits."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e5:
        text = f"{value:,.{max(digits - 1 - math.floor(math.log10(abs(value))), 0)}f}"
        return text.replace("-", "−")
    return f"{value:.{digits}g}".replace("-", "−")


def interval_text(interval: tuple[float, float] | None) -> str:
    """Return an interval for a table."""
    return "" if interval is None else f"{short(interval[0])} to {short(interval[1])}"


def meaning(model: Model, constant: Constant, value: float | None) -> str:
    """Say what an exponent means."""
    if value is None:
        return "not defined: its coefficient is 0"
    if constant.kind == "multiplier":
        first = model.factor(constant.factor).levels[0]
        return f"times as long as {constant.factor}={first}"
    if constant.kind == "growth":
        return "how communication grows with them"
    if constant.kind == "free":
        return ""
    if constant.kind == "scaling" and is_workers(constant.factor):
        return f"{_scaling(value)}; ideal strong scaling is −1"
    if constant.kind == "scaling" and value < 0:
        return f"each doubling leaves {2**value:.0%} of the scalable part"
    if value == 0:
        return "does not matter"
    return f"each doubling makes {_part(model, constant)} {2**value:.2f} times as long"


def _part(model: Model, constant: Constant) -> str:
    return "the scalable part" if constant.kind == "scaling" else "its part"


def _scaling(value: float) -> str:
    if value > 0.02:
        return "more of them slow it down"
    if value > -0.1:
        return "more of them hardly help"
    efficiency = 2 ** (-value - 1)
    return f"a doubling is {min(efficiency, 9.99):.0%} efficient"


def sentences(fit: Fit) -> list[str]:
    """Return what drives the time, what scales, and what no longer helps."""
    model = fit.model
    point = typical_point(model)
    said = [
        *_driving(fit),
        *(s for f in model.factors for s in _doubling(model, f)),
        *_serial(model, point),
        *_most_workers(model, point),
        *_irrelevant(model),
    ]
    return [text.replace("%", " %") for text in said]


def _driving(fit: Fit) -> list[str]:
    parts = shares(fit.model, fit.runs.columns)
    names = {"constant": "what does not scale", "base": "the base", "communication":
             "communication"}  # fmt: skip
    top = sorted(((s, n) for n, s in parts.items() if s >= 0.005), reverse=True)[:5]
    if not top:
        return []
    listed = ", ".join(f"{names.get(n, n)} {s:.0%}" for s, n in top)
    return [f"Of the time, on average over the runs: {listed}."]


def _doubling(model: Model, factor: Factor) -> list[str]:
    if factor.categorical or not (factor.role == "extrinsic" or is_extrinsic(factor.name)):
        return []
    point = typical_point(model)
    change = double(model, factor.name, factor.reference, point)
    if change.value == change.interval[0] == change.interval[1] == 0:
        return []  # said to be irrelevant
    said = [f"Doubling {factor.name} from {factor.reference:g} {_change(change)}."]
    limit = stops_paying(model, factor, point)
    if limit is not None and change.value < 0.001:
        start = "Over its whole range" if limit <= factor.low else f"Above {short(limit, 2)}"
        said.append(
            f"{start}, doubling {factor.name} saves less than {PAYS:.0%}: more no longer helps."
        )
    return said


def _change(change: Change) -> str:
    width = (change.interval[1] - change.interval[0]) / 2
    verb = "saves" if change.value < 0 else "costs"
    digits = 0 if width >= 0.01 else 1
    return f"{verb} {abs(change.value):.{digits}%} ± {100 * width:.{digits}f}"


def _serial(model: Model, point: dict[str, float | str]) -> list[str]:
    share = serial_share(model, point)
    name = workers_of(model)
    if share is None or name is None:
        return []
    factor = model.factor(name)
    most = serial_share(model, {**point, name: factor.high})
    return [
        f"The part that does not scale is {share:.0%} of the time at {name} "
        f"{factor.reference:g} and {most:.0%} at {factor.high:g}."
    ]


def _most_workers(model: Model, point: dict[str, float | str]) -> list[str]:
    name = workers_of(model)
    if name is None:
        return []
    factor = model.factor(name)
    best = best_count(model, name, point)
    form = model.form
    if isinstance(form, GenericForm) and form.communication is None:
        if double(model, name, factor.high, point).value >= 0:
            return [f"More {name} do not make it faster."]
        return []  # a product of power laws has no minimum: it cannot say where to stop
    if best is None:
        return [f"More {name} still pay at {factor.high:g}, the most in the runs."]
    count, (low, high) = best
    beyond = ", beyond the runs" if count > factor.high else ""
    most = f"{high:.0f}" + (" or more" if high >= factor.high * 60 else "")
    return [
        f"The time is least at {count:g} {name} (95% interval: {low:.0f} to {most}{beyond}); from "
        "there on more of them cost time."
    ]


def _irrelevant(model: Model) -> list[str]:
    form = model.form
    if not isinstance(form, GenericForm):
        return []
    gone = []
    for c, value in zip(form.constants, model.x, strict=True):
        if c.kind in ("coefficient", "scaling") and abs(value) < 1e-9:
            gone.append(c.name)
    for name in form.categories:
        mine = [v for c, v in zip(form.constants, model.x, strict=True)
                if c.kind == "level" and c.factor == name]  # fmt: skip
        gone += [name] if max(mine) < 1e-9 else []
    if not gone:
        return []
    verb = "does" if len(gone) == 1 else "do"
    return [f"In these runs {', '.join(gone)} {verb} not matter."]


def cautions(fit: Fit, far: Sequence[object]) -> list[str]:
    """Return what a reader has to know before believing the constants."""
    said = list(fit.warnings)
    if fit.drift:
        names = ", ".join(f"{n} (by {gap:.2g})" for n, gap in fit.drift.items())
        said.append(
            f"seeds agree in the loss but not in {names}: not identified, do not interpret them"
        )
    losses = [s.loss for s in fit.seeds]
    if max(losses) > min(losses) * 1.01 + 1e-9:
        said.append(
            f"seeds end at losses from {min(losses):.4g} to {max(losses):.4g}: the best is taken; "
            "more --seeds or --generations may find a better one"
        )
    if fit.on_bound:
        said.append(f"on a bound: {', '.join(fit.on_bound)}; --bounds sets others")
    if far:
        many = "1 run is an outlier" if len(far) == 1 else f"{len(far)} runs are outliers"
        said.append(f"{many} (see below)")
    return said
