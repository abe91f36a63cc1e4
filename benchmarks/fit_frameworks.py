"""The generic model and other learners on the measured runs of three frameworks.

    python benchmarks/fit_frameworks.py [FOLDER] [--only NAME] [--print]

Reads pytorch.csv, tensorflow.csv and mxnet.csv (those that are there) of benchmarks/data/frameworks
and writes the tables of docs/models/generic.md, between its markers: ten-fold and extrapolation
errors of the generic model in three forms and of each baseline on the same splits, how well a
measured time comes back, and what drives each framework.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traincast.fit.baselines import TITLES
from traincast.fit.build import FormWish, load
from traincast.fit.fitting import Fit, Options
from traincast.fit.fitting import fit_form as fit_it
from traincast.fit.judge import Judgement, judge
from traincast.fit.model import Estimate
from traincast.fit.prepare import Wish
from traincast.fit.reading import shares
from traincast.report.fit_text import expression_text
from traincast.report.fit_words import interval_text, short

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks/data/frameworks"
PAGE = ROOT / "docs/models/generic.md"
MARKERS = ("<!-- frameworks: start -->", "<!-- frameworks: end -->")
FRAMEWORKS = ("pytorch", "tensorflow", "mxnet")
NAMES = {"pytorch": "PyTorch", "tensorflow": "TensorFlow", "mxnet": "MXNet"}
SHAPES = {"mnist": (1, 28), "cifar": (3, 32)}
OVER = ("samples", "batch", "filters", "layers")
"""Factors to extrapolate over: trained where they are small."""
BASES = {"aligned": "no", "activation": "relu", "pool": "none", "dropout": "0.0",
         "optimizer": "sgd"}  # fmt: skip
"""The level that others are compared with."""
BLOCK = 8
"""Channels that the CPU libraries handle together."""


@dataclass(frozen=True)
class Form:
    title: str
    intrinsic: tuple[str, ...]
    extrinsic: tuple[str, ...]
    operations: bool = False
    """Whether it sees the operations counted from the factors; then the baselines do too."""
    categorical: tuple[str, ...] = ()


FORMS = {
    "add": Form(
        "factors add up",
        ("dataset", "kernel", "filters", "layers", "pool", "activation", "optimizer", "dropout",
         "stride", "padding"),
        ("batch", "samples", "threads", "workers"),
    ),
    "multiply": Form(
        "products of factors",
        ("kernel*filters*layers*stride*batch*threads*workers*dataset*padding*pool",
         "filters*layers*stride*activation*dropout*pool*dataset*threads*workers",
         "batch*layers*threads*workers*optimizer"),
        ("samples",),
        categorical=("dropout",),
    ),
    "operations": Form(
        "products with counted operations",
        ("macs*kernel*filters*aligned*batch*threads*workers",
         "elements*activation*pool*dropout*batch*threads*workers",
         "batch*layers*threads*workers*optimizer"),
        ("samples",),
        operations=True,
        categorical=("dropout",),
    ),
}  # fmt: skip


def operations(row: dict[str, str]) -> dict[str, str]:
    """Count what a network does to one image, by arithmetic on its factors.

    `macs`: multiply-adds of a training step, forward and both gradients (the first convolution has
    no input gradient). `elements`: outputs of the convolutions. `aligned`: whether filters are a
    multiple of the block that CPU libraries like.
    """
    channels, side = SHAPES[row["dataset"]]
    kernel, filters = int(row["kernel"]), int(row["filters"])
    pad = kernel // 2 if row["padding"] == "same" else 0
    macs = elements = 0
    for layer in range(int(row["layers"])):
        side = (side + 2 * pad - kernel) // (int(row["stride"]) if layer == 0 else 1) + 1
        macs += (2 if layer == 0 else 3) * side * side * filters * channels * kernel * kernel
        elements += side * side * filters
        channels = filters
        side //= 1 if row["pool"] == "none" else 2
    macs += 3 * channels * side * side * 10
    aligned = "yes" if filters % BLOCK == 0 else "no"
    return {"macs": str(macs), "elements": str(elements), "aligned": aligned}


def with_operations(path: Path, folder: Path) -> Path:
    with path.open(encoding="utf-8", newline="") as file:
        rows = [{**row, **operations(row)} for row in csv.DictReader(file)]
    found = folder / f"{path.stem}-operations.csv"
    with found.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return found


def fit_and_judge(
    path: Path, form: Form, bootstrap: int, *, compare: bool
) -> tuple[Fit, Judgement]:
    wish = Wish(time="epoch_s", intrinsic=form.intrinsic, extrinsic=form.extrinsic,
                categorical=form.categorical)  # fmt: skip
    runs, expression = load(path, wish, FormWish())
    fit = fit_it(expression, runs, Options(bootstrap=bootstrap))
    over = [name for name in OVER if any(f.name == name for f in runs.factors)]
    return fit, judge(fit, expression, over, compare=compare)


def come_back(folder: Path, name: str) -> tuple[int, float] | None:
    """Return how many runs were measured again, and how far their times are from the first."""
    first, again = folder / f"{name}.csv", folder / "again" / f"{name}.csv"
    if not again.is_file():
        return None
    tables = []
    for path in (first, again):
        with path.open(encoding="utf-8", newline="") as file:
            tables.append({tuple(v for k, v in row.items() if k != "epoch_s"): row["epoch_s"]
                           for row in csv.DictReader(file)})  # fmt: skip
    off = [abs(float(t) / float(tables[0][key]) - 1) for key, t in tables[1].items()
           if t and tables[0].get(key)]  # fmt: skip
    return (len(off), float(np.mean(off))) if off else None


def error_table(name: str, found: dict[str, tuple[Fit, Judgement]]) -> list[str]:
    """Return the errors of one framework: a row a method, a column a split."""
    last = found["operations"][1]
    heads = ["ten-fold"] + [
        f"{e.factor} > {e.up_to:g} ({e.judged} runs)" for e in last.extrapolations
    ]
    lines = [f"**{NAMES[name]}**, mean absolute percentage error", "",
             "| method | sees | " + " | ".join(heads) + " |",
             "|---|---|" + "---:|" * len(heads)]  # fmt: skip
    for key, form in FORMS.items():
        judged = found[key][1]
        sees = "factors and operations" if form.operations else "factors"
        lines.append(_row(f"generic: {form.title}", sees, judged, "generic", heads, last))
    for key in ("multiply", "operations"):
        judged = found[key][1]
        sees = "factors and operations" if FORMS[key].operations else "factors"
        # The median sees nothing, so it is shown once.
        methods = [
            m for m in judged.scores if m != "generic" and (m, key) != ("median", "operations")
        ]
        lines += [_row(TITLES[m], sees, judged, m, heads, last) for m in methods]
    return [*lines, ""]


def _row(title: str, sees: str, judged: Judgement, method: str, heads: list[str],
         last: Judgement) -> str:  # fmt: skip
    tests = {e.factor: e for e in judged.extrapolations}
    cells = [f"{judged.scores[method].mape:.1%}"]
    for e in last.extrapolations:
        mine = tests.get(e.factor)
        cells.append(f"{mine.scores[method].mape:.1%}" if mine else "–")
    assert len(cells) == len(heads)
    return f"| {title} | {sees} | " + " | ".join(cells) + " |"


def driving_table(fits: dict[str, Fit]) -> list[str]:
    """Return shares and exponents of the frameworks beside each other."""
    names = list(fits)
    lines = ["| | " + " | ".join(NAMES[n] for n in names) + " |", "|---|" + "---:|" * len(names)]
    parts = {n: shares(f.model, f.runs.columns) for n, f in fits.items()}
    labels = {"macs": "arithmetic of convolutions", "elements": "work on their outputs",
              "batch": "each step", "base": "each image", "constant": "each epoch"}  # fmt: skip
    for term in dict.fromkeys(t for p in parts.values() for t in p):
        label = labels.get(term.split("*")[0], term)
        cells = [f"{parts[n].get(term, 0):.0%}" for n in names]
        lines.append(f"| share of the time: {label} | " + " | ".join(cells) + " |")
    form = fits[names[0]].model.form
    for c in form.constants:
        if c.linear or c.kind == "multiplier":
            continue
        cells = [_estimate(f.model.original[f"{c.kind}:{c.name}"]) for f in fits.values()]
        lines.append(f"| {_short_name(c.name)}: exponent | " + " | ".join(cells) + " |")
    for factor, base in BASES.items():
        for level in sorted(set(form.levelled[factor]) - {base}):
            cells = [_ratio(f, factor, level, base) for f in fits.values()]
            label = f"{factor} {level}, times as long as {base}"
            lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _ratio(fit: Fit, factor: str, level: str, base: str) -> str:
    """Return how many times as long a level takes as another, in its term."""
    model = fit.model
    place = {c.level: i for i, c in enumerate(model.form.constants)
             if c.kind == "multiplier" and c.factor == factor}  # fmt: skip

    def log(x: np.ndarray, name: str) -> np.ndarray:
        return x[..., place[name]] if name in place else np.zeros(x.shape[:-1])

    value = float(np.exp(log(model.x, level) - log(model.x, base)))
    drawn = np.exp(log(model.draws, level) - log(model.draws, base))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return _estimate(Estimate(value=value, interval=(low, high) if high > low else None))


def _short_name(name: str) -> str:
    place = {"macs": "arithmetic", "elements": "outputs", "batch": "each step"}
    head, inside, term = name.partition(" (in ")
    return f"{head}, in {place[term.split('*')[0]]}" if inside else head


def _estimate(found: Estimate) -> str:
    if found.value is None:
        return "–"
    said = short(found.value, 2) if found.value not in (0, 1) else f"{found.value:g}"
    return said + (f" ({interval_text(found.interval)})" if found.interval else "")


def report(folder: Path, only: str | None) -> str:
    lines: list[str] = []
    fits: dict[str, Fit] = {}
    repeats = []
    with tempfile.TemporaryDirectory() as place:
        for name in FRAMEWORKS:
            path = folder / f"{name}.csv"
            if not path.is_file() or (only and name != only):
                continue
            counted = with_operations(path, Path(place))
            found = {}
            for key, form in FORMS.items():
                source = counted if form.operations else path
                found[key] = fit_and_judge(source, form, 200 if form.operations else 0,
                                           compare=key != "add")  # fmt: skip
                print(name, key, f"{found[key][1].scores['generic'].mape:.1%}", flush=True)
            fits[name] = found["operations"][0]
            lines += error_table(name, found)
            back = come_back(folder, name)
            if back:
                repeats.append(f"{NAMES[name]} {back[1]:.1%} ({back[0]} runs)")
    if repeats:
        lines += ["How far a time is from the same run done again, on average: "
                  f"{', '.join(repeats)}.", ""]  # fmt: skip
    lines += ["### What drives each", "", *driving_table(fits)]
    for name, fit in fits.items():
        lines += [f"{NAMES[name]}: `t = {expression_text(fit.model)}`", ""]
    covered = ", ".join(f"{NAMES[n]} {f.coverage:.0%}" for n, f in fits.items() if f.coverage)
    lines += [
        f"Runs inside the 95 % interval of bootstrap samples that did not draw them: {covered}."
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=DATA)
    parser.add_argument("--only", choices=FRAMEWORKS)
    parser.add_argument("--print", action="store_true", dest="shown")
    given = parser.parse_args()
    text = report(given.folder, given.only)
    if given.shown or given.only:
        print(text)
        return
    page = PAGE.read_text(encoding="utf-8")
    head, rest = page.split(MARKERS[0])
    tail = rest.split(MARKERS[1])[1]
    PAGE.write_text(f"{head}{MARKERS[0]}\n{text}\n{MARKERS[1]}{tail}", encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)}.")


if __name__ == "__main__":
    main()
