"""What the host pays for each op in eager mode, on tensors so small that the device never lags.

`form` is `infer` (no gradients), `forward` (recorded for autograd), `backward` (the engine's wall
time, divided by the ops in it) or `step` (all of `tensors` parameters: an optimizer step, zeroing
gradients, or `view_accumulate`: a view's backward and the keeping of the gradient). With
`autocast` the inputs are of the type that makes the op cast them (fp32 for products, bf16 for what
runs in fp32), and weights are fp32: casts count.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from traincast.measure.bench.groups import Group
from traincast.measure.bench.system import host_seconds, optimizer
from traincast.measure.bench.timing import HERE, Case

_CALLS = 50
_FORMS_OF_HOST = ("infer", "forward", "backward")
_IMAGES = (2, 8, 8, 8)
_ROWS = (8, 32)
_HEADS = (2, 2, 8, 16)
Op = Callable[[Sequence[torch.Tensor]], Any]
_OPS: dict[str, tuple[Op, tuple[tuple[int, ...], ...]]] = {
    # name: the call on its tensors, and their shapes: the input first, then weights
    "linear": (lambda t: F.linear(*t), (_ROWS, (32, 32), (32,))),
    "conv2d": (lambda t: F.conv2d(t[0], t[1], None, 1, 1), (_IMAGES, (8, 8, 3, 3))),
    "conv2d_bias": (lambda t: F.conv2d(*t, 1, 1), (_IMAGES, (8, 8, 3, 3), (8,))),
    "relu": (lambda t: F.relu(t[0]), (_ROWS,)),
    "relu_": (lambda t: F.relu_(t[0]), (_ROWS,)),
    "gelu": (lambda t: F.gelu(t[0]), (_ROWS,)),
    "silu": (lambda t: F.silu(t[0]), (_ROWS,)),
    "hardswish": (lambda t: F.hardswish(t[0]), (_ROWS,)),
    "sigmoid": (lambda t: torch.sigmoid(t[0]), (_ROWS,)),
    "tanh": (lambda t: torch.tanh(t[0]), (_ROWS,)),
    "add": (lambda t: t[0] + t[1], (_ROWS, _ROWS)),
    "mul": (lambda t: t[0] * t[1], (_ROWS, _ROWS)),
    "mul_scalar": (lambda t: t[0] * 2.0, (_ROWS,)),
    "div": (lambda t: t[0] / t[1], (_ROWS, _ROWS)),
    "pow": (lambda t: t[0].pow(2), (_ROWS,)),
    "rsqrt": (lambda t: t[0].rsqrt(), (_ROWS,)),
    "cos": (lambda t: t[0].cos(), (_ROWS,)),
    "layer_norm": (lambda t: F.layer_norm(t[0], (32,), t[1], t[2]), (_ROWS, (32,), (32,))),
    "rms_norm": (lambda t: F.rms_norm(t[0], (32,), t[1]), (_ROWS, (32,))),
    "group_norm": (lambda t: F.group_norm(t[0], 4, t[1], t[2]), (_IMAGES, (8,), (8,))),
    "softmax": (lambda t: F.softmax(t[0], -1), (_ROWS,)),
    "sdpa": (lambda t: F.scaled_dot_product_attention(*t), (_HEADS,) * 3),
    "matmul": (lambda t: t[0] @ t[1], (_HEADS, (2, 2, 16, 8))),
    "bmm": (lambda t: torch.bmm(*t), ((4, 8, 16), (4, 16, 8))),
    "embedding": (lambda t: F.embedding(_index(8), t[0]), ((32, 32),)),
    "max_pool2d": (lambda t: F.max_pool2d(t[0], 3, 2, 1), (_IMAGES,)),
    "avg_pool2d": (lambda t: F.avg_pool2d(t[0], 2), (_IMAGES,)),
    "adaptive_avg_pool2d": (lambda t: F.adaptive_avg_pool2d(t[0], 1), (_IMAGES,)),
    "dropout": (lambda t: F.dropout(t[0], 0.1), (_ROWS,)),
    "cat": (lambda t: torch.cat((t[0], t[1]), 1), (_ROWS, _ROWS)),
    "chunk": (lambda t: t[0].chunk(2, 1), (_ROWS,)),
    "view": (lambda t: t[0].view(16, 16), (_ROWS,)),
    "transpose": (lambda t: t[0].transpose(0, 1), (_ROWS,)),
    "permute": (lambda t: t[0].permute(0, 2, 3, 1), (_IMAGES,)),
    "slice": (lambda t: t[0][:, 4:12], (_ROWS,)),
    "contiguous": (lambda t: t[0].t().contiguous(), (_ROWS,)),
    "to": (lambda t: t[0].to(torch.bfloat16), (_ROWS,)),
    "mean": (lambda t: t[0].mean((2, 3)), (_IMAGES,)),
    "sum": (lambda t: t[0].sum(), (_ROWS,)),
    "cross_entropy": (lambda t: F.cross_entropy(t[0], _index(8)), (_ROWS,)),
    "index_select": (lambda t: t[0].index_select(0, _index(8)), (_ROWS,)),
    "where": (lambda t: torch.where(_mask(), t[0], t[1]), (_ROWS, _ROWS)),
}
_IN_LAYOUTS = ("conv2d", "conv2d_bias", "batch_norm", "max_pool2d", "avg_pool2d",
               "adaptive_avg_pool2d")  # fmt: skip
_CAST_DOWN = ("linear", "conv2d", "conv2d_bias", "sdpa", "matmul", "bmm")
_CAST_UP = ("layer_norm", "group_norm", "softmax", "cross_entropy", "pow", "rsqrt", "sum")
_STEPS = ("momentum", "adamw_fused", "adamw_foreach", "adamw_for", "zero_grad", "view_accumulate")
_kept: dict[str, torch.Tensor] = {}


def _index(count: int) -> torch.Tensor:
    if f"index{count}" not in _kept:
        _kept[f"index{count}"] = torch.arange(count, device=HERE.device)
    return _kept[f"index{count}"]


def _mask() -> torch.Tensor:
    if "mask" not in _kept:
        _kept["mask"] = torch.ones(_ROWS, device=HERE.device) > 0
    return _kept["mask"]


def _batch_norm(t: Sequence[torch.Tensor]) -> Any:
    for name in ("mean", "var"):
        if name not in _kept:
            _kept[name] = torch.ones(8, device=HERE.device)
    return F.batch_norm(t[0], _kept["mean"], _kept["var"], t[1], t[2], True)


_OPS["batch_norm"] = (_batch_norm, (_IMAGES, (8,), (8,)))


def host_groups(_: random.Random) -> Iterator[Group]:
    """Yield every op of the table, plain and where it matters in both layouts and with autocast."""
    for autocast in (False, True):
        for op in _OPS:
            if autocast and op not in _CAST_DOWN + _CAST_UP:
                continue
            for layout in ("nchw", "nhwc") if op in _IN_LAYOUTS else ("",):
                keys: Case = {"op": op, "autocast": autocast, "dtype": "fp32"}
                if layout:
                    keys["layout"] = layout
                yield Group("host", keys, "form", _FORMS_OF_HOST)
    yield Group("host", {"op": "module_call", "autocast": False, "dtype": "fp32"}, "form",
                ("infer",))  # fmt: skip
    for op in _STEPS:
        for tensors in (10, 60, 200):
            keys = {"op": op, "autocast": False, "tensors": tensors, "dtype": "fp32"}
            yield Group("host", keys, "form", ("step",))


def host_time(case: Case) -> Case:
    """Return the host's `seconds` of a case, their `spread`, and by how much the device `lag`s."""
    if case["op"] == "module_call":
        module, x = _Same(), torch.zeros(1, device=HERE.device)
        seconds, spread = host_seconds(lambda: module(x))
        return {"seconds": seconds, "spread": round(spread, 4)}
    if case["form"] == "step":
        return _calmest(_step_runs(case["op"], case["tensors"]), 1)
    return _calmest(_op_runs(case), _CALLS)


class _Same(torch.nn.Module):  # type: ignore[misc]
    """A module that does nothing: what remains is the cost of calling one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input."""
        return x


def _calmest(runs: Iterator[Callable[[], Any]], calls: int) -> Case:
    """Time what `runs` prepares: eight times, or as often as half a second takes.

    The calmest after the first count.
    """
    found: list[tuple[float, float]] = []
    begun = time.perf_counter()
    for run in runs:
        _settle()
        start = time.perf_counter()
        made = run()
        stop = time.perf_counter()
        _settle()
        found.append(((stop - start) / calls, (time.perf_counter() - stop) / (stop - start)))
        del made
        if len(found) > 3 and time.perf_counter() - begun > 0.5:
            break
    calm = sorted(found[1:])[:5]
    middle, lag = calm[len(calm) // 2]
    spread = (calm[-1][0] - calm[0][0]) / middle
    return {"seconds": middle, "spread": round(spread, 4), "lag": round(lag, 3)}


def _settle() -> None:
    if HERE.device == "cuda":
        torch.cuda.synchronize()


def _op_runs(case: Case) -> Iterator[Callable[[], Any]]:
    call, shapes = _OPS[case["op"]]
    recorded = case["form"] != "infer"
    sets = [_operands(case, shapes, recorded) for _ in range(_CALLS)]
    for _ in range(8):
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(recorded))
            if case["autocast"]:
                stack.enter_context(torch.autocast(HERE.device, torch.bfloat16))
            ready = [[t[0].clone(), *t[1:]] for t in sets] if case["op"] == "relu_" else sets
            if case["form"] != "backward":
                yield partial(_each, call, ready)
                continue
            made = [call(t) for t in ready]
        outputs = [y for m in made for y in (m if isinstance(m, tuple) else (m,))]
        leaves = [t for some in sets for t in some]
        grads = [torch.ones_like(y) for y in outputs]
        yield partial(_backward, tuple(outputs), tuple(grads), tuple(leaves))


def _each(call: Op, sets: Sequence[Sequence[torch.Tensor]]) -> list[Any]:
    return [call(tensors) for tensors in sets]


def _backward(
    outputs: tuple[torch.Tensor, ...],
    grads: tuple[torch.Tensor, ...],
    inputs: tuple[torch.Tensor, ...],
) -> Any:
    # torch.autograd.grad looks at every output in Python first, which a training step does once.
    return torch.autograd.Variable._execution_engine.run_backward(
        outputs, grads, False, False, inputs, allow_unreachable=True, accumulate_grad=not inputs
    )


def _operands(
    case: Case, shapes: tuple[tuple[int, ...], ...], recorded: bool
) -> list[torch.Tensor]:
    nhwc = case.get("layout") == "nhwc"
    cast_up = case["autocast"] and case["op"] in _CAST_UP
    made = []
    for place, shape in enumerate(shapes):
        kind = torch.bfloat16 if cast_up and place == 0 else torch.float32
        t = torch.ones(shape, device=HERE.device, dtype=kind)
        if nhwc and len(shape) == 4:
            t = t.to(memory_format=torch.channels_last)
        made.append(t.requires_grad_(recorded))
    return made


def _step_runs(op: str, tensors: int) -> Iterator[Callable[[], Any]]:
    made = [torch.ones(16, device=HERE.device, requires_grad=True) for _ in range(tensors)]
    grads = [torch.ones_like(p) for p in made]
    stepper = optimizer("momentum" if op in ("zero_grad", "view_accumulate") else op, made)
    for _ in range(8):
        for p, g in zip(made, grads, strict=True):
            p.grad = None if op == "view_accumulate" else g
        if op == "zero_grad":
            yield stepper.zero_grad
        elif op == "view_accumulate":
            yield partial(_backward, tuple(p.view(-1) for p in made), tuple(grads), ())
        else:
            yield stepper.step
