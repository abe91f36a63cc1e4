"""Guessing which column is the time, and which factors are intrinsic or extrinsic.

Intrinsic factors say what the algorithm does (filters, kernel size, optimizer); extrinsic ones how
much there is of it and what it runs on (samples, batch size, workers). Guesses go by names alone
and are shown.
"""

from __future__ import annotations

import re

from traincast.errors import InvalidValueError

WORKERS = frozenset({
    "workers", "worker", "gpus", "gpu", "devices", "device_count", "n_devices", "ndevices",
    "n_gpus", "num_gpus", "nodes", "n_nodes", "num_nodes", "processes", "procs", "process",
    "ranks", "world_size", "np", "threads", "n_threads", "cores", "processors", "machines",
    "replicas", "dp",
})  # fmt: skip
"""Names of what the work is divided among."""
_AMOUNT = frozenset({
    "batch", "batch_size", "global_batch", "micro_batch", "batchsize", "samples", "n_samples",
    "data_size", "dataset_size", "data", "chunks", "data_chunks", "partitions", "seq",
    "seq_len", "sequence_length", "steps", "epochs", "images", "rows",
})  # fmt: skip
_IDS = frozenset({
    "id", "run", "run_id", "index", "row", "trial", "repeat", "replicate", "seed", "notes",
    "note", "url", "source",
})  # fmt: skip
_TIME = re.compile(
    r"(^|_)(time|seconds|duration|runtime|elapsed|latency)($|_)|_(s|ms|us|sec|secs)$"
)
_RESULT = re.compile(
    r"per_s(ec(ond)?)?$|_per_|throughput|speedup|efficiency|accuracy|(^|_)loss$|flops|_std$|_min$|"
    r"_max$|mfu|memory|peak|error|status|version|(^|_)date|timestamp|commit|host|hostname"
)
_UNITS = {"s": 1.0, "sec": 1.0, "secs": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6}


def plain(name: str) -> str:
    """Return a column's name as the lists here have it."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def is_workers(name: str) -> bool:
    """Tell whether a factor is what the work is divided among."""
    return plain(name) in WORKERS


def is_extrinsic(name: str) -> bool:
    """Tell whether a factor is extrinsic by its name."""
    return plain(name) in WORKERS | _AMOUNT


def is_time(name: str) -> bool:
    """Tell whether a column is a time by its name."""
    return bool(_TIME.search(plain(name))) and not _RESULT.search(plain(name))


def not_a_factor(name: str) -> str:
    """Return why a column is no factor by its name; empty where it may be one."""
    if plain(name) in _IDS:
        return "numbers or describes runs"
    if is_time(name):
        return "is another time"
    return "is a result or a remark" if _RESULT.search(plain(name)) else ""


def seconds(name: str) -> float | None:
    """Return how many seconds the unit of a time's column is; None where its name does not say."""
    parts = plain(name).split("_")
    return next((_UNITS[part] for part in reversed(parts) if part in _UNITS), None)


def guess_time(names: list[str], path: str) -> str:
    """Return the one column that is a time."""
    found = [name for name in names if is_time(name)]
    if len(found) == 1:
        return found[0]
    which = ", ".join(found or names[:20])
    what = "several columns may be" if found else "no column looks like"
    raise InvalidValueError(f"{path}: {what} the time; name it with --time: {which}")
