"""Times single kernels on this machine's device, as rows of JSON.

    python bench.py OUT.jsonl [--minutes 10] [--quick] [--device cuda|cpu] [--seed 0]
                    [--families conv gemm …] [--types bf16 …]

The first row tells what was measured on. Then one row a case, written at once, families in turn, so
that a shorter run measures fewer of each. A run that is stopped loses nothing: the same command
goes on where it ended. Exit status 3 means that a case left the device unusable for this process:
run it again to go on.

Each row: `family`, the case's own keys, `dtype`, `seconds` (median time of one call on the device;
of the host for family `host`), `spread` (largest less smallest, over the median), or `error`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Collection, Iterator
from functools import partial
from pathlib import Path

import torch

from traincast.measure.bench.groups import Group
from traincast.measure.bench.header import header
from traincast.measure.bench.host import host_groups, host_time
from traincast.measure.bench.images import image, image_groups, space_image_groups
from traincast.measure.bench.indexing import index, index_groups
from traincast.measure.bench.memory import (
    function_groups,
    row,
    row_groups,
    stream,
    stream_groups,
)
from traincast.measure.bench.products import (
    attention,
    attention_groups,
    conv,
    conv_groups,
    gemm,
    gemm_groups,
    rnn,
    rnn_groups,
    space_groups,
)
from traincast.measure.bench.seldom import (
    crossed_groups,
    odd_conv_groups,
    odd_product_groups,
    turned,
    turned_groups,
)
from traincast.measure.bench.system import (
    copy,
    copy_groups,
    host_seconds,
    launch,
    launch_groups,
    update,
    update_groups,
)
from traincast.measure.bench.timing import (
    HERE,
    Call,
    Case,
    keep_memory,
    rotating,
    seconds_of,
    tensor,
)

Build = Callable[[Group], dict[str, Call]]
FIRST: dict[str, tuple[Callable[[random.Random], Iterator[Group]], Build]] = {
    "launch": (launch_groups, launch),
    "copy": (copy_groups, copy),
    "host": (host_groups, lambda _: {}),
}
"""Families with few cases, measured early and in full."""
FAMILIES: dict[str, tuple[Callable[[random.Random], Iterator[Group]], Build, int]] = {
    "gemm": (gemm_groups, gemm, 4),
    "conv": (conv_groups, conv, 6),
    "attention": (attention_groups, attention, 1),
    "rnn": (rnn_groups, rnn, 1),
    "stream": (stream_groups, stream, 1),
    "row": (row_groups, row, 1),
    "image": (image_groups, image, 2),
    "update": (update_groups, update, 1),
    "space": (space_groups, conv, 2),
    "function": (function_groups, stream, 1),
    "space_image": (space_image_groups, image, 1),
    "index": (index_groups, index, 1),
    "odd_product": (odd_product_groups, gemm, 1),
    "odd_conv": (odd_conv_groups, conv, 2),
    "crossed": (crossed_groups, attention, 1),
    "turned": (turned_groups, turned, 1),
}
"""Families without end: their groups, what runs one, and how many of them come in each turn."""
TURN = {
    "gemm": 4, "conv": 8, "attention": 1, "rnn": 0, "stream": 4, "row": 2, "image": 4, "update": 2,
    "space": 1, "function": 1, "space_image": 1, "index": 1,
    "odd_product": 0, "odd_conv": 0, "crossed": 0, "turned": 0,
}  # fmt: skip
"""How many come in each turn on a CPU, where every case takes long enough to be timed at once."""
_CACHED, _COPIES = 2.5e8, 40
"""Bytes that come round before a CPU uses the same ones again, and most copies of a case."""
UNCAPTURED = frozenset((
    "both", "dropout", "batch_norm_backward", "embedding_backward", "sort", "topk",
    "cumsum", "bilinear_backward", "nearest_backward", "index_put", "instance_norm_backward",
))  # fmt: skip
"""Random numbers, autograd, and what may wait for the device: none of it goes into a graph."""
_EARLY = 20
_QUICK_MINUTES, _MINUTES = 2.0, 10.0


def groups(seed: int, only: Collection[str] = (), types: Collection[str] = ()) -> Iterator[Group]:
    """Yield groups of all families in turn, without end; much the same ones for the same seed.

    Families with few cases come early: a share of them before each turn of the others, so that
    even the shortest run has some of each. `only` and `types` leave out other families and types.
    """

    def wanted(group: Group) -> bool:
        return not types or group.keys["dtype"] in types

    first = itertools.chain.from_iterable(
        draw(random.Random(f"{seed}{name}"))
        for name, (draw, _) in FIRST.items()
        if not only or name in only
    )
    drawn = {
        name: filter(wanted, entry[0](random.Random(f"{seed}{name}")))
        for name, entry in FAMILIES.items()
        if not only or name in only
    }
    fits = _fits()
    here = {} if HERE.device == "cuda" else TURN
    # Who names a family wants it, though it has no turn among all of them.
    least = 1 if only else 0
    turn = {name: max(least, here.get(name, FAMILIES[name][2])) for name in drawn}
    while True:
        early = list(itertools.islice(first, _EARLY))
        yield from early
        if not drawn and not early:
            return
        for name, count in turn.items():
            yield from itertools.islice(filter(fits, drawn[name]), count)


def _fits() -> Callable[[Group], bool]:
    """Return what tells whether a group is small enough for this device."""
    cuda = HERE.device == "cuda"
    side, rates = 2048 if cuda else 768, {}
    for dtype in ("fp32", "tf32", "bf16", "fp16") if cuda else ("fp32", "bf16"):
        x = tensor((side, side), dtype)
        _allow_tf32(dtype)
        rates[dtype] = 2 * side**3 / seconds_of(partial(torch.mm, x, x))[0]
    largest = min(32e9, 0.4 * torch.cuda.get_device_properties(0).total_memory) if cuda else 2e8
    bandwidth = 5e11 if cuda else 1e10
    count = itertools.count()

    def small(group: Group) -> bool:
        grouped = group.keys.get("groups", 1) > 1
        seconds = group.flops / ((0.04 if grouped else 0.3) * rates[group.keys["dtype"]])
        seconds += group.bytes / bandwidth
        # On a CPU small cases come first: the longest that is taken grows from 40 to 150 ms a call.
        most = 0.1 if cuda else 0.04 + 0.11 * min(1.0, next(count) / 3000)
        return group.bytes < largest and seconds < most

    return small


def _allow_tf32(dtype: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"


def case_key(case: Case) -> str:
    """Return what tells a case from others: all keys but the results."""
    plain = {k: v for k, v in case.items() if k not in ("seconds", "spread", "lag", "error")}
    return json.dumps(plain, sort_keys=True)


def measure(
    seed: int,
    done: set[str],
    deadline: float,
    begin: Callable[[Case], None] = lambda _: None,
    only: Collection[str] = (),
    types: Collection[str] = (),
) -> Iterator[Case]:
    """Yield measured rows until the clock (`time.monotonic`) passes `deadline`.

    Cases whose key is in `done` are left out, and all families but `only` and all types but
    `types` where there are any; `begin` is told of each case before it runs. Ends the
    process with status 3, after the row that says why, when the device is no longer usable.
    """
    for count, group in enumerate(groups(seed, only, types)):
        todo = [case for case in group.cases() if case_key(case) not in done]
        if time.monotonic() > deadline:
            return
        if not todo:
            continue
        for measured in _measure_group(group, todo, begin):
            done.add(case_key(measured))
            yield measured
            if "error" in measured and not usable():
                raise SystemExit(3)
        if HERE.device == "cuda" and count % 40 == 0:
            torch.cuda.empty_cache()


def _measure_group(group: Group, todo: list[Case], begin: Callable[[Case], None]) -> Iterator[Case]:
    """Yield the cases of a group with their seconds, or with the error that they ended in."""
    _allow_tf32(group.keys["dtype"])
    calls: dict[str, Call] = {}
    begin(todo[0])
    try:
        if group.family != "host":
            calls = _built(group)
    except (RuntimeError, NotImplementedError, MemoryError) as error:
        yield from ({**case, "error": _said(error)} for case in todo)
        return
    for case in todo:
        begin(case)
        try:
            yield {**case, **_timed(group, case, calls)}
        except (RuntimeError, NotImplementedError, MemoryError) as error:
            yield {**case, "error": _said(error)}
            if not usable():
                return


def _built(group: Group) -> dict[str, Call]:
    """Return the calls of a group; on a CPU of several like it in turn, so that caches forget."""
    build = (FIRST | FAMILIES)[group.family][1]
    if HERE.device == "cuda" or group.family in FIRST:
        return dict(build(group))
    copies = max(1, min(_COPIES, round(_CACHED / max(group.bytes, 1.0))))
    made = [build(group) for _ in range(copies)]
    return {name: rotating([calls[name] for calls in made]) for name in made[0]}


def _timed(group: Group, case: Case, calls: dict[str, Call]) -> Case:
    if group.family == "host":
        return host_time(case)
    value = case[group.vary]
    if group.family == "launch" and value in ("host", "synchronize"):
        seconds, spread = host_seconds(calls[value])
    else:
        captured = value not in UNCAPTURED and group.family not in ("update", "copy")
        captured = captured and not (group.family == "launch" and value == "device")
        # A recurrent layer launches more than can wait in a queue: its host would count.
        many = group.family == "rnn"
        seconds, spread = seconds_of(calls[value], captured or many, many)
    return {"seconds": seconds, "spread": round(spread, 4)}


def _said(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def usable() -> bool:
    """Tell whether the device still works: some errors last until the process ends."""
    if HERE.device == "cpu":
        return True
    try:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.ones(8, device="cuda").sum().item()
    except RuntimeError:
        return False
    return True


def start(device: str | None) -> None:
    """Choose the device; on CUDA all work goes to a stream that can be recorded."""
    HERE.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if HERE.device == "cuda":
        if not torch.cuda.is_available():
            raise SystemExit("torch sees no CUDA or ROCm device here; use --device cpu")
        torch.cuda.set_stream(torch.cuda.Stream())
    else:
        keep_memory()


def read_rows(path: Path, here: Case) -> set[str]:
    """Return the keys of the cases that a file has, if it is of this device and this torch."""
    text = path.read_text()
    if not text.endswith("\n"):  # a run that was killed while it wrote
        text = text[: text.rfind("\n") + 1]
        path.write_text(text)
    if not text:
        return set()
    done = set()
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found = json.loads(line)
            there = found.get("header", {}) if number == 1 else None
        except (ValueError, AttributeError):
            raise SystemExit(f"{path}:{number}: no row of results; choose another file") from None
        if there is None:
            done.add(case_key(found))
            continue
        for key in ("schema", "device", "torch"):
            if there.get(key) != here[key]:
                raise SystemExit(
                    f"{path} was measured with {key} {there.get(key)}, here it is {here[key]}; "
                    "choose another file"
                )
    return done


def main(argv: list[str] | None = None) -> int:
    """Measure until the time is up."""
    parser = argparse.ArgumentParser(description="Times single kernels on this machine's device.")
    parser.add_argument("out", type=Path, help="results, one JSON object a line; added to")
    parser.add_argument("--minutes", type=float, help="default 10; with --quick 2")
    parser.add_argument("--quick", action="store_true", help="the most valuable cases alone")
    parser.add_argument("--device", choices=("cuda", "cpu"), help="default cuda if there is one")
    parser.add_argument("--seed", type=int, default=0, help="another one draws other cases")
    parser.add_argument("--families", nargs="+", default=(), choices=(*FIRST, *FAMILIES))
    parser.add_argument("--types", nargs="+", default=(), choices=("fp32", "tf32", "bf16", "fp16"))
    options = parser.parse_args(argv)
    start(options.device)
    here = header(options.seed)
    done = read_rows(options.out, here) if options.out.exists() else set()
    minutes = options.minutes or (_QUICK_MINUTES if options.quick else _MINUTES)
    deadline, shown, errors = time.monotonic() + 60 * minutes, 0.0, 0
    with options.out.open("a") as file:
        if file.tell() == 0:
            file.write(json.dumps({"header": here}) + "\n")
        try:
            how = {"only": options.families, "types": options.types}
            for measured in measure(options.seed, done, deadline, **how):
                file.write(json.dumps(measured) + "\n")
                file.flush()
                errors += "error" in measured
                if time.monotonic() > shown + 2:
                    shown = time.monotonic()
                    left = max(0.0, deadline - shown)
                    print(f"{len(done)} rows, {errors} errors, {left:.0f} s left, "
                          f"{measured['family']}", file=sys.stderr, flush=True)  # fmt: skip
        except KeyboardInterrupt:
            print("stopped; the same command goes on from here", file=sys.stderr)
            return 130
    print(f"{options.out}: {len(done)} rows, {errors} errors", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
