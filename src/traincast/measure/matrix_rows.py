"""Benchmark rows of products, convolutions, attention and recurrent layers as kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincast.estimate.lowering import masked_attention, whole_rnn
from traincast.graph import KINDS, Attr
from traincast.graph.kinds import Arg, Case, Kernel

Row = Mapping[str, Any]
EACH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
"""Bytes of an element."""


def arg(shape: tuple[int, ...], each: float, grad: bool = True, role: str = "activation") -> Arg:
    """Return a tensor that an op reads or writes; `each` is bytes of an element."""
    n = 1
    for length in shape:
        n *= length
    return Arg(shape, n, each, grad, role)


def op_kernel(
    kind: str, attrs: dict[str, Attr], ins: list[Arg], outs: list[Arg], phase: int
) -> Kernel:
    """Return the first kernel of an op in a phase."""
    costs = KINDS[kind].costs(Case(attrs, tuple(ins), tuple(outs)))
    return (costs.forward, costs.data, costs.weight)[phase][0]


def gemm(row: Row) -> tuple[int, Kernel]:
    """Return a product's phase (0 forward, 1 data, 2 weight) and kernel."""
    e = EACH[row["dtype"]]
    m, n, k, b = (int(row[x]) for x in ("m", "n", "k", "batch"))
    if row["form"] == "batched":
        ins = [arg((b, m, k), e), arg((b, k, n), e)]
        return 0, op_kernel("matmul", {}, ins, [arg((b, m, n), e)], 0)
    phase = ("forward", "data", "weight").index(row["form"])
    ins = [arg((m, k), e), arg((n, k), e, role="parameter")]
    return phase, op_kernel("linear", {}, ins, [arg((m, n), e)], phase)


def conv(row: Row) -> tuple[int, Kernel]:
    """Return the same of a convolution over one to three axes."""
    e = EACH[row["dtype"]]
    n, cin, cout, size, stride, g = (
        int(row[x]) for x in ("n", "cin", "cout", "size", "stride", "groups")
    )
    form = str(row["form"])
    transposed, axes = form.startswith("t_"), int(row.get("axes", 2))
    kernel = (*(int(row["kernel"]),) * (axes - 1), int(row.get("kernel_w", row["kernel"])))
    kernel = (int(row.get("kernel_d", kernel[0])), *kernel[1:])
    sides, gap = sides_of(row, axes), int(row.get("dilation", 1))
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
    ins = [arg((n, cin, *sides), e), arg(weight, e, role="parameter")]
    phase = ("forward", "data", "weight").index(form.removeprefix("t_"))
    return phase, op_kernel("conv", attrs, ins, [arg((n, cout, *out), e)], phase)


def sides_of(row: Row, axes: int) -> tuple[int, ...]:
    """Return the sides of an image; of volumes the depth is first."""
    size = int(row["size"])
    return (int(row.get("depth", size)), *(size,) * (axes - 1))


def attention(row: Row) -> tuple[int, Kernel]:
    """Return the same of fused attention, with a mask or without."""
    e = EACH[row["dtype"]]
    b, heads, kv, seq, d = (int(row[x]) for x in ("b", "heads", "kv", "seq", "d"))
    keys = int(row.get("keys", seq))
    ins = [arg((b, *sides, d), e) for sides in ((heads, seq), (kv, keys), (kv, keys))]
    if row.get("mask"):
        ins.append(arg((1, heads, seq, keys), e, grad=row["mask"] == "learned"))
    phase = 0 if row["form"] == "forward" else 1
    attrs: dict[str, Attr] = {"causal": bool(row["causal"])}
    if kv != heads and e == 4:
        attrs["algorithm"] = "math"
    kernel = op_kernel("attention", attrs, ins, [arg((b, heads, seq, d), e)], phase)
    return phase, masked_attention(kernel, ins[3] if len(ins) > 3 else None)


def rnn(row: Row) -> tuple[int, Kernel]:
    """Return the same of recurrent layers over all positions."""
    e, gates = EACH[row["dtype"]], 4 if row["cell"] == "lstm" else 3
    b, seq, wide, hidden, layers = (int(row[x]) for x in ("b", "seq", "input", "hidden", "layers"))
    ways = 2 if row["both_ways"] else 1
    weights = []
    for layer in range(layers):
        for shape in ((wide if layer == 0 else ways * hidden), hidden):
            weights += [arg((gates * hidden, shape), e, role="parameter")] * ways
        weights += [arg((gates * hidden,), e, role="parameter")] * 2 * ways
    attrs: dict[str, Attr] = {
        "cell": str(row["cell"]), "hidden": hidden, "layers": layers,
        "bidirectional": bool(row["both_ways"]), "batch_first": True,
    }  # fmt: skip
    phase = 0 if row["form"] == "forward" else 1
    outs = [arg((b, seq, ways * hidden), e)]
    return phase, whole_rnn(
        op_kernel("rnn", attrs, [arg((b, seq, wide), e), *weights], outs, phase)
    )
