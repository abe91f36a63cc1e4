"""How well the many-core models predict this machine: calibrate on few threads, judge on more.

    python benchmarks/many_core.py [NETWORK …] [--fit 1,2] [--judge 2] [--seconds 8] [--json FILE]

Every network is calibrated with the thread counts of --fit; then a real run (training, validation
on the same images, test) with each count of --judge is measured and compared with

    B, one thread   times of one thread alone: no contention is known
    B               with the contention that was measured at --fit, c·p beyond
    A               operations of the graph; factors and contention of the *other* networks

Seconds are those that the workers spent on their CPUs, so that other programs do not count; `wall`
is what the clock on the wall said. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

from traincast.estimate.viebke import Contention, Parameters, Run, model_a, model_b
from traincast.measure.cpu import this_cpu, thread_counts
from traincast.measure.many_core import measure_networks, run_for_real, software

NETWORKS = ["mnist-small", "mnist-medium", "mnist-large"]
TRIES = 3
"""Real runs, of which that counts during which other programs interrupted least."""
HEADS = ("network", "threads", "measured s", "wall s", "B, one thread", "B", "A")


def run_of(found: Parameters, name: str, threads: int, seconds: float) -> Run:
    """Return a run that takes about so many seconds."""
    times = found.networks[name].times
    each = 2 * times.forward + times.backward
    images = max(int(seconds * threads / each / 1.1), 100)
    return Run(images=images, test_images=images // 6, epochs=1)


def judge(found: Parameters, name: str, threads: int, seconds: float) -> dict[str, object]:
    run = run_of(found, name, threads, seconds)
    tries = [run_for_real(name, run, threads, found.batch) for _ in range(TRIES)]
    real = max(tries, key=lambda r: r.parallel / r.wall)
    own = found.networks[name]
    none = Contention(((1, 0.0),))
    alone = model_b(own.times, found.machine, none, run, threads)
    b = model_b(own.times, found.machine, own.contention, run, threads)
    row: dict[str, object] = {
        "network": name,
        "threads": threads,
        "images": run.images,
        "prepare_s": real.prepare,
        "predicted_prepare_s": own.times.prepare,
        "measured_s": real.parallel,
        "wall_s": real.wall,
        "error_b_one_thread": (alone.total - alone.sequential) / real.parallel - 1,
        "error_b": (b.total - b.sequential) / real.parallel - 1,
    }
    if len(found.networks) > 1:
        work = replace(own.work, prepare=found.prepare_cycles([name]))
        a = model_a(
            work,
            found.factors([name]),
            found.machine,
            found.contention(work.written, [name]),
            run,
            threads,
        )
        row["error_a"] = (a.total - a.sequential) / real.parallel - 1
    return row


def main() -> None:
    cpu = this_cpu()
    most = len(cpu.order)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    few = [p for p in thread_counts(cpu) if p <= max(2, most // 4)]
    parser.add_argument("--fit", default=",".join(map(str, few)))
    parser.add_argument("--judge", default=",".join(map(str, thread_counts(cpu)[1:] or (1,))))
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    fit = [int(p) for p in given.fit.split(",")]
    found = measure_networks(
        given.networks, threads=fit, batch=given.batch, say=lambda t: print(t, file=sys.stderr)
    )
    for name, m in found.networks.items():
        print(f"{name}: {m.times}, contention {m.contention.rows}, spread {m.spread:.1%}")
    print(f"{found.machine}, {software()}, factors {found.factors()}")
    print(f"calibrated with {given.fit} threads\n{HEADS[0]:16}", *(f"{h:>14}" for h in HEADS[1:]))
    rows = []
    for name in given.networks:
        for threads in map(int, given.judge.split(",")):
            row = judge(found, name, threads, given.seconds)
            rows.append(row)
            shares = [row.get(k) for k in ("error_b_one_thread", "error_b", "error_a")]
            errors = [f"{s:+14.1%}" if isinstance(s, float) else f"{'':14}" for s in shares]
            print(
                f"{name:16} {threads:14} {row['measured_s']:14.2f} {row['wall_s']:14.2f}",
                *errors,
                flush=True,
            )
    for key in ("error_b_one_thread", "error_b", "error_a"):
        errors_of = [abs(float(str(r[key]))) for r in rows if key in r]
        if errors_of:
            print(f"mean |{key}|: {sum(errors_of) / len(errors_of):.1%}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
