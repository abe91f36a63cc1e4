"""Functions that are recorded whole, since a CPU would expand them in another way than a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses import FakeTensor
from torch.utils._pytree import tree_flatten

from traincast.graph import Attr
from traincast.ingest.pytorch.recorder import Recorder, is_tensor


def _without_dropout(attention: Callable[..., Any]) -> Callable[..., Any]:
    """Return attention that ignores its dropout.

    With dropout a CPU takes another path than a GPU, and leaves its result in another memory order.
    """

    def run(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Any:
        return attention(query, key, value, attn_mask, 0.0, is_causal, **kwargs)

    return run


def _shape_alone(batch_norm: Callable[..., Any]) -> Callable[..., Any]:
    """Return batch normalisation that only makes a tensor of the right form.

    On fake tensors PyTorch takes it apart into a dozen ops, which cost more than all others of a
    convolutional network together. Whatever is out of the ordinary still goes that way.
    """

    def run(x: Any, weight: Any, bias: Any, mean: Any, variance: Any, *rest: Any) -> Any:
        lengths = {tuple(t.shape) for t in (weight, bias, mean, variance) if t is not None}
        plain = isinstance(x, FakeTensor) and x.requires_grad and x.dim() > 1
        if plain and lengths <= {(x.shape[1],)}:
            # Its gradients may be asked for within the forward pass.
            around = [1] * (x.dim() - 2)
            scale, shift = (t if t is None else t.view(-1, *around) for t in (weight, bias))
            y = x.clone() if scale is None else x * scale
            return y if shift is None else y + shift
        return batch_norm(x, weight, bias, mean, variance, *rest)

    return run


def _linear(rec: Recorder, out: Any, x: Any, weight: Any, bias: Any = None) -> bool:
    base, steps = rec.base_of(weight)
    if rec.role_of(base) != "parameter" or steps or x.dim() == 0 or weight.dim() != 2:
        return False
    rec.add("linear", [x, base, *([bias] if bias is not None else [])], [out], label="linear")
    return True


def _attention(
    rec: Recorder,
    out: Any,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **_: Any,
) -> bool:
    mask = [attn_mask] if attn_mask is not None else []
    attrs: dict[str, Attr] = {"causal": bool(is_causal)}
    if dropout_p:
        attrs["dropout"] = float(dropout_p)
    rec.add("attention", [query, key, value, *mask], [out], attrs)
    return True


def _dropout(
    rec: Recorder,
    out: Any,
    x: Any,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> bool:
    if training and p > 0:
        rec.add("dropout", [x], [out], {"p": float(p)})
    elif out is not x:
        rec.add("view", [x], [out], {"fn": "alias"})
    return True


def _cross_entropy(
    rec: Recorder, out: Any, x: Any, target: Any, weight: Any = None, **options: Any
) -> bool:
    plain = weight is None and not options.get("label_smoothing") and target.dtype == torch.int64
    if not plain or options.get("reduction", "mean") == "none":
        return False
    rec.add("cross_entropy", [x, target], [out])
    return True


def _batch_norm(rec: Recorder, out: Any, x: Any, *rest: Any) -> bool:
    rec.add("batch_norm", [x, *(t for t in rest[:2] if t is not None)], [out])
    return True


def _rms_norm(
    rec: Recorder, out: Any, x: Any, normalized_shape: Any, weight: Any = None, eps: Any = None
) -> bool:
    affine = [weight] if weight is not None else []
    rec.add("rms_norm", [x, *affine], [out], {"axes": len(normalized_shape)})
    return True


def _recurrent(cell: str) -> Callable[..., bool]:
    def capture(rec: Recorder, out: Any, *args: Any, **_: Any) -> bool:
        packed = not isinstance(args[2], list | tuple)
        if packed:
            x, sizes, _, weights, _, layers, dropout, _, bidirectional = args[:9]
            batch_first = False
        else:
            x, _, weights, _, layers, dropout, _, bidirectional, batch_first = args[:9]
        hidden = weights[1].shape[-1]
        attrs: dict[str, Attr] = {
            "cell": cell,
            "hidden": int(hidden),
            "layers": int(layers),
            "bidirectional": bool(bidirectional),
            "batch_first": bool(batch_first),
        }
        if dropout:
            attrs["dropout"] = float(dropout)
        if packed:
            attrs["steps"] = int(sizes.shape[0])
        rec.add("rnn", [x, *weights], [t for t in tree_flatten(out)[0] if is_tensor(t)], attrs)
        return True

    return capture


def _cell(kind: str) -> Callable[..., bool]:
    """Return what records one step of a recurrent layer as a GPU runs it.

    Two products without biases, then one kernel for all gates; a CPU takes the gates apart.
    """

    def capture(
        rec: Recorder, out: Any, x: Any, state: Any, w_in: Any, w_state: Any, *biases: Any
    ) -> bool:
        h, *c = state if isinstance(state, list | tuple) else [state]
        gates = []
        for value, weight in ((x, w_in), (h, w_state)):
            with rec.whole(), torch.no_grad():
                made = value.new_empty(*value.shape[:-1], weight.shape[0])
            if not _linear(rec, made, value, weight):
                rec.add("matmul", [value, weight], [made])
            gates.append(made)
        given = [*gates, *(c or [h]), *(b for b in biases if b is not None)]
        outs = [t for t in tree_flatten(out)[0] if is_tensor(t)]
        rec.add("unknown", given, outs, {"fn": kind})
        return True

    return capture


class Composite(NamedTuple):
    """A function that is recorded whole."""

    owner: Any
    name: str
    capture: Callable[..., bool]
    """Records a call, or declines and lets its parts be recorded."""
    stand_in: Callable[[Callable[..., Any]], Callable[..., Any]] = lambda original: original
    """What runs in its place."""


COMPOSITES = (
    Composite(F, "linear", _linear),
    Composite(F, "scaled_dot_product_attention", _attention, _without_dropout),
    Composite(F, "dropout", _dropout),
    Composite(F, "cross_entropy", _cross_entropy),
    Composite(F, "rms_norm", _rms_norm),
    Composite(torch, "batch_norm", _batch_norm, _shape_alone),
    Composite(torch._VF, "lstm", _recurrent("lstm")),
    Composite(torch._VF, "gru", _recurrent("gru")),
    Composite(torch._VF, "lstm_cell", _cell("lstm_cell")),
    Composite(torch._VF, "gru_cell", _cell("gru_cell")),
    Composite(torch._VF, "rnn_tanh", _recurrent("rnn")),
    Composite(torch._VF, "rnn_relu", _recurrent("rnn")),
)
