"""Kinds that run on matrix units: linear, matmul, grouped matmul, convolution, attention, RNN."""

from __future__ import annotations

from traincast.graph.kinds.base import (
    Arg,
    Case,
    Costs,
    Kernel,
    Kind,
    MisfitError,
    flat_window,
    pointwise,
    prod,
    register,
    total,
)


def _gemm(
    name: str, dims: tuple[float, float, float, float], read: float, write: float, each: float
) -> Kernel:
    m, n, k, b = dims
    return Kernel(name, "gemm", 2 * m * n * k * b, 0, read, write, dims, each=each)


def _column_sum(y: Arg, into: Arg) -> Kernel:
    """Return the sum of a gradient over all but its last axis: a bias's gradient."""
    dims = (into.n, y.n / max(into.n, 1), into.n, 0)
    return Kernel("sum", "reduction", 0, y.n, y.size, into.size, dims, each=y.each)


def _linear(c: Case) -> Costs:
    """y[m, out] = x[m, in] · Wᵀ + b. dx = dy · W and dW = dyᵀ · x cost the same 2·m·in·out."""
    x, w = c.ins[0], c.ins[1]
    y = c.outs[0]
    k = x.shape[-1]
    m, n = x.n // max(k, 1), y.shape[-1]
    name = "addmm" if len(c.ins) > 2 else "mm"
    forward = _gemm(name, (m, n, k, 1), total(c.ins), y.size, x.each)
    data = (_gemm("mm", (m, k, n, 1), y.size + w.size, x.size, x.each),) if x.grad else ()
    weight: tuple[Kernel, ...] = ()
    if w.grad:
        weight += (_gemm("mm", (n, k, m, 1), y.size + x.size, w.size, x.each),)
    if len(c.ins) > 2 and c.ins[2].grad:
        weight += (_column_sum(y, c.ins[2]),)
    saved = ((0,) if w.grad else ()) + ((1,) if x.grad else ())
    return Costs((forward,), data, weight, saved)


def _linear_shapes(c: Case) -> tuple[tuple[int, ...] | None, ...]:
    x, w = c.ins[0].shape, c.ins[1].shape
    out, inner = (w[1], w[0]) if c.attrs.get("transposed") else (w[0], w[1])
    if x[-1] != inner:
        raise MisfitError(f"the weight takes {inner} features, the input has {x[-1]}")
    return ((*x[:-1], out),)


def _matmul(c: Case) -> Costs:
    """a[b, m, k] · b[b, k, n], both activations (or one a parameter used as such)."""
    a, b, y = c.ins[0], c.ins[1], c.outs[0]
    k = a.shape[-1]
    m = y.shape[-2] if len(y.shape) > 1 else 1
    n = y.n // max(prod(y.shape[:-1]), 1) if len(y.shape) > 1 else 1
    batch = y.n // max(m * n, 1)
    name = "bmm" if len(y.shape) > 2 else "mm"
    called = "baddbmm" if len(c.ins) > 2 else name
    forward = _gemm(called, (m, n, k, batch), total(c.ins), y.size, a.each)
    data: tuple[Kernel, ...] = ()
    if a.grad:
        data += (_gemm(name, (m, k, n, batch), y.size + b.size, a.size, a.each),)
    if b.grad:
        data += (_gemm(name, (k, n, m, batch), y.size + a.size, b.size, a.each),)
    if len(c.ins) > 2 and c.ins[2].grad and c.ins[2].n < y.n:
        data += (_column_sum(y, c.ins[2]),)
    saved = ((0,) if b.grad else ()) + ((1,) if a.grad else ())
    return Costs((forward,), data, (), saved)


def _grouped(c: Case) -> Costs:
    """x[t, in] · W[e, in, out]: each row by the matrix of its expert, rows sorted by expert.

    Work is that of one dense product over all rows; rows are taken as evenly spread.
    """
    x, w, y = c.ins[0], c.ins[1], c.outs[0]
    k, n, experts = x.shape[-1], y.shape[-1], w.shape[0]
    m = x.n / max(k, 1) / max(experts, 1)

    def product(dims: tuple[float, float, float], read: float, write: float) -> Kernel:
        return _gemm("_grouped_mm", (*dims, experts), read, write, x.each)

    forward = product((m, n, k), x.size + w.size, y.size)
    data = (product((m, k, n), y.size + w.size, x.size),) if x.grad else ()
    weight = (product((k, n, m), y.size + x.size, w.size),) if w.grad else ()
    saved = ((0,) if w.grad else ()) + ((1,) if x.grad else ())
    return Costs((forward,), data, weight, saved)


def _conv(c: Case) -> Costs:
    """Convolution over any number of spatial axes, as an implicit matrix product.

    Each output element takes Cin/g · kernel multiply-adds. The data gradient and the weight
    gradient each use every (input, weight, output) triple once, so both cost as much as the
    forward pass, for any stride, dilation or group count. PyTorch's FlopCounterMode counts
    the weight gradient of a grouped convolution `groups` times too high.
    """
    x, w, y = c.ins[0], c.ins[1], c.outs[0]
    groups = int(c.number("groups", 1))
    transposed = bool(c.attrs.get("transposed"))
    kernel = prod(w.shape[2:])
    c_in, c_out = x.shape[1], y.shape[1]
    dense = x if transposed else y
    sites = dense.n / max(dense.shape[1], 1)
    flops = 2.0 * sites * kernel * c_in * c_out / groups
    gi, go = c_in / groups, c_out / groups
    rows_in, rows_out = x.n / max(c_in, 1), y.n / max(c_out, 1)

    # Lavin & Gray, CVPR 2016: F(2×2, 3×3) takes 16 multiplications where direct ones take 36.
    plain = groups == 1 and all(v == 1 for a in ("stride", "dilation") for v in c.shape_attr(a))
    fast = 4 / 9 if plain and w.shape[2:] == (3, 3) else 1.0

    window = flat_window(w.shape[2:])
    step = c.shape_attr("stride")[0] if c.shape_attr("stride") else 1
    stride = 1 / step if transposed else step

    # A transposed convolution runs the kernels of the one that it mirrors, whose output is `x`.
    space = (rows_in if transposed else rows_out) / max(y.shape[0], 1)
    dilation = max(c.shape_attr("dilation"), default=1)

    def conv(name: str, dims: tuple[float, float, float], read: float, write: float) -> Kernel:
        return Kernel(
            name, "conv", flops, 0, read, write, (*dims, groups), 1, 1, fast, x.each, window,
            stride, space=space, axes=len(w.shape) - 2, dilation=dilation,
        )  # fmt: skip

    bias = c.ins[2] if len(c.ins) > 2 else None
    forward = [conv("convolution", (rows_out, go, gi * kernel), x.size + w.size, y.size)]
    data, weight = [], []
    if x.grad:
        dims = (rows_in, gi, go * kernel)
        data.append(conv("convolution_backward.data", dims, y.size + w.size, x.size))
    if w.grad:
        dims = (go, gi * kernel, sites)
        weight.append(conv("convolution_backward.weight", dims, y.size + x.size, w.size))
    if bias is not None:
        # The bias is a separate pass over the output: cuDNN's convolution does not fuse it.
        forward.append(pointwise("convolution.bias", y.size + bias.size, y.size, y.n, each=y.each))
        if bias.grad:
            shape = (c_out, rows_out, 0, 0)
            name = "convolution_backward.bias"
            weight.append(Kernel(name, "reduction", 0, y.n, y.size, bias.size, shape, each=y.each))
    saved = (0, 1) if x.grad or w.grad else ()
    return Costs(tuple(forward), tuple(data), tuple(weight), saved)


def _conv_shapes(c: Case) -> tuple[tuple[int, ...] | None, ...]:
    x, w = c.ins[0].shape, c.ins[1].shape
    rank = len(x) - 2
    stride, pad, dilation = (c.shape_attr(a) for a in ("stride", "padding", "dilation"))
    groups = int(c.number("groups", 1))
    if groups < 1 or min(stride, default=1) < 1 or min(dilation, default=1) < 1:
        raise MisfitError("stride, dilation and groups must be at least 1")
    takes = w[0] if c.attrs.get("transposed") else w[1] * groups
    if x[1] != takes:
        raise MisfitError(f"the weight takes {takes} channels, the input has {x[1]}")
    if c.attrs.get("transposed"):
        extra = c.shape_attr("output_padding") if "output_padding" in c.attrs else (0,) * rank
        size = tuple(
            (x[2 + i] - 1) * stride[i] - 2 * pad[i] + dilation[i] * (w[2 + i] - 1) + extra[i] + 1
            for i in range(rank)
        )
        return ((x[0], w[1] * groups, *size),)
    size = tuple(
        (x[2 + i] + 2 * pad[i] - dilation[i] * (w[2 + i] - 1) - 1) // stride[i] + 1
        for i in range(rank)
    )
    return ((x[0], w[0], *size),)


def _attention(c: Case) -> Costs:
    """softmax(q·kᵀ/√d)·v over [batch, head, position, channel], heads of k and v shared (GQA).

    Fused: nothing of size positions² is stored; backward recomputes the scores, so it takes five
    products to the forward pass's two. `math`: scores and weights are stored, four products back.
    FLOPs are those of all positions, as PyTorch counts; `done` tells what causal kernels skip.
    """
    q, k, v = c.ins[:3]
    y = c.outs[0]
    heads = q.n / max(q.shape[-1] * q.shape[-2], 1)
    sq, sk, d, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    qk, pv = 2.0 * heads * sq * sk * d, 2.0 * heads * sq * sk * dv
    done = (1 + 1 / max(sk, 1)) / 2 if c.attrs.get("causal") else 1.0
    scores = heads * sq * sk
    mask = c.ins[3].size if len(c.ins) > 3 else 0
    grad = q.grad or k.grad or v.grad
    read = q.size + k.size + v.size
    if c.attrs.get("algorithm", "fused") == "math":
        return _math_attention(c, scores, mask)
    forward = Kernel(
        "_scaled_dot_product_attention",
        "attention",
        qk + pv,
        4 * scores,
        read + mask,
        y.size,
        (sq, sk, d, heads),
        1,
        done,
        1,
        q.each,
    )
    data: tuple[Kernel, ...] = ()
    if grad:
        data = (
            Kernel(
                "_scaled_dot_product_attention_backward",
                "attention",
                3 * qk + 2 * pv,
                8 * scores,
                read + 2 * y.size + mask,
                read,
                (sq, sk, d, heads),
                1,
                done,
                1,
                q.each,
            ),
        )
    saved = ((0, 1, 2, ~0) + ((3,) if len(c.ins) > 3 else ())) if grad else ()
    return Costs((forward,), data, (), saved, 4 * heads * sq if grad else 0)


def _math_attention(c: Case, scores: float, mask: float) -> Costs:
    q, k, v = c.ins[:3]
    y = c.outs[0]
    s = scores * q.each
    sq, sk, d, dv = q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1]
    heads = q.n / max(sq * d, 1)
    e = q.each
    rows = (heads * sq, sk, 0, 0)
    forward = (
        _gemm("bmm", (sq, sk, d, heads), q.size + k.size, s, e),
        Kernel("mul", "pointwise", 0, scores, s + mask, s, each=e),
        Kernel("_softmax", "softmax", 0, 5 * scores, s, s, rows, each=e),
        _gemm("bmm", (sq, dv, sk, heads), s + v.size, y.size, e),
    )
    if not (q.grad or k.grad or v.grad):
        return Costs(forward)
    data = (
        _gemm("bmm", (sq, sk, dv, heads), y.size + v.size, s, e),
        _gemm("bmm", (sk, dv, sq, heads), s + y.size, v.size, e),
        Kernel("_softmax_backward_data", "softmax", 0, 4 * scores, 2 * s, s, rows, each=e),
        Kernel("mul", "pointwise", 0, scores, s, s, each=e),
        _gemm("bmm", (sq, d, sk, heads), s + k.size, q.size, e),
        _gemm("bmm", (sk, d, sq, heads), s + q.size, k.size, e),
    )
    return Costs(forward, data, (), (0, 1, 2), s)


def _rnn(c: Case) -> Costs:
    """LSTM (4 gates), GRU (3) or plain RNN (1) over a whole sequence, all layers in one call.

    Inputs: x, then the weight matrices and biases. Every position takes, in each layer and
    direction, one product with the input and one with the state: 2·g·h·(in + h) FLOPs a sample.
    Gate values are kept for backward, as cuDNN's reserve space does.
    """
    x, y = c.ins[0], c.outs[0]
    weights = c.ins[1:]
    matrices = tuple(a for a in weights if len(a.shape) == 2)
    gates = {"lstm": 4, "gru": 3}.get(str(c.attrs["cell"]), 1)
    layers = int(c.number("layers", 1))
    directions = 2 if c.attrs.get("bidirectional") else 1
    hidden = int(c.number("hidden"))
    # Packed sequences of several lengths are rows without a batch axis, so that they say `steps`.
    steps = c.number("steps") or (x.shape[1] if c.attrs.get("batch_first") else x.shape[0])
    rows = x.n // max(x.shape[-1], 1)
    flops = sum(2.0 * rows * a.n for a in matrices)
    states = rows * hidden * layers * directions
    batch = rows / max(steps, 1)

    def run(name: str, read: float, write: float) -> Kernel:
        dims = (batch, gates * hidden, hidden, layers * directions)
        launches = steps * layers * directions
        work = 8 * gates * states
        return Kernel(
            name, "rnn", flops, work, read, write, dims, launches, each=x.each, space=steps
        )

    w = total(weights)
    forward = (run("rnn", x.size + w, y.size),)
    any_grad = x.grad or any(a.grad for a in weights)
    # The state needs its gradient even where the input does not.
    data = (run("rnn_backward.data", y.size + w, x.size),) if any_grad else ()
    weight = (
        (run("rnn_backward.weight", x.size + y.size, w),) if any(a.grad for a in weights) else ()
    )
    reserve = states * (gates + (2 if gates == 4 else 1)) * y.each
    saved = (0, ~0, *range(1, len(c.ins))) if any_grad else ()
    # cuDNN keeps and needs ten float32 values a state in all, whatever the type: measured at the
    # peak of training steps of an LSTM and a GRU (7.4 to 10.7 in seven steps on an H200).
    scratch = max(10 * 4 * states - reserve, 0.0) if gates > 1 else 0.0
    return Costs(
        forward, data, weight, saved, reserve if any_grad else 0, scratch if any_grad else 0
    )


_SPATIAL = frozenset({"depth", "height", "width", "length"})

register(
    Kind(
        name="linear",
        summary="dense layer: y = x·Wᵀ + b over the last axis",
        inputs=(2, 3),
        attrs={},
        costs=_linear,
        shapes=_linear_shapes,
        parallel=frozenset({"sample", "sequence", "token", "channel", "height", "width"}),
        reduced=frozenset({"in_channel"}),
    )
)
register(
    Kind(
        name="matmul",
        summary="(batched) product of two activations",
        inputs=(2, 3),
        attrs={},
        costs=_matmul,
        parallel=frozenset({"sample", "head", "row", "column", "sequence"}),
        reduced=frozenset({"in_channel"}),
    )
)
register(
    Kind(
        name="grouped_matmul",
        summary="rows grouped by expert, each group with its own matrix",
        inputs=(2, 3),
        attrs={},
        costs=_grouped,
        parallel=frozenset({"expert", "token", "channel"}),
        reduced=frozenset({"in_channel"}),
    )
)
register(
    Kind(
        name="conv",
        summary="convolution over 1, 2 or 3 axes; grouped, dilated, strided or transposed",
        inputs=(2, 3),
        attrs={"stride": tuple, "padding": tuple, "dilation": tuple, "groups": int},
        costs=_conv,
        shapes=_conv_shapes,
        parallel=frozenset({"sample", "channel"}) | _SPATIAL,
        reduced=frozenset({"in_channel"}),
    )
)
register(
    Kind(
        name="attention",
        summary="scaled dot-product attention, fused or as separate products",
        inputs=(3, 4),
        attrs={"causal": bool},
        costs=_attention,
        shapes=lambda c: ((*c.ins[0].shape[:-1], c.ins[2].shape[-1]),),
        parallel=frozenset({"sample", "head", "sequence"}),
    )
)
register(
    Kind(
        name="rnn",
        summary="LSTM, GRU or plain recurrent layers over a sequence",
        inputs=(2, None),
        attrs={"cell": str, "hidden": int},
        costs=_rnn,
        parallel=frozenset({"sample", "channel"}),
    )
)
