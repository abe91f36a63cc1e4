"""How TorchInductor lowers each kind of op to loop nests, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from traincast.estimate.fusion.attention import (
    masked,
    masked_back,
    unfused,
    unfused_back,
    with_mask,
)
from traincast.estimate.fusion.nests import (
    CALL,
    COLUMNS,
    ROWS,
    Key,
    Lowering,
    Read,
    probe,
    shaped,
)
from traincast.estimate.fusion.padding import padded
from traincast.estimate.program import OpClass, Spec
from traincast.graph import Op, Size
from traincast.graph.kinds.pointwise import RULES as FUNCTIONS
from traincast.graph.kinds.pointwise import backward_of

Keys = tuple[Key, ...]
Lower = Callable[[Lowering, Op, OpClass, Keys, Keys], None]
_PARTS = frozenset({"slice", "select", "narrow", "diagonal", "unfold", "as_strided"})
_UNROLLED = 25
"""Window up to which a pool is unrolled into a loop nest (lowering.max_pool2d_with_indices)."""


class Rule(NamedTuple):
    """How one kind is lowered."""

    forward: Lower
    backward: Lower


def _reads(low: Lowering, keys: Keys) -> tuple[Read, ...]:
    return tuple(low.read(key) for key in keys)


def _set(low: Lowering, key: Key, value: Read) -> None:
    low.known[key] = Read(value.value, value.name, value.spec)


def _call(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    """Run the library forward; what has a bias adds it in the next pointwise kernel."""
    made = tuple(low.value(s, n) for n, s in zip(op.outputs, cls.outs, strict=True))
    reads = _reads(low, ins)
    if cls.kind == "linear":
        reads = (reads[0], *(padded(low, cls, cls.ins[1], reads[1], 1) or reads[1:2]), *reads[2:])
    bias = cls.kind == "conv" and len(ins) > 2
    low.nest(CALL, reads[:2] if bias else reads, made, cls.outs[0], cls.outs[0], 0, call=cls)
    for key, value in zip(outs, made, strict=True):
        _set(low, key, value)
    if bias:
        _set(low, outs[0], low.point(cls.outs[0], (made[0], reads[2])))


def _call_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    given = tuple(low.gradient(key) for key in outs if key in low.parts)
    costs = cls.at(2, 64)
    saved = tuple(
        low.read(ins[i]) if i >= 0 else low.read(outs[~i]) for i in costs.saved if i < len(ins)
    )
    biased = cls.kind in ("linear", "conv") and len(ins) > 2
    takes = [i for i, s in enumerate(cls.ins) if s.grad and not (biased and i == 2)]
    made = tuple(
        low.value(shaped(cls.ins[i], cls.ins[i].shape), f"{ins[i][0]}.grad") for i in takes
    )
    if made:
        wide = padded(low, cls, cls.outs[0], given[0], len(made)) or given
        low.nest(CALL, wide + saved, made, cls.outs[0], cls.outs[0], 0, call=cls)
    for i, value in zip(takes, made, strict=True):
        low.give(ins[i], value)
    if biased and cls.ins[2].grad:
        (total,) = low.reduce(COLUMNS, cls.outs[0], cls.ins[2], given[:1])
        low.give(ins[2], total)


def _attention(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    if not masked(low, cls):
        return _call(low, op, cls, ins, outs)
    if not dict(cls.attrs)["causal"]:
        return _set(low, outs[0], unfused(low, op, cls, ins, outs[0]))
    reads, call = with_mask(low, cls, ins)
    made = low.value(cls.outs[0], outs[0][0])
    low.nest(CALL, reads, (made,), cls.outs[0], cls.outs[0], 0, call=call)
    low.notes[low.index], low.calls[low.index] = (*reads, made), call
    return _set(low, outs[0], made)


def _attention_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    if not masked(low, cls):
        _call_back(low, op, cls, ins, outs)
    elif dict(cls.attrs)["causal"]:
        masked_back(low, cls, ins, outs[0])
    else:
        unfused_back(low, cls, ins, outs[0])


def _pointwise(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    fn = str(op.attrs.get("fn", ""))
    ops = FUNCTIONS[fn].ops if fn in FUNCTIONS else 4
    made = low.point(cls.outs[0], _reads(low, ins), ops=ops, name=outs[0][0], aten=fn)
    _set(low, outs[0], made)


def _pointwise_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    fn = str(op.attrs["fn"])
    given = low.gradient(outs[0])
    saved = cls.at(2, 64).saved
    for i, spec in enumerate(cls.ins):
        if not spec.grad:
            continue
        part = given
        if backward_of(fn, i):
            needs = [
                low.read(ins[j]) if j >= 0 else low.read(outs[~j])
                for j in saved
                if not (fn == "mul" and len(ins) == 2 and j == i)
            ]
            ops = FUNCTIONS[fn].ops if fn in FUNCTIONS else 4
            out = cls.outs[0]._replace(dtype=spec.dtype)
            part = low.point(out, (given, *needs), ops=ops, aten=backward_of(fn, i)[-1])
        if probe(spec) < probe(cls.outs[0]):
            part = _summed(low, part, cls.outs[0], spec)
        low.give(ins[i], part)


def _summed(low: Lowering, part: Read, domain: Spec, into: Spec) -> Read:
    """Add up a gradient over axes that were broadcast."""
    last = bool(into.shape) and into.shape[-1] == domain.shape[-1]
    pattern = COLUMNS if last or not into.shape else ROWS
    if pattern == ROWS and into.shape[-1] != Size(1):
        pattern = COLUMNS
    return low.reduce(pattern, domain, shaped(into, into.shape), (part,))[0]


def _dropout(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    y = cls.outs[0]
    mask = low.value(shaped(y, y.shape, "bool"), f"{op.name}.mask")
    made = low.value(y, outs[0][0])
    low.nest("point", _reads(low, ins), (made, mask), y, y, 12)
    low.notes[low.index] = (mask,)
    _set(low, outs[0], made)


def _dropout_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    if cls.ins[0].grad:
        mask = low.notes[low.index]
        low.give(ins[0], low.point(cls.ins[0], (low.gradient(outs[0]), *mask), ops=2))


def _view(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    base = low.read(ins[0])
    for key, spec in zip(outs, cls.outs, strict=True):
        part = probe(spec) < probe(cls.ins[0])
        low.known[key] = Read(base.value, key[0] if part else base.name, spec)


def _view_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    x = cls.ins[0]
    if not x.grad:
        return
    fn = str(op.attrs["fn"])
    given = [low.gradient(key) for key in outs if key in low.parts]
    if fn == "expand" and probe(cls.outs[0]) > probe(x):
        low.give(ins[0], _summed(low, given[0], cls.outs[0], x))
    elif len(outs) > 1 or (fn in _PARTS and probe(cls.outs[0]) < probe(x)):
        low.give(ins[0], low.point(x, tuple(given), ops=len(given)))
    else:
        y = given[0]
        whole = probe(y.spec) == probe(x)
        low.give(ins[0], y._replace(spec=shaped(y.spec, x.shape)) if whole else y)


def _copy(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    """Cast, clone, pad, roll, gather, interpolate, fill: a loop over the result."""
    y = cls.outs[0]
    if op.attrs.get("fn") == "cast" and ins and cls.ins[0].dtype == y.dtype:
        return _view(low, op, cls, ins, outs)
    reads = _reads(low, ins)
    if cls.kind in ("gather", "embedding"):
        reads = (Read(reads[0].value, outs[0][0], shaped(y, y.shape)), *reads[1:])
    random = op.attrs.get("fn") in ("bernoulli", "rand", "randn", "cumsum")
    made = low.point(y, reads, ops=1, again=not random, name=outs[0][0])
    _set(low, outs[0], made)
    return None


def _copy_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    x, y = cls.ins[0], cls.outs[0]
    if not x.grad:
        return
    given = low.gradient(outs[0])
    fn = op.attrs.get("fn")
    if fn in ("clone", "copy_") or (fn == "cast" and x.dtype == y.dtype):
        low.give(ins[0], given)
    elif fn == "repeat":
        low.give(ins[0], _summed(low, given, y, x))
    else:
        low.give(ins[0], low.point(x, (given,)))


def _concat(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    _set(low, outs[0], low.point(cls.outs[0], _reads(low, ins), name=outs[0][0]))


def _concat_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    given = low.gradient(outs[0])
    for i, (key, spec) in enumerate(zip(ins, cls.ins, strict=True)):
        if spec.grad:
            low.give(key, Read(given.value, f"{op.name}.{i}", shaped(spec, spec.shape)))


def _scatter_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    """Gradients of look-ups: the library's scatter, whose reads and writes are its own."""
    takes = [i for i, s in enumerate(cls.ins) if s.grad]
    if not takes:
        return
    made = tuple(
        low.value(shaped(cls.ins[i], cls.ins[i].shape), f"{ins[i][0]}.grad") for i in takes
    )
    given = tuple(low.gradient(key) for key in outs if key in low.parts)
    index = tuple(low.read(key) for key, s in zip(ins[1:], cls.ins[1:], strict=True) if not s.grad)
    low.nest(CALL, given + index, made, cls.outs[0], cls.outs[0], 0, call=cls)
    for i, value in zip(takes, made, strict=True):
        low.give(ins[i], value)


def _pool(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    """Unrolled windows; where a maximum came from takes one byte."""
    y = cls.outs[0]
    made = low.value(y, outs[0][0])
    where: tuple[Read, ...] = ()
    if op.attrs["op"] == "max":
        where = (low.value(shaped(y, y.shape, "int8"), f"{op.name}.where"),)
    low.notes[low.index] = where
    low.nest("point", _reads(low, ins), (made, *where), y, y, _window(op)).window = True
    _set(low, outs[0], made)
    for key, spec in zip(outs[1:], cls.outs[1:], strict=True):
        low.known[key] = where[0]._replace(spec=spec) if where else low.value(spec, key[0])


def _window(op: Op) -> int:
    kernel = op.attrs["kernel"]
    assert isinstance(kernel, tuple)
    count = 1
    for length in kernel:
        count *= int(length)
    return min(count, _UNROLLED)


def _pool_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    if cls.ins[0].grad:
        reads = (low.gradient(outs[0]), *low.notes[low.index])
        low.give(ins[0], low.point(cls.ins[0], reads, ops=_window(op)))


def _reduce(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    x, y = cls.ins[0], cls.outs[0]
    last = bool(y.shape) and y.shape[-1] == x.shape[-1] and y.shape[-1] != Size(1)
    made = low.reduce(COLUMNS if last else ROWS, x, y, _reads(low, ins), len(outs))
    for key, value in zip(outs, made, strict=True):
        _set(low, key, value)


def _reduce_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    x = cls.ins[0]
    if not x.grad:
        return
    given = next(low.gradient(key) for key in outs if key in low.parts)
    saved = cls.at(2, 64).saved
    if saved:
        reads = tuple(low.read(ins[j]) if j >= 0 else low.read(outs[~j]) for j in saved)
        given = low.point(x, (given, *reads), ops=4)
    low.give(ins[0], given)


def _statistics(cls: OpClass) -> tuple[str, Spec, int]:
    """Return how a normalisation reduces, what is left of the input, and how many statistics."""
    x = cls.ins[0]
    attrs = dict(cls.attrs)
    if cls.kind == "batch_norm":
        return COLUMNS, shaped(x, x.shape[1:2], "float32"), 2
    if cls.kind == "group_norm":
        groups = Size(int(str(attrs["groups"])))
        return ROWS, shaped(x, (x.shape[0], groups), "float32"), 2
    axis = -1
    if cls.kind in ("layer_norm", "rms_norm"):
        return (
            ROWS,
            shaped(x, x.shape[: -int(str(attrs["axes"]))], "float32"),
            (1 if cls.kind == "rms_norm" else 2),
        )
    if cls.kind == "softmax":
        axis = int(str(attrs["axis"])) % max(len(x.shape), 1)
    elif cls.kind == "cross_entropy":
        axis = 1 if len(x.shape) > 1 else 0
    return ROWS, shaped(x, x.shape[:axis] + x.shape[axis + 1 :], "float32"), 2


def _norm(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    """Statistics, then the values; a batch norm that is not trained has its statistics."""
    x, rest = low.read(ins[0]), _reads(low, ins[1:])
    found: tuple[Read, ...] = ()
    if cls.kind != "batch_norm" or low.training:
        pattern, rows, count = _statistics(cls)
        found = low.reduce(pattern, cls.ins[0], rows, (x,), count, ops=4, sums=1)
        low.notes[low.index] = found
    _set(low, outs[0], low.point(cls.outs[0], (x, *found, *rest), ops=4, name=outs[0][0]))


def _norm_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    given, x = low.gradient(outs[0]), low.read(ins[0])
    pattern, rows, _ = _statistics(cls)
    found = low.notes.get(low.index, ())
    weight = tuple(low.read(key) for key in ins[1:2])
    affine = [i for i in range(1, len(ins)) if cls.ins[i].grad]
    reads = (given, x, *found)
    if pattern == COLUMNS:
        sums = low.reduce(pattern, cls.ins[0], rows, reads, 2, ops=4)
        for i, total in zip(affine, sums[::-1], strict=False):
            low.give(ins[i], low.point(cls.ins[i], (total, *found[1:])))
    else:
        sums = low.reduce(pattern, cls.ins[0], rows, (*reads, *weight), 2, ops=4)
        if affine:
            made = low.reduce(COLUMNS, cls.ins[0], cls.ins[affine[0]], reads, len(affine), ops=2)
            for i, total in zip(affine, made, strict=True):
                low.give(ins[i], total)
    if cls.ins[0].grad:
        low.give(ins[0], low.point(cls.ins[0], (*reads, *weight, *sums), ops=6))


def _softmax_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    if not cls.ins[0].grad:
        return
    given, y = low.gradient(outs[0]), low.read(outs[0])
    _, rows, _ = _statistics(cls)
    sums = low.reduce(ROWS, cls.ins[0], rows, (given, y))
    low.give(ins[0], low.point(cls.ins[0], (given, y, *sums), ops=3))


def _cross_entropy(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    """Largest logit and sum of exponentials a row; then the mean over rows."""
    x, target = low.read(ins[0]), low.read(ins[1])
    _, rows, _ = _statistics(cls)
    found = low.reduce(ROWS, cls.ins[0], rows, (x,), 2, ops=14)
    low.joint.forward[-1].slow = (14, "_log_softmax")
    low.notes[low.index] = found
    picked = Read(x.value, f"{op.name}.picked", rows._replace(dtype=x.spec.dtype))
    (loss,) = low.reduce(COLUMNS, rows, cls.outs[0], (*found, target, picked))
    _set(low, outs[0], loss)


def _cross_entropy_back(low: Lowering, op: Op, cls: OpClass, ins: Keys, outs: Keys) -> None:
    if cls.ins[0].grad:
        reads = (low.gradient(outs[0]), *_reads(low, ins), *low.notes[low.index])
        name = "_log_softmax_backward_data"
        low.give(ins[0], low.point(cls.ins[0], reads, ops=14, aten=name))


_LIBRARY = Rule(_call, _call_back)
_NORM = Rule(_norm, _norm_back)
_MOVE = Rule(_copy, _copy_back)

RULES: dict[str, Rule] = {
    "linear": _LIBRARY, "matmul": _LIBRARY, "grouped_matmul": _LIBRARY, "conv": _LIBRARY,
    "rnn": _LIBRARY, "sort": _LIBRARY, "unknown": _LIBRARY,
    "attention": Rule(_attention, _attention_back),
    "pointwise": Rule(_pointwise, _pointwise_back),
    "dropout": Rule(_dropout, _dropout_back),
    "view": Rule(_view, _view_back),
    "copy": _MOVE, "fill": _MOVE,
    "concat": Rule(_concat, _concat_back),
    "embedding": Rule(_copy, _scatter_back),
    "gather": Rule(_copy, _scatter_back),
    "interpolate": Rule(_copy, _scatter_back),
    "pool": Rule(_pool, _pool_back),
    "reduce": Rule(_reduce, _reduce_back),
    "batch_norm": _NORM, "layer_norm": _NORM, "group_norm": _NORM, "rms_norm": _NORM,
    "softmax": Rule(_norm, _softmax_back),
    "cross_entropy": Rule(_cross_entropy, _cross_entropy_back),
}  # fmt: skip
