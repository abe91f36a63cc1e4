"""ONNX ops that run on matrix units, pool, normalise or compute a loss."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from traincast.graph import Attr
from traincast.ingest.builder import same_pads
from traincast.ingest.onnx_trace import (
    Lengths,
    Node,
    ShapeError,
    Value,
    as_weight,
    broadcast,
)

Handler = Callable[[Node], Value | list[Value]]


def _matmul(node: Node) -> Value:
    return product(node, node.value(0), node.value(1), node.out)


def product(node: Node, a: Value, b: Value, out: Callable[[Sequence[int]], Value]) -> Value:
    """Append a · b: a linear layer where b is a matrix of weights, else a batched product."""
    weight = as_weight(b.turned or b)
    k = b.shape[0] if len(b.shape) < 2 else b.shape[-2]
    if not a.shape or not b.shape or a.shape[-1] != k:
        raise ShapeError(f"{a.shape} and {b.shape} cannot be multiplied")
    if weight.role == "weight" and len(weight.shape) == 2:
        y = out((*a.shape[:-1], b.shape[-1]))
        attrs: dict[str, Attr] = {} if b.turned else {"transposed": True}
        return node.emit("linear", [a, weight], [y], **attrs)
    lead = broadcast(a.shape[:-2], b.shape[:-2])
    shape = (*lead, *a.shape[-2:-1], *(b.shape[-1:] if len(b.shape) > 1 else ()))
    return node.emit("matmul", [a, b], [out(shape)])


def _gemm(node: Node) -> Value:
    """Y = A' · B' + C; the scale factors cost nothing beside the product."""
    a, b = node.value(0), node.value(1)
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ShapeError(f"it takes matrices, not {a.shape} and {b.shape}")
    if node.number("transA", 0):
        a = node.permute(a, (1, 0), node.part(f"{node.name}.a", a.shape[::-1]))
    flip = bool(node.number("transB", 0))
    inner, columns = b.shape[::-1] if flip else b.shape
    if a.shape[1] != inner:
        raise ShapeError(f"{a.shape} and {(inner, columns)} cannot be multiplied")
    shape = (a.shape[0], columns)
    weight = as_weight(b.turned or b)
    bias = as_weight(node.value(2)) if node.has(2) else None
    fused = bias is not None and bias.role == "weight" and bias.shape == (columns,)
    y = node.out(shape) if fused or bias is None else node.part(f"{node.name}.product", shape)
    extra = [bias] if fused and bias is not None else []
    if weight.role == "weight":
        # A matrix that was transposed once already and is flipped again is as in the file.
        attrs: dict[str, Attr] = {} if flip != (b.turned is not None) else {"transposed": True}
        node.emit("linear", [a, weight, *extra], [y], **attrs)
    else:
        if flip:
            b = node.permute(b, (1, 0), node.part(f"{node.name}.b", b.shape[::-1]))
        node.emit("matmul", [a, b, *extra], [y])
    if fused or bias is None:
        return y
    if broadcast(shape, bias.shape) != shape:
        raise ShapeError(f"C of shape {bias.shape} does not fit the product {shape}")
    ins = [y] if bias.is_scalar else [y, bias]
    return node.emit("pointwise", ins, [node.out(shape)], fn="add")


def window_pads(
    node: Node, shape: Lengths, reach: Sequence[int], stride: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the zeros before and after each spatial axis; `reach` is the dilated kernel."""
    space = shape[2:]
    auto = node.text("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = [
            same_pads(n, -(-n // s), k, s) for n, k, s in zip(space, reach, stride, strict=True)
        ]
        return pads if auto == "SAME_UPPER" else [(after, before) for before, after in pads]
    found = node.numbers("pads") or [0] * (2 * len(space))
    if auto == "VALID":
        found = [0] * (2 * len(space))
    if len(found) != 2 * len(space):
        raise ShapeError(f"pads {found} do not fit {len(space)} spatial axes")
    return list(zip(found[: len(space)], found[len(space) :], strict=True))


def _per_axis(node: Node, name: str, rank: int) -> tuple[int, ...]:
    found = tuple(node.numbers(name) or (1,) * rank)
    if len(found) != rank or min(found, default=1) < 1:
        raise ShapeError(f"{name} {list(found)} are not {rank} positive numbers")
    return found


def _check_window(space: Sequence[int], shape: Lengths, reach: Sequence[int]) -> None:
    if any(n < 1 for n in space):
        raise ShapeError(f"its window {tuple(reach)} does not fit into the input {shape}")


def _conv(node: Node) -> Value:
    x, w = node.value(0), as_weight(node.value(1))
    rank, groups = len(x.shape) - 2, node.number("group", 1)
    if rank < 1 or len(w.shape) != rank + 2 or x.shape[1] != w.shape[1] * groups or groups < 1:
        raise ShapeError(
            f"the weight {w.shape} does not fit the input {x.shape} in {groups} groups"
        )
    stride, dilation = _per_axis(node, "strides", rank), _per_axis(node, "dilations", rank)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, w.shape[2:], strict=True)]
    pads = window_pads(node, x.shape, reach, stride)
    even = [min(pair) for pair in pads]
    if any(before != after for before, after in pads):
        shape = [n + b + a - 2 * e for n, (b, a), e in zip(x.shape[2:], pads, even, strict=True)]
        padded = node.part(f"{node.name}.padded", [*x.shape[:2], *shape])
        x = node.emit("copy", [x], [padded], fn="pad")
    space = [
        (n + 2 * p - k) // s + 1
        for n, p, k, s in zip(x.shape[2:], even, reach, stride, strict=True)
    ]
    _check_window(space, x.shape, reach)
    ins = [x, w, *([as_weight(node.value(2))] if node.has(2) else [])]
    attrs: dict[str, Attr] = {
        "stride": stride, "padding": tuple(even), "dilation": dilation, "groups": groups,
    }  # fmt: skip
    return node.emit("conv", ins, [node.out((x.shape[0], w.shape[0], *space))], **attrs)


def _conv_transpose(node: Node) -> Value:
    x, w = node.value(0), as_weight(node.value(1))
    rank, groups = len(x.shape) - 2, node.number("group", 1)
    if rank < 1 or len(w.shape) != rank + 2 or x.shape[1] != w.shape[0] or groups < 1:
        raise ShapeError(f"the weight {w.shape} does not fit the input {x.shape}")
    stride, dilation = _per_axis(node, "strides", rank), _per_axis(node, "dilations", rank)
    more = node.numbers("output_padding") or [0] * rank
    full = [
        (n - 1) * s + d * (k - 1) + 1
        for n, s, d, k in zip(x.shape[2:], stride, dilation, w.shape[2:], strict=True)
    ]
    wanted = node.numbers("output_shape")
    if wanted is None and node.text("auto_pad", "NOTSET").startswith("SAME"):
        wanted = [n * s for n, s in zip(x.shape[2:], stride, strict=True)]
    if wanted is None:
        pads = [b + a for b, a in window_pads(node, x.shape, [1] * rank, stride)]
        wanted = [f + m - p for f, m, p in zip(full, more, pads, strict=True)]
    wanted = wanted[-rank:]
    padding = [max(-(-(f - n) // 2), 0) for f, n in zip(full, wanted, strict=True)]
    extra = [n - (f - 2 * p) for n, f, p in zip(wanted, full, padding, strict=True)]
    ins = [x, w, *([as_weight(node.value(2))] if node.has(2) else [])]
    attrs: dict[str, Attr] = {
        "stride": stride, "padding": tuple(padding), "dilation": dilation, "groups": groups,
        "transposed": True, "output_padding": tuple(extra),
    }  # fmt: skip
    return node.emit("conv", ins, [node.out((x.shape[0], w.shape[1] * groups, *wanted))], **attrs)


def _pool(node: Node) -> list[Value]:
    x = node.value()
    kernel = tuple(node.numbers("kernel_shape") or ())
    rank = len(x.shape) - 2
    if len(kernel) != rank:
        raise ShapeError(f"kernel_shape {list(kernel)} does not fit {rank} spatial axes")
    stride, dilation = _per_axis(node, "strides", rank), _per_axis(node, "dilations", rank)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    pads = window_pads(node, x.shape, reach, stride)
    space = []
    for n, k, s, (before, after) in zip(x.shape[2:], reach, stride, pads, strict=True):
        room = n + before + after - k
        count = room // s + 1
        if node.number("ceil_mode", 0) and room % s and count * s < n + before:
            count += 1
        space.append(count)
    _check_window(space, x.shape, reach)
    attrs: dict[str, Attr] = {
        "op": "max" if node.op == "MaxPool" else "avg", "kernel": kernel, "stride": stride,
        "padding": tuple(before for before, _ in pads),
    }  # fmt: skip
    shape = (*x.shape[:2], *space)
    outs = [node.out(shape)]
    if node.op == "MaxPool":
        # Training keeps the positions of the maxima, whether the file asks for them or not.
        outs.append(node.out(shape, 1, dtype="int64"))
    node.emit("pool", [x], outs, **attrs)
    return outs


def _global_pool(node: Node) -> Value:
    """The average over all of space is a plain mean, as frameworks compute it."""
    x = node.value()
    y = node.out((*x.shape[:2], *(1 for _ in x.shape[2:])))
    if node.op == "GlobalAveragePool":
        return node.emit("reduce", [x], [y], fn="mean")
    return node.emit("pool", [x], [y], op="max", kernel=x.shape[2:])


def _norm(kind: str) -> Handler:
    def convert(node: Node) -> list[Value]:
        x = node.value()
        affine = [_affine(v) for v in node.given()[1:3]]
        axis = node.axis(node.number("axis", -1), len(x.shape))
        attrs: dict[str, Attr] = {}
        if kind in ("layer_norm", "rms_norm"):
            attrs["axes"] = len(x.shape) - axis
        elif kind == "group_norm":
            attrs["groups"] = node.number("num_groups", x.shape[1])
        y = node.emit(kind, [x, *affine], [node.out(x.shape)], **attrs)
        side = [*x.shape[:axis], *(1 for _ in x.shape[axis:])]
        # Statistics and running averages are outputs in name only: training recomputes them.
        return [y, *(node.out(side, i, role="constant") for i in range(1, len(node.outputs)))]

    return convert


def _affine(value: Value) -> Value:
    """Return scale or offset; all ones or all zeros within a node mean that there is none."""
    content = value.const
    plain = value.role == "constant" and content is not None and (content == content.flat[0]).all()
    return value if plain else as_weight(value)


def _batch_norm(node: Node) -> list[Value]:
    x = node.value()
    affine = [as_weight(v) for v in node.given()[1:3]]
    y = node.emit("batch_norm", [x, *affine], [node.out(x.shape)])
    return [y, *(node.out(x.shape[1:2], i, role="constant") for i in range(1, len(node.outputs)))]


def _softmax(node: Node) -> Value:
    x = node.value()
    axis = node.axis(node.number("axis", -1 if node.opset >= 13 else 1), len(x.shape))
    attrs: dict[str, Attr] = {"axis": axis}
    if node.op == "LogSoftmax":
        attrs["log"] = True
    return node.emit("softmax", [x], [node.out(x.shape)], **attrs)


def _loss(node: Node) -> list[Value]:
    x, target = node.value(0), node.value(1)
    shape = target.shape if node.text("reduction", "mean") == "none" else ()
    y = node.out(shape)
    if node.op == "NegativeLogLikelihoodLoss":
        node.emit("reduce", [x, target], [y], fn="nll_loss_forward")
    else:
        node.emit("cross_entropy", [x, target], [y])
    return [y, *(node.out(x.shape, i, role="constant") for i in range(1, len(node.outputs)))]


HANDLERS: dict[str, Handler] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _norm("layer_norm"),
    "RMSNormalization": _norm("rms_norm"),
    "SimplifiedLayerNormalization": _norm("rms_norm"),
    "GroupNormalization": _norm("group_norm"),
    "InstanceNormalization": _norm("group_norm"),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "SoftmaxCrossEntropyLoss": _loss,
    "NegativeLogLikelihoodLoss": _loss,
}
