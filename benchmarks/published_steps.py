"""Published training steps on GPUs that nobody here measured: how far predictions are off.

    python benchmarks/published_steps.py [--data FOLDER] [--estimator NAME ...] [--by device|model]

Three tables of steps on one GPU (by default in `../shared/data/published`), from a GTX Titan X to
an H100. None of them times an optimizer, so forward and backward alone are compared:

- pytorch-gpu-benchmark: torchvision's networks, 12 images a step, fp32 and pure fp16, with the
  copy of the batch to the device, which is added here as pageable memory over PCIe; small networks
  are bound by a host that is not known. Laptop parts and GPUs outside the catalog are left out.
- classic CNN benchmarks of 2015 to 2018: Torch7, PyTorch 0.3, Caffe2, TensorFlow, with cuDNN 4 to
  7; runs without cuDNN are left out.
- NeuSight: BERT and GPT-like models in fp32, PyTorch 2.1, attention as separate products.

Printed for each GPU and estimator: runs, mean absolute error, bias (above 0: predicted too long),
the rank correlation of samples/s, and the 5th and 95th percentile of measured over predicted.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from traincast.errors import TraincastError
from traincast.hardware import load_device
from traincast.ingest import resolve
from traincast.measure.adjust import rank_correlation
from traincast.simulate.predict import predict

DATA = Path(__file__).resolve().parents[2] / "shared/data/published"
TABLES = (
    "pytorch_gpu_benchmark_train",
    "classic_cnn_single_gpu",
    "neusight_transformer_train_labels",
)
PAGEABLE = 6e9
"""Bytes/s of a copy from pageable host memory."""
DEVICES = {
    "GeForce RTX 2080 Ti V2": "rtx-2080-ti", "TITAN Xp": "titan-xp", "A100-SXM4-40GB": "a100-40gb",
    "TITAN V": "titan-v", "Titan V": "titan-v", "1080 Ti": "gtx-1080-ti", "2080 Ti": "rtx-2080-ti",
    "Titan X (Maxwell)": "titan-x", "TITAN X": "titan-x-pascal", "V100": "v100",
    "GeForce GTX 1080": "gtx-1080", "GeForce GTX 1080 Ti": "gtx-1080-ti",
    "GeForce RTX 2080 Ti": "rtx-2080-ti", "GeForce RTX 3090": "rtx-3090",
    "NVIDIA A100 80GB PCIe": "a100-80gb-pcie", "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA L4": "l4", "Tesla V100-PCIE-32GB": "v100-pcie", "AMD Instinct MI100": "mi100",
    "AMD Instinct MI210": "mi210", "AMD Instinct MI250": "mi250",
}  # fmt: skip
"""Catalog names; a GPU that is not here is left out and counted."""
NETWORKS = {
    "alexnet_owt": "alexnet", "vgg_a (vgg11)": "vgg11", "overfeat_fast": "overfeat",
    "googlenet-v1": "googlenet", "googlenet_v1": "googlenet", "resnet-18": "resnet18",
    "resnet-34": "resnet34", "resnet-50": "resnet50", "resnet-101": "resnet101",
    "resnet-152": "resnet152",
}  # fmt: skip
ZOO = ("alexnet", "vgg11", "vgg16", "vgg19", "googlenet", "overfeat", "resnet18", "resnet34",
       "resnet50", "resnet101", "resnet152", "densenet121", "mobilenet_v2", "mobilenet_v3_large",
       "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_0", "squeezenet1_1")  # fmt: skip
CONFIGS = {
    "bert_large": {"model_type": "bert", "hidden_size": 1024, "num_hidden_layers": 24,
                   "num_attention_heads": 16, "intermediate_size": 4096},
    "opt_13": {"model_type": "opt", "hidden_size": 2048, "num_hidden_layers": 24,
               "num_attention_heads": 32, "ffn_dim": 8192, "max_position_embeddings": 2048,
               "word_embed_proj_dim": 2048},
    "gpt3_27": {"model_type": "gpt2", "n_embd": 2560, "n_layer": 32, "n_head": 32,
                "n_positions": 2048},
}  # fmt: skip


class Run(NamedTuple):
    """A published step."""

    table: str
    device: str
    model: str
    batch: int
    seq: int | None
    precision: str
    seconds: float
    copied: float
    """Bytes copied to the device within the step."""


def published(folder: Path, left: dict[str, int]) -> Iterator[Run]:
    """Yield the runs that can be predicted; count the others by reason."""
    for table in TABLES:
        with gzip.open(folder / f"{table}.csv.gz", "rt", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                found = _run(table, row)
                if isinstance(found, str):
                    left[found] += 1
                else:
                    yield found


def _run(table: str, row: Mapping[str, str]) -> Run | str:
    device = DEVICES.get(row["device"])
    if row["n_devices"] != "1":
        return "several GPUs"
    if device is None:
        return f"{row['device']} is not in the catalog, or is a CPU or a laptop part"
    if row["precision"] == "fp64":
        return "fp64"
    if any(word in row["framework"] for word in ("native", "no cuDNN", "CL", "fbfft", "convnet2")):
        return "without cuDNN"
    model = NETWORKS.get(row["model"], row["model"])
    batch, seq, copied = int(row["micro_batch"]), None, 0.0
    if table.startswith("neusight"):
        if model not in CONFIGS:
            return f"{model} is not modelled"
        seq = int(row["seq"])
    else:
        if model not in ZOO and not table.startswith("pytorch"):
            return f"{model} is not modelled" if model == "resnet-200" else f"torchvision:{model}"
        model = model if model in ZOO else f"torchvision:{model}"
    precision = "fp16" if "fp16" in row["precision"] else "fp32"
    if table.startswith("pytorch"):
        copied = batch * 3 * 224 * 224 * (2.0 if precision == "fp16" else 4.0)
        if precision == "fp32" and "tf32" in load_device(device).matrix_flops:
            precision = "tf32"
    return Run(table, device, model, batch, seq, precision, float(row["step_time_s"]), copied)


def predicted(run: Run, estimator: str, root: Path, graphs: dict[str, object]) -> tuple[float, str]:
    """Return seconds of forward and backward, and whether device or host bounds them."""
    if run.model not in graphs:
        reference = f"hf:{root / run.model}.json" if run.seq else run.model
        graphs[run.model] = resolve(reference, seq=run.seq)
    found = predict(
        graphs[run.model], run.device, batch=run.batch, seq=run.seq, precision=run.precision,
        optimizer="sgd", estimator=estimator,
    ).step  # fmt: skip
    passes = ("forward", "backward")
    device, host = (sum(clock[p] for p in passes) for clock in (found.device_s, found.host_s))
    return max(device, host) + run.copied / PAGEABLE, "host" if host > device else "device"


def main() -> None:
    """Predict every run by every estimator and print the errors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--estimator", nargs="+", default=["roofline", "transfer"])
    parser.add_argument("--by", choices=("device", "model"), default="device")
    given = parser.parse_args()
    if not given.data.is_dir():
        sys.exit(f"{given.data} is not here; give the folder with --data")
    left: dict[str, int] = defaultdict(int)
    runs = sorted(published(given.data, left), key=lambda r: r.model)
    graphs: dict[str, object] = {}
    guess: dict[tuple[str, str], list[tuple[Run, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, config in CONFIGS.items():
            settings = {**config, "attn_implementation": "eager"}
            Path(folder, f"{name}.json").write_text(json.dumps(settings), encoding="utf-8")
        for run in runs:
            for estimator in given.estimator:
                try:
                    seconds, bound = predicted(run, estimator, Path(folder), graphs)
                except TraincastError as error:
                    left[str(error).splitlines()[0]] += 1
                    continue
                label = (
                    f"{getattr(run, given.by):22} {run.table.partition('_')[0]:9} {run.precision}"
                )
                guess[label, estimator].append((run, seconds))
                guess[f"all {run.table.partition('_')[0]}", estimator].append((run, seconds))
                guess[f"all, bound by {bound}", estimator].append((run, seconds))
    print(f"{'':40} {'estimator':10} runs    MAPE    bias    rank   90 %")
    for (label, estimator), found in sorted(guess.items()):
        measured = np.array([run.seconds for run, _ in found])
        seconds = np.array([value for _, value in found])
        batch = np.array([run.batch for run, _ in found])
        off = seconds / measured - 1.0
        rank = rank_correlation(batch / seconds, batch / measured)
        low, high = np.quantile(measured / seconds, [0.05, 0.95])
        print(f"{label:40} {estimator:10} {len(off):4} {abs(off).mean():7.1%} {off.mean():+7.1%} "
              f"{rank:7.3f}   {low:.2f}–{high:.2f}")  # fmt: skip
    print(f"\nleft out: {sum(left.values())} rows")
    for why, count in sorted(left.items(), key=lambda item: -item[1]):
        print(f"{count:5}  {why[:110]}")


if __name__ == "__main__":
    main()
