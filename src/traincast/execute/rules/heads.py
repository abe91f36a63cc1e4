"""torch.nn.MultiheadAttention, which is one function to PyTorch: two dense layers and attention."""

from __future__ import annotations

from typing import Any

import torch

from traincast.errors import InvalidValueError
from traincast.execute.rules.dense import attention, linear
from traincast.execute.session import Session
from traincast.execute.value import Sharded, rule


@rule("multi_head_attention_forward")
def multi_head(
    session: Session,
    func: Any,
    query: Sharded,
    key: Sharded,
    value: Sharded,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: torch.Tensor,
    out_proj_bias: Any,
    training: bool = True,
    key_padding_mask: Any = None,
    need_weights: bool = True,
    attn_mask: Any = None,
    **rest: Any,
) -> tuple[Sharded, None]:
    """Self-attention on (position, sample, channel)."""
    plain = query is key is value and bias_k is None and bias_v is None and not add_zero_attn
    if not plain or key_padding_mask is not None or need_weights or in_proj_weight is None:
        raise InvalidValueError(
            f"{session.here()}: multi-head attention is run split for self-attention without a "
            "padding mask and with need_weights=False"
        )
    x = query.transpose(0, 1)
    samples, length, channels = x.shape
    packed = linear(session, None, x, in_proj_weight, in_proj_bias)
    q, k, v = (
        t.reshape(samples, length, num_heads, channels // num_heads).transpose(1, 2)
        for t in packed.split(channels, 2)
    )
    drop = dropout_p if training else 0.0
    causal = bool(rest.get("is_causal")) and attn_mask is None
    y = attention(session, None, q, k, v, attn_mask, drop, causal)
    merged = y.transpose(1, 2).reshape(samples, length, channels)
    out = linear(session, None, merged, out_proj_weight, out_proj_bias)
    return out.transpose(0, 1), None
