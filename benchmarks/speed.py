"""How fast traincast is: start-up, a cold command, warm predictions, a table of runs.

    python benchmarks/speed.py [RUNS.csv]

CPU seconds, the best of several runs, each beside its budget; and the ratio to the bare
interpreter's start-up measured in the same run, since machines differ. The table is predicted once
from nothing, tracing its networks into an empty cache, and then from that cache.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

REPEATS = 7
RUNS = Path(__file__).resolve().parents[2] / "shared/data/h200/train_steps.csv"
Row = tuple[str, float, float | None]


def cpu_of(command: list[str], *, repeats: int = REPEATS, cache: str = "off") -> float:
    """Return the least CPU seconds (user and system) that a command took."""
    best = float("inf")
    for _ in range(repeats):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        env = {**os.environ, "TRAINCAST_CACHE": cache}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        best = min(best, used)
    return best


def warm(run: Callable[[int], object]) -> float:
    """Return the least seconds of a call, each at a batch that was not asked for before."""
    best = float("inf")
    for batch in range(2, 2 + 4 * REPEATS):
        start = time.perf_counter()
        run(batch)
        best = min(best, time.perf_counter() - start)
    return best


def table(command: list[str], runs: Path) -> list[Row]:
    """Return what a table of runs takes from nothing and from the cache."""
    command = [*command, "validate", str(runs), "--json"]
    with tempfile.TemporaryDirectory() as cache:
        first = cpu_of(command, repeats=1, cache=cache)
        again = cpu_of(command, repeats=3, cache=cache)
    return [
        (f"validate {runs.name}, nothing traced, CPU", first, 40.0),
        (f"validate {runs.name}, all traced, CPU", again, 3.0),
    ]


def main() -> None:
    python = [sys.executable, "-c", "pass"]
    bare = cpu_of(python)
    command = [sys.executable, "-m", "traincast"]
    rows: list[Row] = [
        ("bare interpreter, CPU", bare, None),
        ("import traincast, CPU", cpu_of([sys.executable, "-c", "import traincast"]), None),
        ("traincast --help, CPU", cpu_of([*command, "--help"]), 0.3),
        ("traincast predict resnet50, CPU", cpu_of([*command, "predict", "resnet50"]), 1.0),
        ("traincast predict llama-405b, CPU", cpu_of([*command, "predict", "llama-405b"]), 1.0),
    ]
    import traincast

    for model, budget in (("resnet50", 0.005), ("gpt2", None), ("llama-3.1-405b", 0.020)):
        traincast.predict(model, device="h200")
        seconds = warm(lambda batch, m=model: traincast.predict(m, device="h200", batch=batch))
        rows.append((f"warm predict({model!r})", seconds, budget))
    runs = Path(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    if runs.exists():
        rows += table(command, runs)
    print(f"{'what':46} {'ms':>8} {'budget ms':>10} {'× bare start':>13}")
    for what, seconds, budget in rows:
        allowed = f"{budget * 1e3:.0f}" if budget else ""
        print(f"{what:46} {seconds * 1e3:8.1f} {allowed:>10} {seconds / bare:13.2f}")


if __name__ == "__main__":
    main()
