"""How accurate predictions are: every suite of measured runs, and the page docs/accuracy.md.

    python benchmarks/accuracy.py [--quick] [--cpu] [--networks N] [--out docs/accuracy.md]

Writes the page and its charts, in about ten minutes with networks that were traced before (see
`TRAINCAST_CACHE`; otherwise torch, torchvision, timm and transformers are needed, and more time).
`--quick` judges the H200's suites alone and prints the page instead of writing it. `--cpu` also
trains on this machine's CPU, which takes a profile of it (`traincast calibrate --device cpu`).
`--networks` is how many of timm's networks are drawn for the RTX 3090. A suite whose data are not
here says so on the page.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import accuracy_page as page
from accuracy_ablation import ablation, own_engine
from accuracy_causes import Facts, cases, facts_of, worst
from accuracy_suites import (
    ROOT,
    Suite,
    cpu,
    h200,
    held_out,
    published,
    rtx3090,
)
from traincast.report.charts import write_chart
from traincast.report.files import write_text
from traincast.report.scatter import scatter_chart
from traincast.simulate.validate import ValidatedRow

OUT = ROOT / "docs/accuracy.md"
T = TypeVar("T")
WORST = 10
ABLATED = ("h200", "h200-compiled", "held-out", "second", "fresh")


def timed(what: str, make: Callable[[], T]) -> T:
    start = time.monotonic()
    found = make()
    print(f"{what}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return found


def told(suite: Suite) -> tuple[page.Judged, page.Judged]:
    """Return facts of all rows, of the suites that are small, and of the worst ones."""

    def facts(rows: list[ValidatedRow]) -> list[tuple[ValidatedRow, Facts]]:
        found = cases(rows, suite.root)
        return [(case.row, facts_of(case, suite.estimator, suite.rows)) for case in found]

    every = facts(list(suite.rows)) if suite.key in ABLATED else []
    return every, facts(worst(suite.rows, WORST))


def parts_of(suites: list[Suite], refit: bool) -> list[str]:
    """Return the ablation and the intervals, where both of the H200's tables are here."""
    ablated = {s.key: s for s in suites if s.key in ABLATED and not s.missing}
    if set(ablated) != set(ABLATED):
        return ["## What each part contributes\n\nNot judged: a table of the H200 is not here."]
    runs = {key: cases(suite.rows, suite.root) for key, suite in ablated.items()}
    found = ablation(runs, refit)
    titles = {key: suite.title for key, suite in ablated.items()}
    engine = own_engine()
    shipped = {regime: engine.interval(1.0, regime == "host") for regime in ("host", "device")}
    whole = found["everything"]
    return [
        page.ablation_tables(found, titles),
        page.intervals(whole["h200"], whole["held-out"], shipped),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--networks", type=int, default=60)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        suites = timed("H200", h200) + timed("H200, held out", held_out)
        if not given.quick:
            suites += timed("RTX 3090", lambda: rtx3090(given.networks))
            suites += timed("published steps", lambda: published(Path(place)))
        if given.cpu:
            suites += timed("this CPU", cpu)
        parts = [page.INTRO, page.glance(suites)]
        charts: dict[Path, str] = {}
        for suite in suites:
            name = f"images/accuracy-{suite.key}.svg"
            every, listed = timed(f"causes, {suite.title}", lambda s=suite: told(s))
            parts.append(page.section(suite, name, every, listed))
            if not suite.missing:
                charts[given.out.parent / name] = scatter_chart(list(suite.rows), suite.by)
    parts += [page.legend(), page.KNOWN, page.alternatives(suites)]
    parts += timed("ablation", lambda: parts_of(suites, refit=not given.quick))
    text = "\n\n".join(parts) + "\n"
    if given.quick:
        print(text)
        return
    for path, chart in charts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_chart(path, chart, title="Predicted against measured steps")
    write_text(given.out, text)
    print(f"wrote {given.out} and {len(charts)} charts", file=sys.stderr)


if __name__ == "__main__":
    main()
