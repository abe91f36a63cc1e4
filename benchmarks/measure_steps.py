"""Measure real training steps of many networks on this machine, as a table that accuracy.py reads.

    python benchmarks/measure_steps.py OUT.csv [--minutes 8]

Needs torch, torchvision and transformers; traincast itself is taken from src/. Each row is measured
as `traincast measure` does it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from traincast.measure.steps import measure
from traincast.measure.table import COLUMNS, run_columns, table_row, workload_of

VISION = (
    ("resnet101", 224, 64), ("resnext50_32x4d", 224, 64), ("wide_resnet50_2", 224, 64),
    ("densenet161", 224, 32), ("mobilenet_v3_large", 224, 128), ("mnasnet1_0", 224, 128),
    ("regnet_y_3_2gf", 224, 128), ("efficientnet_v2_s", 300, 64), ("squeezenet1_0", 224, 128),
    ("googlenet?aux_logits=false", 224, 128), ("swin_t", 224, 64), ("convnext_small", 224, 64),
    ("vgg11_bn", 224, 64), ("vit_b_32", 224, 128),
)  # fmt: skip
TEXT = {
    "gpt2-medium": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 24,
                    "n_embd": 1024, "n_head": 16, "use_cache": False, "resid_pdrop": 0.0,
                    "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bert-large": {"model_type": "bert", "architectures": ["BertForMaskedLM"],
                   "num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16,
                   "intermediate_size": 4096, "hidden_dropout_prob": 0.0,
                   "attention_probs_dropout_prob": 0.0},
    "qwen-like-500m": {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
                       "num_hidden_layers": 24, "hidden_size": 896, "num_attention_heads": 14,
                       "num_key_value_heads": 2, "intermediate_size": 4864, "vocab_size": 151936,
                       "tie_word_embeddings": True, "use_cache": False},
}  # fmt: skip


def cases() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for name, image, batch in VISION:
        for precision, layout, size in (
            ("amp_bf16", "nchw", batch), ("amp_bf16", "nhwc", 2 * batch), ("tf32", "nchw", batch),
            ("fp32", "nchw", batch // 2),
        ):  # fmt: skip
            found.append(
                {"model": f"torchvision:{name}", "image": str(image), "batch": str(size), "seq": "",
                 "precision": precision, "optimizer": "sgd", "layout": layout}
            )  # fmt: skip
    for name in TEXT:
        for precision, batch, seq in (("bf16", 8, 1024), ("amp_bf16", 8, 512), ("tf32", 4, 512)):
            seq = min(seq, 512) if "bert" in name else seq  # noqa: PLW2901
            found.append(
                {"model": f"hf:{name}.json", "image": "", "batch": str(batch), "seq": str(seq),
                 "precision": precision, "optimizer": "adamw", "layout": ""}
            )  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    options = parser.parse_args()
    device = os.environ.get("DEVICE", "h200")
    deadline = time.monotonic() + 60 * options.minutes
    for name, config in TEXT.items():
        (options.out.parent / f"{name}.json").write_text(json.dumps(config, indent=1))
    with options.out.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        for case in cases():
            if time.monotonic() > deadline:
                print("out of time")
                break
            found = measure(workload_of(case, unit=None, root=options.out.parent))
            row = table_row(run_columns(found, device)) | case
            table.writerow(row)
            file.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
