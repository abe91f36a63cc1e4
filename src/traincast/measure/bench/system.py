"""Optimizer steps, copies between memories, and the cost of a launch."""

from __future__ import annotations

import mmap
import random
import time
from collections.abc import Callable, Iterator

import torch

from traincast.measure.bench.groups import Group
from traincast.measure.bench.timing import HERE, Call, tensor

_UPDATES = (
    "sgd", "momentum", "momentum_fused", "adamw_foreach", "adamw_fused", "adam_fused",
    "sgd_for", "adamw_for",
)  # fmt: skip


_UPDATES_HERE = ("adamw_fused", "momentum", "sgd", "adam_fused") * 3 + ("adamw_for", "sgd_for")


def update_groups(draw: random.Random) -> Iterator[Group]:
    """Yield optimizer steps over sets of equal tensors, up to a billion parameters in all."""
    while True:
        for op in _UPDATES if HERE.device == "cuda" else _UPDATES_HERE:
            tensors = int(2 ** draw.uniform(1, 5 if op.endswith("_for") else 9))
            most = 30 if HERE.device == "cuda" else 24
            elements = (
                int(2 ** draw.uniform(8 if HERE.device == "cuda" else 14, most)) // tensors + 1
            )
            if draw.random() < 0.75:  # as of most networks: vectors divide it
                elements += -elements % 8
            dtype = draw.choice(("fp32", "fp32", "bf16") if HERE.device == "cuda" else ("fp32",))
            keys = {"tensors": tensors, "elements": elements, "dtype": dtype}
            yield Group("update", keys, "op", (op,), 7.0 * tensors * elements)


def update(group: Group) -> dict[str, Call]:
    """Return one optimizer step."""
    c, op = group.keys, group.values[0]
    made = [tensor((c["elements"],), c["dtype"]).requires_grad_() for _ in range(c["tensors"])]
    for p in made:
        p.grad = tensor((c["elements"],), c["dtype"])
    return {op: optimizer(op, made).step}


def optimizer(op: str, made: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Return an optimizer by the name of its update; the learning rate moves nothing far."""
    sgd, adam, adamw = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
    kinds: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: sgd(made, lr=1e-9),
        "sgd_for": lambda: sgd(made, lr=1e-9, momentum=0.9, foreach=False),
        "momentum": lambda: sgd(made, lr=1e-9, momentum=0.9),
        "momentum_fused": lambda: sgd(made, lr=1e-9, momentum=0.9, fused=True),
        "adamw_foreach": lambda: adamw(made, lr=1e-9, foreach=True),
        "adamw_fused": lambda: adamw(made, lr=1e-9, fused=True),
        "adamw_for": lambda: adamw(made, lr=1e-9, foreach=False),
        "adam_fused": lambda: adam(made, lr=1e-9, fused=True),
    }
    return kinds[op]()


def copy_groups(draw: random.Random) -> Iterator[Group]:
    """Yield copies between host and device, or within the host's memory."""
    ops = ("h2d_pinned", "h2d_pageable", "d2h_pinned", "d2h_pageable", "d2d")
    powers = range(10, 31, 2) if HERE.device == "cuda" else range(22, 27)
    for power in draw.sample(powers, len(powers)):
        keys = {"bytes": 2**power, "dtype": "int8"}
        chosen = ops if HERE.device == "cuda" else ("memcpy", "refill", "fresh")
        yield Group("copy", keys, "op", chosen, 2.0**power)


def copy(group: Group) -> dict[str, Call]:
    """Return copies of a number of bytes."""
    size = group.keys["bytes"]
    there, back = (torch.zeros(size, dtype=torch.int8, device=HERE.device) for _ in range(2))
    if HERE.device == "cpu":
        return {
            "memcpy": lambda: back.copy_(there),
            "refill": there.zero_,
            "fresh": lambda: torch.frombuffer(_mapped(size), dtype=torch.int8).zero_(),
        }
    plain = torch.zeros(size, dtype=torch.int8)
    pinned = torch.zeros(size, dtype=torch.int8).pin_memory()
    return {
        "h2d_pinned": lambda: there.copy_(pinned, non_blocking=True),
        "h2d_pageable": lambda: there.copy_(plain),
        "d2h_pinned": lambda: pinned.copy_(there, non_blocking=True),
        "d2h_pageable": lambda: plain.copy_(there),
        "d2d": lambda: back.copy_(there),
    }


def _mapped(size: int) -> mmap.mmap:
    """Return memory that the system has to clear page by page, as a C library maps it."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, size)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def launch_groups(_: random.Random) -> Iterator[Group]:
    """Yield the cost of one tiny kernel: on the device, replayed, on the host; and of waiting."""
    keys = {"dtype": "fp32"}
    ops = ("device", "graph", "host", "synchronize") if HERE.device == "cuda" else ("host",)
    for op in ops:
        yield Group("launch", keys, "op", (op,))


def launch(group: Group) -> dict[str, Call]:
    """Return a kernel that does next to nothing."""
    x = torch.zeros(1, device=HERE.device)
    if group.values[0] == "synchronize":
        return {"synchronize": torch.cuda.synchronize}
    return {group.values[0]: lambda: x.add_(1.0)}


def host_seconds(run: Call, calls: int = 200) -> tuple[float, float]:
    """Return the host's seconds of one call, which the device must not hold up, and the spread."""
    times = []
    for _ in range(7):
        if HERE.device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        times.append((time.perf_counter() - start) / calls)
    times = sorted(times)[:5]
    return times[2], (times[-1] - times[0]) / times[2]
