"""The backward pass derived by rule, against the aten ops of real training steps."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch", reason="runs real training steps")
from traincast.ingest.pytorch.sources import declare_torchvision_ops, hf_config_source

declare_torchvision_ops()
pytest.importorskip("torchvision", reason="builds the networks")
pytest.importorskip("transformers", reason="builds the language models")

import torch
from ours import figures
from reference import NOT_COUNTED, measure

from traincast.ingest.pytorch.probe import Source, trace_source
from traincast.ingest.zoo import module_source

TINY_LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 128,
}
TINY_GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "n_layer": 2,
    "n_embd": 64,
    "n_head": 4,
    "vocab_size": 128,
}
TINY_BERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 128,
}
ZOO = (
    "alexnet",
    "vgg11",
    "googlenet",
    "resnet18",
    "densenet121",
    "squeezenet1_1",
    "mobilenet_v3_small",
    "shufflenet_v2_x1_0",
    "efficientnet_b0",
    "regnet_y_400mf",
    "swin_t",
    "convnext_tiny",
    "vit_b_16",
    "unet",
    "mnist-large",
)


def source_of(name: str) -> Source:
    for key, config in (("llama", TINY_LLAMA), ("gpt2", TINY_GPT2), ("bert", TINY_BERT)):
        if name == key:
            return hf_config_source(config, key, key)
    if name == "unet":
        return module_source(name, image=64)
    return module_source(name)


def as_on_a_cpu(ops: Counter[str]) -> Counter[str]:
    """Spell our kernels as the aten ops of a CPU run.

    One aten op computes all gradients of a convolution; dropout is a product with its mask;
    attention is the CPU's fused kernel.
    """
    spelled: Counter[str] = Counter()
    for name, count in ops.items():
        base = {
            "native_dropout_backward": "mul",
            "_scaled_dot_product_attention_backward": (
                "_scaled_dot_product_flash_attention_for_cpu_backward"
            ),
        }.get(name, name)
        if base.startswith("convolution_backward"):
            if base.endswith(".weight"):
                spelled["convolution_backward"] += count
        elif base not in NOT_COUNTED:
            spelled[base] += count
    return spelled


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ZOO, "llama", "gpt2", "bert"])
def test_backward_ops_equal_those_of_a_real_step(name: str) -> None:
    source = source_of(name)
    seq = 16 if source.seq else 0
    real = measure(source, 2, seq, torch.float32, real=True)
    ours = figures(trace_source(source), 2, seq, "fp32")
    assert as_on_a_cpu(ours.backward_ops) == real.backward_ops
