"""Times single kernels on this machine's device, as rows of JSON.

    python benchmarks/bench_kernels.py OUT.jsonl [--minutes 10] [--seed 0]

One file that needs torch, numpy and the standard library alone, so that it runs on a node where
nothing can be installed. Cases are drawn from the shapes that real networks use, families in turn,
so that a shorter run measures fewer of each. Rows are appended one by one: a run that is killed
loses nothing, and a second run with the same file goes on where the first ended. Exit status 3
means that a case left the device unusable for this process: run it again to go on.

Each row: `family`, the case's own keys, `dtype`, `seconds` (median of a kernel's time on the
device; small kernels are replayed from a CUDA graph so that the host does not count), `spread`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Case = dict[str, Any]
_TYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16,
          "fp16": torch.float16}  # fmt: skip
_MOST_BYTES = 24e9


def _tensor(shape: tuple[int, ...], dtype: str, nhwc: bool = False) -> torch.Tensor:
    made = torch.randn(shape, device="cuda", dtype=torch.float32).to(_TYPES[dtype])
    return made.contiguous(memory_format=torch.channels_last) if nhwc else made


def seconds_of(
    run: Callable[[], Any], budget: float = 0.05, replayed: bool = True
) -> tuple[float, float]:
    """Return the median seconds of one call on the device, and its relative spread."""
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    once = _elapsed(run, 3) / 3
    repeats = max(1, min(50, int(budget / 5 / max(once, 1e-6))))
    replay: Callable[[], Any] = run
    if once < 1e-3 and replayed:
        try:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(repeats):
                    run()
            replay, inner = graph.replay, repeats
        except RuntimeError:
            torch.cuda.synchronize()
            inner = 0
        if inner:
            replay()
            times = [_elapsed(replay, 1) / inner for _ in range(5)]
            return statistics.median(times), (max(times) - min(times)) / statistics.median(times)
    times = [_elapsed(run, repeats) / repeats for _ in range(5)]
    return statistics.median(times), (max(times) - min(times)) / statistics.median(times)


def _elapsed(run: Callable[[], Any], count: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        run()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


def gemm_cases(draw: random.Random) -> Iterator[Case]:
    """Yield products of activations [m, k] and weights [n, k], and their gradients."""
    while True:
        m = int(2 ** draw.uniform(4, 17))
        n, k = (int(2 ** draw.uniform(4, 14.5)) // 8 * 8 or 8 for _ in range(2))
        if draw.random() < 0.5:
            n, k = (draw.choice((64, 128, 256, 512, 768, 1024, 2048, 3072, 4096, 8192, 11008))
                    for _ in range(2))  # fmt: skip
        for form in ("forward", "data", "weight"):
            yield {"m": m, "n": n, "k": k, "batch": 1, "form": form}
        b, s, d = 2 ** draw.randint(2, 10), 2 ** draw.randint(4, 10), draw.choice((32, 49, 64, 128))
        yield {"m": s, "n": draw.choice((s, d)), "k": draw.choice((d, s)), "batch": b,
               "form": "batched"}  # fmt: skip


def gemm(c: Case) -> Callable[[], Any]:
    """Return the product that a case describes."""
    m, n, k, dtype = c["m"], c["n"], c["k"], c["dtype"]
    if c["form"] == "batched":
        a, b = _tensor((c["batch"], m, k), dtype), _tensor((c["batch"], k, n), dtype)
        return lambda: torch.bmm(a, b)
    x, w, g = _tensor((m, k), dtype), _tensor((n, k), dtype), _tensor((m, n), dtype)
    if c["form"] == "forward":
        return lambda: F.linear(x, w)
    if c["form"] == "data":
        return lambda: g @ w
    return lambda: g.t() @ x


def conv_cases(draw: random.Random) -> Iterator[Case]:
    """Yield convolutions as image networks have them, with their gradients."""
    while True:
        kernel = draw.choice((1, 1, 1, 3, 3, 3, 5, 7, 11))
        stride = draw.choice((1, 1, 1, 2)) if kernel < 7 else draw.choice((1, 2, 4))
        cin, cout = (draw.choice((16, 24, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048))
                     for _ in range(2))  # fmt: skip
        if kernel >= 7 and draw.random() < 0.6:
            cin = 3
        groups = 1
        if draw.random() < 0.35 and cin > 3:
            cout = cin
            groups = cin if draw.random() < 0.6 else cin // draw.choice((8, 16, 24, 32))
            if groups < 1 or cin % groups:
                groups = cin
        size = draw.choice((7, 14, 17, 28, 35, 56, 112, 149, 224))
        batch = 2 ** draw.randint(2, 8)
        if batch * size * size * (cin + cout) * 4 * 3 > 8e9:
            continue
        for layout, form in itertools.product(("nchw", "nhwc"), ("forward", "data", "weight")):
            yield {"n": batch, "cin": cin, "cout": cout, "size": size, "kernel": kernel,
                   "stride": stride, "groups": groups, "layout": layout, "form": form}  # fmt: skip


def conv(c: Case) -> Callable[[], Any]:
    """Return the convolution, or one of its gradients."""
    nhwc = c["layout"] == "nhwc"
    x = _tensor((c["n"], c["cin"], c["size"], c["size"]), c["dtype"], nhwc)
    w = _tensor((c["cout"], c["cin"] // c["groups"], c["kernel"], c["kernel"]), c["dtype"], nhwc)
    pad, stride = c["kernel"] // 2, c["stride"]
    if c["form"] == "forward":
        return lambda: torch.conv2d(x, w, None, stride, pad, 1, c["groups"])
    grad = torch.randn_like(torch.conv2d(x, w, None, stride, pad, 1, c["groups"]))
    mask = [c["form"] == "data", c["form"] == "weight", False]
    return lambda: torch.ops.aten.convolution_backward(
        grad, x, w, None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], c["groups"], mask
    )


def attention_cases(draw: random.Random) -> Iterator[Case]:
    """Yield attention over sequences, causal or not, with shared heads or not."""
    while True:
        heads = draw.choice((4, 8, 12, 16, 32))
        seq = draw.choice((64, 128, 197, 256, 512, 1024, 2048, 4096, 8192))
        batch = max(1, min(64, int(2 ** draw.uniform(0, 18) / seq)))
        case = {"b": batch, "heads": heads, "kv": draw.choice((heads, heads, max(1, heads // 4))),
                "seq": seq, "d": draw.choice((64, 64, 80, 128)),
                "causal": draw.random() < 0.5}  # fmt: skip
        for form in ("forward", "both"):
            yield {**case, "form": form}


def attention(c: Case) -> Callable[[], Any]:
    """Return fused attention; `both` includes the backward pass."""
    q, k, v = (
        _tensor((c["b"], h, c["seq"], c["d"]), c["dtype"]) for h in (c["heads"], c["kv"], c["kv"])
    )
    gqa = c["kv"] != c["heads"]
    if c["form"] == "forward":
        return lambda: F.scaled_dot_product_attention(
            q, k, v, is_causal=c["causal"], enable_gqa=gqa
        )
    grad = torch.randn_like(q)
    leaves = [t.requires_grad_() for t in (q, k, v)]

    def both() -> Any:
        y = F.scaled_dot_product_attention(*leaves, is_causal=c["causal"], enable_gqa=gqa)
        return torch.autograd.grad(y, leaves, grad)

    return both


def stream_cases(draw: random.Random) -> Iterator[Case]:
    """Yield elementwise, copying, reducing and normalising kernels over many sizes."""
    ops = ("add", "mul", "relu", "gelu", "silu", "sigmoid", "add_scalar", "cast", "clone",
           "transpose", "cat", "sum_rows", "sum_all", "mean_last", "dropout", "threshold_backward",
           "gelu_backward", "silu_backward", "broadcast_add", "where", "fill", "pow",
           "tanh")  # fmt: skip
    while True:
        for op in draw.sample(ops, len(ops)):
            elements = int(2 ** draw.uniform(8, 29.5))
            columns = draw.choice((64, 197, 256, 768, 1000, 1024, 3072, 4096, 8192))
            rows = max(1, elements // columns)
            if rows * columns * 4 * 4 < _MOST_BYTES:
                yield {"op": op, "rows": rows, "columns": columns}


def stream(c: Case) -> Callable[[], Any]:
    """Return a kernel bound by memory."""
    aten, op, dtype = torch.ops.aten, c["op"], c["dtype"]
    x = _tensor((c["rows"], c["columns"]), dtype)
    y, row = torch.randn_like(x), torch.randn_like(x[0])
    mask = y > 0
    other = torch.bfloat16 if dtype in ("fp32", "tf32") else torch.float32
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: x + y,
        "mul": lambda: x * y,
        "relu": x.relu,
        "gelu": lambda: F.gelu(x),
        "silu": lambda: F.silu(x),
        "sigmoid": x.sigmoid,
        "tanh": x.tanh,
        "pow": lambda: x.pow(2),
        "add_scalar": lambda: x + 1.0,
        "cast": lambda: x.to(other),
        "clone": x.clone,
        "transpose": lambda: x.t().contiguous(),
        "cat": lambda: torch.cat([x, y], 1),
        "sum_rows": lambda: x.sum(0),
        "sum_all": x.sum,
        "mean_last": lambda: x.mean(-1),
        "dropout": lambda: torch.native_dropout(x, 0.1, True),
        "threshold_backward": lambda: aten.threshold_backward(x, y, 0),
        "gelu_backward": lambda: aten.gelu_backward(x, y),
        "silu_backward": lambda: aten.silu_backward(x, y),
        "broadcast_add": lambda: x + row,
        "where": lambda: torch.where(mask, x, y),
        "fill": x.zero_,
    }
    return calls[op]


def row_cases(draw: random.Random) -> Iterator[Case]:
    """Yield kernels that work along rows: layer norm, softmax, cross-entropy, embedding."""
    ops = ("layer_norm", "layer_norm_backward", "rms_norm", "softmax", "softmax_backward",
           "log_softmax", "log_softmax_backward", "nll_forward", "nll_backward", "embedding",
           "embedding_backward")  # fmt: skip
    while True:
        for op in draw.sample(ops, len(ops)):
            columns = draw.choice((49, 128, 197, 256, 512, 768, 1024, 2048, 4096, 8192))
            if "log" in op or "nll" in op or "embedding" in op:
                columns = draw.choice((10, 1000, 21843, 30522, 50257, 128256))
            rows = int(2 ** draw.uniform(4, 20))
            if rows * columns * 4 * 4 < _MOST_BYTES / 2:
                yield {"op": op, "rows": rows, "columns": columns}


def row(c: Case) -> Callable[[], Any]:
    """Return a kernel that works along rows."""
    aten, op, dtype, n = torch.ops.aten, c["op"], c["dtype"], c["columns"]
    if op.startswith("embedding"):
        width = 768
        table = _tensor((n, width), dtype)
        index = torch.randint(0, n, (c["rows"],), device="cuda")
        grad = _tensor((min(c["rows"], 2**20), width), dtype)
        if op == "embedding":
            return lambda: F.embedding(index, table)
        return lambda: aten.embedding_dense_backward(grad, index[: len(grad)], n, -1, False)
    x = _tensor((c["rows"], n), dtype)
    g = torch.randn_like(x)
    w, b = torch.ones_like(x[0]), torch.zeros_like(x[0])
    target = torch.randint(0, n, (c["rows"],), device="cuda")
    if op == "layer_norm":
        return lambda: F.layer_norm(x, (n,), w, b)
    if op == "rms_norm":
        return lambda: F.rms_norm(x, (n,), w)
    if op == "layer_norm_backward":
        _, mean, rstd = aten.native_layer_norm(x, (n,), w, b, 1e-5)
        return lambda: aten.native_layer_norm_backward(
            g, x, (n,), mean, rstd, w, b, [True, True, True]
        )
    if "backward" in op and "softmax" in op:
        y = F.log_softmax(x, -1) if "log" in op else F.softmax(x, -1)
        back = aten._log_softmax_backward_data if "log" in op else aten._softmax_backward_data
        return lambda: back(g, y, -1, x.dtype)
    if op == "nll_forward":
        return lambda: aten.nll_loss_forward(x, target, None, 1, -100)
    if op == "nll_backward":
        total = torch.tensor(float(c["rows"]), device="cuda", dtype=x.dtype)
        one = torch.ones((), device="cuda", dtype=x.dtype)
        return lambda: aten.nll_loss_backward(one, x, target, None, 1, -100, total)
    return lambda: F.log_softmax(x, -1) if op == "log_softmax" else F.softmax(x, -1)


def image_cases(draw: random.Random) -> Iterator[Case]:
    """Yield batch norm and pooling, forward and backward, in both layouts."""
    ops = ("batch_norm", "batch_norm_backward", "max_pool", "max_pool_backward", "avg_pool",
           "mean_space", "layout")  # fmt: skip
    while True:
        for op in draw.sample(ops, len(ops)):
            channels = draw.choice((16, 24, 64, 96, 128, 256, 512, 1024, 2048))
            size, batch = draw.choice((7, 14, 28, 56, 112)), 2 ** draw.randint(2, 8)
            if batch * channels * size * size * 4 * 4 < _MOST_BYTES / 2:
                for layout in ("nchw", "nhwc"):
                    yield {"op": op, "n": batch, "c": channels, "size": size, "layout": layout}


def image(c: Case) -> Callable[[], Any]:
    """Return a kernel over images."""
    aten, op, nhwc = torch.ops.aten, c["op"], c["layout"] == "nhwc"
    x = _tensor((c["n"], c["c"], c["size"], c["size"]), c["dtype"], nhwc)
    w, b = (torch.ones(c["c"], device="cuda") for _ in range(2))
    if c["dtype"] not in ("bf16", "fp16"):
        w, b = w.to(x.dtype), b.to(x.dtype)
    mean, var = torch.zeros_like(w), torch.ones_like(w)
    if op == "batch_norm":
        return lambda: F.batch_norm(x, mean, var, w, b, training=True)
    if op == "batch_norm_backward":
        leaf = x.detach().requires_grad_()
        w.requires_grad_(), b.requires_grad_()
        y = F.batch_norm(leaf, mean, var, w, b, training=True)
        g = torch.randn_like(y)
        return lambda: torch.autograd.grad(y, (leaf, w, b), g, retain_graph=True)
    if op == "layout":
        to = torch.contiguous_format if nhwc else torch.channels_last
        return lambda: x.contiguous(memory_format=to)
    if op == "mean_space":
        return lambda: x.mean((2, 3))
    if op == "avg_pool":
        return lambda: F.avg_pool2d(x, 3, 1, 1)
    if op == "max_pool":
        return lambda: F.max_pool2d(x, 3, 2, 1)
    y, index = F.max_pool2d(x, 3, 2, 1, return_indices=True)
    g = torch.randn_like(y)
    return lambda: aten.max_pool2d_with_indices_backward(
        g, x, [3, 3], [2, 2], [1, 1], [1, 1], False, index
    )


def update_cases(draw: random.Random) -> Iterator[Case]:
    """Yield optimizer steps over sets of parameter tensors."""
    while True:
        for name in ("sgd", "momentum", "adamw_foreach", "adamw_fused", "adam_fused"):
            tensors = int(2 ** draw.uniform(1, 9))
            yield {"op": name, "tensors": tensors,
                   "elements": int(2 ** draw.uniform(8, 27)) // tensors + 1}  # fmt: skip


def update(c: Case) -> Callable[[], Any]:
    """Return one optimizer step."""
    made = [_tensor((c["elements"],), c["dtype"]).requires_grad_() for _ in range(c["tensors"])]
    for p in made:
        p.grad = torch.randn_like(p)
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(made, lr=1e-9),
        "momentum": lambda: torch.optim.SGD(made, lr=1e-9, momentum=0.9),
        "adamw_foreach": lambda: torch.optim.AdamW(made, lr=1e-9, foreach=True),
        "adamw_fused": lambda: torch.optim.AdamW(made, lr=1e-9, fused=True),
        "adam_fused": lambda: torch.optim.Adam(made, lr=1e-9, fused=True),
    }
    return kinds[c["op"]]().step


FAMILIES: dict[str, tuple[Any, Any, int]] = {
    "gemm": (gemm_cases, gemm, 4),
    "conv": (conv_cases, conv, 6),
    "attention": (attention_cases, attention, 1),
    "stream": (stream_cases, stream, 3),
    "row": (row_cases, row, 1),
    "image": (image_cases, image, 2),
    "update": (update_cases, update, 1),
}
"""Each family's cases, what runs one, and how many of it are measured in each turn."""
DTYPES = ("bf16", "tf32", "fp32")


def cases(seed: int) -> Iterator[Case]:
    """Yield cases of all families in turn, without end; the same ones for the same seed."""
    drawn = {name: entry[0](random.Random(f"{seed}{name}")) for name, entry in FAMILIES.items()}
    choose = random.Random(seed)
    while True:
        for name, (_, _, weight) in FAMILIES.items():
            for _ in range(weight):
                case = next(drawn[name])
                yield {"family": name, **case, "dtype": choose.choice(DTYPES)}


def measure(case: Case) -> Case:
    """Return a case with its seconds, or with the error that it ended in."""
    tf32 = case["dtype"] == "tf32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        # Random numbers and autograd do not go into a graph.
        plain = case.get("op") in ("dropout", "batch_norm_backward") or case.get("form") == "both"
        run = FAMILIES[case["family"]][1](case)
        seconds, spread = seconds_of(run, replayed=not plain)
    except (RuntimeError, NotImplementedError) as error:
        return {**case, "error": str(error).splitlines()[0][:200]}
    return {**case, "seconds": seconds, "spread": round(spread, 4)}


def usable() -> bool:
    """Tell whether the device still works: some errors last until the process ends."""
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.randn(8, device="cuda").sum().item()
    except RuntimeError:
        return False
    return True


def machine() -> Case:
    """Return what the rows were measured on."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "family": "machine",
        "device": properties.name,
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def main() -> None:
    """Measure until the time is up."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    done = 0
    if options.out.exists():
        done = max(0, sum(1 for _ in options.out.open()) - 1)
    deadline = time.monotonic() + 60 * options.minutes
    with options.out.open("a") as file:
        if not done:
            file.write(json.dumps(machine()) + "\n")
        for count, case in enumerate(itertools.islice(cases(options.seed), done, None), done):
            if time.monotonic() > deadline:
                break
            row = measure(case)
            file.write(json.dumps(row) + "\n")
            file.flush()
            if "error" in row:
                print(row, flush=True)
                if not usable():
                    raise SystemExit(3)
            if count % 50 == 0:
                torch.cuda.empty_cache()
                left = (deadline - time.monotonic()) / 60
                print(f"{count} cases, {left:.1f} minutes left", flush=True)


if __name__ == "__main__":
    main()
