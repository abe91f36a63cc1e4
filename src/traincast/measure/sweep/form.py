"""The form of a sweep's TOML file, checked by pydantic. Imported only when a file is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from traincast.errors import InputFileError, near_names
from traincast.measure.sweep.design import Factor, Levels, Range
from traincast.measure.sweep.plan import Effort, Sweep
from traincast.measure.sweep.settings import CHOICES, NAMES, value_problem

Count = Annotated[int, Field(ge=1, le=100_000, strict=True)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Framework = Literal["pytorch", "tensorflow", "mxnet"]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class SweepForm(_Form):
    """As `Sweep`, less the factors."""

    design: Literal["latin", "grid"] = "latin"
    runs: Count | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    repeats: Count = 1
    frameworks: Annotated[list[Framework], Field(min_length=1)] = ["pytorch"]
    most_threads: Count = 2
    output: str = "."
    time_limit_s: Seconds = 120.0
    warmup_steps: Count = 5
    timed_s: Seconds = 2.0
    least_epochs: Count = 3
    most_s: Seconds = 10.0


class RangeForm(BaseModel):
    """As `Range`."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    low: float = Field(alias="from", allow_inf_nan=False)
    high: float = Field(alias="to", allow_inf_nan=False)
    scale: Literal["linear", "log"] = "linear"
    integer: bool = True
    count: Annotated[int, Field(ge=2, le=1000, strict=True)] | None = None


class FileForm(_Form):
    """The whole file."""

    sweep: SweepForm = SweepForm()
    factors: Annotated[dict[str, list[Any] | RangeForm], Field(min_length=1)]
    fixed: dict[str, Any] = {}


def sweep_from(data: dict[str, Any], path: Path) -> Sweep:
    """Turn a file's content into a sweep; raise with every problem that it has."""
    try:
        form = FileForm.model_validate(data)
    except ValidationError as error:
        raise InputFileError(path, [_said(e) for e in error.errors()]) from None
    problems = _problems(form)
    if problems:
        raise InputFileError(path, problems)
    s = form.sweep
    return Sweep(
        design=s.design,
        runs=s.runs or 0,
        seed=s.seed,
        repeats=s.repeats,
        frameworks=tuple(dict.fromkeys(s.frameworks)),
        most_threads=s.most_threads,
        output=path.parent / s.output,
        time_limit=s.time_limit_s,
        effort=Effort(
            warmup_steps=s.warmup_steps,
            timed_s=s.timed_s,
            least_epochs=s.least_epochs,
            most_s=s.most_s,
        ),
        factors={name: _factor(name, given) for name, given in form.factors.items()},
        fixed=form.fixed,
    )


def _said(error: Any) -> str:
    where = ".".join(str(part) for part in error["loc"] if part not in {"list[any]", "RangeForm"})
    if error["type"] == "extra_forbidden":
        known = [*FileForm.model_fields, *SweepForm.model_fields, "from", "to", "scale", "integer"]
        close = near_names(where.rpartition(".")[2], known)
        return f"unknown key {where}" + (f"; did you mean {' or '.join(close)}?" if close else "")
    if error["type"] == "missing":
        return f"{where} is missing"
    message = error["msg"][:1].lower() + error["msg"][1:]
    return f"{where} = {error['input']!r}: {message}"


def _factor(name: str, given: list[Any] | RangeForm) -> Factor:
    if isinstance(given, list):
        return Levels(tuple(given))
    whole = given.integer and name != "dropout"
    return Range(
        low=given.low, high=given.high, log=given.scale == "log", whole=whole, count=given.count
    )


def _problems(form: FileForm) -> list[str]:
    """Return what is wrong with the file beyond its form."""
    found = []
    if form.sweep.design == "latin" and form.sweep.runs is None:
        found.append("sweep.runs is missing: a Latin hypercube needs it; add runs = 200")
    if form.sweep.design == "grid" and form.sweep.runs is not None:
        found.append("sweep.runs: a grid has as many runs as its levels give; leave it out")
    for table, given in (("factors", form.factors), ("fixed", form.fixed)):
        for name, value in given.items():
            found += [f"{table}.{name}{text}" for text in _setting(form, table, name, value)]
    return found


def _setting(form: FileForm, table: str, name: str, value: Any) -> list[str]:
    if name not in NAMES:
        close = near_names(name, NAMES)
        hint = f"did you mean {' or '.join(close)}?" if close else "known: " + ", ".join(NAMES)
        return [f" is no setting; {hint}"]
    if table == "fixed":
        if name in form.factors:
            return [" is among the factors too; keep one of them"]
        wrong = value_problem(name, value)
        return [f": {wrong}"] if wrong else []
    if isinstance(value, list):
        if not value:
            return [" has no values"]
        found = [f": {wrong}" for v in value if (wrong := value_problem(name, v))]
        if form.sweep.design == "grid" and len(set(map(str, value))) < len(value):
            found.append(" names a value twice, which means nothing in a grid; use repeats")
        return found
    return _range(form, name, value)


def _range(form: FileForm, name: str, given: RangeForm) -> list[str]:
    if name in CHOICES:
        return [f" cannot be a range; list some of {', '.join(CHOICES[name])}"]
    if given.high <= given.low:
        return [f": from {given.low:g} to {given.high:g} ends before it starts"]
    if given.scale == "log" and given.low <= 0:
        return [": a log scale starts above 0"]
    if form.sweep.design == "grid" and given.count is None:
        return [": a range in a grid needs count = N, the number of its values"]
    ends = (given.low, given.high)
    if name != "dropout":
        if not given.integer:
            return [": takes whole numbers alone; leave out integer = false"]
        ends = tuple(int(end) if end == int(end) else end for end in ends)  # type: ignore[assignment]
    return [f": {wrong}" for end in ends if (wrong := value_problem(name, end))]
