"""How fast traincast is: start-up, a cold command, warm predictions.

    python benchmarks/speed.py

CPU seconds, the best of several runs, each beside its budget; and the ratio to the bare
interpreter's start-up measured in the same run, since machines differ.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable

REPEATS = 7


def cpu_of(command: list[str]) -> float:
    """Return the least CPU seconds (user and system) that a command took."""
    best = float("inf")
    for _ in range(REPEATS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
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


def main() -> None:
    python = [sys.executable, "-c", "pass"]
    bare = cpu_of(python)
    command = [sys.executable, "-m", "traincast"]
    rows = [
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
    print(f"{'what':36} {'ms':>8} {'budget ms':>10} {'× bare start':>13}")
    for what, seconds, budget in rows:
        allowed = f"{budget * 1e3:.0f}" if budget else ""
        print(f"{what:36} {seconds * 1e3:8.1f} {allowed:>10} {seconds / bare:13.2f}")


if __name__ == "__main__":
    main()
