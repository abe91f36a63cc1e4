"""Matrix products, convolutions and attention, with their gradients."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import prod
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.measure.bench.groups import Group, product_dtype
from traincast.measure.bench.shapes import conv_shapes, transposed_shapes
from traincast.measure.bench.timing import HERE, TYPES, Call, Case, tensor

PASSES = ("forward", "data", "weight")
_HIDDEN = (192, 256, 320, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 8192)
_VOCABULARIES = (30522, 32000, 50257, 128256, 151936)
_BATCHES = (1, 4, 8, 16, 32, 64, 128, 256)
_BATCHES_HERE = (1, 2, 4, 8, 8, 16, 32)
_LAST = 0.15
"""Share of convolutions that a CPU also runs with channels last."""
_LAST_WIDE = 0.25
"""The same for a GPU and types of four bytes; smaller ones always run in both layouts."""
_CHANNELS = (16, 24, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)


def gemm_groups(draw: random.Random) -> Iterator[Group]:
    """Yield products of activations [m, k] and weights [n, k], and attention's own products."""
    while True:
        for real in (True, False):
            m, n, k = _used_product(draw) if real else _any_product(draw)
            keys = {"m": m, "n": n, "k": k, "batch": 1, "dtype": product_dtype(draw)}
            yield Group("gemm", keys, "form", PASSES, m * n + n * k + k * m, 2.0 * m * n * k)
        batch = int(2 ** draw.uniform(3, 11 if HERE.device == "cuda" else 8))
        s = draw.choice((49, 64, 128, 197, 256, 512, 1024))
        d = draw.choice((32, 64, 128))
        for m, n, k in ((s, s, d), (s, d, s), _any_batched(draw)):
            keys = {"m": m, "n": n, "k": k, "batch": batch, "dtype": product_dtype(draw)}
            held = batch * (m * n + n * k + k * m)
            yield Group("gemm", keys, "form", ("batched",), held, 2.0 * batch * m * n * k)


def _any_batched(draw: random.Random) -> tuple[int, int, int]:
    """Draw a product of which there are many: of experts, of few channels, with single columns."""
    m, n, k = (draw.choice((1, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)) for _ in range(3))
    return m, n, k


def _used_product(draw: random.Random) -> tuple[int, int, int]:
    """Draw a product as transformers and classifiers have them."""
    hidden = draw.choice(_HIDDEN)
    wide = draw.choice((hidden, 3 * hidden, 4 * hidden, 4 * hidden, 8 * hidden // 3 // 64 * 64))
    n, k = (wide, hidden) if draw.random() < 0.6 else (hidden, wide)
    m = int(2 ** draw.uniform(6, 17))
    if draw.random() < 0.8:
        m = draw.choice((1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256))
        m *= draw.choice((49, 64, 128, 196, 197, 256, 384, 512, 1024))
    kind = draw.random()
    if kind < 0.1:
        n, k = draw.choice(_VOCABULARIES), hidden
    elif kind < 0.2:
        m, n, k = draw.choice(_BATCHES[2:]), 1000, draw.choice((512, 768, 1024, 1280, 2048, 4096))
        if HERE.device == "cpu" and draw.random() < 0.5:  # there the weights' bytes decide
            m, n, k = draw.choice((1, 2, 4, 8, 16, 32)), 4096, draw.choice((1024, 4096, 8192))
    return m, n, k


def _any_product(draw: random.Random) -> tuple[int, int, int]:
    m = int(2 ** draw.uniform(4, 17))
    n, k = (int(2 ** draw.uniform(4, 14.5)) // 8 * 8 for _ in range(2))
    return m, n, k


def gemm(group: Group) -> dict[str, Call]:
    """Return the products of a group."""
    c = group.keys
    m, n, k, dtype = c["m"], c["n"], c["k"], c["dtype"]
    if c["batch"] > 1:
        a, b = tensor((c["batch"], m, k), dtype), tensor((c["batch"], k, n), dtype)
        return {"batched": lambda: torch.bmm(a, b)}
    x, w, g = tensor((m, k), dtype), tensor((n, k), dtype), tensor((m, n), dtype)
    return {"forward": lambda: F.linear(x, w), "data": lambda: g @ w, "weight": lambda: g.t() @ x}


def conv_groups(draw: random.Random) -> Iterator[Group]:
    """Yield convolutions as image networks have them, the most used likely first."""
    while True:
        ranked = [(place + 20) * draw.random() for place in range(len(conv_shapes()))]
        ordered = [s for _, s in sorted(zip(ranked, conv_shapes(), strict=True),
                                        key=lambda pair: pair[0])]  # fmt: skip
        for count, shape in enumerate(ordered):
            yield from conv_layouts(draw, shape, PASSES)
            if HERE.device == "cuda" or count % 4 == 0:
                yield from conv_layouts(draw, _plain_conv(draw), PASSES)
            if count % 8 == 0:
                yield from conv_layouts(draw, _line_conv(draw), PASSES)
            if count % 3 == 0:
                yield from conv_layouts(draw, draw.choice(_grouped()), PASSES)
            if count % 20 == 0:
                yield from conv_layouts(draw, _any_conv(draw), PASSES)
            if count % 50 == 0:
                turned = tuple(f"t_{form}" for form in PASSES)
                yield from conv_layouts(draw, draw.choice(transposed_shapes()), turned)


def _grouped() -> list[Case]:
    """Return the convolutions whose groups have several channels: few, and least alike."""
    return [s for s in conv_shapes() if 1 < s["groups"] < s["cin"]]


def _plain_conv(draw: random.Random) -> Case:
    """Draw a convolution as people write them by hand: whole blocks of channels, common sizes.

    Libraries change algorithms between them, and few networks tell where.
    """
    cin = draw.choice((16, 32, 64, 64, 96, 128, 128, 192, 256, 256, 384, 512, 512, 1024))
    size = draw.choice((7, 8, 13, 14, 14, 16, 27, 28, 28, 32, 32, 56, 56, 64, 112, 128, 224, 256))
    return {"cin": cin, "cout": draw.choice((cin, cin, 2 * cin, cin // 2)), "size": size,
            "kernel": draw.choice((3, 3, 3, 3, 3, 1, 1, 5, 7)), "stride": draw.choice((1, 1, 1, 2)),
            "groups": 1}  # fmt: skip


def _line_conv(draw: random.Random) -> Case:
    """Draw a convolution over sequences, `size` positions long."""
    cin = draw.choice((1, 32, 64, 128, 256, 512, 768))
    cout = draw.choice((64, 128, 256, 512)) if cin == 1 else draw.choice((cin, cin, 2 * cin))
    kernel = draw.choice((1, 3, 3, 3, 5, 7, 15, 31))
    size = int(2 ** draw.uniform(5, 14))
    if draw.random() < 0.75:  # lengths that loads of 16 bytes divide are much faster
        size = size // 16 * 16
    return {"cin": cin, "cout": cout, "size": size, "kernel": kernel,
            "stride": draw.choice((1, 1, 1, 2, 4)) if kernel > 1 else 1,
            "groups": draw.choice((1, 1, 1, cin)) if cout == cin else 1, "axes": 1}  # fmt: skip


def space_groups(draw: random.Random) -> Iterator[Group]:
    """Yield convolutions over sequences and volumes, and with gaps between a window's positions."""
    while True:
        yield from conv_layouts(draw, _line_conv(draw), PASSES)
        yield from conv_layouts(draw, _line_conv(draw), PASSES)
        yield from conv_layouts(draw, _volume_conv(draw), PASSES)
        for shape in (_line_conv(draw), _plain_conv(draw)):
            gap = draw.choice((2, 2, 4, 4, 8, 16, 32) if "axes" in shape else (2, 2, 4, 6, 12))
            if gap * (shape["kernel"] - 1) < shape["size"] and shape["kernel"] > 1:
                how = {"stride": 1, "groups": 1, "dilation": gap}
                yield from conv_layouts(draw, {**shape, **how}, PASSES)


def _volume_conv(draw: random.Random) -> Case:
    """Draw a convolution over volumes, `depth` images of `size` pixels deep, as clips and scans."""
    cin = draw.choice((1, 3, 16, 32, 32, 64, 64, 128, 128, 256, 512))
    cout = draw.choice((16, 32, 64)) if cin < 16 else draw.choice((cin, cin, 2 * cin, cin // 2))
    size = draw.choice((7, 8, 14, 16, 28, 32, 56, 64, 96, 112))
    return {"cin": cin, "cout": cout, "size": size, "depth": draw.choice((2, 4, 8, 16, 32, size)),
            "kernel": draw.choice((3, 3, 3, 3, 1, 5)), "stride": draw.choice((1, 1, 1, 2)),
            "groups": 1, "axes": 3}  # fmt: skip


def _any_conv(draw: random.Random) -> Case:
    kernel = draw.choice((1, 1, 1, 3, 3, 3, 5, 7, 11))
    stride = draw.choice((1, 1, 1, 2)) if kernel < 7 else draw.choice((1, 2, 4))
    cin, cout, groups = draw.choice(_CHANNELS), draw.choice(_CHANNELS), 1
    if draw.random() < 0.35:
        cout = cin
        per = draw.choice((1, 1, 8, 16))
        groups = cin // per if cin % per == 0 else cin
    size = draw.choice((7, 14, 17, 28, 35, 56, 112, 149, 224))
    return {"cin": cin, "cout": cout, "size": size, "kernel": kernel, "stride": stride,
            "groups": groups}  # fmt: skip


def conv_layouts(draw: random.Random, shape: Case, forms: tuple[str, ...]) -> Iterator[Group]:
    """Yield one convolution in both layouts, at a batch that keeps it below 3 GB."""
    dtype = product_dtype(draw)
    width = 4 if dtype in ("fp32", "tf32") else 2
    turned = forms[0].startswith("t_")
    cin, cout, axes, step = shape["cin"], shape["cout"], shape.get("axes", 2), shape["stride"]
    before = _space(shape)
    after = before * step**axes if turned else before / step**axes
    image = cin * before + cout * after
    weights = cin * cout // shape["groups"] * prod(_window(shape))
    cuda = HERE.device == "cuda"
    most, batches = (3e9, _BATCHES) if cuda else (6e7, _BATCHES_HERE)
    batch = draw.choice([n for n in batches if n * image * width < most] or batches[:1])
    if cin in (1, 3):
        forms = tuple(form for form in forms if form != "data")  # images need no gradient
    flops = 2.0 * batch * weights * (before if turned else after)
    last = 0.0 if axes != 2 else _LAST if not cuda else _LAST_WIDE if width == 4 else 1.0
    for layout in ("nchw", "nhwc") if draw.random() < last else ("nchw",):
        keys = {"n": batch, **shape, "layout": layout, "dtype": dtype}
        yield Group("conv", keys, "form", forms, 2 * batch * image + weights, flops)


def _window(c: Case) -> tuple[int, ...]:
    """Return the sides of a convolution's window."""
    width = int(c.get("kernel_w") or c["kernel"])
    window = [*[c["kernel"]] * (c.get("axes", 2) - 1), width]
    window[0] = c.get("kernel_d", window[0])
    return tuple(window)


def _sides(c: Case) -> tuple[int, ...]:
    """Return the sides of a convolution's input; of volumes the depth is first."""
    axes = c.get("axes", 2)
    return (c.get("depth", c["size"]), *[c["size"]] * (axes - 1))


def _space(c: Case) -> int:
    return prod(_sides(c))


def conv(group: Group) -> dict[str, Call]:
    """Return a convolution and its gradients, plain or (`t_`) transposed."""
    c, turned = group.keys, group.values[0].startswith("t_")
    axes = c.get("axes", 2)
    nhwc, dtype, kernel, gap = c["layout"] == "nhwc", c["dtype"], _window(c), c.get("dilation", 1)
    pad = [c["padding"]] * axes if "padding" in c else [gap * (side // 2) for side in kernel]
    how = ([c["stride"]] * axes, pad, [gap] * axes, turned, [0] * axes, c["groups"])
    first, second = (c["cin"], c["cout"]) if turned else (c["cout"], c["cin"])
    x = tensor((c["n"], c["cin"], *_sides(c)), dtype, nhwc)
    w = tensor((first, second // c["groups"], *kernel), dtype, nhwc)
    g = tensor(tuple(torch.convolution(x, w, None, *how).shape), dtype, nhwc)

    def backward(data: bool) -> Any:
        mask = [data, not data, False]
        return torch.ops.aten.convolution_backward(g, x, w, None, *how, mask)

    before = "t_" if turned else ""
    return {
        f"{before}forward": lambda: torch.convolution(x, w, None, *how),
        f"{before}data": lambda: backward(True),
        f"{before}weight": lambda: backward(False),
    }


def attention_groups(draw: random.Random) -> Iterator[Group]:
    """Yield attention over sequences, causal or not, with shared heads or not."""
    while True:
        heads = draw.choice((3, 4, 6, 8, 12, 16, 32))
        seq = draw.choice((49, 64, 77, 128, 197, 256, 384, 512, 577, 1024, 2048, 4096, 8192))
        b = max(1, min(256, int(2 ** draw.uniform(0, 18) / seq)))
        kv = draw.choice((heads, heads, max(1, heads // 4)))
        if heads % kv:
            kv = heads
        d = draw.choice((32, 64, 64, 80, 96, 128))
        keys = {"b": b, "heads": heads, "kv": kv, "seq": seq, "d": d, "order": "positions",
                "causal": draw.random() < 0.5, "dtype": product_dtype(draw)}  # fmt: skip
        held = 4.0 * b * heads * seq * d + (b * heads * seq**2 if keys["dtype"] != "bf16" else 0)
        yield Group("attention", keys, "form", ("forward", "both"), held,
                    14.0 * b * heads * seq**2 * d)  # fmt: skip


def attention(group: Group) -> dict[str, Call]:
    """Return fused attention; `both` includes the backward pass.

    Positions lie outside heads, as a linear layer before it leaves them.
    """
    c = group.keys
    heads, seq = c["heads"], c["seq"]
    keys = c.get("keys") or seq
    q, k, v, grad = (
        tensor((c["b"], length, h, c["d"]), c["dtype"]).transpose(1, 2)
        for length, h in ((seq, heads), (keys, c["kv"]), (keys, c["kv"]), (seq, heads))
    )
    how: dict[str, Any] = {"is_causal": c["causal"]}
    if c["kv"] != heads:
        how["enable_gqa"] = True
    if c.get("mask"):
        bias = tensor((1, heads, seq, keys), c["dtype"])
        how["attn_mask"] = bias.requires_grad_(c["mask"] == "learned")
    leaves = [t.detach().requires_grad_() for t in (q, k, v)]

    def both() -> Any:
        y = F.scaled_dot_product_attention(*leaves, **how)
        return torch.autograd.grad(y, leaves, grad)

    return {"forward": lambda: F.scaled_dot_product_attention(q, k, v, **how), "both": both}


def rnn_groups(draw: random.Random) -> Iterator[Group]:
    """Yield recurrent layers over sequences."""
    while True:
        hidden = draw.choice((64, 96, 128, 200, 256, 300, 384, 512, 512, 768, 1024))
        wide = draw.choice((hidden, hidden, 40, 128, 256, 512))
        b = draw.choice((int(2 ** draw.uniform(2, 9)), 16, 32, 64, 128, 256))
        seq = draw.choice((16, 32, 50, 64, 100, 128, 200, 256, 400, 512))
        cell, layers = draw.choice(("lstm", "lstm", "gru")), draw.choice((1, 1, 2, 2, 3, 4))
        keys = {"cell": cell, "b": b, "seq": seq, "input": wide, "hidden": hidden,
                "layers": layers, "both_ways": draw.random() < 0.4,
                "dtype": product_dtype(draw)}  # fmt: skip
        gates = 4 if cell == "lstm" else 3
        flops = 6.0 * b * seq * gates * hidden * (wide + hidden) * layers
        yield Group("rnn", keys, "form", ("forward", "both"), 12.0 * b * seq * hidden * layers,
                    20.0 * flops)  # fmt: skip


def rnn(group: Group) -> dict[str, Call]:
    """Return recurrent layers; `both` includes the backward pass."""
    c = group.keys
    cell = torch.nn.LSTM if c["cell"] == "lstm" else torch.nn.GRU
    module = cell(c["input"], c["hidden"], num_layers=c["layers"], batch_first=True,
                  bidirectional=c["both_ways"])  # fmt: skip
    module = module.to(device=HERE.device, dtype=TYPES[c["dtype"]])
    x = tensor((c["b"], c["seq"], c["input"]), c["dtype"])
    leaf = x.detach().requires_grad_()
    with torch.no_grad():
        grad = torch.ones_like(module(x)[0])

    def forward() -> Any:
        with torch.no_grad():
            return module(x)[0]

    def both() -> Any:
        return torch.autograd.grad(module(leaf)[0], (leaf, *module.parameters()), grad)

    return {"forward": forward, "both": both}
