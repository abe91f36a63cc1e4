"""Kernels bound by memory: elementwise, copying, reducing, and those that work along rows."""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.measure.bench.groups import Group, memory_dtype, some
from traincast.measure.bench.timing import HERE, TYPES, Call, indices, tensor

_STREAMS = (
    "add", "mul", "div", "relu", "gelu", "silu", "sigmoid", "tanh", "hardswish", "hardtanh",
    "leaky_relu", "pow", "rsqrt", "add_scalar", "add_inplace", "cast", "clone", "transpose", "cat",
    "narrow", "sum_rows", "sum_all", "mean_last", "dropout", "threshold_backward",
    "gelu_backward", "silu_backward", "sigmoid_backward", "tanh_backward", "hardswish_backward",
    "hardtanh_backward", "leaky_relu_backward", "dropout_backward", "broadcast_add", "where",
    "fill", "mul_row", "mul_mixed", "add_mixed", "add_strided", "mul_strided", "cat_4",
    "sum_rows", "sum_rows",
)  # fmt: skip
_FUNCTIONS = (
    "exp", "log", "sqrt", "sin", "abs", "neg", "clamp", "sub", "elu", "mish", "softplus",
    "elu_backward", "mish_backward", "softplus_backward", "glu", "glu_backward", "prelu",
    "prelu_backward", "masked_fill", "cat_strided", "cat_parts", "hardsigmoid", "maximum",
    "hardsigmoid_backward", "log_sigmoid", "repeat",
)  # fmt: skip
_SUMS = ("sum_rows", "sum_last", "sum_middle", "amax_last", "logsumexp_last", "mean_middle")
_NORMS = ("layer_norm", "layer_norm_backward", "rms_norm", "softmax", "softmax_backward")
_LOSSES = (
    "log_softmax", "log_softmax_backward", "nll_forward", "nll_backward", "cross_entropy",
)  # fmt: skip
_PICKS = ("cumsum", "sort", "topk", "index_select")
_LARGEST = 2**29.5
_WIDTHS = (
    32, 64, 80, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 896, 1024, 1280, 1536, 2048, 3072,
    4096, 5120, 8192, 11008, 14336,
)  # fmt: skip
"""Channels of tokens: hidden sizes and those of layers between."""
_ODD = (49, 77, 100, 197, 577, 1000)
"""Lengths of other rows: windows, sequences of patches, classes."""


def stream_groups(draw: random.Random) -> Iterator[Group]:
    """Yield elementwise, copying and reducing kernels over many sizes."""
    while True:
        elements = 2 ** (draw.uniform(8, 29.5) if HERE.device == "cuda" else draw.uniform(12, 23))
        columns = draw.choice(_WIDTHS if draw.random() < 0.8 else _ODD)
        rows = max(1, int(elements) // columns)
        keys = {"rows": rows, "columns": columns, "dtype": memory_dtype(draw)}
        yield Group(
            "stream",
            keys,
            "op",
            tuple(dict.fromkeys(some(draw, _STREAMS, 6))),
            5.0 * rows * columns,
        )
        if draw.random() < 0.3:
            seq, d, columns = draw.choice((49, 128, 197, 512)), draw.choice((32, 64)), 64
            columns *= draw.choice((3, 6, 12, 16, 32))
            rows = seq * max(1, int(elements) // columns // seq)
            keys = {"rows": rows, "columns": columns, "seq": seq, "d": d,
                    "dtype": memory_dtype(draw)}  # fmt: skip
            yield Group("stream", keys, "op", ("heads", "heads_back"), 3.0 * rows * columns)


def function_groups(draw: random.Random) -> Iterator[Group]:
    """Yield further functions, and sums over the shapes of tokens and their biases."""
    cuda = HERE.device == "cuda"
    while True:
        elements = 2 ** (draw.uniform(10, 28.5) if cuda else draw.uniform(12, 23))
        columns = draw.choice(_WIDTHS if draw.random() < 0.8 else _ODD)
        rows = max(1, int(elements) // columns)
        keys = {"rows": rows, "columns": columns, "dtype": memory_dtype(draw)}
        some_of = tuple(dict.fromkeys(some(draw, _FUNCTIONS, 6)))
        yield Group("stream", keys, "op", some_of, 6.0 * rows * columns)
        columns = draw.choice((*_WIDTHS[:18], *_WIDTHS[:18], *_ODD))
        rows = draw.choice((1, 2, 4, 8, 16, 32, 64, 128, 256)) if cuda else draw.choice((1, 4, 16))
        inner = draw.choice((49, 64, 128, 196, 197, 256, 512, 784, 1024, 2048, 3136))
        if rows * inner * columns < (4e8 if cuda else 1e7):
            keys = {"rows": rows * inner, "columns": columns, "inner": inner,
                    "dtype": memory_dtype(draw)}  # fmt: skip
            yield Group("stream", keys, "op", _SUMS, 2.0 * rows * inner * columns)


def _functions(x: torch.Tensor, y: torch.Tensor) -> dict[str, Call]:
    """Return what few networks use of each, but most use some of."""
    aten, columns = torch.ops.aten, x.shape[1]
    half, mask = columns // 2, y > 0
    one, two = x[:, : 2 * half], x[:, :half]
    slope = torch.ones_like(x[0])
    return {
        "exp": x.exp,
        "log": x.log,
        "sqrt": x.sqrt,
        "sin": x.sin,
        "abs": x.abs,
        "neg": x.neg,
        "clamp": lambda: x.clamp(-1.0, 1.0),
        "sub": lambda: x - y,
        "maximum": lambda: torch.maximum(x, y),
        "elu": lambda: F.elu(x),
        "mish": lambda: F.mish(x),
        "softplus": lambda: F.softplus(x),
        "hardsigmoid": lambda: F.hardsigmoid(x),
        "log_sigmoid": lambda: F.logsigmoid(x),
        "elu_backward": lambda: aten.elu_backward(x, 1.0, 1.0, 1.0, False, y),
        "mish_backward": lambda: aten.mish_backward(x, y),
        "softplus_backward": lambda: aten.softplus_backward(x, y, 1.0, 20.0),
        "hardsigmoid_backward": lambda: aten.hardsigmoid_backward(x, y),
        "glu": lambda: F.glu(one, -1),
        "glu_backward": lambda: aten.glu_backward(two, one, -1),
        "prelu": lambda: aten._prelu_kernel(x, slope),
        "prelu_backward": lambda: aten._prelu_kernel_backward(x, y, slope),
        "masked_fill": lambda: x.masked_fill(mask, -1.0),
        "cat_strided": lambda: torch.cat([x[:, half:], y[:, :half]], 1),
        "cat_parts": lambda: torch.cat([two.neg(), y[:, half:]], 1),
        "repeat": lambda: x.repeat_interleave(2, 0),
    }


def _sums(x: torch.Tensor, inner: int) -> dict[str, Call]:
    deep = x.view(-1, inner, x.shape[1])
    return {
        "sum_rows": lambda: x.sum(0),
        "sum_last": lambda: x.sum(-1),
        "sum_middle": lambda: deep.sum(1),
        "mean_middle": lambda: deep.mean(1),
        "amax_last": lambda: x.amax(-1),
        "logsumexp_last": lambda: x.logsumexp(-1),
    }


def stream(group: Group) -> dict[str, Call]:
    """Return kernels over [rows, columns]."""
    aten, c = torch.ops.aten, group.keys
    x, y = (tensor((c["rows"], c["columns"]), c["dtype"]) for _ in range(2))
    if "inner" in c:
        return _sums(x, c["inner"])
    if group.values[0] in _FUNCTIONS:
        return _functions(x, y)
    if "seq" in c:
        split = x.view(-1, c["seq"], c["columns"] // c["d"], c["d"])
        joined = split.transpose(1, 2).contiguous()
        return {
            "heads": lambda: split.transpose(1, 2).contiguous(),
            "heads_back": lambda: joined.transpose(1, 2).contiguous(),
        }
    row, half = y[0].clone(), c["columns"] // 2
    other = torch.bfloat16 if TYPES[c["dtype"]] == torch.float32 else torch.float32
    wide = torch.cat([y, y], 1) if {"add_strided", "mul_strided"} & set(group.values) else y
    third = y.to(other) if {"mul_mixed", "add_mixed"} & set(group.values) else y
    mask = y > 0 if {"where", "dropout_backward"} & set(group.values) else y
    return {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "div": lambda: x / y,
        "relu": x.relu,
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "sigmoid": x.sigmoid,
        "tanh": x.tanh,
        "hardswish": lambda: F.hardswish(x),
        "hardtanh": lambda: F.hardtanh(x, 0.0, 6.0),
        "leaky_relu": lambda: F.leaky_relu(x, 0.1),
        "pow": lambda: x.pow(2),
        "rsqrt": x.rsqrt,
        "add_scalar": lambda: x + 1.0,
        "add_inplace": lambda: x.add_(y),
        "cast": lambda: x.to(other),
        "clone": x.clone,
        "transpose": lambda: x.t().contiguous(),
        "cat": lambda: torch.cat([x, y], 1),
        "narrow": lambda: x.narrow(1, 0, half).contiguous(),
        "sum_rows": lambda: x.sum(0),
        "sum_all": x.sum,
        "mean_last": lambda: x.mean(-1),
        "dropout": lambda: _dropped(x),
        "dropout_backward": lambda: aten.native_dropout_backward(x, mask, 1.1),
        "threshold_backward": lambda: aten.threshold_backward(x, y, 0),
        "gelu_backward": lambda: aten.gelu_backward(x, y),
        "silu_backward": lambda: aten.silu_backward(x, y),
        "sigmoid_backward": lambda: aten.sigmoid_backward(x, y),
        "tanh_backward": lambda: aten.tanh_backward(x, y),
        "hardswish_backward": lambda: aten.hardswish_backward(x, y),
        "hardtanh_backward": lambda: aten.hardtanh_backward(x, y, 0.0, 6.0),
        "leaky_relu_backward": lambda: aten.leaky_relu_backward(x, y, 0.1, False),
        "broadcast_add": lambda: x + row,
        "where": lambda: torch.where(mask, x, y),
        "fill": x.zero_,
        "mul_row": lambda: x * row,
        "mul_mixed": lambda: x * third,
        "add_mixed": lambda: x + third,
        "add_strided": lambda: x + wide.narrow(1, 0, c["columns"]),
        "mul_strided": lambda: x * wide.narrow(1, 0, c["columns"]),
        "cat_4": lambda: torch.cat([x, y, x, y], 1),
    }


def _dropped(x: torch.Tensor) -> object:
    """Drop as training does: only GPUs have one kernel for it."""
    return torch.native_dropout(x, 0.1, True) if x.is_cuda else F.dropout(x, 0.1)


def row_groups(draw: random.Random) -> Iterator[Group]:
    """Yield kernels along rows: norms, softmax, losses, embeddings, sorting."""
    while True:
        for ops, count in (
            (_NORMS, 3),
            (_LOSSES, 3),
            (_NORMS, 3),
            (("embedding",), 1),
            (_PICKS, 2),
        ):
            columns = draw.choice(_WIDTHS if draw.random() < 0.8 else _ODD)
            rows, dtype = int(2 ** draw.uniform(4, 20)), memory_dtype(draw)
            if HERE.device == "cpu":
                rows = int(2 ** draw.uniform(3, 13))
            if ops is _LOSSES:
                columns = draw.choice((10, 1000, 1000, 21843, 30522, 50257, 128256))
            if ops == ("embedding",):
                width = draw.choice((64, 128, 384, 768, 1024, 2048, 4096))
                columns = draw.choice((2, 512, 1000, 30522, 50257, 128256))
                keys = {"rows": rows, "columns": columns, "width": width, "dtype": dtype}
                both = ("embedding", "embedding_backward")
                yield Group("row", keys, "op", both, 3.0 * (rows + columns) * width)
                continue
            if rows * columns < (_LARGEST if ops is not _PICKS else 2**26):
                keys = {"rows": rows, "columns": columns, "dtype": dtype}
                yield Group("row", keys, "op", some(draw, ops, count), 5.0 * rows * columns)


def row(group: Group) -> dict[str, Call]:
    """Return kernels that work along rows."""
    aten, c, op = torch.ops.aten, group.keys, group.values[0]
    rows, n, dtype = c["rows"], c["columns"], c["dtype"]
    if op.startswith("embedding"):
        table, grad = tensor((n, c["width"]), dtype), tensor((rows, c["width"]), dtype)
        index = indices(n, rows)
        return {
            "embedding": lambda: F.embedding(index, table),
            "embedding_backward": lambda: aten.embedding_dense_backward(grad, index, n, -1, False),
        }
    x = tensor((rows, n), dtype)
    if op in _PICKS:
        index = indices(rows, rows)
        return {
            "cumsum": lambda: x.cumsum(-1),
            "sort": lambda: x.sort(-1),
            "topk": lambda: x.topk(min(8, n), -1),
            "index_select": lambda: x.index_select(0, index),
        }
    if op in _LOSSES:
        return _losses(x, indices(n, rows))
    g, w, b = tensor((rows, n), dtype), torch.ones_like(x[0]), torch.zeros_like(x[0])
    y = F.softmax(x, -1)
    _, mean, rstd = aten.native_layer_norm(x, (n,), w, b, 1e-5)
    return {
        "layer_norm": lambda: F.layer_norm(x, (n,), w, b),
        "layer_norm_backward": lambda: aten.native_layer_norm_backward(
            g, x, (n,), mean, rstd, w, b, [True, True, True]
        ),
        "rms_norm": lambda: F.rms_norm(x, (n,), w),
        "softmax": lambda: F.softmax(x, -1),
        "softmax_backward": lambda: aten._softmax_backward_data(g, y, -1, x.dtype),
    }


def _losses(x: torch.Tensor, target: torch.Tensor) -> dict[str, Call]:
    aten = torch.ops.aten
    y, one = F.log_softmax(x, -1), torch.ones_like(x[0, 0])
    total = torch.full_like(one, float(min(len(x), 60_000)))  # all that fp16 holds
    return {
        "log_softmax": lambda: F.log_softmax(x, -1),
        "log_softmax_backward": lambda: aten._log_softmax_backward_data(x, y, -1, x.dtype),
        "nll_forward": lambda: aten.nll_loss_forward(x, target, None, 1, -100),
        "nll_backward": lambda: aten.nll_loss_backward(one, x, target, None, 1, -100, total),
        "cross_entropy": lambda: F.cross_entropy(x, target),
    }
