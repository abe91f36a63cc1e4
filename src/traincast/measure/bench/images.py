"""Kernels over images besides convolutions: norms, pooling, resizing, moving."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.measure.bench.groups import Group, memory_dtype, some
from traincast.measure.bench.timing import HERE, Call, tensor

_BATCH_NORMS = ("batch_norm", "batch_norm_backward", "batch_norm_infer")
_SINGLE = (
    "group_norm", "group_norm_backward", "max_pool",
    "max_pool_backward", "max_pool_2x2", "max_pool_2x2_backward", "avg_pool", "avg_pool_backward",
    "avg_pool_2x2", "avg_pool_2x2_backward", "mean_space", "mean_space_backward", "sum_space",
    "layout", "scale", "scale_backward", "cat", "cat_4", "cat_13", "narrow", "permuted_layer_norm",
    "bias", "bias", "add_narrow", "residual",
)  # fmt: skip
_CHANNELS_SEEN = (
    8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 112, 120, 128, 144, 160, 192, 224, 240, 256, 288,
    320, 384, 448, 480, 512, 576, 640, 672, 768, 960, 1024, 1152, 1280, 1536, 2048,
)  # fmt: skip
GROWTH = 32
"""Channels of each of the twelve further images that `cat_13` joins, as dense blocks do."""
_VOLUMES = (
    "batch_norm", "batch_norm_backward", "max_pool3d", "max_pool3d_backward", "avg_pool3d",
    "avg_pool3d_backward", "bias", "sum_space",
)  # fmt: skip
_LINES = (
    "batch_norm", "batch_norm_backward", "group_norm", "group_norm_backward", "instance_norm",
    "instance_norm_backward", "bias", "sum_space",
)  # fmt: skip
_MOVES = ("roll", "permute", "permute_back")
_RESIZES = ("nearest", "nearest_backward", "bilinear", "bilinear_backward")


def image_groups(draw: random.Random) -> Iterator[Group]:
    """Yield norms and pooling in both layouts, window moves, and resizing to twice the size."""
    cuda = HERE.device == "cuda"
    while True:
        for kind in ("batch", "single", "batch", "single", "batch", "moves", "resizes"):
            c = draw.choice(_CHANNELS_SEEN)
            size, n = (
                draw.choice((7, 14, 28, 56, 112)),
                draw.choice((1, 4, 8, 16, 32, 64, 128, 256) if cuda else (1, 2, 4, 8, 16, 32)),
            )
            if kind == "batch":
                size = draw.choice((1, 7, 8, 12, 14, 17, 28, 35, 56, 75, 112, 149, 224, 256))
                if size == 1 and cuda:
                    n = int(2 ** draw.uniform(3, 15))
            ops, held = tuple(dict.fromkeys(some(draw, _SINGLE, 5))), 8.0
            layouts: tuple[str, ...] = ("nchw", "nhwc")
            if not cuda and draw.random() < 0.8:
                layouts = ("nchw",)
            if kind == "batch":
                ops = _BATCH_NORMS
            elif kind == "moves":
                ops, held, size, layouts = _MOVES, 4.0, max(size, 14), ("nhwc",)
            elif kind == "resizes":
                ops, held, size, layouts = _RESIZES, 11.0, min(size, 56), (draw.choice(layouts),)
            if c % 32:
                ops = tuple(op for op in ops if "group_norm" not in op)
            if n * c * size * size > 4e8 or n * size * size < 2:
                continue
            dtype = memory_dtype(draw)
            for layout in layouts:
                keys = {"n": n, "c": c, "size": size, "layout": layout, "dtype": dtype}
                # PyTorch's group norm takes contiguous images alone.
                mine = tuple(op for op in ops if layout == "nchw" or "group_norm" not in op)
                yield Group("image", keys, "op", mine, held * n * c * size * size)


def space_image_groups(draw: random.Random) -> Iterator[Group]:
    """Yield norms and pools over sequences and volumes."""
    cuda = HERE.device == "cuda"
    while True:
        c = draw.choice((32, 64, 64, 96, 128, 128, 256, 256, 512, 768))
        n = draw.choice((1, 2, 4, 8, 16, 32, 64))
        length, dtype = int(2 ** draw.uniform(5, 14)), memory_dtype(draw)
        if n * c * length < (4e8 if cuda else 4e6):
            keys = {"n": n, "c": c, "size": length, "axes": 1, "layout": "nchw", "dtype": dtype}
            yield Group("image", keys, "op", _LINES, 8.0 * n * c * length)
        size, depth = draw.choice((7, 8, 14, 16, 28, 32, 56, 64, 112)), draw.choice((2, 4, 8, 16))
        if n * c * depth * size**2 < (4e8 if cuda else 4e6):
            keys = {"n": n, "c": c, "size": size, "depth": depth, "axes": 3, "layout": "nchw",
                    "dtype": memory_dtype(draw)}  # fmt: skip
            yield Group("image", keys, "op", _VOLUMES, 8.0 * n * c * depth * size**2)


def _other_spaces(x: torch.Tensor, dtype: str, wanted: set[str]) -> dict[str, Call]:
    """Return kernels over sequences [n, c, l] and volumes [n, c, d, h, w]."""
    aten, c, space = torch.ops.aten, x.shape[1], tuple(range(2, x.dim()))
    channel = tensor((1, c, *[1] * len(space)), dtype)
    calls: dict[str, Call] = {
        "bias": lambda: x.add_(channel),
        "sum_space": lambda: x.sum((0, *space)),
        **_norms(x, False, dtype, wanted),
    }
    if "instance_norm" in wanted:
        leaf, g = x.detach().requires_grad_(), tensor(tuple(x.shape), dtype)
        y = F.instance_norm(leaf)
        calls["instance_norm"] = lambda: F.instance_norm(x)
        calls["instance_norm_backward"] = lambda: torch.autograd.grad(y, leaf, g, retain_graph=True)
    if "max_pool3d" in wanted:
        how = ([2] * 3, [2] * 3, [0] * 3)
        y, at = F.max_pool3d(x, *how, return_indices=True)
        g = tensor(tuple(y.shape), dtype)
        calls["max_pool3d"] = partial(F.max_pool3d, x, *how)
        calls["max_pool3d_backward"] = partial(
            aten.max_pool3d_with_indices_backward, g, x, *how, [1] * 3, False, at
        )
        calls["avg_pool3d"] = partial(F.avg_pool3d, x, *how)
        calls["avg_pool3d_backward"] = partial(
            aten.avg_pool3d_backward, g, x, *how, False, True, None
        )
    return calls


def image(group: Group) -> dict[str, Call]:
    """Return kernels over images of a layout."""
    c, nhwc = group.keys, group.keys["layout"] == "nhwc"
    if "axes" in c:
        sides = [c["size"]] if c["axes"] == 1 else [c["depth"], c["size"], c["size"]]
        x = tensor((c["n"], c["c"], *sides), c["dtype"])
        return _other_spaces(x, c["dtype"], set(group.values))
    x = tensor((c["n"], c["c"], c["size"], c["size"]), c["dtype"], nhwc)
    if group.values[0] in _MOVES:
        return _moves(x.permute(0, 2, 3, 1))
    if group.values[0] in _RESIZES:
        return _resizes(x, nhwc, c["dtype"])
    calls = _pools(x, nhwc, c["dtype"], set(group.values))
    calls.update(_norms(x, nhwc, c["dtype"], set(group.values)))
    y, weight = tensor(tuple(x.shape), c["dtype"], nhwc), tensor((c["n"], c["c"], 1, 1), c["dtype"])
    same = torch.channels_last if nhwc else torch.contiguous_format
    other = torch.contiguous_format if nhwc else torch.channels_last
    channel = weight[:1].contiguous()
    wide = tensor((c["n"], 2 * c["c"], c["size"], c["size"]), c["dtype"], nhwc)
    small = weight / c["size"] ** 2
    grown = tensor((c["n"], GROWTH, c["size"], c["size"]), c["dtype"], nhwc)
    calls.update({
        "mean_space": lambda: x.mean((2, 3)),
        "mean_space_backward": lambda: small.expand(x.shape).contiguous(memory_format=same),
        "sum_space": lambda: x.sum((0, 2, 3)),
        "layout": lambda: x.contiguous(memory_format=other),
        "scale": lambda: x * weight,
        "scale_backward": lambda: (x * y).sum((2, 3), keepdim=True),
        "cat": lambda: torch.cat([x, y], 1),
        "cat_4": lambda: torch.cat([x, y, x, y], 1),
        "cat_13": lambda: torch.cat([x, *[grown] * 12], 1),
        "bias": lambda: x.add_(channel),
        "add_narrow": lambda: x + wide.narrow(1, 0, c["c"]),
        "residual": lambda: x + y,
        "narrow": lambda: x.narrow(1, 0, c["c"] // 2).contiguous(memory_format=same),
    })  # fmt: skip
    return calls


def _pools(x: torch.Tensor, nhwc: bool, dtype: str, wanted: set[str]) -> dict[str, Call]:
    aten = torch.ops.aten
    calls: dict[str, Call] = {}
    kinds = {"max_pool": (3, 2, 1), "max_pool_2x2": (2, 2, 0), "avg_pool": (3, 1, 1),
             "avg_pool_2x2": (2, 2, 0)}  # fmt: skip
    for name, (kernel, stride, pad) in kinds.items():
        if not wanted & {name, f"{name}_backward"}:
            continue
        how = ([kernel] * 2, [stride] * 2, [pad] * 2)
        pool = F.avg_pool2d if name.startswith("avg") else F.max_pool2d
        calls[name] = partial(pool, x, *how)
        g = tensor(tuple(calls[name]().shape), dtype, nhwc)
        if name.startswith("avg"):
            back = partial(aten.avg_pool2d_backward, g, x, *how, False, True, None)
        else:
            _, index = F.max_pool2d(x, *how, return_indices=True)
            back = partial(aten.max_pool2d_with_indices_backward, g, x, *how, [1, 1], False, index)
        calls[f"{name}_backward"] = back
    return calls


def _norms(x: torch.Tensor, nhwc: bool, dtype: str, wanted: set[str]) -> dict[str, Call]:
    aten, (n, c), space = torch.ops.aten, x.shape[:2], x[0, 0].numel()
    # Batch norm keeps its weights in fp32 whatever its images are.
    w, b = (torch.ones(c, device=x.device, requires_grad=True) for _ in range(2))
    mean, var = torch.zeros(c, device=x.device), torch.ones(c, device=x.device)
    calls: dict[str, Call] = {}
    if "batch_norm" in wanted:
        calls["batch_norm"] = lambda: F.batch_norm(x, mean, var, w.detach(), b.detach(), True)
    if "batch_norm_infer" in wanted:
        calls["batch_norm_infer"] = lambda: F.batch_norm(x, mean, var, w.detach(), b.detach())
    if "batch_norm_backward" in wanted:
        leaf = x.detach().requires_grad_()
        y, g = F.batch_norm(leaf, mean, var, w, b, True), tensor(tuple(x.shape), dtype, nhwc)
        calls["batch_norm_backward"] = lambda: torch.autograd.grad(
            y, (leaf, w, b), g, retain_graph=True
        )
    own, shift = w.detach().to(x.dtype), b.detach().to(x.dtype)
    if wanted & {"group_norm", "group_norm_backward"}:
        _, at, rstd = aten.native_group_norm(x, own, shift, n, c, space, 32, 1e-5)
        grad = tensor(tuple(x.shape), dtype, nhwc)
        calls["group_norm"] = lambda: F.group_norm(x, 32, own, shift)
        calls["group_norm_backward"] = lambda: aten.native_group_norm_backward(
            grad, x, at, rstd, own, n, c, space, 32, [True, True, True]
        )
    if x.dim() == 4:
        turned = x.permute(0, 2, 3, 1)
        calls["permuted_layer_norm"] = lambda: F.layer_norm(turned, (c,), own, shift)
    return calls


def _moves(x: torch.Tensor) -> dict[str, Call]:
    """Return what window attention moves: `x` is [n, h, w, c], its side a multiple of 7."""
    n, side, _, c = x.shape
    split = x.view(n, side // 7, 7, side // 7, 7, c)
    windows = split.permute(0, 1, 3, 2, 4, 5).contiguous()
    return {
        "roll": lambda: torch.roll(x, (-3, -3), (1, 2)),
        "permute": lambda: split.permute(0, 1, 3, 2, 4, 5).contiguous(),
        "permute_back": lambda: windows.permute(0, 1, 3, 2, 4, 5).contiguous(),
    }


def _resizes(x: torch.Tensor, nhwc: bool, dtype: str) -> dict[str, Call]:
    aten, (n, c, size, _) = torch.ops.aten, x.shape
    to, shape = [2 * size, 2 * size], [n, c, size, size]
    g = tensor((n, c, *to), dtype, nhwc)
    return {
        "nearest": lambda: F.interpolate(x, scale_factor=2),
        "nearest_backward": lambda: aten.upsample_nearest2d_backward(g, to, shape, 2.0, 2.0),
        "bilinear": lambda: F.interpolate(x, scale_factor=2, mode="bilinear"),
        "bilinear_backward": lambda: aten.upsample_bilinear2d_backward(
            g, to, shape, False, 2.0, 2.0
        ),
    }
