"""What people choose by hand and few zoos have: odd sides, narrow groups, crossed and turned axes.

Libraries are tuned for multiples of 8 and 64. Away from them they fall back on other kernels,
several times slower, and which of them depends on how often 2 divides a side.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch

from traincast.measure.bench.groups import Group, memory_dtype, product_dtype
from traincast.measure.bench.products import PASSES, conv_layouts
from traincast.measure.bench.timing import HERE, Call, Case, tensor

_PLAIN = (64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
_BY_HAND = (
    3, 6, 9, 10, 12, 18, 20, 24, 28, 30, 36, 40, 44, 48, 50, 54, 60, 68, 72, 80, 84, 90, 96, 100,
    108, 112, 120, 128, 136, 144, 150, 160, 176, 180, 192, 200, 216, 224, 240, 250, 272, 288, 300,
    320, 336, 360, 400, 432, 480, 500, 576, 600, 640, 720, 1000,
)  # fmt: skip
_SIZES = (6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32, 36, 40, 48, 56, 64, 72, 80, 96, 112, 128)


def odd_product_groups(draw: random.Random) -> Iterator[Group]:
    """Yield products with sides that 8 does not divide: vocabularies, classes, features."""
    cuda = HERE.device == "cuda"
    while True:
        kind = draw.random()
        m = draw.choice((1, 2, 4, 8, 16, 32, 64)) * draw.choice((49, 50, 64, 100, 128, 256, 512))
        n, k = draw.choice(_PLAIN), draw.choice(_PLAIN)
        if kind < 0.4:  # a vocabulary
            n = int(2 ** draw.uniform(11, 17.2)) if cuda else int(2 ** draw.uniform(9, 13))
        elif kind < 0.6:  # classes
            n = draw.choice((1, 2, 3, 5, 10, 17, 20, 50, 100, 200, 257, 1001))
        else:
            n = draw.choice((*_BY_HAND, *_PLAIN))
        if kind >= 0.4:
            k = draw.choice(_BY_HAND)
        else:
            n = n // (step := draw.choice((1, 2, 2, 4, 4, 4))) * step
        keys = {"m": m, "n": n, "k": k, "batch": 1, "dtype": product_dtype(draw)}
        yield Group("gemm", keys, "form", PASSES, m * n + n * k + k * m, 2.0 * m * n * k)


def odd_conv_groups(draw: random.Random) -> Iterator[Group]:
    """Yield convolutions with odd channels, in narrow groups, over clips in parts, shortening."""
    while True:
        for make in (_odd, _narrow, _odd, _part_of_volume, _narrow, _strided_line):
            yield from conv_layouts(draw, make(draw), PASSES)


def _odd(draw: random.Random) -> Case:
    """Draw a convolution between channels that are no whole blocks."""
    cin = draw.choice(_BY_HAND)
    cout = draw.choice((cin, cin, 2 * cin, draw.choice(_BY_HAND), draw.choice(_PLAIN[:6])))
    return {"cin": cin, "cout": cout, "size": draw.choice(_SIZES),
            "kernel": draw.choice((3, 3, 3, 3, 1, 1, 5, 7)), "stride": draw.choice((1, 1, 1, 2)),
            "groups": 1}  # fmt: skip


def _narrow(draw: random.Random) -> Case:
    """Draw a convolution in groups of several channels each."""
    each = draw.choice((4, 8, 8, 16, 16, 24, 32, 32, 40, 48, 56, 64, 112, 120))
    groups = draw.choice((2, 2, 3, 4, 5, 7, 8, 10, 14, 16, 20, 25, 32, 64))
    wide = each * groups
    size = draw.choice([s for s in _SIZES if s * wide < 16_384] or _SIZES[:1])
    return {"cin": wide, "cout": wide, "size": size, "kernel": draw.choice((3, 3, 3, 3, 5)),
            "stride": draw.choice((1, 1, 2)), "groups": groups}  # fmt: skip


def _part_of_volume(draw: random.Random) -> Case:
    """Draw a convolution over an image of each clip, or over the images of a pixel."""
    cin = draw.choice((3, 16, 32, 48, 64, 64, 96, 108, 128, 128, 144, 216, 256, 256, 512))
    cout = draw.choice((16, 32, 64)) if cin < 16 else draw.choice((cin, cin, 2 * cin, cin // 2))
    side = draw.choice((3, 3, 3, 5, 7))
    kernel = draw.choice(({"kernel": side, "kernel_d": 1}, {"kernel": 1, "kernel_d": side}))
    return {"cin": cin, "cout": cout, "size": draw.choice(_SIZES),
            "depth": draw.choice((2, 4, 8, 8, 16, 16, 32)), **kernel, "stride": 1, "groups": 1,
            "axes": 3}  # fmt: skip


def _strided_line(draw: random.Random) -> Case:
    """Draw a convolution that shortens a waveform or a sequence."""
    cin = draw.choice((1, 1, 2, 12, 40, 48, 64, 80, 96, 128, 256, 512))
    cout = draw.choice((16, 32, 48, 64, 96, 128, 256, 512)) if cin < 16 else draw.choice(
        (cin, 2 * cin)
    )  # fmt: skip
    kernel, stride = draw.choice(
        ((10, 5), (8, 4), (16, 8), (3, 2), (5, 2), (4, 2), (2, 2), (16, 16), (25, 4), (7, 3))
    )
    length = int(2 ** draw.uniform(8, 16))
    return {"cin": cin, "cout": cout, "size": length - length % draw.choice((1, 2, 8, 16)),
            "kernel": kernel, "stride": stride, "groups": 1, "axes": 1}  # fmt: skip


def crossed_groups(draw: random.Random) -> Iterator[Group]:
    """Yield attention from some positions to fewer or more others, with and without a mask."""
    while True:
        heads, d = draw.choice((1, 2, 4, 5, 8, 8, 12, 16)), draw.choice((32, 40, 64, 64, 64, 80))
        seq = draw.choice((1, 16, 49, 64, 100, 196, 256, 300, 784, 1024, 3136, 4096))
        other = draw.choice((16, 49, 50, 64, 77, 128, 196, 256, 512, 1024))
        b = max(1, min(256, int(2 ** draw.uniform(4, 18) / max(seq, other))))
        keys = {"b": b, "heads": heads, "kv": heads, "seq": seq, "keys": other, "d": d,
                "mask": draw.choice(("", "", "", "plain", "learned")), "causal": False,
                "order": "positions", "dtype": product_dtype(draw)}  # fmt: skip
        held = 4.0 * b * heads * (seq + other) * d + 4.0 * heads * seq * other
        yield Group("attention", keys, "form", ("forward", "both"), held,
                    14.0 * b * heads * seq * other * d)  # fmt: skip


def turned_groups(draw: random.Random) -> Iterator[Group]:
    """Yield elementwise kernels of which one operand has its last two axes exchanged."""
    cuda = HERE.device == "cuda"
    while True:
        columns = draw.choice((16, 49, 64, 96, 196, 256, 272, 384, 512, 768, 816, 1024, 2048))
        seq = draw.choice((16, 49, 64, 100, 128, 196, 256, 512, 1024, 3136))
        rows = seq * max(1, int(2 ** draw.uniform(10, 28 if cuda else 21)) // (columns * seq))
        keys = {"rows": rows, "columns": columns, "seq": seq, "dtype": memory_dtype(draw)}
        if rows * columns < (2e9 if cuda else 8e6):
            yield Group("turned", keys, "op", ("add_turned", "mul_turned"), 4.0 * rows * columns)


def turned(group: Group) -> dict[str, Call]:
    """Return kernels over [sample, position, channel] beside [sample, channel, position]."""
    c = group.keys
    samples = c["rows"] // c["seq"]
    x = tensor((samples, c["seq"], c["columns"]), c["dtype"])
    y = tensor((samples, c["columns"], c["seq"]), c["dtype"]).transpose(1, 2)
    return {"add_turned": lambda: torch.add(x, y), "mul_turned": lambda: torch.mul(x, y)}
