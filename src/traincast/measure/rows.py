"""Benchmark rows as kernels: the same records that a program's kernels are priced by.

Every measured case is turned into the op of the graph that it stands for, and that op's own
formulas say how much work it is, so that what is fitted is what is priced later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from traincast.estimate.lowering import masked_attention, whole_rnn
from traincast.graph import KINDS, Attr
from traincast.graph.kinds import Arg, Case, Kernel

Row = Mapping[str, Any]
GROWTH = 32
"""Channels of the small images of `cat_13` (`bench/images.py`, which is not imported: torch)."""
_EACH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def _arg(shape: tuple[int, ...], each: float, grad: bool = True, role: str = "activation") -> Arg:
    n = 1
    for length in shape:
        n *= length
    return Arg(shape, n, each, grad, role)


def _op(kind: str, attrs: dict[str, Attr], ins: list[Arg], outs: list[Arg], phase: int) -> Kernel:
    """Return the first kernel of an op in a phase."""
    costs = KINDS[kind].costs(Case(attrs, tuple(ins), tuple(outs)))
    return (costs.forward, costs.data, costs.weight)[phase][0]


def _gemm(row: Row) -> tuple[int, Kernel]:
    e = _EACH[row["dtype"]]
    m, n, k, b = (int(row[x]) for x in ("m", "n", "k", "batch"))
    if row["form"] == "batched":
        ins = [_arg((b, m, k), e), _arg((b, k, n), e)]
        return 0, _op("matmul", {}, ins, [_arg((b, m, n), e)], 0)
    phase = ("forward", "data", "weight").index(row["form"])
    ins = [_arg((m, k), e), _arg((n, k), e, role="parameter")]
    return phase, _op("linear", {}, ins, [_arg((m, n), e)], phase)


def _conv(row: Row) -> tuple[int, Kernel]:
    e = _EACH[row["dtype"]]
    n, cin, cout, size, stride, g = (
        int(row[x]) for x in ("n", "cin", "cout", "size", "stride", "groups")
    )
    form = str(row["form"])
    transposed, axes = form.startswith("t_"), int(row.get("axes", 2))
    kernel = (*(int(row["kernel"]),) * (axes - 1), int(row.get("kernel_w", row["kernel"])))
    kernel = (int(row.get("kernel_d", kernel[0])), *kernel[1:])
    sides, gap = _sides(row, axes), int(row.get("dilation", 1))
    pads = tuple(int(row.get("padding", gap * (k // 2))) for k in kernel)
    if "padding_w" in row:
        pads = (pads[0], int(row["padding_w"]))
    if transposed:
        out = ((size - 1) * stride - 2 * pads[0] + kernel[0],) * axes
        weight = (cin, cout // g, *kernel)
    else:
        out = tuple(
            (side + 2 * p - gap * (k - 1) - 1) // stride + 1
            for side, p, k in zip(sides, pads, kernel, strict=True)
        )
        weight = (cout, cin // g, *kernel)
    attrs: dict[str, Attr] = {
        "stride": (stride,) * axes, "padding": pads, "dilation": (gap,) * axes, "groups": g,
        "transposed": transposed,
    }  # fmt: skip
    ins = [_arg((n, cin, *sides), e), _arg(weight, e, role="parameter")]
    phase = ("forward", "data", "weight").index(form.removeprefix("t_"))
    return phase, _op("conv", attrs, ins, [_arg((n, cout, *out), e)], phase)


def _sides(row: Row, axes: int) -> tuple[int, ...]:
    """Return the sides of an image; of volumes the depth is first."""
    size = int(row["size"])
    return (int(row.get("depth", size)), *(size,) * (axes - 1))


def _attention(row: Row) -> tuple[int, Kernel]:
    e = _EACH[row["dtype"]]
    b, heads, kv, seq, d = (int(row[x]) for x in ("b", "heads", "kv", "seq", "d"))
    keys = int(row.get("keys", seq))
    ins = [_arg((b, *sides, d), e) for sides in ((heads, seq), (kv, keys), (kv, keys))]
    if row.get("mask"):
        ins.append(_arg((1, heads, seq, keys), e, grad=row["mask"] == "learned"))
    phase = 0 if row["form"] == "forward" else 1
    attrs: dict[str, Attr] = {"causal": bool(row["causal"])}
    if kv != heads and e == 4:
        attrs["algorithm"] = "math"
    kernel = _op("attention", attrs, ins, [_arg((b, heads, seq, d), e)], phase)
    return phase, masked_attention(kernel, ins[3] if len(ins) > 3 else None)


def _rnn(row: Row) -> tuple[int, Kernel]:
    e, gates = _EACH[row["dtype"]], 4 if row["cell"] == "lstm" else 3
    b, seq, wide, hidden, layers = (int(row[x]) for x in ("b", "seq", "input", "hidden", "layers"))
    ways = 2 if row["both_ways"] else 1
    weights = []
    for layer in range(layers):
        for shape in ((wide if layer == 0 else ways * hidden), hidden):
            weights += [_arg((gates * hidden, shape), e, role="parameter")] * ways
        weights += [_arg((gates * hidden,), e, role="parameter")] * 2 * ways
    attrs: dict[str, Attr] = {
        "cell": str(row["cell"]), "hidden": hidden, "layers": layers,
        "bidirectional": bool(row["both_ways"]), "batch_first": True,
    }  # fmt: skip
    phase = 0 if row["form"] == "forward" else 1
    outs = [_arg((b, seq, ways * hidden), e)]
    return phase, whole_rnn(_op("rnn", attrs, [_arg((b, seq, wide), e), *weights], outs, phase))


def _pointwise(fn: str, inputs: int, phase: int, row: Row, **attrs: Attr) -> tuple[int, Kernel]:
    e = _EACH[row["dtype"]]
    shape = _shape(row)
    ins = [_arg(shape, e, grad=i == 0) for i in range(inputs)]
    return phase, _op("pointwise", {"fn": fn, **attrs}, ins, [_arg(shape, e)], phase)


def _shape(row: Row) -> tuple[int, ...]:
    if "rows" in row:
        return (int(row["rows"]), int(row["columns"]))
    return (int(row["n"]), int(row["c"]), *_sides(row, int(row.get("axes", 2))))


def _moved(name: str, family: str, read: float, write: float) -> Callable[[Row], Any]:
    """Return what makes a kernel that reads and writes so many times its elements."""

    def make(row: Row) -> tuple[int, Kernel]:
        e = _EACH[row["dtype"]]
        n = _arg(_shape(row), e).size
        return 0, Kernel(name, family, 0, n / e, read * n, write * n, each=e)

    return make


def _joined(whole: int, grown: int = 0) -> Callable[[Row], Any]:
    """Return what makes a concatenation of whole images or matrices, and of small images."""

    def make(row: Row) -> tuple[int, Kernel]:
        e, shape = _EACH[row["dtype"]], _shape(row)
        axis = (shape[1] * whole + GROWTH * grown, *shape[2:])
        ins = [_arg(shape, e)] * whole + [_arg((shape[0], GROWTH, *shape[2:]), e)] * grown
        return 0, _op("concat", {"axis": 1}, ins, [_arg((shape[0], *axis), e)], 0)

    return make


def _cast(row: Row) -> tuple[int, Kernel]:
    e = _EACH[row["dtype"]]
    ins, outs = [_arg(_shape(row), e)], [_arg(_shape(row), 6 - e)]
    return 0, _op("copy", {"fn": "cast"}, ins, outs, 0)


def _sum_rows(row: Row) -> tuple[int, Kernel]:
    e, (rows, columns) = _EACH[row["dtype"]], (int(row["rows"]), int(row["columns"]))
    n = rows * columns
    dims = (columns, rows, columns, 0)
    return 2, Kernel("sum", "reduction", 0, n, n * e, columns * e, dims, each=e)


def _reduced(name: str) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = _EACH[row["dtype"]]
        shape = _shape(row)
        n, inner = _arg(shape, e).n, 0
        groups = {"sum_all": 1, "mean_space": shape[0] * shape[1]}.get(row["op"], shape[0])
        if str(row["op"]).endswith("_middle"):
            groups, inner = n // int(row["inner"]), shape[1]
        dims = (groups, n / groups, inner, 0)
        return 0, Kernel(name, "reduction", 0, n, n * e, groups * e, dims, each=e)

    return make


def _norm(kind: str, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = _EACH[row["dtype"]]
        shape = _shape(row)
        width = shape[1] if len(shape) > 1 else 1
        wide = 4 if kind == "batch_norm" else e
        affine = [_arg((width,), wide, role="parameter")] * (1 if kind == "rms_norm" else 2)
        attrs: dict[str, Attr] = {}
        if kind in ("layer_norm", "rms_norm"):
            attrs["axes"] = 1
        if kind == "group_norm":
            attrs["groups"] = int(row.get("groups", 32))
        x = _arg(shape, e)
        return phase, _op(kind, attrs, [x, *affine], [x], phase)

    return make


def _softmax(log: bool, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        x = _arg(_shape(row), _EACH[row["dtype"]])
        return phase, _op("softmax", {"axis": -1, "log": log}, [x], [x], phase)

    return make


def _nll(phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        x = _arg(_shape(row), _EACH[row["dtype"]])
        target = _arg(x.shape[:1], 8, grad=False)
        costs = KINDS["cross_entropy"].costs(Case({}, (x, target), (_arg((), x.each),)))
        return phase, costs.forward[1] if phase == 0 else costs.data[0]

    return make


def _embedding(phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = _EACH[row["dtype"]]
        width, rows = int(row.get("width", 768)), int(row["rows"])
        table = _arg((int(row["columns"]), width), e, role="parameter")
        ins = [table, _arg((rows,), 8, grad=False)]
        return phase, _op("embedding", {}, ins, [_arg((rows, width), e)], phase)

    return make


def _pool(op: str, window: int, stride: int, pad: int, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e = _EACH[row["dtype"]]
        n, c, *sides = _shape(row)
        shape = (n, c, *((side + 2 * pad - window) // stride + 1 for side in sides))
        outs = [_arg(shape, e)] + ([_arg(shape, 8, grad=False)] if op == "max" else [])
        axes = len(sides)
        attrs: dict[str, Attr] = {
            "op": op, "kernel": (window,) * axes, "stride": (stride,) * axes,
            "padding": (pad,) * axes,
        }  # fmt: skip
        if axes == 3:
            attrs["aten"] = "max_pool3d_with_indices" if op == "max" else "avg_pool3d"
        return phase, _op("pool", attrs, [_arg((n, c, *sides), e)], outs, phase)

    return make


def _summed_space(row: Row) -> tuple[int, Kernel]:
    e, shape = _EACH[row["dtype"]], _shape(row)
    n, c = _arg(shape, e).n, shape[1]
    name, dims = "convolution_backward.bias", (c, n / c, 0, 0)
    return 2, Kernel(name, "reduction", 0, n, n * e, c * e, dims, each=e)


def _scaled_and_shifted(row: Row) -> tuple[int, Kernel]:
    e, shape = _EACH[row["dtype"]], _shape(row)
    n, c = _arg(shape, e).n, shape[1]
    name, dims, space = "native_batch_norm.infer", (c, n / c, 0, 0), n / c / shape[0]
    return 0, Kernel(name, "norm", 0, 2 * n, n * e, n * e, dims, each=e, space=space)


def _resized(fn: str, phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e, (n, c, size, _) = _EACH[row["dtype"]], _shape(row)
        ins, outs = [_arg((n, c, size, size), e)], [_arg((n, c, 2 * size, 2 * size), e)]
        return phase, _op("interpolate", {"fn": fn}, ins, outs, phase)

    return make


def _mixed(name: str, row: Row) -> tuple[int, Kernel]:
    """Return a kernel of a 2-byte and a 4-byte operand, whose result has 4 bytes."""
    n = _arg(_shape(row), 1).n
    return 0, Kernel(name, "pointwise", 0, n, 6 * n, 4 * n, each=_EACH[row["dtype"]])


def _apart(row: Row) -> tuple[int, Kernel]:
    """Return a concatenation of parts of larger matrices."""
    phase, kernel = _joined(1)(row)
    return phase, kernel._replace(name="cat.strided", dims=(2, kernel.dims[1] / 2, 0, 0))


def _gated(phase: int) -> Callable[[Row], Any]:
    def make(row: Row) -> tuple[int, Kernel]:
        e, (rows, columns) = _EACH[row["dtype"]], _shape(row)
        whole, half = rows * (columns // 2 * 2) * e, rows * (columns // 2) * e
        name, read, write = (
            ("glu", whole, half) if phase == 0 else ("glu_backward", whole + half, whole)
        )
        return phase, Kernel(name, "pointwise", 0, half / e, read, write, each=e)

    return make


def _by_index(row: Row) -> tuple[int, Kernel]:
    """Return reads of a table's rows, or sums into them."""
    e, op = _EACH[row["dtype"]], str(row["op"])
    rows, width, columns = (int(row[k]) for k in ("rows", "width", "columns"))
    table, values = _arg((columns, width), e), _arg((rows, width), e)
    index = _arg((rows, width) if op in ("gather", "scatter_add") else (rows,), 8, grad=False)
    ins = [table, index] + ([values] if op in ("scatter_add", "index_add", "index_put") else [])
    outs = [table] if len(ins) > 2 else [values]
    return 0, _op("gather", {"fn": op, "inplace": True}, ins, outs, 0)


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
        1, _op("dropout", {"p": 0.1}, [_x(row)], [_x(row)], 1)
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
        0, _op("sort", {"fn": "sort"}, [_x(row)], [_x(row), _arg(_shape(row), 8)], 0)
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
        0, _op("dropout", {"p": 0.1}, [_x(row)], [_x(row)], 0)
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
    return _arg(_shape(row), _EACH[row["dtype"]])


_FAMILIES: dict[str, Callable[[Row], Any]] = {
    "gemm": _gemm,
    "conv": _conv,
    "attention": _attention,
    "rnn": _rnn,
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
    if row["family"] == "attention" and row["kv"] != row["heads"] and _EACH[row["dtype"]] == 4:
        return None  # runs as separate products, not as one kernel
    make = _FAMILIES.get(str(row["family"])) or VECTOR.get(str(row.get("op")))
    if make is None or _nothing_moves(row):
        return None
    phase, kernel = make(row)
    return int(phase), kernel
