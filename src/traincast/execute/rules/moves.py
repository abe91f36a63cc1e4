"""Views, which move nothing; concatenation; sums and means over axes."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, empty
from traincast.execute.rules.entire import run_whole
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, is_sharded, rule
from traincast.execute.views import Expand, Narrow, Permute, Reshape


def _lengths(given: tuple[Any, ...]) -> tuple[int, ...]:
    flat = given[0] if len(given) == 1 and not isinstance(given[0], int) else given
    return tuple(int(n) for n in flat)


def _reshaped(x: Sharded, shape: tuple[int, ...]) -> Sharded:
    return x if shape == tuple(x.shape) else x.viewed(Reshape(tuple(x.shape), shape), shape)


@rule("reshape", "view")
def reshape(session: Session, func: Any, x: Sharded, *shape: Any, **kwargs: Any) -> Sharded:
    """Give the same elements another shape."""
    wanted = _lengths(shape or (kwargs["shape"],))
    if -1 in wanted:
        known = math.prod(n for n in wanted if n != -1)
        wanted = tuple(x.numel() // known if n == -1 else n for n in wanted)
    return _reshaped(x, wanted)


@rule("flatten")
def flatten(session: Session, func: Any, x: Sharded, start_dim: int = 0, end_dim: int = -1) -> Any:
    """Merge neighbouring axes."""
    shape = tuple(x.shape)
    low, high = start_dim % x.dim(), end_dim % x.dim()
    return _reshaped(x, (*shape[:low], math.prod(shape[low : high + 1]), *shape[high + 1 :]))


@rule("unflatten")
def unflatten(session: Session, func: Any, x: Sharded, dim: int, sizes: Any) -> Sharded:
    """Split an axis in several."""
    axis = dim % x.dim()
    known = math.prod(n for n in sizes if n != -1)
    full = tuple(x.shape[axis] // known if n == -1 else int(n) for n in sizes)
    return _reshaped(x, (*x.shape[:axis], *full, *x.shape[axis + 1 :]))


@rule("squeeze")
def squeeze(session: Session, func: Any, x: Sharded, dim: Any = None) -> Sharded:
    """Drop axes of length 1."""
    axes = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = {a % x.dim() for a in axes}
    return _reshaped(x, tuple(n for i, n in enumerate(x.shape) if n != 1 or i not in gone))


@rule("unsqueeze")
def unsqueeze(session: Session, func: Any, x: Sharded, dim: int) -> Sharded:
    """Add an axis of length 1."""
    axis = dim % (x.dim() + 1)
    return _reshaped(x, (*x.shape[:axis], 1, *x.shape[axis:]))


@rule("permute")
def permute(session: Session, func: Any, x: Sharded, *dims: Any, **kwargs: Any) -> Sharded:
    """Put axes in another order."""
    return permute_to(x, tuple(d % x.dim() for d in _lengths(dims or (kwargs["dims"],))))


def permute_to(x: Sharded, order: tuple[int, ...]) -> Sharded:
    """Return a tensor with its axes in another order."""
    return x.viewed(Permute(order), tuple(x.shape[i] for i in order))


@rule("transpose")
def transpose(session: Session, func: Any, x: Sharded, dim0: int, dim1: int) -> Sharded:
    """Swap two axes."""
    order = list(range(x.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute_to(x, tuple(order))


@rule("expand")
def expand(session: Session, func: Any, x: Sharded, *shape: Any) -> Sharded:
    """Repeat axes of length 1."""
    wanted = _lengths(shape)
    lengths = (1,) * (len(wanted) - x.dim()) + tuple(x.shape)
    full = tuple(o if n == -1 else n for n, o in zip(wanted, lengths, strict=True))
    x = _reshaped(x, lengths)
    return x if full == lengths else x.viewed(Expand(lengths, full), full)


@rule("narrow")
def narrow(session: Session, func: Any, x: Sharded, dim: int, start: int, length: int) -> Sharded:
    """Take a range of an axis."""
    axis = dim % x.dim()
    first = start % max(x.shape[axis], 1)
    if length == x.shape[axis]:
        return x
    return x.viewed(Narrow(axis, first, length), (*x.shape[:axis], length, *x.shape[axis + 1 :]))


@rule("split", "chunk", "tensor_split", "unbind")
def split(session: Session, func: Any, x: Sharded, size: Any = None, dim: int = 0) -> Any:
    """Take an axis apart."""
    name = getattr(func, "__name__", "split")
    if name == "unbind":
        dim = 0 if size is None else size
        pieces = split(session, torch.split, x, 1, dim)
        return tuple(squeeze(session, None, p, dim) for p in pieces)
    length = x.shape[dim]
    if name == "tensor_split":
        raise InvalidValueError(f"{session.here()}: use split or chunk in place of tensor_split")
    if name == "chunk":
        size = -(-length // size)
    sizes = (
        [min(size, length - i) for i in range(0, length, size)] if isinstance(size, int) else size
    )
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(narrow(session, None, x, dim, a, n) for a, n in zip(starts, sizes, strict=True))


@rule("select")
def select(session: Session, func: Any, x: Sharded, dim: int, index: int) -> Sharded:
    """Take one position of an axis."""
    axis = dim % x.dim()
    taken = narrow(session, None, x, axis, index % x.shape[axis], 1)
    return _reshaped(taken, (*x.shape[:axis], *x.shape[axis + 1 :]))


def _plain(item: Any) -> bool:
    return item is None or item is Ellipsis or type(item) is int or (
        isinstance(item, slice) and item.step in (None, 1)
    )  # fmt: skip


@rule("getitem")
def getitem(session: Session, func: Any, x: Sharded, index: Any) -> Any:
    """Index by whole numbers, ranges, None and an ellipsis; by anything else on device 0."""
    items = index if type(index) is tuple else (index,)
    if not all(map(_plain, items)):
        return run_whole(session, "getitem", operator.getitem, (x, index), {})
    if Ellipsis in items:
        at = items.index(Ellipsis)
        fill = x.dim() - sum(i is not None for i in items) + 1
        items = (*items[:at], *[slice(None)] * fill, *items[at + 1 :])
    axis = 0
    for item in items:
        if item is None:
            x = unsqueeze(session, None, x, axis)
            axis += 1
        elif isinstance(item, int):
            x = select(session, None, x, axis, item)
        else:
            low, high, _ = item.indices(x.shape[axis])
            x = narrow(session, None, x, axis, low, max(high - low, 0)) if low else narrow(
                session, None, x, axis, 0, high
            )  # fmt: skip
            axis += 1
    return x


@rule("cat", "concat", "concatenate")
def concat(session: Session, func: Any, tensors: Any, dim: int = 0) -> Sharded:
    """Concatenate: a part takes what it shows of each input."""
    values = [t for t in tensors if is_sharded(t)]
    axis = dim % values[0].dim()
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + tensor.shape[axis])
    first = values[0]
    shape = (*first.shape[:axis], starts[-1], *first.shape[axis + 1 :])

    def shown(box: Box, number: int) -> Box | None:
        begin, end = starts[number], starts[number + 1]
        low, high = max(box[axis][0], begin) - begin, min(box[axis][1], end) - begin
        inner = (*box[:axis], (low, high), *box[axis + 1 :])
        return None if empty(inner) else inner

    def compute(box: Box, locals_: list[torch.Tensor], _: Any) -> torch.Tensor:
        found = iter(locals_)
        parts = []
        for number, tensor in enumerate(tensors):
            inner = shown(box, number)
            mine = next(found) if is_sharded(tensor) else None
            if inner is not None:
                if mine is None:
                    mine = tensor[tuple(slice(*r) for r in inner)].to(locals_[0].device)
                parts.append(mine)
        return torch.cat(parts, axis)

    numbers = [i for i, t in enumerate(tensors) if is_sharded(t)]
    names = ("sample", "channel", "height", "width") if len(shape) == 4 else ("sample", "sequence")
    dims = {name: i for i, name in enumerate(names) if i < len(shape)}
    if len(shape) == 3:
        dims["channel"] = 2
    layout = session.place(
        kind="concat",
        label="concat",
        shape=shape,
        dims=dims,
        follow=first.near().follow(shape, range(len(shape))),
    )
    op = Part(
        needs=lambda box: [shown(box, i) for i in numbers],
        compute=compute,
    )
    return session.run(op, values, layout)


@rule("stack")
def stack(session: Session, func: Any, tensors: Any, dim: int = 0) -> Sharded:
    """Concatenate along a new axis."""
    axis = dim % (tensors[0].dim() + 1)
    joined: Sharded = concat(session, func, [t.unsqueeze(axis) for t in tensors], axis)
    return joined


@rule("mean", "sum", "amax")
def reduce(
    session: Session, func: Any, x: Sharded, dim: Any = None, keepdim: bool = False, **_: Any
) -> Sharded:
    """Reduce over axes, which are not split."""
    axes = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    gone = sorted({a % x.dim() for a in axes})
    kept = [i for i in range(x.dim()) if i not in gone]
    full = tuple(x.shape)
    shape = tuple(1 if i in gone else n for i, n in enumerate(full))
    name = getattr(func, "__name__", "mean")
    run = getattr(torch, name)
    layout = session.place(
        kind="reduce",
        label=name,
        shape=shape,
        dims={"sample": 0, "channel": 1} if gone == [2, 3] else {"sample": 0} if 0 in kept else {},
        follow=x.near().follow(shape, [None if i in gone else i for i in range(len(shape))]),
    )
    op = Part(
        needs=lambda box: [tuple((0, full[i]) if i in gone else r for i, r in enumerate(box))],
        compute=lambda _, tensors, __: run(tensors[0], gone, keepdim=True),
    )
    out = session.run(op, [x], layout)
    return out if keepdim else _reshaped(out, tuple(full[i] for i in kept))
