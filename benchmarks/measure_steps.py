"""Measure real training steps on this machine's GPU, as a table that accuracy.py reads.

    python benchmarks/measure_steps.py OUT.csv [--minutes 8]

Needs torch, torchvision and transformers, nothing of traincast. Random data lies on the device;
each step is zero_grad(set_to_none), forward, loss, backward, update; five warm-up steps, then
timed ones with CUDA events and no synchronisation in between.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import os
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812

COLUMNS = ("model", "image", "batch", "seq", "precision", "optimizer", "layout", "mode", "step_ms",
           "step_p10", "step_p90", "fwd_ms", "bwd_ms", "opt_ms", "peak_gib", "error",
           "device")  # fmt: skip
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


def cases() -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for name, image, batch in VISION:
        for precision, layout, size in (
            ("amp_bf16", "nchw", batch), ("amp_bf16", "nhwc", 2 * batch), ("tf32", "nchw", batch),
            ("fp32", "nchw", batch // 2),
        ):  # fmt: skip
            found.append(
                {"model": f"torchvision:{name}", "image": image, "batch": size, "seq": "",
                 "precision": precision, "optimizer": "sgd", "layout": layout}
            )  # fmt: skip
    for name in TEXT:
        for precision, batch, seq in (("bf16", 8, 1024), ("amp_bf16", 8, 512), ("tf32", 4, 512)):
            seq = min(seq, 512) if "bert" in name else seq  # noqa: PLW2901
            found.append({"model": f"hf:{name}.json", "image": "", "batch": batch, "seq": seq,
                          "precision": precision, "optimizer": "adamw", "layout": ""})  # fmt: skip
    return found


def build(case: dict[str, object]) -> torch.nn.Module:
    kind, _, name = str(case["model"]).partition(":")
    if kind == "torchvision":
        import torchvision

        name, _, query = name.partition("?")
        options = {"aux_logits": False, "init_weights": False} if query else {}
        return torchvision.models.get_model(name, weights=None, **options)
    import transformers

    data = dict(TEXT[name.removesuffix(".json")])
    config = transformers.AutoConfig.for_model(data.pop("model_type"), **data)
    return getattr(transformers, config.architectures[0])(config)


def step_of(case: dict[str, object]) -> tuple[object, ...]:
    """Return forward, backward and update as functions of no arguments."""
    precision, batch = str(case["precision"]), int(str(case["batch"]))
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    module = build(case).train().cuda()
    if precision == "bf16":
        module = module.to(torch.bfloat16)
    cast = contextlib.nullcontext()
    if precision == "amp_bf16":
        cast = torch.autocast("cuda", dtype=torch.bfloat16)
    if case["seq"]:
        ids = torch.randint(0, 1000, (batch, int(str(case["seq"]))), device="cuda")

        def forward() -> torch.Tensor:
            with cast:
                return module(input_ids=ids, labels=ids).loss

    else:
        side = int(str(case["image"]))
        x = torch.randn(batch, 3, side, side, device="cuda")
        if case["layout"] == "nhwc":
            module = module.to(memory_format=torch.channels_last)
            x = x.to(memory_format=torch.channels_last)
        target = torch.randint(0, 1000, (batch,), device="cuda")

        def forward() -> torch.Tensor:
            with cast:
                return F.cross_entropy(module(x), target)

    if case["optimizer"] == "sgd":
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(module.parameters(), lr=1e-5, fused=True)
    return forward, optimizer


def measure(case: dict[str, object]) -> dict[str, object]:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    forward, optimizer = step_of(case)
    marks: list[list[torch.cuda.Event]] = []

    def one() -> None:
        marks.append([torch.cuda.Event(enable_timing=True) for _ in range(4)])
        marks[-1][0].record()
        optimizer.zero_grad(set_to_none=True)
        loss = forward()
        marks[-1][1].record()
        loss.backward()
        marks[-1][2].record()
        optimizer.step()
        marks[-1][3].record()

    for _ in range(5):
        one()
    torch.cuda.synchronize()
    marks.clear()
    started = time.perf_counter()
    while len(marks) < 8 or (time.perf_counter() - started < 1.5 and len(marks) < 40):
        one()
    torch.cuda.synchronize()
    steps = sorted(a[0].elapsed_time(b[0]) for a, b in itertools.pairwise(marks))
    parts = [statistics.median(m[i].elapsed_time(m[i + 1]) for m in marks) for i in range(3)]
    return {
        "step_ms": statistics.median(steps),
        "step_p10": steps[len(steps) // 10],
        "step_p90": steps[-1 - len(steps) // 10],
        "fwd_ms": parts[0],
        "bwd_ms": parts[1],
        "opt_ms": parts[2],
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=8)
    options = parser.parse_args()
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
            row = {**case, "device": os.environ.get("DEVICE", "h200")}
            try:
                row |= measure(case)
            except torch.cuda.OutOfMemoryError:
                row["error"] = "oom"
            table.writerow(row)
            file.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
