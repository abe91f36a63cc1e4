"""Benchmark rows as kernels: the same records that a program's kernels are priced by.

Every measured case is turned into the op of the graph that it stands for, and that op's own
formulas say how much work it is, so that what is fitted is what is priced later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traincast.graph import KINDS, Attr
from traincast.graph.kinds import Arg, Case, Kernel
from traincast.measure.matrix_rows import (
    EACH,
    Row,
    arg,
    attention,
    conv,
    gemm,
    op_kernel,
    rnn,
    sides_of,
)

GROWTH = 32
"""Channels of the small images of `cat_13` (`bench/images.py`, which is not imported: torch)."""


def _pointwise(fn: str, inputs: int, phase: int, row: Row, **attrs: Attr) -> tuple[int, Kernel]:
    e = EACH[row["dtype"]]
    shape = _shape(row)
    ins = [arg(shape, e, grad=i == 0) for i in range(inputs)]
    return phase, op_kernel("pointwise", {"fn": fn, **attrs}, ins, [arg(shape, e)], phase)


def _shape(row: Row) -> tuple[int, ...]:
    if "rows" in row:
        return (int(row["rows"]), int(row["columns"]))
    return (int(row["n"]), int(row["c"]), *sides_of(row, int(row.get("axes", 2))))


def _moved(name: str, family: str, read: float, write: float) -> Callable[[Row], Any]:
    """Return what makes a kernel that reads and writes so many times its elements."""

    def make(row: Row) -> tuple[int, Kernel]:
        e = EACH[row["dtype"]]
        n = arg(_shape(row), e).size
        return 0, Kernel(name, family, 0, n / e, read * n, write * n, each=e)

    return make


def _joined(whole: int, grown: int = 0) -> Callable[[Row], Any]:
    """Return what makes a concatenation of whole images or matrices, and of small images."""

    def make(row: Row) -> tuple[int, Kernel]:
        e, shape = EACH[row["dtype"]], _shape(row)
        axis = (shape[1] * whole + GROWTH * grown, *shape[2:])
        ins = [arg(shape, e)] * whole + [arg((shape[0], GROWTH, *shape[2:]), e)] * grown
        return 0, op_kernel("concat", {"axis": 1}, ins, [arg((shape[0], *axis), e)], 0)

    return make


def _cast(row: Row) -> tuple[int, Kernel]:
    e = EACH[row["dtype"]]
    ins, outs = [arg(_shape(row), e)], [arg(_shape(row), 6 - e)]
    return 0, op_kernel("copy", {"fn": "cast"}, ins, outs, 0)


def _sum_rows(row: Row) -> tuple[int, Kernel]:
    e, (rows, columns) = EACH[row["dtype"]], (int(row["rows"]), int(row["columns"]))
    n = rows * columns
    dims = (columns, rows, columns, 0)
    return 2, Kernel("sum", "reduction", 0, n, n * e, columns * e, dims, each=e)


def _reduced(name: str) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = EACH[row["dtype"]]
        shape = _shape(row)
        n, inner = arg(shape, e).n, 0
        groups = {"sum_all": 1, "mean_space": shape[0] * shape[1]}.get(row["op"], shape[0])
        if str(row["op"]).endswith("_middle"):
            groups, inner = n // int(row["inner"]), shape[1]
        dims = (groups, n / groups, inner, 0)
        return 0, Kernel(name, "reduction", 0, n, n * e, groups * e, dims, each=e)

    return make


def _norm(kind: str, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = EACH[row["dtype"]]
        shape = _shape(row)
        width = shape[1] if len(shape) > 1 else 1
        wide = 4 if kind == "batch_norm" else e
        affine = [arg((width,), wide, role="parameter")] * (1 if kind == "rms_norm" else 2)
        attrs: dict[str, Attr] = {}
        if kind in ("layer_norm", "rms_norm"):
            attrs["axes"] = 1
        if kind == "group_norm":
            attrs["groups"] = int(row.get("groups", 32))
        x = arg(shape, e)
        return phase, op_kernel(kind, attrs, [x, *affine], [x], phase)

    return make


def _softmax(log: bool, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        x = arg(_shape(row), EACH[row["dtype"]])
        return phase, op_kernel("softmax", {"axis": -1, "log": log}, [x], [x], phase)

    return make


def _nll(phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        x = arg(_shape(row), EACH[row["dtype"]])
        target = arg(x.shape[:1], 8, grad=False)
        costs = KINDS["cross_entropy"].costs(Case({}, (x, target), (arg((), x.each),)))
        return phase, costs.forward[1] if phase == 0 else costs.data[0]

    return make


def _embedding(phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = EACH[row["dtype"]]
        width, rows = int(row.get("width", 768)), int(row["rows"])
        table = arg((int(row["columns"]), width), e, role="parameter")
        ins = [table, arg((rows,), 8, grad=False)]
        return phase, op_kernel("embedding", {}, ins, [arg((rows, width), e)], phase)

    return make


def _pool(op: str, window: int, stride: int, pad: int, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = EACH[row["dtype"]]
        n, c, *sides = _shape(row)
        shape = (n, c, *((side + 2 * pad - window) // stride + 1 for side in sides))
        outs = [arg(shape, e)] + ([arg(shape, 8, grad=False)] if op == "max" else [])
        axes = len(sides)
        attrs: dict[str, Attr] = {
            "op": op, "kernel": (window,) * axes, "stride": (stride,) * axes,
            "padding": (pad,) * axes,
        }  # fmt: skip
        if axes == 3:
            attrs["aten"] = "max_pool3d_with_indices" if op == "max" else "avg_pool3d"
        return phase, op_kernel("pool", attrs, [arg((n, c, *sides), e)], outs, phase)

    return make


def _summed_space(row: Row) -> tuple[int, Kernel]:
    e, shape = EACH[row["dtype"]], _shape(row)
    n, c = arg(shape, e).n, shape[1]
    name, dims = "convolution_backward.bias", (c, n / c, 0, 0)
    return 2, Kernel(name, "reduction", 0, n, n * e, c * e, dims, each=e)


def _scaled_and_shifted(row: Row) -> tuple[int, Kernel]:
    e, shape = EACH[row["dtype"]], _shape(row)
    n, c = arg(shape, e).n, shape[1]
    name, dims, space = "native_batch_norm.infer", (c, n / c, 0, 0), n / c / shape[0]
    return 0, Kernel(name, "norm", 0, 2 * n, n * e, n * e, dims, each=e, space=space)


def _resized(fn: str, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e, (n, c, size, _) = EACH[row["dtype"]], _shape(row)
        ins, outs = [arg((n, c, size, size), e)], [arg((n, c, 2 * size, 2 * size), e)]
        return phase, op_kernel("interpolate", {"fn": fn}, ins, outs, phase)

    return make


def _mixed(name: str, row: Row) -> tuple[int, Kernel]:
    """Return a kernel of a 2-byte and a 4-byte operand, whose result has 4 bytes."""
    n = arg(_shape(row), 1).n
    return 0, Kernel(name, "pointwise", 0, n, 6 * n, 4 * n, each=EACH[row["dtype"]])


def _apart(row: Row) -> tuple[int, Kernel]:
    """Return a concatenation of parts of larger matrices."""
    phase, kernel = _joined(1)(row)
    return phase, kernel._replace(name="cat.strided", dims=(2, kernel.dims[1] / 2, 0, 0))


def _gated(phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e, (rows, columns) = EACH[row["dtype"]], _shape(row)
        whole, half = rows * (columns // 2 * 2) * e, rows * (columns // 2) * e
        name, read, write = (
            ("glu", whole, half) if phase == 0 else ("glu_backward", whole + half, whole)
        )
        return phase, Kernel(name, "pointwise", 0, half / e, read, write, each=e)

    return make


def _by_index(row: Row) -> tuple[int, Kernel]:
    """Return reads of a table's rows, or sums into them."""
    e, op = EACH[row["dtype"]], str(row["op"])
    rows, width, columns = (int(row[k]) for k in ("rows", "width", "columns"))
    table, values = arg((columns, width), e), arg((rows, width), e)
    index = arg((rows, width) if op in ("gather", "scatter_add") else (rows,), 8, grad=False)
    ins = [table, index] + ([values] if op in ("scatter_add", "index_add", "index_put") else [])
    outs = [table] if len(ins) > 2 else [values]
    return 0, op_kernel("gather", {"fn": op, "inplace": True}, ins, outs, 0)


def _fns(inputs: int, phase: int, *names: str, suffix: str = "") -> dict[str, Callable[[Row], Any]]:
    def maker(fn: str) -> Callable[[Row], Any]:
        return lambda row: _pointwise(fn, inputs, phase, row)

    return {f"{name}{suffix}": maker(name) for name in names}


_ACTIVATIONS = ("gelu", "silu", "sigmoid", "tanh", "hardswish", "hardtanh", "leaky_relu",
                "hardsigmoid", "elu", "mish", "softplus")  # fmt: skip
VECTOR: dict[str, Callable[[Row], Any]] = {
    **_fns(2, 0, "add", "mul", "sub", "div", "maximum"),
    **_fns(1, 0, "relu", "pow", "exp", "cos", "rsqrt", "log", "sqrt", "sin", "abs", "neg", "clamp",
           "log_sigmoid", *_ACTIVATIONS),
    **_fns(1, 1, *_ACTIVATIONS, suffix="_backward"),
    "threshold_backward": lambda row: _pointwise("relu", 1, 1, row),
    "add_scalar": _moved("add", "pointwise", 1, 1),
    "mul_scalar": lambda row: _pointwise("mul_scalar", 1, 0, row),
    "relu_": lambda row: _pointwise("relu", 1, 0, row, inplace=True),
    "add_inplace": _moved("add", "pointwise", 2, 1),
    "residual": _moved("add", "pointwise", 2, 1),
    "mul_row": _moved("mul.strided", "pointwise", 1, 1),
    "scale": _moved("mul.strided", "pointwise", 1, 1),
    "mul_strided": _moved("mul.strided", "pointwise", 2, 1),
    "add_strided": _moved("add.strided", "pointwise", 2, 1),
    "add_narrow": _moved("add.strided", "pointwise", 2, 1),
    "mul_turned": _moved("mul.turned", "pointwise", 2, 1),
    "add_turned": _moved("add.turned", "pointwise", 2, 1),
    "mean_space_backward": _moved("div.spread", "pointwise", 0, 1),
    "mul_mixed": lambda row: _mixed("mul.mixed", row),
    "add_mixed": lambda row: _mixed("add.mixed", row),
    "cat_4": _joined(4),
    "cat_13": _joined(1, 12),
    "bias": _moved("convolution.bias", "pointwise", 1, 1),
    "dropout_backward": lambda row: (
        1, op_kernel("dropout", {"p": 0.1}, [_x(row)], [_x(row)], 1)
    ),
    "narrow": _moved("copy_.narrow", "copy", 0.5, 0.5),
    "heads": _moved("copy_.permute", "copy", 1, 1),
    "heads_back": _moved("copy_.permute", "copy", 1, 1),
    "permute": _moved("copy_.permute", "copy", 1, 1),
    "permute_back": _moved("copy_.permute", "copy", 1, 1),
    "layout": _moved("copy_.transpose", "copy", 1, 1),
    "roll": _moved("roll", "copy", 2, 2),
    "cumsum": _moved("cumsum", "copy", 1, 1),
    "sort": lambda row: (
        0, op_kernel("sort", {"fn": "sort"}, [_x(row)], [_x(row), arg(_shape(row), 8)], 0)
    ),
    "index_select": _moved("index_select", "gather", 1, 1),
    "sum_space": _summed_space,
    "nearest": _resized("upsample_nearest2d", 0),
    "nearest_backward": _resized("upsample_nearest2d", 1),
    "bilinear": _resized("upsample_bilinear2d", 0),
    "bilinear_backward": _resized("upsample_bilinear2d", 1),
    "batch_norm_infer": _scaled_and_shifted,
    "max_pool_2x2": _pool("max", 2, 2, 0, 0),
    "max_pool_2x2_backward": _pool("max", 2, 2, 0, 1),
    "avg_pool_2x2": _pool("avg", 2, 2, 0, 0),
    "avg_pool_2x2_backward": _pool("avg", 2, 2, 0, 1),
    "broadcast_add": _moved("add.strided", "pointwise", 1, 1),
    "where": _moved("where", "pointwise", 2.25, 1),
    "fill": _moved("zeros", "fill", 0, 1),
    "clone": _moved("clone", "copy", 1, 1),
    "cat": _joined(2),
    "cat_strided": _apart,
    "glu": _gated(0),
    "glu_backward": _gated(1),
    "masked_fill": _moved("masked_fill", "pointwise", 1.25, 1),
    "sum_last": _reduced("sum"),
    "sum_middle": _reduced("sum"),
    "mean_middle": _reduced("mean"),
    "amax_last": _reduced("amax"),
    "logsumexp_last": _reduced("logsumexp"),
    "max_pool3d": _pool("max", 2, 2, 0, 0),
    "max_pool3d_backward": _pool("max", 2, 2, 0, 1),
    "avg_pool3d": _pool("avg", 2, 2, 0, 0),
    "avg_pool3d_backward": _pool("avg", 2, 2, 0, 1),
    "cast": _cast,
    "dropout": lambda row: (
        0, op_kernel("dropout", {"p": 0.1}, [_x(row)], [_x(row)], 0)
    ),
    "sum_rows": _sum_rows,
    "sum_all": _reduced("sum"),
    "mean_last": _reduced("mean"),
    "mean_space": _reduced("mean"),
    "layer_norm": _norm("layer_norm", 0),
    "layer_norm_backward": _norm("layer_norm", 1),
    "rms_norm": _norm("rms_norm", 0),
    "rms_norm_backward": _norm("rms_norm", 1),
    "group_norm": _norm("group_norm", 0),
    "group_norm_backward": _norm("group_norm", 1),
    "batch_norm": _norm("batch_norm", 0),
    "batch_norm_backward": _norm("batch_norm", 1),
    "softmax": _softmax(log=False, phase=0),
    "softmax_backward": _softmax(log=False, phase=1),
    "log_softmax": _softmax(log=True, phase=0),
    "log_softmax_backward": _softmax(log=True, phase=1),
    "nll_forward": _nll(0),
    "nll_backward": _nll(1),
    "embedding": _embedding(0),
    "embedding_backward": _embedding(2),
    "max_pool": _pool("max", 3, 2, 1, 0),
    "max_pool_backward": _pool("max", 3, 2, 1, 1),
    "avg_pool": _pool("avg", 3, 1, 1, 0),
    "avg_pool_backward": _pool("avg", 3, 1, 1, 1),
}  # fmt: skip
"""For each op of the families stream, row and image: what makes its kernel."""


def _x(row: Row) -> Arg:
    return arg(_shape(row), EACH[row["dtype"]])


_FAMILIES: dict[str, Callable[[Row], Any]] = {
    "gemm": gemm,
    "conv": conv,
    "attention": attention,
    "rnn": rnn,
    "index": _by_index,
}


def _nothing_moves(row: Row) -> bool:
    """Tell whether a copy's operand lies as wanted already, so that PyTorch copies nothing."""
    op = str(row.get("op"))
    if op in ("permute", "permute_back"):
        return int(row["size"]) == 7  # a single window
    if op in ("heads", "heads_back"):
        return int(row["columns"]) == int(row["d"])
    return op == "narrow" and row.get("n") == 1 and row.get("layout") == "nchw"


def kernel_of(row: Row) -> tuple[int, Kernel] | None:
    """Return a row's phase (0 forward, 1 data, 2 weight) and kernel; None if we have no use."""
    if row["family"] == "attention" and row["kv"] != row["heads"] and EACH[row["dtype"]] == 4:
        return None  # runs as separate products, not as one kernel
    make = _FAMILIES.get(str(row["family"])) or VECTOR.get(str(row.get("op")))
    if make is None or _nothing_moves(row):
        return None
    phase, kernel = make(row)
    return int(phase), kernel
