"""Measure real training steps of many networks on this machine, as a table that accuracy.py reads.

    python benchmarks/measure_steps.py OUT.csv [--suite first|second|third|…] [--minutes 8]

Needs torch, torchvision and transformers; traincast itself is taken from src/. Each row is measured
as `traincast measure` does it, in an order that has some of every network early. The second suite
has other networks, ten of them written by hand; the third has further ones, fourteen written by
hand, and the first's again at other sizes, with their forward passes alone. `unseen`, `fresh` and
`blind` are networks by hand alone; the last are by another hand.
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

from traincast.errors import TraincastError
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


SECOND_VISION = (
    ("resnet34", 224, 64), ("resnet152", 224, 32), ("mobilenet_v3_small", 224, 128),
    ("efficientnet_b3", 300, 32), ("regnet_x_1_6gf", 224, 64), ("swin_s", 224, 32),
    ("vgg19_bn", 224, 32), ("maxvit_t", 224, 32), ("squeezenet1_1", 224, 128),
    ("densenet169", 224, 32), ("vit_l_16", 224, 16), ("convnext_base", 224, 32),
    ("vgg13", 224, 64), ("mnasnet0_5", 224, 128),
)  # fmt: skip
SECOND_TEXT = {
    "opt-like-125m": {"model_type": "opt", "architectures": ["OPTForCausalLM"], "dropout": 0.0,
                      "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
                      "ffn_dim": 3072, "word_embed_proj_dim": 768, "use_cache": False},
    "distilbert-like": {"model_type": "distilbert", "architectures": ["DistilBertForMaskedLM"],
                        "n_layers": 6, "dim": 768, "n_heads": 12, "hidden_dim": 3072},
    "t5-like-small": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"],
                      "d_model": 512, "d_ff": 2048, "num_layers": 6, "num_heads": 8,
                      "vocab_size": 32128, "use_cache": False},
    "mistral-like-400m": {"model_type": "mistral", "architectures": ["MistralForCausalLM"],
                          "num_hidden_layers": 16, "hidden_size": 1024,
                          "num_attention_heads": 16, "num_key_value_heads": 4,
                          "intermediate_size": 3584, "vocab_size": 32000,
                          "sliding_window": None, "use_cache": False},
}  # fmt: skip
HANDMADE = (
    ("unet", 8), ("speech", 16), ("recurrent", 64), ("encoder", 32), ("tiny", 64),
    ("clicks", 4096), ("diffusion", 64), ("auto", 64), ("mixer", 64), ("perceptron", 4096),
)  # fmt: skip

THIRD_VISION = (
    ("resnext101_32x8d", 224, 32), ("wide_resnet101_2", 224, 32), ("regnet_y_400mf", 224, 128),
    ("regnet_x_8gf", 224, 32), ("efficientnet_b1", 240, 64), ("vgg19", 224, 32),
    ("shufflenet_v2_x2_0", 224, 128), ("densenet201", 224, 32), ("swin_v2_t", 256, 32),
    ("convnext_large", 224, 16), ("mnasnet1_3", 224, 64),
)  # fmt: skip
THIRD_TEXT = {
    "pythia-like-160m": {"model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"],
                         "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
                         "intermediate_size": 3072, "vocab_size": 50304, "use_cache": False},
    "roberta-like-base": {"model_type": "roberta", "architectures": ["RobertaForMaskedLM"],
                          "vocab_size": 50265, "max_position_embeddings": 514,
                          "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
    "bart-like-base": {"model_type": "bart", "architectures": ["BartForConditionalGeneration"],
                       "d_model": 768, "encoder_layers": 6, "decoder_layers": 6,
                       "encoder_attention_heads": 12, "decoder_attention_heads": 12,
                       "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, "use_cache": False},
    "gemma-like-300m": {"model_type": "gemma", "architectures": ["GemmaForCausalLM"],
                        "num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 8,
                        "num_key_value_heads": 1, "head_dim": 128, "intermediate_size": 4096,
                        "vocab_size": 64000, "use_cache": False},
}  # fmt: skip
UNSEEN = (
    ("language", 8), ("translator", 32), ("reviews", 64), ("clips", 8), ("pairs", 64),
    ("field", 1024), ("sharpen", 16), ("experts", 32), ("graphs", 16), ("waves", 8),
    ("squeeze", 64), ("steps", 256), ("linear", 32), ("taste", 8192),
)  # fmt: skip
FRESH = (
    ("small_images", 256), ("characters", 32), ("variational", 128), ("tagger", 64),
    ("points", 32), ("scan", 4), ("adverts", 2048), ("mixture", 16), ("speech", 16),
    ("atrous", 8), ("patches", 64),
)  # fmt: skip
BLIND = (
    ("odd_resnet", 64), ("rotary_lm", 4), ("text_encoder", 24), ("noise_unet", 8),
    ("pocket_net", 64), ("lstm_tagger", 32), ("patch14_vit", 32), ("depthwise_five", 24),
    ("wave_tagger", 24), ("clip_net", 8), ("click_model", 8192), ("gated_mixer", 24),
    ("pyramid_detector", 8), ("image_text_pair", 64), ("tabular_resnet", 2048),
    ("concat_net", 32), ("adversarial_pair", 24), ("translator", 16),
)  # fmt: skip
FOURTH_VISION = (
    ("resnext101_64x4d", 224, 16), ("regnet_y_800mf", 224, 64), ("regnet_x_400mf", 224, 64),
    ("regnet_y_8gf", 224, 32), ("efficientnet_b2", 260, 32), ("efficientnet_b4", 380, 16),
    ("efficientnet_v2_m", 384, 16), ("vgg11", 224, 64), ("vgg13_bn", 224, 32),
    ("mnasnet0_75", 224, 64), ("shufflenet_v2_x0_5", 224, 128), ("swin_b", 224, 32),
    ("swin_v2_s", 256, 16), ("vit_l_32", 224, 32),
)  # fmt: skip
FOURTH_TEXT = {
    "electra-like-base": {"model_type": "electra", "architectures": ["ElectraForMaskedLM"],
                          "embedding_size": 768, "num_hidden_layers": 12, "hidden_size": 768,
                          "num_attention_heads": 12, "intermediate_size": 3072},
    "albert-like-base": {"model_type": "albert", "architectures": ["AlbertForMaskedLM"],
                         "embedding_size": 128, "num_hidden_layers": 12, "hidden_size": 768,
                         "num_attention_heads": 12, "intermediate_size": 3072},
    "bloom-like-300m": {"model_type": "bloom", "architectures": ["BloomForCausalLM"],
                        "hidden_size": 1024, "n_layer": 12, "n_head": 16, "vocab_size": 64000,
                        "use_cache": False},
    "phi-like-300m": {"model_type": "phi", "architectures": ["PhiForCausalLM"],
                      "num_hidden_layers": 14, "hidden_size": 1024, "num_attention_heads": 16,
                      "intermediate_size": 4096, "vocab_size": 51200, "use_cache": False},
    "qwen3-like-400m": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"],
                        "num_hidden_layers": 20, "hidden_size": 1024, "num_attention_heads": 16,
                        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
                        "vocab_size": 50000, "use_cache": False},
    "olmo2-like-300m": {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"],
                        "num_hidden_layers": 14, "hidden_size": 1024, "num_attention_heads": 16,
                        "intermediate_size": 4096, "vocab_size": 50304, "use_cache": False},
    "deberta-like-base": {"model_type": "deberta-v2", "architectures": ["DebertaV2ForMaskedLM"],
                          "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
                          "intermediate_size": 3072, "vocab_size": 128100,
                          "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "mixtral-like-600m": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"],
                          "num_hidden_layers": 8, "hidden_size": 768, "num_attention_heads": 12,
                          "num_key_value_heads": 4, "intermediate_size": 2048,
                          "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000,
                          "use_cache": False},
    "gemma2-like-400m": {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"],
                         "num_hidden_layers": 12, "hidden_size": 1024, "num_attention_heads": 8,
                         "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 4096,
                         "vocab_size": 64000, "use_cache": False},
    "vit-like-base": {"model_type": "vit", "architectures": ["ViTForImageClassification"],
                      "num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12,
                      "intermediate_size": 3072},
    "segformer-like-b1": {"model_type": "segformer",
                          "architectures": ["SegformerForImageClassification"]},
    "wav2vec2-like": {"model_type": "wav2vec2", "architectures": ["Wav2Vec2ForCTC"]},
}  # fmt: skip
HERE = Path(__file__).resolve().parent / "data/h200"


def _row(model: str, batch: int, precision: str, **more: object) -> dict[str, str]:
    row = {"model": model, "image": "", "batch": batch, "seq": "", "precision": precision,
           "optimizer": "sgd", "layout": "", **more}  # fmt: skip
    return {name: str(value) for name, value in row.items()}


def first_suite() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for name, image, batch in VISION:
        for precision, layout, size in (
            ("amp_bf16", "nchw", batch), ("amp_bf16", "nhwc", 2 * batch), ("tf32", "nchw", batch),
            ("fp32", "nchw", batch // 2),
        ):  # fmt: skip
            found.append(_row(f"torchvision:{name}", size, precision, image=image, layout=layout))
    for name in TEXT:
        for precision, batch, seq in (("bf16", 8, 1024), ("amp_bf16", 8, 512), ("tf32", 4, 512)):
            seq = min(seq, 512) if "bert" in name else seq  # noqa: PLW2901
            found.append(_row(f"hf:{name}.json", batch, precision, seq=seq, optimizer="adamw"))
    return found


def second_suite() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for turn in range(4):
        for place, (name, image, batch) in enumerate(SECOND_VISION):
            precision, layout, times = (
                ("fp32", "nchw", 1), ("amp_bf16", "nchw", 4), ("tf32", "nchw", 2),
                ("amp_bf16", "nhwc", 2), ("tf32", "nchw", 0.25), ("fp32", "nchw", 2),
                ("amp_bf16", "nchw", 0.5),
            )[(place + 2 * turn) % 7]  # fmt: skip
            size = max(1, int(batch * times))
            found.append(_row(f"torchvision:{name}", size, precision, image=image, layout=layout))
        for place, name in enumerate(SECOND_TEXT):
            precision, batch, seq = (
                ("bf16", 16, 512), ("tf32", 8, 512), ("amp_bf16", 16, 512), ("bf16", 2, 512)
            )[(place + turn) % 4]  # fmt: skip
            found.append(_row(f"hf:{name}.json", batch, precision, seq=seq, optimizer="adamw"))
        for place, (name, batch) in enumerate(HANDMADE):
            precision, times = (
                ("fp32", 1), ("amp_bf16", 4), ("tf32", 2), ("amp_bf16", 1)
            )[(place + turn) % 4]  # fmt: skip
            model = f"handmade.py:{name}"
            found.append(_row(model, batch * times, precision, optimizer="adamw"))
    return found


def third_suite() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for turn in range(3):
        for place, (name, batch) in enumerate(UNSEEN):
            precision, times = (("amp_bf16", 2), ("tf32", 1), ("fp32", 1))[(place + turn) % 3]
            found.append(_row(f"unseen.py:{name}", batch * times, precision, optimizer="adamw"))
        for place, (name, image, batch) in enumerate(THIRD_VISION):
            precision, layout, times = (
                ("amp_bf16", "nchw", 2), ("tf32", "nchw", 1), ("amp_bf16", "nhwc", 4),
                ("fp32", "nchw", 1),
            )[(place + turn) % 4]  # fmt: skip
            found.append(
                _row(f"torchvision:{name}", batch * times, precision, image=image, layout=layout)
            )
        for place, name in enumerate(THIRD_TEXT):
            precision, batch = (("bf16", 16), ("tf32", 8), ("amp_bf16", 16))[(place + turn) % 3]
            found.append(_row(f"hf:{name}.json", batch, precision, seq=512, optimizer="adamw"))
        if turn == 2:
            continue
        for place, (name, image, batch) in enumerate(VISION):
            precision, layout, times = (
                ("tf32", "nchw", 2), ("amp_bf16", "nchw", 0.25), ("fp32", "nchw", 1),
                ("amp_bf16", "nhwc", 1), ("tf32", "nchw", 0.25),
            )[(place + turn) % 5]  # fmt: skip
            size = int(batch * times)
            found.append(_row(f"torchvision:{name}", size, precision, image=image, layout=layout))
        for place, name in enumerate(TEXT):
            precision, batch = (("bf16", 4), ("tf32", 8), ("amp_bf16", 2))[(place + turn) % 3]
            found.append(_row(f"hf:{name}.json", batch, precision, seq=512, optimizer="adamw"))
    return found


def fourth_suite() -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for turn in range(3):
        for place, (name, image, batch) in enumerate(FOURTH_VISION):
            precision, layout, times = (
                ("amp_bf16", "nchw", 2), ("tf32", "nchw", 1), ("amp_bf16", "nhwc", 4),
                ("fp32", "nchw", 1), ("amp_bf16", "nchw", 0.5),
            )[(place + turn) % 5]  # fmt: skip
            size = int(batch * times)
            found.append(_row(f"torchvision:{name}", size, precision, image=image, layout=layout))
        for place, name in enumerate(FOURTH_TEXT):
            precision, batch = (
                ("bf16", 16), ("tf32", 8), ("amp_bf16", 16), ("fp32", 4), ("bf16", 4)
            )[(place + turn) % 5]  # fmt: skip
            seq = "" if FOURTH_TEXT[name]["model_type"] in ("vit", "segformer", "wav2vec2") else 512
            batch *= 1 if seq else 4
            found.append(_row(f"hf:{name}.json", batch, precision, seq=seq, optimizer="adamw"))
    return found


def by_hand_suite(file: str, networks: tuple[tuple[str, int], ...]) -> list[dict[str, str]]:
    """Return three ways of training each network: small and large, in all precisions."""
    ways = (("amp_bf16", 4), ("tf32", 1), ("fp32", 2), ("tf32", 4), ("amp_bf16", 1))
    return [
        _row(f"{file}.py:{name}", batch * ways[(place + turn) % 5][1],
             ways[(place + turn) % 5][0], optimizer="adamw")
        for turn in (0, 1, 2) for place, (name, batch) in enumerate(networks)
    ]  # fmt: skip


SUITES = {
    "unseen": (lambda: by_hand_suite("unseen", UNSEEN), {}),
    "fresh": (lambda: by_hand_suite("fresh", FRESH), {}),
    "blind": (lambda: by_hand_suite("blind", BLIND), {}),
    "first": (first_suite, TEXT), "second": (second_suite, SECOND_TEXT),
    "third": (third_suite, {**TEXT, **THIRD_TEXT}), "fourth": (fourth_suite, FOURTH_TEXT),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--suite", choices=SUITES, default="first")
    parser.add_argument("--minutes", type=float, default=8)
    options = parser.parse_args()
    cases, texts = SUITES[options.suite]
    device = os.environ.get("DEVICE", "h200")
    deadline = time.monotonic() + 60 * options.minutes
    for name, config in texts.items():
        (options.out.parent / f"{name}.json").write_text(json.dumps(config, indent=1))
    with options.out.open("w", newline="") as file:
        table = csv.DictWriter(file, COLUMNS, restval="")
        table.writeheader()
        for case in cases():
            if time.monotonic() > deadline:
                print("out of time")
                break
            try:
                root = HERE if ".py:" in case["model"] else options.out.parent
                found = measure(workload_of(case, unit=None, root=root))
            except TraincastError as problem:
                print("left out:", case["model"], problem, flush=True)
                continue
            row = table_row(run_columns(found, device)) | case
            table.writerow(row)
            file.flush()
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
