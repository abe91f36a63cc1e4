"""The name of a measured device, and a device file for one that the catalog lacks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from traincast.errors import PredictionError
from traincast.measure.bench.results import Results
from traincast.measure.machine import OWN_CPU, catalog_name

Row = Mapping[str, Any]
_EACH = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}


def device_name(header: Mapping[str, Any]) -> str | None:
    """Return the catalog's name of the device that a header tells of; None if it lacks that one.

    A CPU counts only where all of its cores were used: a part of one is another device.
    """
    from traincast.hardware import load_device

    found = catalog_name("cuda", str(header["device"]))
    if found is None or header.get("kind") != "cpu":
        return found
    return found if load_device(found).units == header.get("threads") else None


def own_name(header: Mapping[str, Any]) -> str:
    """Return a name for a device that the catalog lacks."""
    if header.get("kind") == "cpu":
        return OWN_CPU
    return re.sub(r"[^a-z0-9]+", "-", str(header["device"]).lower()).strip("-") or "this-gpu"


def device_file(results: Results) -> str:
    """Return a device file (TOML) with what was measured for peaks and bandwidth.

    These are the best that single kernels reached, not what the maker promises: products for the
    peaks, the larger copies and sums for the bandwidth.
    """
    header, cpu = results.header, results.header.get("kind") == "cpu"
    peaks, bandwidth = _peaks(results.rows), _bandwidth(results.rows, cpu)
    if "fp32" not in peaks or not bandwidth:
        raise PredictionError(
            f"too little was measured to describe {header['device']}, which the catalog lacks: "
            "measure for longer, or say with --name which device it is"
        )
    table = "vector_flops" if cpu else "matrix_flops"
    lines = [
        f"title = {_quoted(header['device'])}",
        f"tier = {_quoted('cpu' if cpu else 'datacenter-gpu')}",
        f'memory = "{int(header["memory_bytes"])} B"',
        f'memory_bandwidth = "{bandwidth / 1e9:.4g} GB/s"',
        f"units = {int(header.get('threads' if cpu else 'multiprocessors') or 1)}",
        "node_devices = 1",
        'notes = "Peaks and bandwidth are the best that traincast calibrate measured."',
        "",
        f"[{table}]",
        *(f'{dtype} = "{peak / 1e12:.4g} TFLOP/s"' for dtype, peak in sorted(peaks.items())),
        *(
            ["", "[vector_flops]", f'fp32 = "{peaks["fp32"] / 1e12:.4g} TFLOP/s"']
            if not cpu
            else []
        ),
        "",
        "[sources]",
        f'"*" = {_quoted("measured by traincast calibrate, " + str(header.get("date", ""))[:10])}',
    ]
    return "\n".join(lines) + "\n"


def _quoted(text: object) -> str:
    return json.dumps(str(text), ensure_ascii=False)


def _peaks(rows: Iterable[Row]) -> dict[str, float]:
    best: dict[str, float] = {}
    for row in rows:
        if row["family"] == "gemm" and "seconds" in row:
            flops = 2.0 * row["m"] * row["n"] * row["k"] * row["batch"] / row["seconds"]
            best[row["dtype"]] = max(best.get(row["dtype"], 0.0), flops)
    return best


_UNCACHED = 1e8
"""Bytes that few CPUs' caches hold."""


def _bandwidth(rows: Iterable[Row], cpu: bool) -> float:
    """Return the best bytes per second of the larger copies and sums; 0 if there are none.

    On a CPU, of copies larger than its caches, where there are any.
    """
    sizes: list[tuple[float, float]] = []
    for row in rows:
        if row["family"] == "stream" and row["op"] in ("add", "mul", "clone") and "seconds" in row:
            moved = (2 if row["op"] == "clone" else 3) * row["rows"] * row["columns"]
            moved *= _EACH[row["dtype"]]
            sizes.append((moved, moved / row["seconds"]))
        elif row["family"] == "copy" and row["op"] in ("memcpy", "d2d") and "seconds" in row:
            sizes.append((2 * row["bytes"], 2 * row["bytes"] / row["seconds"]))
    larger = [rate for _, rate in sorted(sizes)[len(sizes) // 2 :]]
    uncached = [rate for moved, rate in sizes if moved > _UNCACHED]
    return max(uncached if cpu and uncached else larger, default=0.0)
