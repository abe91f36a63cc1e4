"""A fit as one HTML page that stands alone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from traincast.fit.fitting import Fit
from traincast.fit.judge import Judgement, Outlier
from traincast.report.charts import _STYLE, _data
from traincast.report.fit_charts import curve_chart, dependence_sheet, scatter_rows
from traincast.report.fit_text import (
    SCORE_HEADS,
    constant_rows,
    expression_text,
    how_text,
    role_lines,
    score_rows,
)
from traincast.report.fit_words import STYLE, cautions, sentences, short

_MORE = (
    "body{max-width:1000px}td:first-child,th:first-child,td.l{text-align:left}"
    "code{background:#f2f4f7;padding:.1em .3em;border-radius:3px}h2{font-size:1.1em;margin-top:2em}"
)


def fit_page(fit: Fit, judged: Judgement, far: Sequence[Outlier], guessed: str) -> str:
    """Return the page: the expression, its constants, how it was judged, charts, and the data."""
    chart, rows = dependence_sheet(fit)
    curve = curve_chart(fit)
    title = f"What drives {fit.runs.time}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{len(fit.runs.times):,} runs of {escape(fit.runs.path)}.</p>",
        *[f"<p>{escape(s)}</p>" for s in sentences(fit)],
        *[f"<p class=note>Note: {escape(n)}.</p>" for n in cautions(fit, far)],
        "<h2>The expression</h2>",
        f"<p><code>t = {escape(fit.model.form.text())}</code>, {STYLE}</p>",
        f"<p><code>t = {escape(expression_text(fit.model))}</code></p>",
        *[f"<p class=note>{escape(h)}: {escape(t)}</p>" for h, t in role_lines(fit, guessed)],
        _table(("constant", "value", "95 % interval", "share of time", "meaning"),
               constant_rows(fit)),
        "<h2>How the time depends on each factor</h2>",
        f"<figure>{chart}</figure>",
        _data(rows),
        f"<h2>Errors on runs that were not fitted: {escape(judged.how)}</h2>",
        _table(SCORE_HEADS, score_rows(judged.scores)),
    ]  # fmt: skip
    for e in judged.extrapolations:
        said = f"trained up to {e.factor} {e.up_to:g} ({e.trained} runs), judged from "
        said += f"{e.values[0]:g} to {e.values[1]:g} ({e.judged} runs)"
        parts.append(f"<h2>Extrapolation: {escape(said)}</h2>")
        parts.append(_table(SCORE_HEADS, score_rows(e.scores)))
    parts += [f"<p class=note>{escape(s)}</p>" for s in judged.skipped]
    if far:
        parts.append("<h2>Outliers</h2>")
        parts.append(_table(("row", "measured", "predicted", "off"), [
            (str(o.row), short(o.measured), short(o.predicted),
             f"{o.measured / o.predicted - 1:+.0%}") for o in far[:50]]))  # fmt: skip
    parts += [
        "<h2>How it was fitted</h2>",
        f"<p>{escape(how_text(fit))}. Differential evolution of the exponents (scipy, best1bin, "
        f"{fit.options.settings.population} candidates an exponent, at most "
        f"{fit.options.settings.generations} generations, tolerance "
        f"{fit.options.settings.tolerance:g}), coefficients by non-negative least squares inside, "
        "then a local polish on all runs. Every fold was fitted anew.</p>",
        _table(("seed", "loss", "generations", "evaluations", "converged"), [
            (str(s.seed), f"{s.loss:.6g}", str(s.generations), str(s.evaluations),
             "yes" if s.converged else "no") for s in fit.seeds]),
    ]  # fmt: skip
    if curve is not None:
        parts.append(f"<figure>{curve}</figure>")
    parts += ["<h2>Each run, held out</h2>", _data(scatter_rows(fit))]
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_MORE}</style>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(h)}</th>" for h in heads)
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=l' if h == 'meaning' else ''}>{escape(c)}</td>"
            for h, c in zip(heads, row, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
