"""traincast fit, and what `predict --fitted` and `scale --fitted` do."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from traincast.cli.options import above_zero, count, flag, option
from traincast.errors import InvalidValueError

if TYPE_CHECKING:
    from traincast.fit.fitting import Fit
    from traincast.fit.model import Model, Value

_WHAT = Group("What to fit", sort_key=1)
_FORM = Group("The expression", sort_key=2)
_HOW = Group("How", sort_key=3)
_JUDGE = Group("Judging it", sort_key=4)
_SHOW = Group("Output", sort_key=5)


def fit(
    runs: Annotated[Path, Parameter(group=_WHAT)],
    /,
    *,
    time: Annotated[str | None, option("COLUMN", group=_WHAT)] = None,
    intrinsic: Annotated[str | None, option("NAME,…", group=_WHAT)] = None,
    extrinsic: Annotated[str | None, option("NAME,…", group=_WHAT)] = None,
    categorical: Annotated[str | None, option("NAME,…", group=_WHAT)] = None,
    group: Annotated[str | None, option("COLUMN", group=_WHAT)] = None,
    max_rows: Annotated[str, option("N", group=_WHAT)] = "5000",
    form: Annotated[Literal["generic", "extended"], Parameter(group=_FORM)] = "generic",
    communication: Annotated[str | None, option("NAME", group=_FORM)] = None,
    expr: Annotated[str | None, option("EXPRESSION", group=_FORM)] = None,
    bounds: Annotated[str | None, option("NAME=LOW:HIGH,…", group=_FORM)] = None,
    reference: Annotated[str | None, option("NAME=VALUE,…", group=_FORM)] = None,
    loss: Annotated[str, option("NAME", group=_HOW)] = "relative",
    regularisation: Annotated[str | None, option("NAME", group=_HOW)] = None,
    strength: Annotated[str | None, option("LAMBDA", group=_HOW)] = None,
    seed: Annotated[int, option("N", group=_HOW)] = 0,
    seeds: Annotated[str, option("N", group=_HOW)] = "3",
    generations: Annotated[str, option("N", group=_HOW)] = "120",
    bootstrap: Annotated[int, option("N", group=_HOW)] = 200,
    folds: Annotated[str, option("N", group=_JUDGE)] = "10",
    extrapolate: Annotated[str | None, option("NAME[=LIMIT],…", group=_JUDGE)] = None,
    no_compare: Annotated[bool, flag(group=_JUDGE)] = False,
    output: Annotated[Path | None, option("FILE", group=_SHOW, alias="-o")] = None,
    html: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    plot: Annotated[Path | None, option("FILE", group=_SHOW)] = None,
    json: Annotated[bool, flag(group=_SHOW)] = False,
) -> None:
    """Fit an expression of time to a table of runs, and say what drives it.

    Parameters
    ----------
    runs
        A CSV (or .csv.gz) with a header and one run a row.
    time
        The column of times; guessed from names where one is clear.
    intrinsic
        Factors of what the algorithm does, which add up: filters,kernel,optimizer. A product such
        as `filters*kernel` is one term; 1 is a term without a factor. By default all other columns.
    extrinsic
        Factors that multiply: batch,workers,samples. By default guessed from names.
    categorical
        Columns to take as levels although they hold numbers; text always is.
    group
        Runs with the same value here are held out and drawn together.
    max_rows
        Of a longer table an even sample of so many runs is used.
    form
        generic, or extended: with communication that grows with the workers.
    communication
        The factor that communication grows with; makes the form extended.
    expr
        Your own expression, such as `a*filters**p*batch/workers + c*log(workers) + d`. Names that
        are no columns are constants.
    bounds
        Bounds of a factor's exponent, or of a constant of --expr: filters=0:2.
    reference
        Divide extrinsic factors by these in the reported expression: batch=32.
    loss
        relative (mean relative absolute error), absolute, squared, log, or huber.
    regularisation
        none, l1, l2 or elastic; by default l1, for --expr none.
    strength
        The regulariser's λ, instead of choosing it by cross-validation.
    seed
        Of everything random: the same seed gives the same result.
    seeds
        Evolutions, to see whether they agree.
    generations
        Of each evolution, at most.
    bootstrap
        Samples for intervals; 0 for none.
    folds
        Parts that runs are held out in.
    extrapolate
        Train where these factors are small, judge where they are large; `none` for no such test.
        By default the extrinsic numbers with at least three values.
    no_compare
        Leave out the other learners.
    output
        Write the model, for `traincast predict --fitted` and `traincast scale --fitted`.
    html
        Write a report.
    plot
        Draw how the time depends on each factor: FILE.svg, .html or .png.
    json
        Print JSON instead of tables.
    """
    from traincast.fit.build import FormWish, build
    from traincast.fit.evolve import Settings, load_optimizer
    from traincast.fit.fitting import Options, fit_form
    from traincast.fit.judge import judge, outliers
    from traincast.fit.loss import check_penalty, loss_named
    from traincast.fit.prepare import Wish
    from traincast.fit.table import read_table
    from traincast.report.charts import check_plot
    from traincast.report.files import check_writable

    for path in filter(None, (output, html, plot)):
        check_writable(path)
    check_plot(plot)
    if expr is not None and (intrinsic or extrinsic or communication or form == "extended"):
        raise InvalidValueError("--expr has its factors in it; leave out roles and --form")
    options = Options(
        loss=loss_named(loss).name,
        regularisation=check_penalty(regularisation or ("none" if expr else "l1")),
        strength=_strength(strength, regularisation),
        seed=_whole("--seed", seed, 0),
        seeds=_within("--seeds", seeds, 1, 50),
        folds=_within("--folds", folds, 2, 100),
        bootstrap=_whole("--bootstrap", bootstrap, 0, 5_000),
        settings=Settings(generations=_within("--generations", generations, 1, 100_000)),
        reference=_settings_of("--reference", reference),
    )
    wish = Wish(
        time=time, intrinsic=_names("--intrinsic", intrinsic),
        extrinsic=_names("--extrinsic", extrinsic),
        categorical=_names("--categorical", categorical) or (), group=group,
    )  # fmt: skip
    asked = FormWish(expression=expr, extended=form == "extended", communication=communication,
                     bounds=_bounds(bounds))  # fmt: skip
    most = _within("--max-rows", max_rows, 8, 100_000)
    load_optimizer()
    with _bar() as tell:
        tell("reading", 0.0)
        table = read_table(
            runs, most=most, seed=options.seed, tell=lambda share: tell("reading", share)
        )
        data, expression = build(table, wish, asked)
        _check_reference(options.reference, data)
        tests = _extrapolations(extrapolate, data)
        found = fit_form(expression, data, options, tell)
        judged = judge(found, expression, tests, tell, compare=not no_compare)
    far = outliers(found)
    guessed = "" if expr else " ".join(
        role for role, given in (("intrinsic", intrinsic), ("extrinsic", extrinsic)) if not given
    )  # fmt: skip
    _write(found, judged, far, guessed, output, html, plot)
    _show(found, judged, far, guessed, json, [p for p in (output, html, plot) if p])


def _write(found: Fit, judged: Any, far: Any, guessed: str, output: Path | None,
           html: Path | None, plot: Path | None) -> None:  # fmt: skip
    from traincast.report.files import write_text

    if output is not None:
        from traincast.fit.saved import saved_text
        from traincast.report.fit_text import fit_dict

        write_text(output, saved_text(found.model, {"about": fit_dict(found, judged, far)}))
    if html is not None:
        from traincast.report.fit_page import fit_page

        write_text(html, fit_page(found, judged, far, guessed))
    if plot is not None:
        from traincast.report.charts import write_chart
        from traincast.report.fit_charts import dependence_sheet

        chart, rows = dependence_sheet(found)
        write_chart(plot, chart, title=f"What drives {found.runs.time}", rows=rows)


def _show(found: Fit, judged: Any, far: Any, guessed: str, json: bool, wrote: list[Path]) -> None:
    from traincast.report.fit_text import fit_dict, fit_report
    from traincast.report.output import show

    if json:
        show(fit_dict(found, judged, far))
        return
    show(fit_report(found, judged, far, guessed))
    for path in wrote:
        show(f"Wrote {path}.")


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[str, float], None]]:
    """Show on a terminal what is being done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def _names(name: str, text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    parts = tuple(part.strip() for part in text.split(",") if part.strip())
    if not parts and text.strip():
        raise InvalidValueError(f"{name} {text!r} names no column; write batch,workers")
    return tuple(dict.fromkeys(parts))


def _strength(text: str | None, kind: str | None) -> float | None:
    if text is None:
        return None
    if kind == "none":
        raise InvalidValueError("--strength needs a regularisation: l1, l2 or elastic")
    return 0.0 if text.strip() in ("0", "0.0") else above_zero("--strength", text)


def _within(name: str, text: str, least: int, most: int) -> int:
    return _whole(name, count(name, text) or 0, least, most)


def _whole(name: str, value: int, least: int, most: int = 2**31) -> int:
    if not least <= value <= most:
        raise InvalidValueError(f"{name} {value} has to be from {least:,} to {most:,}")
    return value


def _pairs(name: str, text: str | None, example: str) -> list[tuple[str, str]]:
    found = []
    for part in filter(None, ((text or "").split(","))):
        key, equals, value = part.partition("=")
        if not (key.strip() and equals and value.strip()):
            raise InvalidValueError(f"{name} {part!r} is not NAME=VALUE; write {example}")
        found.append((key.strip(), value.strip()))
    return found


def _number(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidValueError(f"{name}: {text!r} is no number")
    return value


def _settings_of(name: str, text: str | None) -> dict[str, float]:
    found = {key: _number(name, value) for key, value in _pairs(name, text, "batch=32")}
    for key, value in found.items():
        if value <= 0:
            raise InvalidValueError(f"{name} {key}={value:g} has to be above 0")
    return found


def _bounds(text: str | None) -> dict[str, tuple[float, float]]:
    found = {}
    for key, value in _pairs("--bounds", text, "filters=0:2"):
        low, colon, high = value.partition(":")
        ends = (_number("--bounds", low), _number("--bounds", high)) if colon else (1.0, 0.0)
        if ends[0] > ends[1] or max(map(abs, ends)) > 20:
            raise InvalidValueError(
                f"--bounds {key}={value}: write LOW:HIGH between -20 and 20, such as {key}=0:2"
            )
        found[key] = ends
    return found


def _check_reference(reference: Any, data: Any) -> None:
    known = [f.name for f in data.factors if f.role == "extrinsic" and not f.categorical]
    for name in reference:
        if name not in known:
            there = ", ".join(known) or "none"
            raise InvalidValueError(f"--reference {name}: no extrinsic number; there are {there}")


def _extrapolations(text: str | None, data: Any) -> list[str | tuple[str, float]]:
    """Return what to extrapolate over: as asked, or the extrinsic numbers that allow it."""
    from traincast.fit.judge import split_by

    if text is None:
        outer = [f.name for f in data.factors if f.role == "extrinsic" and not f.categorical]
        return [n for n in outer if len(set(data.columns[n].tolist())) >= 3]
    if text.strip().lower() == "none":
        return []
    found: list[str | tuple[str, float]] = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        name, equals, limit = part.partition("=")
        value = _number("--extrapolate", limit) if equals else None
        split_by(data, name, value)
        found.append(name if value is None else (name, value))
    return found


def alone(**given: object) -> None:
    """Refuse options that mean nothing to a fitted expression."""
    for name, value in given.items():
        if value is not None:
            what = name if name.isupper() else f"--{name}"
            raise InvalidValueError(
                f"--fitted needs no {what}; its factors are set with --set NAME=VALUE"
            )


def point_of(model: Model, text: str | None) -> dict[str, Value]:
    """Return the values of `--set`: NAME=VALUE,NAME=VALUE."""
    found: dict[str, Value] = {}
    for key, value in _pairs("--set", text, "batch=128,workers=8"):
        factor = model.factor(key)
        found[key] = value if factor.categorical else _number(f"--set {key}", value)
    model.columns([found])
    return found


def predict_fitted(path: Path, settings: str | None, json: bool) -> None:
    """Predict a run with a saved model: what `predict --fitted` does."""
    from traincast.fit.saved import load_model
    from traincast.report.fit_use import point_dict, point_panel
    from traincast.report.output import show

    model = load_model(path)
    point = point_of(model, settings)
    show(point_dict(model, point) if json else point_panel(model, point))


def scale_fitted(
    path: Path, over: str | None, settings: str | None, plot: Path | None, json: bool
) -> None:
    """Predict runs as one factor grows: what `scale --fitted` does."""
    from traincast.fit.reading import workers_of
    from traincast.fit.saved import load_model
    from traincast.report.charts import check_plot, write_chart
    from traincast.report.files import check_writable
    from traincast.report.fit_charts import scaling_chart
    from traincast.report.fit_use import Sweep, sweep_dict, sweep_rows, sweep_table
    from traincast.report.output import show

    if plot is not None:
        check_writable(plot)
    check_plot(plot)
    model = load_model(path)
    name, values = _over(model, over, workers_of(model))
    sweep = Sweep(model=model, factor=name, values=values, point=point_of(model, settings))
    if plot is not None:
        chart = scaling_chart(model, name, values, sweep.forecast, sweep.title)
        write_chart(plot, chart, title=sweep.title, rows=sweep_rows(sweep))
    if json:
        show(sweep_dict(sweep))
        return
    show(sweep_table(sweep))
    if plot is not None:
        show(f"Wrote {plot}.")


def _over(model: Model, text: str | None, workers: str | None) -> tuple[str, list[float]]:
    """Read NAME, NAME=1..16 (doubling), NAME=1..16:1 (in steps), or NAME=1,2,4."""
    from traincast.report.fit_use import values_between

    name, equals, rest = (text or workers or "").partition("=")
    name = name.strip()
    if not name:
        raise InvalidValueError("--over names no factor; write --over workers=1..16")
    factor = model.factor(name)
    if factor.categorical:
        raise InvalidValueError(f"--over {name}: it has levels; name a number")
    if not equals:
        rest = f"{factor.low:g}..{factor.high:g}"
    if ".." not in rest:
        values = [_number("--over", part) for part in rest.split(",")]
    else:
        ends, _, step = rest.partition(":")
        low, _, high = ends.partition("..")
        values = values_between(_number("--over", low), _number("--over", high),
                        _number("--over", step) if step else None)  # fmt: skip
    model.columns([{name: v} for v in values])
    return name, values
