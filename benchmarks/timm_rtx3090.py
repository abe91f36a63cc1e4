"""Training steps of timm's networks on an RTX 3090, predicted and measured; and its profile.

    python benchmarks/timm_rtx3090.py [--networks N] [--data FILE] [--table FILE] [--transfer]
        [--write]

Reads the results that timm publishes for an RTX 3090 (PyTorch 1.10 to 1.12, AMP in fp16, SGD with
momentum, synthetic data on the device, the largest batch that fits) and says how far predictions
are off:

- h200: the H200's profile carried over by datasheet, nothing fitted;
- adjusted: with factors fitted to the other families of networks (10 folds);
- transfer: as `traincast validate --estimator transfer` has it, from the most similar device, with
  the share of runs inside their 90 % interval (`--transfer`).

`--networks N` takes N networks drawn at random instead of all. `--table FILE` writes the rows in
the form that `traincast validate` reads. `--write` makes the profile that ships with traincast.
Traced networks are kept (see `TRAINCAST_CACHE`), so that a second run takes a minute.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from traincast.estimate.calibrated.profile import Profile, profile_to_json
from traincast.measure.adjust import Adjustment, Errors, adjust_to_rows, rank_correlation
from traincast.report.files import write_text
from traincast.simulate.validate import validate

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared/data/published/timm_train_rtx3090.csv.gz"
OUT = ROOT / "src/traincast/hardware/profiles/rtx-3090.json"
DEVICE = "rtx-3090"
SOURCE = "github.com/huggingface/pytorch-image-models, results/benchmark-train-amp-*-rtx3090.csv"
COLUMNS = ("model", "image", "batch", "precision", "layout", "optimizer", "step_ms", "torch")


def runs(path: Path = DATA) -> list[dict[str, str]]:
    """Return the published runs as rows of a table that `traincast validate` reads."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [
            {
                "model": f"timm:{row['model']}",
                "image": row["input_size"].split("x")[1],
                "batch": row["micro_batch"],
                "precision": "amp_fp16",
                "layout": row["other_flags"].partition("memory_format=")[2][:4],
                "optimizer": "sgd",
                "step_ms": f"{1e3 * float(row['step_time_s']):.3f}",
                "torch": row["framework"].split()[1],
            }
            for row in csv.DictReader(file)
        ]


def today(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return the rows with the names that the installed timm has for the networks."""
    from traincast.ingest.pytorch.sources import declare_torchvision_ops
    from traincast.ingest.pytorch.timm_names import current_name

    declare_torchvision_ops()
    import timm

    names = {row["model"] for row in rows}
    new = {name: f"timm:{current_name(timm, name.removeprefix('timm:'))}" for name in names}
    return [{**row, "model": new[row["model"]]} for row in rows]


def some(rows: Sequence[dict[str, str]], networks: int) -> list[dict[str, str]]:
    """Return the rows of so many networks, drawn at random but always the same."""
    names = sorted({row["model"] for row in rows})
    random.Random(0).shuffle(names)
    chosen = set(names[:networks])
    return [row for row in rows if row["model"] in chosen]


def evaluate(rows: Sequence[dict[str, str]]) -> Adjustment:
    """Return what the runs make of a profile without any kernel of its own."""
    empty = Profile(
        device=DEVICE, models={}, host=None,
        provenance={
            "device": DEVICE, "source": SOURCE, "licence": "Apache-2.0",
            "software": "PyTorch 1.10 to 1.12, CUDA 11.3, cudnn.benchmark on, AMP fp16, eager; "
            "attention as separate products (no fused kernel in these releases)",
            "models": "none of its own: the H200's, carried over by datasheet",
        },
    )  # fmt: skip
    shown = sys.stderr.isatty()

    def progress(done: int, total: int) -> None:
        if shown:
            print(f"\r{done} of {total} rows", end="", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adjust_to_rows(empty, rows, device=DEVICE, source=SOURCE, progress=progress)


def transfer(rows: Sequence[dict[str, str]]) -> None:
    """Print the errors of `--estimator transfer`; runs alike but for PyTorch are predicted once."""
    same: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        same[tuple(row[name] for name in COLUMNS[:6])].append(row)
    first = sorted((alike[0] for alike in same.values()), key=lambda row: row["model"])
    ratio, inside, speeds = [], [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for found in validate(first, device=DEVICE, estimator="transfer"):
            for row in same[tuple(found.given[name] for name in COLUMNS[:6])]:
                if found.problem is None:
                    measured, guess = float(row["step_ms"]), found.predicted["step_ms"]
                    low, high = found.interval["step_ms"]
                    ratio.append(guess / measured - 1.0)
                    inside.append(low <= measured <= high)
                    speeds.append((float(row["batch"]) / guess, float(row["batch"]) / measured))
    off, speed = np.array(ratio), np.array(speeds)
    rank = rank_correlation(speed[:, 0], speed[:, 1])
    print(f"{'transfer':12} {len(off):5} {abs(off).mean():7.1%} {np.median(abs(off)):7.1%} "
          f"{np.quantile(abs(off), 0.9):7.1%} {off.mean():+7.1%} {rank:7.3f}   "
          f"{np.mean(inside):.0%} inside their interval")  # fmt: skip
    low, high = np.quantile(1.0 / (1.0 + off), [0.05, 0.95])
    print(f"90 % of measured / predicted: {low:.2f} to {high:.2f}")


def show(found: Adjustment) -> None:
    """Print what came of it."""

    def line(name: str, e: Errors) -> None:
        print(f"{name:12} {e.runs:5} {e.mape:7.1%} {e.median:7.1%} {e.p90:7.1%} {e.bias:+7.1%} "
              f"{e.rank:7.3f}")  # fmt: skip

    print(f"{found.rows} runs of {found.networks} networks, {found.folds} folds of families\n")
    print("              runs    MAPE  median     p90    bias    rank")
    line("h200", found.before)
    line("adjusted", found.after)
    print("\nfactor             value  ± log")
    for name, (value, error) in sorted(found.factors.items()):
        print(f"{name:18} {value:5.2f}  {error:.2f}")
    for name, why in found.refused.items():
        print(f"{name:18}     –  {why}")
    print("\n90 % of measured / predicted: " + str(dict(found.profile.errors)))
    left: dict[str, int] = defaultdict(int)
    for why, count in found.skipped.items():
        left[why.splitlines()[0][:110]] += count
    print(f"\nleft aside: {sum(left.values())} rows")
    for why, count in sorted(left.items(), key=lambda item: -item[1]):
        print(f"{count:5}  {why}")


def main() -> None:
    """Read, judge, and write what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=0)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--transfer", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    if not given.data.exists():
        sys.exit(f"{given.data} is not here; give the table with --data")
    rows = runs(given.data)
    if given.networks:
        rows = some(rows, given.networks)
    if given.table:
        with given.table.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS)
            table.writeheader()
            table.writerows(rows)
    rows = today(rows)
    found = evaluate(rows)
    show(found)
    if given.write:
        # The host of those runs is one; whose host a user of the profile has, nobody knows.
        errors = {k: v for k, v in found.profile.errors.items() if k != "host"}
        write_text(OUT, profile_to_json(replace(found.profile, errors=errors)))
        print(f"\nwrote {OUT.relative_to(ROOT)}")
    if given.transfer:
        print()
        transfer(rows)


if __name__ == "__main__":
    main()
