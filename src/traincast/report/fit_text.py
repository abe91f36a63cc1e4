"""A fit for people and machines: tables, JSON, and the expression with its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.fit.baselines import TITLES
from traincast.fit.fitting import Fit
from traincast.fit.generic import GenericForm
from traincast.fit.judge import Judgement, Outlier, Score
from traincast.fit.model import Model
from traincast.fit.reading import shares
from traincast.report.fit_words import STYLE, cautions, interval_text, meaning, sentences, short

_SHOWN = 8
_POWERS = ("exponent", "scaling", "multiplier", "growth", "free")


def expression_text(model: Model) -> str:
    """Return the expression with its constants, in the table's units."""
    form = model.form
    at = {key: e.value for key, e in model.original.items()}
    if not isinstance(form, GenericForm):
        pairs = ", ".join(f"{c.name} = {short(at[f'{c.kind}:{c.name}'], 4)}"
                          for c in form.constants)  # fmt: skip
        return f"{form.text()} with {pairs}"
    parts = []
    base = at["base:base"]
    if base:
        parts.append(short(base))
    for i, term in enumerate(form.terms):
        size = at[f"coefficient:{'*'.join(term)}"]
        if not size:
            continue
        # Constants begin with those of the pairs.
        mine = [(c, n) for c, (j, n, level) in zip(form.constants, form.pairs, strict=False)
                if j == i and not level]  # fmt: skip
        moved = {n for c, (j, n, level) in zip(form.constants, form.pairs, strict=False)
                 if j == i and level and at[f"multiplier:{c.name}"] != 1}  # fmt: skip
        levels = [f"m[{n}]" for n in term if n in moved]
        powers = [_power(n, at[f"exponent:{c.name}"]) for c, n in mine if at[f"exponent:{c.name}"]]
        parts.append("·".join([short(size), *powers, *levels]))
    parts += [f"a[{name}]" for name in form.categories
              if any(at[f"level:{n}={v}"] for n, v in form.levels if n == name)]  # fmt: skip
    outer = []
    for name in form.scaling:
        q, by = at[f"scaling:{name}"], model.reference.get(name)
        if q:
            outer.append(_power(name if by is None else f"({name}/{by:g})", q))
    outer += [f"m[{n}]" for n in form.multipliers
              if any(at[f"multiplier:{m}={v}"] != 1 for m, v in form.multiplied if m == n)
              ]  # fmt: skip
    inner = " + ".join(parts) or "0"
    text = f"({inner})" if outer and len(parts) > 1 else inner
    text = " · ".join([text, *outer])
    constant = at["constant:constant"]
    text += f" + {short(constant)}" if constant else ""
    w = form.communication
    if w and at["communication:communication"]:
        grown = _power(w, at[f"growth:{w} (communication)"])
        text += f" + {short(at['communication:communication'])}·{grown}"
    return text


def _power(name: str, value: float | None) -> str:
    return f"{name}^{short(value)}"


def fit_dict(fit: Fit, judged: Judgement, far: Sequence[Outlier]) -> dict[str, Any]:
    """Return the fit as plain data; times are in the unit of the time's column."""
    model, runs, options = fit.model, fit.runs, fit.options
    at = {key: {"value": e.value, "interval": None if e.interval is None else list(e.interval)}
          for key, e in model.original.items()}  # fmt: skip
    parts = shares(model, runs.columns)
    coefficients, exponents, multipliers = {}, {}, {}
    for c in model.form.constants:
        entry: dict[str, Any] = dict(at[f"{c.kind}:{c.name}"])
        if c.kind == "multiplier":
            multipliers[c.name] = entry
        elif c.kind in _POWERS:
            entry["meaning"] = meaning(model, c, entry["value"])
            exponents[c.name] = entry
        elif c.kind != "constant":
            coefficients[c.name] = entry | {"share": parts.get(c.name)}
    constant = at.get("constant:constant", {"value": None, "interval": None})
    return {
        "time": runs.time,
        "expression": model.form.text(),
        "fitted": expression_text(model),
        "style": STYLE if isinstance(model.form, GenericForm) else "the user's own",
        "coefficients": coefficients,
        "exponents": exponents,
        "multipliers": multipliers,
        "constant": constant | {"share": parts.get("constant")},
        "reference": dict(model.reference),
        "shares": parts,
        "cross_validation": {name: asdict(s) for name, s in judged.scores.items()},
        "folds": judged.how,
        "extrapolation": [
            {"factor": e.factor, "trained_up_to": e.up_to, "trained": e.trained,
             "judged": e.judged, "judged_values": list(e.values),
             "scores": {name: asdict(s) for name, s in e.scores.items()}}
            for e in judged.extrapolations
        ],
        "not_extrapolated": list(judged.skipped),
        "loss": {"name": fit.loss.name, "text": fit.loss.text, "value": fit.value},
        "regularisation": {
            "kind": options.regularisation,
            "strength": fit.strength,
            "chosen": _chosen(fit),
            "curve": [
                {"strength": s, "held_out_loss": float(v)}
                for s, v in zip(fit.curve.grid, fit.curve.mean(), strict=True)
            ],
        },
        "evolution": {
            **asdict(options.settings),
            "seeds": [asdict(s) for s in fit.seeds],
            "not_identified": dict(fit.drift),
            "on_bound": list(fit.on_bound),
        },
        "bootstrap": len(model.draws),
        "interval_level": 0.95,
        "runs": {"file": runs.path, "rows": runs.total, "used": len(runs.times)},
        "factors": [
            {"name": f.name, "role": f.role, "levels": list(f.levels)} if f.categorical else
            {"name": f.name, "role": f.role, "range": [f.low, f.high], "median": f.reference}
            for f in runs.factors
        ],
        "left_out": dict(runs.left_out),
        "outliers": [asdict(o) for o in far],
        "sentences": sentences(fit),
        "warnings": cautions(fit, far),
    }  # fmt: skip


def _chosen(fit: Fit) -> str:
    if fit.options.strength is not None:
        return "given"
    if len(fit.curve.grid) == 1:
        return "no regularisation"
    rule = "the best"
    if fit.curve.sparse:
        rule = "half-way from the best to the strongest within one standard error of it"
    return f"{rule} in cross-validation ({fit.how})"


def fit_report(fit: Fit, judged: Judgement, far: Sequence[Outlier], guessed: str
               ) -> RenderableType:  # fmt: skip
    """Return everything that the terminal shows; `guessed` says which roles were."""
    runs = fit.runs
    used = f"{len(runs.times):,}" + (f" of {runs.total:,}" if runs.total > len(runs.times) else "")
    parts: list[RenderableType] = [
        _line("Runs", f"{used} of {runs.path}, time {runs.time}"),
        *[_line(head, text) for head, text in role_lines(fit, guessed)],
        _line("Form", f"t = {fit.model.form.text()}" + (
            f", {STYLE}" if isinstance(fit.model.form, GenericForm) else "")),
        _line("Fitted", f"t = {expression_text(fit.model)}"),
        _line("How", how_text(fit)),
        Text(""),
        _constants(fit),
        Text(""),
        Text(f"Errors on runs that were not fitted ({judged.how})", style="bold"),
        _scores(judged.scores),
    ]  # fmt: skip
    for e in judged.extrapolations:
        parts += [
            Text(""),
            Text(
                f"Extrapolation: trained up to {e.factor} {e.up_to:g} ({e.trained} runs), judged "
                f"from {e.values[0]:g} to {e.values[1]:g} ({e.judged} runs)",
                style="bold",
            ),
            _scores(e.scores),
        ]
    parts += [Text(""), *[Text(s) for s in sentences(fit)]]
    gone = {f"{name} {why}: it gets no constant" for name, why in runs.left_out.items()}
    notes = [n for n in cautions(fit, far) if n not in gone] + list(judged.skipped)
    parts += [Text("")] if notes else []
    parts += [Text(f"Note: {note}", style="yellow") for note in notes]
    for o in far[:_SHOWN]:
        parts.append(Text(f"  row {o.row}: {short(o.measured)} measured, {short(o.predicted)} "
                          f"predicted ({o.measured / o.predicted - 1:+.0%})"))  # fmt: skip
    return Group(*parts)


def role_lines(fit: Fit, guessed: str) -> list[tuple[str, str]]:
    """Return which factors are what."""
    if not isinstance(fit.model.form, GenericForm):
        return [("Factors", ", ".join(f.name for f in fit.runs.factors))]
    found = []
    for role in ("intrinsic", "extrinsic"):
        mine = [f"{f.name} ({len(f.levels)} levels)" if f.categorical else f.name
                for f in fit.runs.factors if f.role == role]  # fmt: skip
        if mine:
            note = "  (guessed)" if role in guessed else ""
            found.append((role.capitalize(), ", ".join(mine) + note))
    left = [f"{n} ({why})" for n, why in fit.runs.left_out.items()]
    if left:
        found.append(("Left out", ", ".join(left)))
    return found


def how_text(fit: Fit) -> str:
    """Say how the constants were found."""
    o = fit.options
    kind = {"none": "no regularisation", "l1": "L1", "l2": "L2", "elastic": "elastic net"}
    lam = "" if o.regularisation == "none" else f" λ = {fit.strength:.3g}, {_chosen(fit)}"
    return (
        f"{fit.loss.text} {fit.value:.4g}; {kind[o.regularisation]}{lam}; differential evolution, "
        f"{len(fit.seeds)} seeds from {o.seed}; intervals 95 % of {len(fit.model.draws)} "
        "bootstrap samples"
    )


def _line(head: str, text: str) -> RenderableType:
    table = Table.grid(padding=(0, 1))
    table.add_column(width=10)
    table.add_column(overflow="fold")
    table.add_row(head, text)
    return table


def constant_rows(fit: Fit) -> list[tuple[str, str, str, str, str]]:
    """Return name, value, interval, share and meaning of each constant."""
    model = fit.model
    parts = shares(model, fit.runs.columns)
    found = []
    for c in model.form.constants:
        e = model.original[f"{c.kind}:{c.name}"]
        if c.kind == "base" and not e.value:
            continue
        power = c.kind in _POWERS
        sign = {"exponent": f"p of {c.name}", "scaling": f"q of {c.name}", "multiplier":
                f"m of {c.name}", "growth": f"r of {c.factor}", "free": c.name,
                "base": "base", "constant": "C", "communication": "c"}  # fmt: skip
        share = parts.get(c.name)
        generic = isinstance(model.form, GenericForm)
        name = sign.get(c.kind, f"a of {c.name}" if generic else c.name)
        found.append((
            name, short(e.value), interval_text(e.interval),
            "" if share is None or power else f"{share:.1%}",
            meaning(model, c, e.value) if power else _role(c.kind, e.value),
        ))  # fmt: skip
    return found


def _role(kind: str, value: float | None) -> str:
    said = {"constant": "what does not scale", "base": "what all levels share",
            "communication": "grows with workers"}  # fmt: skip
    return said.get(kind, "" if value else "does not matter in these runs")


def _constants(fit: Fit) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("constant")
    for head in ("value", "95 % interval", "share of time"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("meaning")
    for row in constant_rows(fit):
        table.add_row(*row)
    return table


def score_rows(scores: dict[str, Score]) -> list[tuple[str, ...]]:
    """Return method, MAPE, median error, RMSE, R² and coverage as text."""
    return [
        (TITLES[name], f"{s.mape:.1%}", f"{s.median:.1%}", short(s.rmse), f"{s.r2:.3f}",
         "" if s.coverage is None else f"{s.coverage:.0%}")
        for name, s in scores.items()
    ]  # fmt: skip


SCORE_HEADS = ("method", "MAPE", "median error", "RMSE", "R² of log time", "in interval")


def _scores(scores: dict[str, Score]) -> RenderableType:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column(SCORE_HEADS[0])
    for head in SCORE_HEADS[1:]:
        table.add_column(head, justify="right")
    for row in score_rows(scores):
        table.add_row(*row)
    return table
