"""What PyTorch itself says of a network: FLOPs counted, aten ops run backward, bytes kept.

A run is either on fake tensors (shapes without data; fast for any size) or for real.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from traincast.ingest.pytorch import passes
from traincast.ingest.pytorch.loss import loss_of
from traincast.ingest.pytorch.recorder import Recorder
from traincast.ingest.pytorch.source import Source

aten = torch.ops.aten

NOT_COUNTED = frozenset(
    """
    view _unsafe_view t transpose permute expand slice select unsqueeze squeeze split
    split_with_sizes unbind detach alias as_strided ones_like device new_empty_strided empty_like
    new_zeros zeros zeros_like scalar_tensor clone unsafe_split empty lift_fresh copy_ fill_
    """.split()  # noqa: SIM905
)
"""Views, allocation, and copies that depend on the memory order a device prefers."""


@dataclass
class Reference:
    forward_flops: int
    backward_flops: int
    backward_ops: Counter[str]
    kept_bytes: int


class _Log(TorchDispatchMode):
    """Counts aten ops, and the FLOPs by which FlopCounterMode is wrong on grouped convolutions.

    Its weight gradient treats every output channel as connected to every input channel: g times
    too many for g groups.
    """

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[str] = Counter()
        self.excess = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if func.namespace == "aten" and name not in NOT_COUNTED:
            self.ops[name] += 1
        if name == "convolution_backward" and args[-1][1] and args[-2] > 1:
            grad, x, weight, transposed, groups = args[0], args[1], args[2], args[7], args[-2]
            dense = x if transposed else grad
            sites = dense.numel() // dense.shape[1]
            full = 2 * sites * weight[0, 0].numel() * x.shape[1] * grad.shape[1]
            self.excess += full - full // groups
        return func(*args, **(kwargs or {}))


def _raw(function: Any) -> Any:
    function._get_raw = True
    return function


@_raw
def _attention(q: Any, k: Any, v: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    return sdpa_flop_count(q.shape, k.shape, v.shape)


@_raw
def _attention_backward(
    grad: Any, q: Any, k: Any, v: Any, *_: Any, out_val: Any = None, **__: Any
) -> int:
    return sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)


@_raw
def _grouped(a: Any, b: Any, *_: Any, out_val: Any = None, **__: Any) -> int:
    # Each of the rows meets one matrix, whichever group it is in: 2 · rows · in · out.
    if b.dim() == 3:
        return 2 * a.shape[0] * a.shape[1] * b.shape[2]
    return 2 * a.shape[0] * a.shape[1] * b.shape[1]


# PyTorch's own formulas for the ops that its counter leaves out on a CPU.
LEFT_OUT = {
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._grouped_mm: _grouped,
}


@contextlib.contextmanager
def _attention_without_dropout() -> Any:
    """A CPU has no fused attention with dropout; a GPU has, with the same products."""
    original = F.scaled_dot_product_attention

    def run(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **kwargs: Any,
    ) -> Any:
        return original(query, key, value, attn_mask, 0.0, is_causal, **kwargs)

    F.scaled_dot_product_attention = run
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original


def measure(
    source: Source,
    batch: int,
    seq: int,
    dtype: torch.dtype,
    *,
    real: bool = False,
) -> Reference:
    """Run a training step of a module and count."""
    if real:
        module = passes.in_type(source.build().train(), dtype)
        return _count(source, module, batch, seq, dtype)
    with torch.device("meta"):
        module = passes.in_type(passes.build(source).to("meta"), dtype)
    with FakeTensorMode(allow_non_fake_inputs=True):
        passes.materialise(module)
        return _count(source, module, batch, seq, dtype)


def _count(
    source: Source, module: torch.nn.Module, batch: int, seq: int, dtype: torch.dtype
) -> Reference:
    args, kwargs = passes.feed(source, (batch, seq), dtype)
    own = {t.untyped_storage()._cdata for t in [*module.parameters(), *module.buffers()]}
    kept: dict[int, int] = {}
    alive = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
            alive.append(storage)
        return tensor

    counting = FlopCounterMode(display=False, custom_mapping=LEFT_OUT)
    recorder = Recorder(module, dtype)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t),
        recorder.whole(),
        _attention_without_dropout(),
        counting,
    ):
        loss, _ = loss_of(recorder, module(*args, **kwargs))
    forward = counting.get_total_flops()
    counting = FlopCounterMode(display=False, custom_mapping=LEFT_OUT)
    log = _Log()
    with counting, log:  # the counter would take composite ops apart before they are logged
        loss.backward()
    backward = counting.get_total_flops() - log.excess
    return Reference(forward, backward, log.ops, sum(kept.values()))
