"""Kinds that move data: views, copies, concatenation, look-ups, interpolation, sorting."""

from __future__ import annotations

import math

from traincast.graph.kinds.base import (
    Arg,
    Case,
    Costs,
    Kernel,
    Kind,
    pointwise,
    register,
    summed,
    total,
)

_VIEW_BACKWARD = {
    "slice": "slice_backward",
    "select": "select_backward",
    "narrow": "slice_backward",
    "diagonal": "diagonal_backward",
    "unfold": "unfold_backward",
    "as_strided": "as_strided_backward",
}


def _view(c: Case) -> Costs:
    """No kernel forward. Backward, a part is written into zeros, a broadcast is summed."""
    fn = str(c.attrs["fn"])
    x = c.ins[0]
    if not x.grad:
        return Costs(())
    out = total(c.outs)
    if fn in ("split", "unbind"):
        name = "cat" if fn == "split" else "stack"
        dims = (len(c.outs), max(y.n for y in c.outs), 0, 0)
        return Costs((), (Kernel(name, "concat", 0, 0, out, x.size, dims, each=x.each),))
    if fn == "expand":
        y = c.outs[0]
        if y.n == x.n:
            return Costs(())
        return Costs((), (summed(y, x),))
    if fn in _VIEW_BACKWARD and (c.outs[0].n < x.n or fn == "unfold"):
        back = Kernel(_VIEW_BACKWARD[fn], "copy", 0, 0, out, x.size + out, each=x.each)
        return Costs((), (back,))
    return Costs(())


register(
    Kind(
        name="view",
        summary="reshape, permute, slice, expand, split: other axes on the same memory, no copy",
        inputs=(1, 1),
        attrs={"fn": str},
        costs=_view,
        differentiable=lambda op: op.attrs.get("fn") != "detach",
        alias=lambda _: True,
        parallel=frozenset({"*"}),
    )
)

_COPY_BACKWARD = {
    "clone": (),
    "cast": ("_to_copy",),
    "pad": ("constant_pad_nd",),
    "roll": ("roll",),
    "flip": ("flip",),
    "cumsum": ("flip", "cumsum", "flip"),
    "im2col": ("col2im",),
    "col2im": ("im2col",),
    "copy_": (),
    "slice_scatter": ("slice_scatter",),
    "stack": (),
    "index_fill": ("index_fill",),
    "diag_embed": (),
    "pixel_shuffle": ("pixel_unshuffle",),
    "pixel_unshuffle": ("pixel_shuffle",),
}


def _copy(c: Case) -> Costs:
    """Forward reads and writes once, backward likewise where there is something to undo.

    A cast between equal types is no copy: it is free, as in PyTorch. One between types of equal
    width says so by `retyped`.
    """
    fn = str(c.attrs["fn"])
    x, y = c.ins[0], c.outs[0]
    if fn == "written":
        return _written(c)
    if fn == "cast" and x.each == y.each and not c.attrs.get("retyped"):
        return Costs(())
    names = {"cast": "_to_copy", "pad": "constant_pad_nd"}
    per = 1 if fn == "cumsum" else 0
    name = names.get(fn, fn)
    forward = Kernel(name, "copy", 0, per * y.n, total(c.ins), y.size, each=x.each)
    if not x.grad:
        return Costs((forward,))
    if fn == "repeat":
        return Costs((forward,), (summed(y, x),))
    back = tuple(
        Kernel(name, "copy", 0, per * y.n, y.size, x.size, each=y.each)
        for name in _COPY_BACKWARD.get(fn, (f"{fn}_backward",))
    )
    mirrors = fn.startswith(("reflection_pad", "replication_pad"))
    return Costs((forward,), back, (), (0,) if mirrors else ())


def _written(c: Case) -> Costs:
    """A tensor after a part of it, the last input, was written in place; no kernel forward.

    Backward, autograd copies the whole gradient and from it the part's, which is then replaced by
    what the written value leaves of it (PyTorch's CopySlices). Where the part was also read, as by
    arithmetic in place, it is the only input: its view's backward makes the whole gradient then,
    unless the view is as large as the whole.
    """
    whole, part = c.outs[0], c.ins[-1]

    def move(a: Arg) -> Kernel:
        return Kernel("copy_", "copy", 0, 0, a.size, a.size, each=a.each)

    if not part.grad:
        return Costs(())
    zeros = Kernel("zeros_like", "fill", 0, 0, 0, part.size, each=part.each)
    if len(c.ins) == 1:
        back = [move(part), move(part)]
        return Costs((), tuple(back if part.n < whole.n else [move(whole), *back]))
    left = [zeros, move(part)] if c.ins[0].grad else []
    return Costs((), (move(whole), move(part), *left))


register(
    Kind(
        name="copy",
        summary="a real copy: contiguous, cast, pad, roll, repeat, cumulative sum",
        inputs=(1, None),
        attrs={"fn": str},
        alias=lambda op: op.attrs.get("fn") == "written",
        costs=_copy,
        parallel=frozenset({"*"}),
    )
)


def _concat(c: Case) -> Costs:
    """Backward is free, each input's gradient being a slice of the output's, but for a cast."""
    y = c.outs[0]
    dims = (len(c.ins), max(x.n for x in c.ins), 0, 0)
    forward = Kernel("cat", "concat", 0, 0, total(c.ins), y.size, dims, each=y.each)
    back = [
        Kernel("_to_copy", "copy", 0, 0, x.n * y.each, x.size, each=y.each)
        for x in c.ins
        if x.grad and x.each != y.each
    ]
    return Costs((forward,), tuple(back))


def _concat_shape(c: Case) -> tuple[tuple[int, ...] | None, ...]:
    axis = int(c.number("axis"))
    shape = list(c.ins[0].shape)
    if not -len(shape) <= axis < len(shape):
        return (None,)
    shape[axis] = sum(a.shape[axis] for a in c.ins if len(a.shape) == len(shape))
    return (tuple(shape),)


register(
    Kind(
        name="concat",
        summary="concatenation along one axis",
        inputs=(1, None),
        attrs={"axis": int},
        costs=_concat,
        shapes=_concat_shape,
        parallel=frozenset({"*"}),
    )
)


def _embedding(c: Case) -> Costs:
    """Reads one row an index; backward fills the table's dense gradient with zeros and adds."""
    table, index = c.ins[0], c.ins[1]
    y = c.outs[0]
    rows = y.size * (index.n / max(y.n / max(table.shape[-1], 1), 1))
    dims = (index.n, table.shape[-1], table.n / max(table.shape[-1], 1), 0)
    forward = Kernel("embedding", "gather", 0, 0, rows + index.size, y.size, dims, each=table.each)
    if not table.grad:
        return Costs((forward,))
    name = "embedding_dense_backward"
    write = table.size + rows
    back = Kernel(name, "gather", 0, y.n, rows + index.size, write, dims, each=table.each)
    return Costs((forward,), (), (back,), (1,))


register(
    Kind(
        name="embedding",
        summary="rows of a table by index; several rows summed for a bag",
        inputs=(2, 4),
        attrs={},
        costs=_embedding,
        parallel=frozenset({"sample", "sequence", "token", "channel"}),
    )
)

_GATHER_BACKWARD = {
    "index": ("index_put",),
    "gather": ("scatter_add",),
    "index_select": ("index_add",),
    "take_along_dim": ("scatter_add",),
    "scatter": ("scatter", "gather"),
    "scatter_add": ("gather",),
    "index_add": ("index_select",),
    "index_put": ("index_put", "index"),
}


_WRITES = frozenset({"scatter", "scatter_add", "index_add", "index_put"})
_ADDS = frozenset({"scatter_add", "index_add", "index_put"})


def _gather(c: Case) -> Costs:
    """Values by index, out of a table (read) or into one (written, or added to what is there).

    Each value is read and written once; a sum also reads what it adds to. Not in place, the table
    is copied first. Backward, what was read is added into zeros, and what was written is read.
    """
    fn = str(c.attrs["fn"])
    x, y = c.ins[0], c.outs[0]
    whole = tuple(a for a in c.ins[1:] if not a.grad)
    index = max((a.n for a in whole), default=1)
    values = max((a.n for a in c.ins[2:]), default=index) if fn in _WRITES else y.n
    width = max(values / max(index, 1), 1.0)
    dims = (index, width, x.n / width, 0)

    def moves(name: str, copied: float = 0, made: float = 0) -> Kernel:
        size = values * x.each
        read = size + total(whole) + (size if name in _ADDS else 0) + copied
        return Kernel(name, "gather", 0, values, read, size + made, dims, each=x.each)

    table = x.size if fn in _WRITES and not c.attrs.get("inplace") else 0
    forward = moves(fn, table, table)
    if not any(a.grad for a in c.ins):
        return Costs((forward,))
    names = _GATHER_BACKWARD.get(fn, (f"{fn}_backward",))
    back = tuple(moves(name, 0, x.size if name in _ADDS else 0) for name in names)
    saved = tuple(i for i in range(1, len(c.ins)) if not c.ins[i].grad)
    return Costs((forward,), back, (), saved)


register(
    Kind(
        name="gather",
        summary="indexed reads and writes: index, gather, scatter",
        inputs=(1, None),
        attrs={"fn": str},
        costs=_gather,
        parallel=frozenset({"*"}),
    )
)


def _fill(c: Case) -> Costs:
    if "empty" in str(c.attrs["fn"]):
        return Costs(())
    each = c.outs[0].each
    return Costs((Kernel(str(c.attrs["fn"]), "fill", 0, 0, 0, total(c.outs), each=each),))


register(
    Kind(
        name="fill",
        summary="new values out of nothing: zeros, ranges, random numbers",
        inputs=(0, None),
        attrs={"fn": str},
        costs=_fill,
        differentiable=lambda _: False,
    )
)


def _interpolate(c: Case) -> Costs:
    x, y = c.ins[0], c.outs[0]
    name = str(c.attrs["fn"])
    # The longer names first: `linear` is part of them.
    taps = {"nearest": 1, "trilinear": 8, "bilinear": 4, "linear": 2, "bicubic": 16}
    per = next((n for key, n in taps.items() if key in name), 4)
    read = total(c.ins)
    places = math.prod(y.shape[2:])
    dims = (places, y.n / max(places, 1), 0, 0)
    forward = Kernel(name, "interpolate", 0, 2 * per * y.n, read, y.size, dims, each=x.each)
    if not any(a.grad for a in c.ins):
        return Costs((forward,))
    name += "_backward"
    # One kernel writes the gradients of a sampled image and of where it was sampled.
    read, write = (total(c.ins) + y.size, read) if len(c.ins) > 1 else (y.size, x.size)
    back = Kernel(name, "interpolate", 0, 2 * per * y.n, read, write, dims, each=x.each)
    return Costs((forward,), (back,), (), (0, 1) if "grid" in name else ())


register(
    Kind(
        name="interpolate",
        summary="resampling of an image or signal to another size",
        inputs=(1, 2),
        attrs={"fn": str},
        costs=_interpolate,
        parallel=frozenset({"sample", "channel"}),
    )
)


def _sort(c: Case) -> Costs:
    """Sorting and top-k, as routing in a mixture of experts uses them; several passes."""
    x = c.ins[0]
    write = 2 * total(c.outs)
    forward = Kernel(str(c.attrs["fn"]), "sort", 0, 8 * x.n, 4 * x.size, write, each=x.each)
    if not x.grad:
        return Costs((forward,))
    name = "value_selecting_reduction_backward"
    back = Kernel(name, "gather", 0, 0, 2 * total(c.outs), x.size, each=x.each)
    return Costs((forward,), (back,), (), (~1,) if len(c.outs) > 1 else ())


register(
    Kind(
        name="sort",
        summary="sorting and top-k selection, such as expert routing",
        inputs=(1, 2),
        attrs={"fn": str},
        costs=_sort,
        parallel=frozenset({"sample", "sequence", "token"}),
    )
)


def _accumulate(c: Case) -> Costs:
    """A value with several readers gets its gradients added up, one kernel a further reader.

    `forms` of them have two orders of memory to go by.
    """
    x = c.ins[0]
    more = int(c.number("readers")) - 1
    forms = c.attrs.get("forms", ())
    assert isinstance(forms, tuple)
    slow = forms[:more]
    added = pointwise("add", 2 * x.size, x.size, x.n, each=x.each)
    apart = tuple([added._replace(name=f"add.{form}") for form in slow])
    return Costs((), (added,) * (more - len(slow)) + apart)


register(
    Kind(
        name="accumulate",
        summary="sum of the gradients of a value that several ops read; inserted, never ingested",
        inputs=(1, 1),
        attrs={"readers": int},
        costs=_accumulate,
    )
)
