"""Products: dense layers by sample, sequence and channel; attention by sample, head, sequence."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, broadcast, whole
from traincast.execute.masks import keep_mask
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, is_sharded, rule
from traincast.execute.views import Reshape


def rows_dims(ndim: int) -> dict[str, int]:
    """Return the axes of a (sample, …, channel) tensor by name."""
    dims = {"sample": 0, "channel": ndim - 1} if ndim > 1 else {}
    if ndim == 3:
        dims["sequence"] = 1
    if ndim == 4:
        dims |= {"height": 1, "width": 2}
    return dims


@rule("linear")
def linear(
    session: Session,
    func: Any,
    input: Sharded,  # noqa: A002
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
) -> Sharded:
    """x · Wᵀ + b: a part of the output channels takes the whole input and its rows of W."""
    return _dense(session, input, weight, bias, inputs_first=False)


@rule("addmm")
def addmm(session: Session, func: Any, bias: Any, x: Sharded, weight: torch.Tensor) -> Sharded:
    """x · W + b, with W stored input first; x may have samples and positions merged."""
    apart = x.unmerged()
    out = _dense(session, apart, weight, bias, inputs_first=True)
    if apart is x:
        return out
    merged = (x.shape[0], out.shape[-1])
    return out.viewed(Reshape(out.lengths, merged), merged)


def _dense(
    session: Session, x: Sharded, weight: torch.Tensor, bias: Any, inputs_first: bool
) -> Sharded:
    full = session.shapes.get(session.names.get(id(weight), ""), tuple(weight.shape))
    inner, features = full if inputs_first else full[::-1]
    out = (*x.shape[:-1], features)

    def columns(box: Box) -> Box:
        return ((0, inner), box[-1]) if inputs_first else (box[-1], (0, inner))

    def compute(_: Box, tensors: list[torch.Tensor], weights: list[Any]) -> torch.Tensor:
        w, b = weights
        return F.linear(tensors[0], w.t() if inputs_first else w, b)

    layout = session.place(
        kind="linear",
        label="linear",
        shape=out,
        dims=rows_dims(x.dim()),
        follow=x.near().follow(out, [*range(x.dim() - 1), None]),
    )
    op = Part(
        needs=lambda box: [(*box[:-1], (0, inner))],
        compute=compute,
        weights=((weight, columns), (bias, lambda b: (b[-1],))),
    )
    return session.run(op, [x], layout)


@rule("embedding")
def embedding(
    session: Session,
    func: Any,
    input: Sharded,  # noqa: A002
    weight: torch.Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    *_: Any,
    **__: Any,
) -> Sharded:
    """Rows of a table; a part of the channels takes those columns of the table."""
    if max_norm is not None:
        raise InvalidValueError(f"{session.here()}: an embedding with max_norm cannot be run split")
    rows, channels = session.shapes.get(session.names.get(id(weight), ""), tuple(weight.shape))
    out = (*input.shape, channels)
    layout = session.place(
        kind="embedding",
        label="embedding",
        shape=out,
        dims=rows_dims(len(out)),
        follow=input.near().follow(out, [*range(input.dim()), None]),
    )
    op = Part(
        needs=lambda box: [box[:-1]],
        compute=lambda _, tensors, weights: F.embedding(tensors[0], weights[0], padding_idx),
        weights=((weight, lambda b: ((0, rows), b[-1])),),
        dtype=weight.dtype,
    )
    return session.run(op, [input], layout)


@rule("matmul", "bmm")
def matmul(session: Session, func: Any, a: Any, b: Any) -> Sharded:
    """Batched product of two activations: a part takes rows of the one and columns of the other."""
    if not (is_sharded(a) and is_sharded(b)) or a.dim() < 2 or b.dim() < 2:
        raise InvalidValueError(
            f"{session.here()}: a product with a tensor that is no layer's output cannot be run "
            "split; use torch.nn.Linear"
        )
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    out = (*batch, m, n)
    near = a.near() if a.shape[:-1] == out[:-1] else b.near()
    source = [*range(len(out) - 1), None] if a.shape[:-1] == out[:-1] else [None] * len(out)
    dims = {"sample": 0} | ({"head": 1, "sequence": 2} if len(out) == 4 else {})

    def needs(box: Box) -> list[Box]:
        return [
            (*broadcast(box[:-2], a.shape[:-2]), box[-2], (0, k)),
            (*broadcast(box[:-2], b.shape[:-2]), (0, k), box[-1]),
        ]

    layout = session.place(
        kind="matmul",
        label="bmm" if len(out) > 2 else "mm",
        shape=out,
        dims=dims,
        follow=near.follow(out, source),
    )
    op = Part(
        needs=needs,
        compute=lambda _, tensors, __: torch.matmul(*tensors),
    )
    return session.run(op, [a, b], layout)


@rule("scaled_dot_product_attention")
def attention(
    session: Session,
    func: Any,
    query: Sharded,
    key: Sharded,
    value: Sharded,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Sharded:
    """A part of heads and queries takes the keys and values of those heads, as far as it sees."""
    if query.dim() != 4 or is_sharded(attn_mask):
        raise InvalidValueError(
            f"{session.here()}: attention is run split on (sample, head, position, channel) with "
            "no mask or one that does not depend on the input"
        )
    out = (*query.shape[:-1], value.shape[-1])
    heads, kept, length = query.shape[1], key.shape[1], key.shape[2]
    share = heads // kept
    call = session.calls
    session.calls += bool(dropout_p)

    def seen(box: Box) -> int:
        return int(min(box[2][1], length) if is_causal else length)

    def needs(box: Box) -> list[Box]:
        low, high = box[1]
        groups = (low // share, -(-high // share))
        past = (box[0], groups, (0, seen(box)))
        return [
            (*box[:3], (0, query.shape[3])), (*past, (0, query.shape[3])),
            (*past, (0, value.shape[3])),
        ]  # fmt: skip

    def compute(box: Box, tensors: list[torch.Tensor], _: Any) -> torch.Tensor:
        q, k, v = tensors
        if share > 1:
            k, v = (
                t.repeat_interleave(share, 1).narrow(1, box[1][0] % share, q.shape[1])
                for t in (k, v)
            )
        mask = None
        first, last = box[2]
        if is_causal:
            mask = torch.ones(last - first, seen(box), dtype=torch.bool, device=q.device)
            mask = mask.tril(first)
        elif isinstance(attn_mask, torch.Tensor):
            inner = broadcast((*box[:3], (0, length)), attn_mask.shape)
            mask = attn_mask[tuple(slice(*r) for r in inner)].to(q.device)
        if not dropout_p:
            return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)
        keep = keep_mask(
            session, call, (*query.shape[:3], length), (*box[:3], (0, seen(box))), dropout_p, q
        )
        return dropped_attention(q, k, v, mask, scale, keep)

    dims = {"sample": 0, "head": 1, "sequence": 2}
    layout = session.place(
        kind="attention",
        label="attention",
        shape=out,
        dims=dims,
        follow=query.near().follow(out, [0, 1, 2, None]),
    )
    op = Part(
        needs=needs,
        compute=compute,
    )
    return session.run(op, [query, key, value], layout)


def dropped_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float | None,
    keep: torch.Tensor,
) -> torch.Tensor:
    """Attention whose weights are multiplied by a given dropout mask."""
    scores = q @ k.transpose(-2, -1) * (scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        scores = scores + mask
    return (scores.softmax(-1) * keep) @ v


@rule("softmax", "log_softmax")
def softmax(
    session: Session,
    func: Any,
    x: Sharded,
    dim: int | None = None,
    _stacklevel: int = 3,
    dtype: Any = None,
) -> Sharded:
    """Softmax along an axis that is not split."""
    if dim is None:
        raise InvalidValueError(f"{session.here()}: softmax needs its dim to be run split")
    shape, axis = tuple(x.shape), dim % x.dim()
    log = getattr(func, "__name__", "") == "log_softmax"
    run = torch.log_softmax if log else torch.softmax
    source = [None if i == axis else i for i in range(len(shape))]
    names = {"sample": 0} | ({"head": 1, "sequence": 2} if len(shape) == 4 else {})
    layout = session.place(
        kind="softmax",
        label="log_softmax" if log else "softmax",
        shape=shape,
        dims={k: i for k, i in names.items() if i != axis},
        follow=x.near().follow(shape, source),
    )
    op = Part(
        needs=lambda box: [whole_along(box, axis, shape)],
        compute=lambda box, tensors, _: run(tensors[0], axis, dtype=dtype).narrow(
            axis, box[axis][0], box[axis][1] - box[axis][0]
        ),
        dtype=dtype,
    )
    return session.run(op, [x], layout)


def whole_along(box: Box, axis: int, shape: tuple[int, ...]) -> Box:
    """Return a box that is whole along one axis."""
    return (*box[:axis], *whole(shape[axis : axis + 1]), *box[axis + 1 :])
