"""What a part of a layer's output needs of each input: one rule for each kind of op.

A rule gives the layer's dims with their lengths and, for every axis of every input and output, how
far a part reaches along it. A window of k positions with stride s and padding p needs, for outputs
from lo to hi, the inputs from lo·s − p to (hi − 1)·s − p + k: its own and a halo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from traincast.graph import Op
from traincast.parallel.axes import Axes, Axis, Shape

SPACE = {1: ("length",), 2: ("height", "width"), 3: ("depth", "height", "width")}
_NAMED = frozenset(
    {"sample", "channel", "height", "width", "depth", "length", "sequence", "head", "expert"}
)


class Reach(NamedTuple):
    """How far outputs lo to hi of a dim reach along an input: (lo·num + low) / den and so on."""

    dim: str
    """Dim of the layer; empty where everything is needed."""
    size: int
    """Length of the input's axis, or of one of its factors."""
    num: int = 1
    den: int = 1
    low: int = 0
    high: int = 0

    def span(self, lo: int, hi: int) -> tuple[int, int]:
        """Return the first position that is needed and the one after the last."""
        first = (lo * self.num + self.low) // self.den
        last = -((-hi * self.num - self.high) // self.den)
        first = min(max(first, 0), self.size)
        return first, min(max(last, first), self.size)


Reaches = tuple[tuple[Reach, ...], ...]
"""For each axis, the reach along each of its factors; nothing where all of it is needed."""


@dataclass(frozen=True, slots=True)
class Access:
    """A layer's dims, and how its parts use the tensors of its main op."""

    dims: Mapping[str, int]
    """Length of each dim that can be split."""
    ins: tuple[Reaches, ...]
    outs: tuple[Axes, ...]
    """What the outputs' axes are to the layer."""
    most: Mapping[str, int] = field(default_factory=dict)
    """Largest degree of a dim, where it is not its length."""
    groups: int = 1
    """Groups of channels that are dealt out with them."""


def share(dim: str, size: int, length: int) -> Reach:
    """Return the reach along an axis that is divided in proportion with a dim."""
    return Reach(dim, size, size, length) if size != length else Reach(dim, size)


def window(dim: str, size: int, kernel: int, stride: int, pad: int, dilation: int = 1) -> Reach:
    """Return the reach of a window."""
    return Reach(dim, size, stride, 1, -pad, (kernel - 1) * dilation + 1 - stride - pad)


def spread_window(
    dim: str, size: int, kernel: int, stride: int, pad: int, dilation: int = 1
) -> Reach:
    """Return the reach of a transposed window, which spreads each input over outputs."""
    return Reach(dim, size, 1, stride, pad - (kernel - 1) * dilation + stride - 1, pad)


def access_of(
    op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]
) -> Access:
    """Return how an op's parts use its inputs, whose axes are given as their makers see them."""
    return _RULES.get(op.kind, _other)(op, shapes, axes, outs)


def _fresh(dims: dict[str, int], names: Sequence[tuple[str, int]]) -> Axis:
    """Enter factors as dims of a new layer, each name once; return them as an axis of it."""
    from traincast.parallel.axes import Factor

    axis = []
    for name, size in names:
        good = name in _NAMED and name not in dims and size > 1
        if good:
            dims[name] = size
        axis.append(Factor(name if good else "", size))
    return tuple(axis)


def _names(axis: Axis) -> list[tuple[str, int]]:
    return [(f.dim, f.size) for f in axis if f.size > 1]


def _reach(axis: Axis) -> tuple[Reach, ...]:
    return tuple(Reach(f.dim, f.size) for f in axis)


def _attr(op: Op, name: str, rank: int, default: int) -> tuple[int, ...]:
    value = op.attrs.get(name)
    if isinstance(value, tuple) and len(value) == rank:
        return tuple(int(v) for v in value)
    return (default,) * rank


def _conv(op: Op, shapes: Sequence[Shape], _axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    x, w, y = shapes[0], shapes[1], outs[0]
    rank = len(y) - 2
    names = SPACE.get(rank, ("",) * rank)
    dims: dict[str, int] = {}
    made = tuple(
        _fresh(dims, [(n, s)]) for n, s in zip(("sample", "channel", *names), y, strict=True)
    )
    stride, pad = _attr(op, "stride", rank, 1), _attr(op, "padding", rank, 0)
    dilation, groups = _attr(op, "dilation", rank, 1), int(op.attrs.get("groups", 1))  # type: ignore[arg-type]
    transposed = bool(op.attrs.get("transposed"))
    rule = spread_window if transposed else window
    space = tuple(
        (rule(n, x[2 + i], w[2 + i], stride[i], pad[i], dilation[i]),) for i, n in enumerate(names)
    )
    channels: tuple[Reach, ...] = (share("channel", x[1], y[1]),) if groups > 1 else ()
    weight: list[tuple[Reach, ...]] = [() for _ in w]
    weight[1 if transposed else 0] = (share("channel", w[1 if transposed else 0], y[1]),)
    ins: list[Reaches] = [((Reach("sample", x[0]),), channels, *space), tuple(weight)]
    ins += [((Reach("channel", y[1]),),) for _ in shapes[2:]]
    most = {"channel": groups} if groups > 1 else {}
    return Access(dims, tuple(ins), (made,), most, groups)


def _pool(op: Op, shapes: Sequence[Shape], _axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    x, y = shapes[0], outs[0]
    kernel = op.attrs["kernel"]
    assert isinstance(kernel, tuple)
    rank = len(kernel)
    names = ("sample", "channel", *SPACE.get(rank, ()))
    names = names if len(names) == len(y) else ("sample", *("",) * (len(y) - 1))
    dims: dict[str, int] = {}
    made = tuple(_fresh(dims, [(n, s)]) for n, s in zip(names, y, strict=True))
    ins = []
    for i, (n, size) in enumerate(zip(names, x, strict=True)):
        if i < len(y) - rank or not n:
            ins.append((Reach(n, size),) if n else ())
        else:
            stride, pad = _stride(size, y[i], int(kernel[i - len(y) + rank]))
            ins.append((window(n, size, int(kernel[i - len(y) + rank]), stride, pad),))
    return Access(dims, (tuple(ins),), tuple(made for _ in outs))


def _stride(size: int, out: int, kernel: int) -> tuple[int, int]:
    """Return stride and padding of a pool, which graphs do not tell: the first that fit."""
    for stride in sorted(range(1, size + 1), key=lambda s: (abs(s - size / out), s))[:6]:
        for pad in range(kernel // 2 + 1):
            if (size + 2 * pad - kernel) // stride + 1 == out:
                return stride, pad
    return max(1, size // out), 0


def _linear(op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    y = outs[0]
    dims: dict[str, int] = {}
    made = [_fresh(dims, _names(axis) if axis else []) for axis in axes[0][:-1]]
    if "channel" in dims:
        # Behind a permutation a former channel axis may come before the features.
        del dims["channel"]
        made = [tuple(f._replace(dim="") if f.dim == "channel" else f for f in a) for a in made]
    made.append(_fresh(dims, [("channel", y[-1])]))
    x = (*(_reach(axis) for axis in made[:-1]), ())
    at = 1 if op.attrs.get("transposed") else 0
    weight: Reaches = tuple(((Reach("channel", y[-1]),) if i == at else ()) for i in range(2))
    rest = [((Reach("channel", y[-1]),),) for _ in shapes[2:]]
    return Access(dims, (x, weight, *rest), (tuple(made),))


def _embedding(
    _op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]
) -> Access:
    y = outs[0]
    dims: dict[str, int] = {}
    made = [_fresh(dims, _names(axis)) for axis in axes[1][: len(y) - 1]]
    made.append(_fresh(dims, [("channel", y[-1])]))
    index = tuple(_reach(axis) for axis in made[:-1])
    index += ((),) * (len(shapes[1]) - len(index))
    table: Reaches = ((), (Reach("channel", y[-1]),))
    more = tuple(((),) * len(s) for s in shapes[2:])
    return Access(dims, (table, index, *more), (tuple(made),))


def _grouped(
    op: Op, shapes: Sequence[Shape], _axes: Sequence[Axes], outs: Sequence[Shape]
) -> Access:
    """Rows are sorted by expert, so a split by expert cuts them, and the weights, in order."""
    y, w = outs[0], shapes[1]
    dims = {"expert": y[0], "channel": y[-1]}
    out = 1 if op.attrs.get("transposed") else 2
    weight: list[tuple[Reach, ...]] = [(share("expert", w[0], y[0]),), (), ()]
    weight[out] = (Reach("channel", y[-1]),)
    made: dict[str, int] = {}
    axes_out = (_fresh(made, [("expert", y[0])]), _fresh(made, [("channel", y[-1])]))
    more = tuple(((),) * len(s) for s in shapes[2:])
    ins: tuple[Reaches, ...] = (((Reach("expert", y[0]),), ()), tuple(weight), *more)
    return Access(dims, ins, (axes_out,), {"expert": w[0]})


def _attention(
    op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]
) -> Access:
    y = outs[0]
    if len(y) != 4:
        return _other(op, shapes, axes, outs)
    dims: dict[str, int] = {}
    made = tuple(
        _fresh(dims, [(n, s)]) for n, s in zip(("sample", "head", "sequence", ""), y, strict=True)
    )
    b, h, s = y[:3]
    q: Reaches = ((Reach("sample", b),), (Reach("head", h),), (Reach("sequence", s),), ())
    kv: Reaches = ((Reach("sample", b),), (share("head", shapes[1][1], h),), (), ())
    mask = tuple(_masked(shape, y) for shape in shapes[3:])
    most = {"head": shapes[1][1]}
    return Access(dims, (q, kv, kv, *mask), (made,), most)


def _masked(shape: Shape, y: Shape) -> Reaches:
    """Return the reach along a mask, which may have one row for all samples or heads."""
    names = ("sample", "head", "", "")[-len(shape) :] if shape else ()
    return tuple(
        (Reach(name, size),) if name and size == length else ()
        for name, size, length in zip(names, shape, y[-len(shape) :], strict=True)
    )


def _matmul(
    _op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]
) -> Access:
    y, b = outs[0], shapes[1]
    dims: dict[str, int] = {}
    lead = [_fresh(dims, _names(axis)) for axis in axes[0][: len(y) - 1]]
    lead += [()] * (len(y) - 1 - len(lead))
    made = (*lead, _fresh(dims, [("", y[-1])]))
    first = tuple(_reach(axis) for axis in lead)
    same = len(b) == len(y) and tuple(b[:-2]) == tuple(y[:-2])
    second: Reaches = (*first[:-1], (), ()) if same else ((),) * len(b)
    more = tuple(((),) * len(s) for s in shapes[2:])
    return Access(dims, ((*first, ())[: len(shapes[0])], second, *more), (made,))


def _concat(op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    y = outs[0]
    joined = int(op.attrs["axis"]) % len(y)  # type: ignore[arg-type]
    named = max(axes, key=lambda a: sum(1 for axis in a for f in axis if f.dim))
    dims: dict[str, int] = {}
    made: list[Axis] = []
    for i, size in enumerate(y):
        if i == joined:
            first = named[i][0].dim if named[i] else ""
            made.append(_fresh(dims, [(first, size)]))
        else:
            made.append(_fresh(dims, _names(named[i])))
    at = 0
    ins: list[Reaches] = []
    for shape in shapes:
        dim = made[joined][0].dim
        part = (Reach(dim, shape[joined], 1, 1, -at, -at),) if dim else ()
        ins.append(tuple(part if i == joined else _reach(axis) for i, axis in enumerate(made)))
        at += shape[joined]
    return Access(dims, tuple(ins), (tuple(made),))


def _along(op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    """Kinds that need all of one or several axes: softmax, norms over the last axes, losses."""
    x = shapes[0]
    if op.kind in ("layer_norm", "rms_norm"):
        whole = set(range(len(x) - int(op.attrs["axes"]), len(x)))  # type: ignore[arg-type]
    elif op.kind == "softmax":
        whole = {int(op.attrs["axis"]) % max(len(x), 1)}  # type: ignore[arg-type]
    else:
        whole = {1 if len(x) > 1 else 0}
    dims: dict[str, int] = {}
    made = tuple(
        (_fresh(dims, [("", s)]) if i in whole else _fresh(dims, _names(axis)))
        for i, (axis, s) in enumerate(zip(axes[0], x, strict=True))
    )
    reach = tuple(() if i in whole else _reach(axis) for i, axis in enumerate(made))
    ins: list[Reaches] = [reach]
    for shape in shapes[1:]:
        same = len(shape) == len(x) - 1 and op.kind == "cross_entropy"
        kept = tuple(r for i, r in enumerate(reach) if i not in whole)
        ins.append(kept if same else ((),) * len(shape))
    out = tuple(made if len(shape) == len(x) else () for shape in outs)
    return Access(
        dims, tuple(ins), tuple(a if a else ((),) * len(s) for a, s in zip(out, outs, strict=True))
    )


def _reduce(op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    """Sums and means: what stays in the output can be split."""
    x, y = shapes[0], outs[0]
    dims: dict[str, int] = {}
    made: list[Axis] = []
    reach: list[tuple[Reach, ...]] = [()] * len(x)
    position = 0
    for size in y:
        at = position
        if len(x) != len(y):
            at = next((i for i in range(position, len(x)) if x[i] == size), len(x))
        position = at + 1
        if at < len(x) and x[at] == size:
            made.append(_fresh(dims, _names(axes[0][at])))
            reach[at] = _reach(made[-1])
        else:
            made.append(())
    more = tuple(((),) * len(s) for s in shapes[1:])
    if not y and len(x) and axes[0][0]:
        # A loss of its own: each part sums its own samples.
        first = _fresh(dims, _names(axes[0][0]))
        reach[0] = _reach(first)
    return Access(dims, (tuple(reach), *more), tuple(tuple(made) for _ in outs))


def _some(op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    """Kinds split by sample and channel alone, such as resampling of images."""
    y = outs[0]
    dims: dict[str, int] = {}
    kept = [axes[0][i] if i < 2 and shapes[0][i] == s else () for i, s in enumerate(y)]
    made = tuple(
        _fresh(dims, _names(a)) if a else _fresh(dims, [("", s)])
        for a, s in zip(kept, y, strict=True)
    )
    first = tuple(_reach(a) if k else () for a, k in zip(made, kept, strict=True))
    more = tuple(((),) * len(s) for s in shapes[1:])
    return Access(dims, (first[: len(shapes[0])], *more), (made,))


def _other(_op: Op, shapes: Sequence[Shape], axes: Sequence[Axes], outs: Sequence[Shape]) -> Access:
    """Anything else: split along the samples of its first axis, in proportion."""
    y = outs[0]
    dims: dict[str, int] = {}
    source = next((a for a in axes if a and a[0] and a[0][0].dim), None)
    made: list[Axis] = [(_fresh(dims, [("", s)]) if s > 1 else ()) for s in y]
    if source is not None and y and y[0] > 1:
        made[0] = _fresh(dims, [(source[0][0].dim, y[0])])
    dim = made[0][0].dim if made and made[0] else ""
    ins = []
    for shape, axis in zip(shapes, axes, strict=True):
        along = bool(dim and shape and axis and axis[0] and axis[0][0].dim)
        first = (share(dim, shape[0], y[0]),) if along else ()
        ins.append((first, *((),) * (len(shape) - 1)) if shape else ())
    made_out = [
        tuple(made)
        if tuple(s) == tuple(y)
        else tuple((_fresh({}, [("", n)]) if n > 1 else ()) for n in s)
        for s in outs
    ]
    return Access(dims, tuple(ins), tuple(made_out))


_RULES: dict[str, Callable[[Op, Sequence[Shape], Sequence[Axes], Sequence[Shape]], Access]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "embedding": _embedding,
    "grouped_matmul": _grouped,
    "attention": _attention,
    "matmul": _matmul,
    "concat": _concat,
    "softmax": _along,
    "layer_norm": _along,
    "rms_norm": _along,
    "cross_entropy": _along,
    "reduce": _reduce,
    "interpolate": _some,
}


def identity(axes: Axes, dims: Mapping[str, int]) -> Reaches:
    """Return the reach along axes that belong to the layer itself."""
    return tuple(
        tuple(share(f.dim, f.size, dims[f.dim]) if f.dim in dims else Reach("", f.size) for f in a)
        for a in axes
    )


def longest(reach: Reach, length: int, degree: int) -> int:
    """Return the longest stretch that any of the parts of a dim reaches."""
    if not reach.dim or degree == 1:
        return reach.size
    spans = (reach.span(i * length // degree, (i + 1) * length // degree) for i in range(degree))
    return max(hi - lo for lo, hi in spans)
