"""Functions without a rule of their own: device 0 gathers their inputs and computes them whole."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, Shape, unsplit, whole
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, is_sharded, rule
from traincast.execute.views import Narrow, Reshape

_RANDOM = ("drop", "bernoulli", "rand", "normal_", "uniform", "multinomial", "exponential", "rrelu")
"""In the names of functions that draw: device 0 alone would draw, and then all draw unlike."""


def run_whole(session: Session, name: str, func: Any, args: Any, kwargs: Any) -> Any:
    """Compute a function on device 0, where its results stay until a layer needs parts of them."""
    leaves, form = tree_flatten((args, kwargs))
    values = [x for x in leaves if is_sharded(x)]
    weights = [x for x in leaves if _held(session, x)]

    def call(tensors: list[torch.Tensor], held: list[Any]) -> Any:
        found, kept = iter(tensors), iter(held)
        given = [
            next(found) if is_sharded(x) else next(kept) if _held(session, x) else x for x in leaves
        ]
        if tensors[0].is_meta:
            given = [x.to("meta") if isinstance(x, torch.Tensor) else x for x in given]
        again, more = tree_unflatten(given, form)
        return func(*again, **more)

    blank = [torch.empty(v.lengths, dtype=v.dtype, device="meta") for v in values]
    shapes = [session.shapes[session.names[id(w)]] for w in weights]
    empty = [
        torch.empty(s, dtype=w.dtype, device="meta") for s, w in zip(shapes, weights, strict=True)
    ]
    if name == "__setitem__":
        raise refusal(session, name, "it writes into a tensor")
    if any(word in name for word in _RANDOM):
        raise refusal(session, name, "it draws random numbers")
    try:
        with torch.no_grad():
            outputs, shape = tree_flatten(call(blank, empty))
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise refusal(session, name, "its result cannot be foretold") from error
    kinds = {t.dtype if isinstance(t, torch.Tensor) else type(t) for t in outputs}
    if len(kinds) != 1 or not isinstance(dtype := next(iter(kinds)), torch.dtype):
        raise refusal(session, name, "it returns other things than tensors of one type")
    lengths = [tuple(t.shape) for t in outputs]
    sizes = [math.prod(s) for s in lengths]

    def compute(_: Box, tensors: list[torch.Tensor], held: list[Any]) -> torch.Tensor:
        made, _ = tree_flatten(call(tensors, held))
        return made[0] if len(made) == 1 else torch.cat([t.reshape(-1) for t in made])

    op = Part(
        needs=lambda _: [whole(v.lengths) for v in values],
        compute=compute,
        weights=[(w, partial(_entire, s)) for w, s in zip(weights, shapes, strict=True)],
        dtype=dtype,
        grad=dtype.is_floating_point,
    )
    session.entire(name)
    if len(lengths) == 1:
        return tree_unflatten([session.run(op, values, unsplit(lengths[0]))], shape)
    # Several results travel as one row of numbers, of which each is a view.
    row, results, at = session.run(op, values, unsplit((sum(sizes),))), [], 0
    for length, size in zip(lengths, sizes, strict=True):
        piece = row.viewed(Narrow(0, at, size), (size,))
        results.append(piece.viewed(Reshape((size,), length), length))
        at += size
    return tree_unflatten(results, shape)


def _entire(shape: Shape, _: Box) -> Box:
    return whole(shape)


def _held(session: Session, value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not is_sharded(value) and id(value) in session.names


def refusal(session: Session, name: str, why: str) -> InvalidValueError:
    """Return the error for a function that cannot be run under a plan."""
    return InvalidValueError(
        f"{session.here()}: torch's {name} cannot be run split over processes, as {why}; "
        "leave it out of the model, or run the model in one process"
    )


@rule("new_zeros", "new_ones", "new_empty", "new_full", "zeros_like", "ones_like", "full_like")
def fresh(session: Session, func: Any, x: Sharded, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Make a plain tensor, whole in every process, as one that depends on no input is."""
    kwargs["device"] = "meta" if session.laying_out else session.device
    if func.__name__.endswith("_like"):
        return func(torch.empty(x.lengths, dtype=x.dtype, device="meta"), *args, **kwargs)
    return func(torch.empty(0, dtype=x.dtype, device=kwargs["device"]), *args, **kwargs)
