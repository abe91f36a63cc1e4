"""Configurations of published transformers, in the terms of the Transformers library.

Each is the configuration that the authors released with the weights, reduced to what shapes the
computation; sizes agree with the papers that `entries` cites. Text models are built with the
head they are pre-trained with: masked words for BERT, the next word for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _bert(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """Devlin et al. 2019, section 3 and appendix A.2: feed-forward 4×, GELU, dropout 0.1."""
    return {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": 30522,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "tie_word_embeddings": True,
    }


def _gpt2(layers: int, hidden: int, heads: int) -> dict[str, Any]:
    """Radford et al. 2019, table 2 (heads from the released weights); dropout 0.1."""
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": 50257,
        "n_positions": 1024,
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "activation_function": "gelu_new",
        "resid_pdrop": 0.1,
        "embd_pdrop": 0.1,
        "attn_pdrop": 0.1,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
    }


def _t5(layers: int, hidden: int, heads: int, inner: int) -> dict[str, Any]:
    """Raffel et al. 2020, section 3.7, version 1.0: ReLU, embeddings shared three ways."""
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "vocab_size": 32128,
        "d_model": hidden,
        "d_kv": 64,
        "d_ff": inner,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-6,
        "feed_forward_proj": "relu",
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "tie_word_embeddings": True,
    }


def _llama(
    layers: int, hidden: int, heads: int, inner: int, *, rope: float = 8.0, tied: bool = False
) -> dict[str, Any]:
    """Grattafiori et al. 2024, table 3: 8 key-value heads, SwiGLU, vocabulary 128,256."""
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 128256,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "hidden_act": "silu",
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "attention_bias": False,
        "attention_dropout": 0.0,
        "mlp_bias": False,
        "tie_word_embeddings": tied,
    }


CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "bert-base": _bert(12, 768, 12),
        "bert-large": _bert(24, 1024, 16),
        "gpt2": _gpt2(12, 768, 12),
        "gpt2-medium": _gpt2(24, 1024, 16),
        "gpt2-large": _gpt2(36, 1280, 20),
        "gpt2-xl": _gpt2(48, 1600, 25),
        "t5-small": _t5(6, 512, 8, 2048),
        "t5-base": _t5(12, 768, 12, 3072),
        "llama-3.2-1b": _llama(16, 2048, 32, 8192, rope=32.0, tied=True),
        "llama-3.2-3b": _llama(28, 3072, 24, 8192, rope=32.0, tied=True),
        "llama-3.1-8b": _llama(32, 4096, 32, 14336),
        "llama-3.1-70b": _llama(80, 8192, 64, 28672),
        "llama-3.1-405b": _llama(126, 16384, 128, 53248),
        "mixtral-8x7b": {
            # Jiang et al. 2024, table 1: 8 experts a layer, 2 of them for each token.
            "model_type": "mixtral",
            "architectures": ["MixtralForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "hidden_act": "silu",
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "sliding_window": None,
            "attention_dropout": 0.0,
            "router_aux_loss_coef": 0.02,
            "tie_word_embeddings": False,
        },
    }
)
"""Name in the zoo to configuration."""
