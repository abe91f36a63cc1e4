"""Elementwise functions: they run where their first large operand lies."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.errors import InvalidValueError
from traincast.execute.layout import Box, Shape, broadcast, unsplit
from traincast.execute.masks import keep_mask
from traincast.execute.rules.dense import rows_dims
from traincast.execute.rules.windows import dims_of
from traincast.execute.session import Part, Session
from traincast.execute.value import Sharded, is_sharded, operand, rule
from traincast.execute.views import Reshape

_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or")


def _named(session: Session, ndim: int) -> dict[str, int]:
    """Return the axes of an elementwise result by name, as far as their number tells."""
    if session.strategy.seq or ndim < 3:
        names = rows_dims(ndim)
        return names if ndim != 4 else {"sample": 0, "head": 1, "sequence": 2}
    return dims_of(ndim - 2) if ndim < 6 else {"sample": 0}


@rule(
    "relu", "relu6", "gelu", "tanh", "sigmoid", "silu", "hardswish", "hardsigmoid", "hardtanh",
    "elu", "leaky_relu", "selu", "mish", "softplus", "logsigmoid", "neg", "exp", "log", "sqrt",
    "rsqrt", "abs", "square", "sin", "cos", "erf", "reciprocal", "pow", "clamp", "add", "sub",
    "mul", "div", "true_divide", "maximum", "minimum", "where", "masked_fill", *_COMPARISONS,
)  # fmt: skip
def pointwise(session: Session, func: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply an elementwise function of any number of operands, which broadcast."""
    values = [a for a in args if is_sharded(a)]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    label = func.__name__.strip("_")
    shape = tuple(torch.broadcast_shapes(*(tuple(t.shape) for t in tensors)))
    dtype = tensors[0].dtype
    for other in tensors[1:]:
        dtype = torch.promote_types(dtype, other.dtype)
    if label in ("masked_fill", "where"):
        dtype = next(t.dtype for t in tensors if t.dtype != torch.bool)
    if label in _COMPARISONS:
        dtype = torch.bool
    lead = _lead(values, shape)
    views = None
    if len(tensors) == 1 and not session.lists("pointwise", label):
        bare = _bare(lead)
        views = lead if bare is not lead else None
        values, shape, lead = [bare], bare.lengths, bare

    def compute(box: Box, locals_: list[torch.Tensor], _: Any) -> torch.Tensor:
        found = iter(locals_)
        like = locals_[0]
        given = [next(found) if is_sharded(a) else operand(a, box, like) for a in args]
        return func(*given, **kwargs)

    layout = session.place(
        kind="pointwise",
        label=label,
        shape=shape,
        dims=_named(session, len(shape)),
        follow=lead.near() if tuple(lead.shape) == shape else unsplit(shape),
    )
    op = Part(
        needs=lambda box: [broadcast(box, v.shape) for v in values],
        compute=compute,
        dtype=dtype,
        grad=label not in _COMPARISONS,
    )
    out = session.run(op, values, layout, lead)
    return out if views is None else _dressed(out, views)


def _lead(values: list[Sharded], shape: Shape) -> Sharded:
    """Return the operand that an op follows: of those as large as the result, the latest made."""
    large = [v for v in values if tuple(v.shape) == shape]
    return max(large or values, key=lambda v: v.layer)


def _bare(x: Sharded, *, numbered: bool = False) -> Sharded:
    """Return what lies beneath views that an elementwise function may as well come before.

    `numbered` asks that every element keeps its number in row-major order.
    """
    free = x.grid is not None and all(
        isinstance(s, Reshape) if numbered else s.elementwise for s in x.steps
    )
    if not x.steps or not free:
        return x
    return Sharded(x.session, x.local, x.boxes, x.grid, x.base, (), x.base, "", x.layer)


def _dressed(out: Sharded, x: Sharded) -> Sharded:
    """Return a result with the views that were left out of its operand."""
    return Sharded(
        out.session, out.local, out.boxes, out.grid, out.base, x.steps, x.lengths, "", x.layer
    )


@rule("dropout")
def dropout(
    session: Session,
    func: Any,
    x: Sharded,
    p: float = 0.5,
    training: bool = True,
) -> Sharded:
    """Drop elements by a mask that does not depend on the split."""
    if not training or p == 0:
        return x
    call = session.calls
    session.calls += 1
    bare = x if session.lists("dropout", "dropout") else _bare(x, numbered=True)
    shape = bare.lengths

    def compute(box: Box, tensors: list[torch.Tensor], _: Any) -> torch.Tensor:
        if session.laying_out:
            return tensors[0]
        return tensors[0] * keep_mask(session, call, shape, box, p, tensors[0])

    layout = session.place(
        kind="dropout",
        label="dropout",
        shape=shape,
        dims=_named(session, len(shape)),
        follow=bare.near(),
    )
    out = session.run(Part(needs=lambda box: [box], compute=compute), [bare], layout, bare)
    return out if bare is x else _dressed(out, x)


@rule("dropout2d", "feature_dropout")
def dropout2d(
    session: Session, func: Any, x: Sharded, p: float = 0.5, training: bool = True
) -> Any:
    """Refuse to drop whole channels, unless nothing is dropped."""
    if not training or p == 0:
        return x
    raise InvalidValueError(f"{session.here()}: dropout of whole channels cannot be run split")


@rule("contiguous", "clone", "detach", "requires_grad_")
def same(session: Session, func: Any, x: Sharded, *_: Any, **__: Any) -> Sharded:
    """Return the tensor as it is: every result is a new one anyway."""
    if getattr(func, "__name__", "") == "detach":
        return Sharded(
            session,
            x.local.detach(),
            x.boxes,
            x.grid,
            x.base,
            x.steps,
            x.lengths,
            x.input,
            x.layer,
        )
    return x


@rule("float", "to", "type_as")
def cast(session: Session, func: Any, x: Sharded, *args: Any, **kwargs: Any) -> Sharded:
    """Cast; moving to a device does nothing, as every part lies on its own."""
    wanted = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.dtype)]
    if getattr(func, "__name__", "") == "float":
        wanted = [torch.float32]
    wanted += [a.dtype for a in args if isinstance(a, torch.Tensor)]
    if not wanted or wanted[0] == x.dtype:
        return x
    layout = session.place(
        kind="copy",
        label="cast",
        shape=tuple(x.shape),
        dims={},
        follow=x.near(),
    )
    op = Part(
        needs=lambda box: [box],
        compute=lambda _, t, __: t[0].to(wanted[0]),
        dtype=wanted[0],
    )
    return session.run(op, [x], layout, x)


@rule("pad")
def pad(
    session: Session,
    func: Any,
    x: Sharded,
    pad: Any,
    mode: str = "constant",
    value: Any = None,
) -> Sharded:
    """Pad with a constant: a part takes what it shows of the input and pads the rest."""
    if mode != "constant" or min(pad) < 0:
        raise InvalidValueError(f"{session.here()}: only padding by a constant can be run split")
    sides = [(0, 0)] * (x.dim() - len(pad) // 2) + [
        (int(pad[i]), int(pad[i + 1])) for i in range(len(pad) - 2, -1, -2)
    ]
    shape = tuple(n + a + b for n, (a, b) in zip(x.shape, sides, strict=True))

    def inside(box: Box) -> Box:
        axes = zip(box, sides, x.shape, strict=True)
        return tuple((min(max(l - a, 0), n), max(min(h - a, n), 0)) for (l, h), (a, _), n in axes)

    def compute(box: Box, tensors: list[torch.Tensor], _: Any) -> torch.Tensor:
        got = inside(box)
        around = [
            (g[0] + a - r[0], r[1] - g[1] - a) for g, r, (a, _) in zip(got, box, sides, strict=True)
        ]
        return F.pad(tensors[0], [n for pair in reversed(around) for n in pair], value=value or 0)

    layout = session.place(
        kind="copy",
        label="pad",
        shape=shape,
        dims={},
        follow=x.near().follow(
            shape, [i if a + b == 0 else None for i, (a, b) in enumerate(sides)]
        ),
    )
    op = Part(
        needs=lambda box: [inside(box)],
        compute=compute,
    )
    return session.run(op, [x], layout, x)
