"""Predicted against measured training steps on this machine's CPU, after a quick calibration.

    python benchmarks/cpu_accuracy.py [--minutes 2] [--keep FOLDER] [MODEL,BATCH[,IMAGE] …]

Calibrates into a folder of its own, as `traincast calibrate --quick` does, then measures each
network and predicts it, as `traincast validate --measure` does, and prints the table. The networks
are not among what is calibrated: that is single kernels. The machine should do nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

NETWORKS = (
    "resnet18,8", "mobilenet_v2,8", "torchvision:vgg11,4,112", "squeezenet1_1,16",
    "densenet121,4", "timm:vit_tiny_patch16_224,8", "hf:gpt2.json,8", "own.py:cnn,64",
)  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 4, "n_embd": 256,
    "n_head": 4, "n_positions": 512, "vocab_size": 8000,
}  # fmt: skip
OWN = """
import torch
from torch import nn


def block(cin, cout):
    first, second = nn.Conv2d(cin, cout, 3, padding=1), nn.Conv2d(cout, cout, 3, padding=1)
    return nn.Sequential(first, nn.BatchNorm2d(cout), nn.ReLU(), second, nn.ReLU(), nn.MaxPool2d(2))


def cnn():
    head = nn.Sequential(nn.Flatten(), nn.Linear(2048, 256), nn.ReLU(), nn.Linear(256, 10))
    net = nn.Sequential(block(3, 32), block(32, 64), block(64, 128), head)
    return net, torch.randn(8, 3, 32, 32)
"""


def main() -> None:
    """Calibrate, measure, predict, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="MODEL,BATCH[,IMAGE]")
    parser.add_argument("--minutes", default="2", help="how long to calibrate; default 2")
    parser.add_argument("--keep", type=Path, help="keep profile, runs and store in this folder")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRAINCAST_PROFILES"] = str(folder)
        os.environ["TRAINCAST_STORE"] = str(folder / "store.db")
        (folder / "gpt2.json").write_text(json.dumps(GPT2))
        (folder / "own.py").write_text(OWN)
        table = folder / "networks.csv"
        with table.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(("model", "batch", "image", "seq", "precision", "optimizer"))
            for entry in options.networks:
                model, batch, image = (*entry.split(","), "")[:3]
                seq = "128" if model.startswith("hf:") else ""
                out.writerow((model, batch, image, seq, "fp32", "adamw"))
        _traincast("calibrate", "--device", "cpu", "--minutes", options.minutes)
        _traincast("validate", "--measure", str(table), "--all")


def _traincast(*words: str) -> None:
    subprocess.run((sys.executable, "-m", "traincast", *words), check=True)


if __name__ == "__main__":
    main()
