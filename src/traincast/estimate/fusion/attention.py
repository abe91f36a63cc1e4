"""Attention as compiled code runs it, which for transformers' models differs from eager mode.

While it is traced, transformers cannot look at the padding mask, so it never drops the mask
(`masking_utils._ignore_causal_mask_sdpa`; before PyTorch 2.14, none is ever dropped). Causal
attention then runs with an explicit mask and computes every position; shared heads of keys and
values are repeated (`sdpa_attention.use_gqa_in_sdpa`). The mask of attention to all positions is a
broadcast, which fused kernels refuse: PyTorch multiplies, masks and normalises in float32. On an
H200, BERT's compiled steps were half as long again as eager ones for that reason.
"""

from __future__ import annotations

from traincast.estimate.fusion.nests import CALL, ROWS, Key, Lowering, Read, probe, shaped
from traincast.estimate.program import OpClass, Spec
from traincast.graph import Op, Size


def masked(low: Lowering, cls: OpClass) -> bool:
    """Tell whether an attention gets a mask by being compiled."""
    return len(cls.ins) == 3 and low.graph.of_transformers


def _full(spec: Spec) -> Spec:
    return shaped(spec, spec.shape, "float32")


def _product(low: Lowering, a: Read, b: Read, out: Spec) -> Read:
    made = low.value(out, f"{low.index}")
    call = OpClass("matmul", (), (a.spec, b.spec), (out,))
    low.nest(CALL, (a, b), (made,), out, out, 0, call=call)
    return made


def _product_back(low: Lowering, given: Read, a: Read, b: Read) -> tuple[Read, Read]:
    made = low.value(_full(a.spec), f"{low.index}"), low.value(_full(b.spec), f"{low.index}")
    call = OpClass("matmul", (), (a.spec, b.spec), (given.spec,))
    low.nest(CALL, (given, a, b), made, given.spec, given.spec, 0, call=call)
    return made


def unfused(low: Lowering, op: Op, cls: OpClass, ins: tuple[Key, ...], out: Key) -> Read:
    """Lower attention to products and a softmax in float32."""
    q, k, v = (low.point(_full(s), (low.read(key),)) for s, key in zip(cls.ins, ins, strict=True))
    k, v = (_repeated(low, x, q.spec) for x in (k, v))
    scores = shaped(q.spec, (*q.spec.shape[:-1], k.spec.shape[-2]))
    raw = _product(low, q, k, scores)
    sums = low.reduce(ROWS, scores, shaped(scores, scores.shape[:-1]), (raw,), 2, ops=14)
    weights = low.point(scores, (raw, *sums), ops=2)
    y = _product(low, weights, v, _full(cls.outs[0]))
    low.notes[low.index] = (q, k, v, weights)
    return low.point(cls.outs[0], (y,), name=out[0])


def unfused_back(low: Lowering, cls: OpClass, ins: tuple[Key, ...], out: Key) -> None:
    """Lower the gradient of `unfused`."""
    q, k, v, weights = low.notes[low.index]
    given = low.point(_full(cls.outs[0]), (low.gradient(out),))
    of_weights, of_v = _product_back(low, given, weights, v)
    sums = low.reduce(ROWS, weights.spec, shaped(weights.spec, weights.spec.shape[:-1]),
                      (of_weights, weights))  # fmt: skip
    of_scores = low.point(weights.spec, (of_weights, weights, *sums), ops=3)
    of_q, of_k = _product_back(low, of_scores, q, k)
    for i, part in enumerate((of_q, of_k, of_v)):
        if cls.ins[i].grad:
            low.give(ins[i], _gathered(low, part, cls.ins[i]))


def _repeated(low: Lowering, x: Read, query: Spec) -> Read:
    """Repeat heads that several queries share."""
    if len(query.shape) != 4 or x.spec.shape[1] == query.shape[1]:
        return x
    shape = (x.spec.shape[0], query.shape[1], *x.spec.shape[2:])
    return low.point(shaped(x.spec, shape), (x,))


def _gathered(low: Lowering, part: Read, into: Spec) -> Read:
    """Add up the gradients of repeated heads."""
    if probe(part.spec) == probe(into):
        return part
    return low.reduce(ROWS, part.spec, shaped(into, into.shape), (part,))[0]


def with_mask(
    low: Lowering, cls: OpClass, ins: tuple[Key, ...]
) -> tuple[tuple[Read, ...], OpClass]:
    """Return what fused attention reads, and its class, with a mask instead of `causal`."""
    q = low.read(ins[0])
    k, v = (_repeated(low, low.read(key), cls.ins[0]) for key in ins[1:3])
    shape = (Size(1), Size(1), cls.ins[0].shape[-2], cls.ins[1].shape[-2])
    mask = low.value(Spec(shape, cls.ins[0].dtype, False, "buffer"), "mask")
    attrs = tuple((a, False if a == "causal" else value) for a, value in cls.attrs)
    specs = (q.spec, k.spec._replace(grad=cls.ins[1].grad), v.spec._replace(grad=cls.ins[2].grad))
    return (q, k, v, mask), cls._replace(attrs=attrs, ins=(*specs, mask.spec))


def masked_back(low: Lowering, cls: OpClass, ins: tuple[Key, ...], out: Key) -> None:
    """Lower the gradient of fused attention with a mask."""
    *reads, y = low.notes[low.index]
    call = low.calls[low.index]
    made = tuple(low.value(shaped(s, s.shape), f"{low.index}") for s in call.ins[:3])
    low.nest(CALL, (low.gradient(out), *reads, y), made, call.outs[0], call.outs[0], 0, call=call)
    for i, part in enumerate(made):
        if cls.ins[i].grad:
            low.give(ins[i], _gathered(low, part, cls.ins[i]))
