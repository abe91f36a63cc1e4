"""Data-parallel scaling against published runs: AlexNet, VGG-16, Inception-v3 and ResNet-50.

    python benchmarks/cnn_scaling.py                      # per group and per row, ends with totals
    python benchmarks/cnn_scaling.py --csv runs.csv       # the table alone, for traincast validate

The runs are tables of TensorFlow's and MXNet's documentation of 2017 (the `url` of each row of
cnn_scaling_tf_mxnet.csv.gz names the commit): P100 and K80, 1 to 256 GPUs, parameter servers and
NCCL, synthetic and real images. Efficiency is throughput over n times that of one GPU. It is
predicted twice: from nothing but datasheets, and with the measured step on one GPU, which leaves
communication and overlap as the only things to be wrong.

Left out: the rows of MXNet's perf.md. They are batch sweeps on one GPU; one revision of the page
has P100 and K80 swapped, another gives AlexNet's batch as a sixteenth.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from traincast.ingest import resolve
from traincast.simulate.study import Request, study
from traincast.simulate.validate import ValidatedRow, validate, with_efficiency

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "published"
TABLE = "cnn_scaling_tf_mxnet.csv.gz"
MODELS = {
    # Without the auxiliary classifier, as both benchmarks train it: 23.8 million parameters.
    "inception3": "inception_v3?aux_logits=false",
    "resnet50": "resnet50",
    "alexnet": "alexnet",
    "vgg16": "vgg16",
}
PLACES = {
    "DGX-1": "TensorFlow, DGX-1",
    "GCE": "TensorFlow, GCE n1-standard-32",
    "p2.8xlarge distributed": "TensorFlow, EC2 p2.8xlarge cluster",
    "p2.8xlarge": "TensorFlow, EC2 p2.8xlarge",
    "mxnet": "MXNet, EC2 p2.16xlarge cluster",
}
NETWORKS = {"10": "1xethernet-10g", "20": "2xethernet-10g"}
COLUMNS = ("series", "group", "model", "batch", "device", "devices", "cluster", "network",
           "precision", "optimizer", "scheme", "step_ms")  # fmt: skip


def read(path: Path) -> list[dict[str, str]]:
    """Return the published rows as a table that `traincast validate` reads."""
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if "perf.md" not in row["source"]]
    return [run(row) for row in rows]


def run(row: Mapping[str, str]) -> dict[str, str]:
    device = "p100" if row["device"].startswith("P100") else "k80"
    count, node = int(row["n_devices"]), int(row["node_size"])
    nodes, each = -(-count // node), min(count, node)
    flags = row["other_flags"]
    scheme = "nccl" if "NCCL" in flags else "parameter-server"
    speed = re.match(r"\d+", row["inter_node_link"])
    place = next(name for text, name in PLACES.items() if text in row["source"])
    images = "real images" if "real" in flags else "synthetic"
    return {
        "series": f"{row['model']} {row['micro_batch']} a GPU, {place}, {images}",
        "group": f"{row['model']}, {place}, {scheme}, {images}",
        "model": MODELS[row["model"]],
        "batch": row["global_batch"],
        "device": device,
        "devices": str(count),
        "cluster": f"{nodes}x{each}x{device}",
        "network": NETWORKS[speed[0]] if speed else "",
        "precision": row["precision"],
        "optimizer": "sgd",
        "scheme": scheme,
        "step_ms": f"{float(row['step_time_s']) * 1e3:g}",
    }


def given_one_gpu(rows: Sequence[ValidatedRow]) -> dict[int, float]:
    """Return, by place, the efficiency predicted from the measured step on one GPU."""
    alone = {
        row.given["series"]: row.measured["step_ms"] for row in rows if row.given["devices"] == "1"
    }
    found: dict[int, float] = {}
    for i, row in enumerate(rows):
        if "efficiency" not in row.measured:
            continue
        count = int(row.given["devices"])
        request = Request(
            cluster=row.given["cluster"],
            network=row.given["network"] or None,
            devices=(count,),
            schemes=(row.given["scheme"],),
            batch=int(row.given["batch"]) // count,
            precision=row.given["precision"],
            optimizer="momentum",
            measured_s=alone[row.given["series"]] / 1e3,
        )
        found[i] = study(resolve(row.model), request)[0].efficiency
    return found


def line(name: str, values: Sequence[tuple[float, float]]) -> str:
    """Return the errors of (predicted, measured) pairs in one line."""
    error = np.array([p / m - 1 for p, m in values])
    return (
        f"  {name:34} {len(error):4} rows   mean |error| {abs(error).mean():6.1%}"
        f"   median {np.median(abs(error)):6.1%}   worst {abs(error).max():6.1%}"
        f"   bias {error.mean():+6.1%}"
    )


def report(rows: Sequence[ValidatedRow]) -> None:
    given = given_one_gpu(rows)
    groups: dict[str, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(row.given["group"], []).append(i)
    for group, places in groups.items():
        print(f"\n{group}")
        print("     GPUs  batch   step ms: measured  predicted  error"
              "   efficiency: measured  predicted  given 1 GPU")  # fmt: skip
        for i in places:
            row = rows[i]
            measured, predicted = row.measured["step_ms"], row.predicted["step_ms"]
            head = f"  {row.given['devices']:>7} {row.given['batch']:>6}"
            text = f"{head} {measured:18.1f} {predicted:10.1f} {predicted / measured - 1:+6.0%}"
            if i in given:
                mine = (row.measured["efficiency"], row.predicted["efficiency"], given[i])
                text += f" {mine[0]:22.1%} {mine[1]:10.1%} {mine[2]:12.1%}"
            print(text)
    print("\nAll rows")
    totals("step", rows, {i: r.predicted["step_ms"] for i, r in enumerate(rows)}, "step_ms")
    datasheet = {i: rows[i].predicted["efficiency"] for i in given}
    totals("efficiency, from datasheets", rows, datasheet, "efficiency")
    totals("efficiency, given the 1-GPU step", rows, given, "efficiency")
    for images in ("synthetic", "real images"):
        some = {i: v for i, v in given.items() if rows[i].given["group"].endswith(images)}
        totals(f"the same, {images}", rows, some, "efficiency")


def totals(
    name: str, rows: Sequence[ValidatedRow], predicted: Mapping[int, float], column: str
) -> None:
    print(line(name, [(value, rows[i].measured[column]) for i, value in predicted.items()]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--csv", type=Path, help="write the table for `traincast validate` and end")
    chosen = parser.parse_args()
    path = chosen.data / TABLE
    if not path.is_file():
        print(f"{path} is not there; give the folder that holds {TABLE} by --data", file=sys.stderr)
        return 2
    runs = read(path)
    if chosen.csv:
        with chosen.csv.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(runs)
        return 0
    found = with_efficiency(validate(runs))
    failed = [row for row in found if row.problem]
    for row in failed:
        print(f"{row.model}: {row.problem}", file=sys.stderr)
    report([row for row in found if not row.problem])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
