"""From a checked file to a `Device` or a `Link`: bases, defaults, and who said which figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, TraincastError
from traincast.hardware.device import Device
from traincast.hardware.files import read_toml
from traincast.hardware.link import Link
from traincast.hardware.lookup import CATALOG, load_device, resolve_device_name
from traincast.hardware.schema import DeviceFile, check_device, check_link

_FIX = "docs/hardware.md shows a complete file"
_FIELDS = {
    "memory": "memory_bytes",
    "usable_memory": "usable_bytes",
    "memory_bandwidth": "memory_bandwidth",
    "units": "units",
    "clock": "clock_hz",
    "l2": "l2_bytes",
    "power": "power_w",
}
_TABLES = ("matrix_flops", "vector_flops")
_CLOCK = 1.5e9
_ASSUMED = "assumed: the file does not say"


def device_from_table(name: str, raw: Mapping[str, Any], path: Path) -> Device:
    """Return the device that the tables of a file describe."""
    base, merged = _with_base(raw, path)
    form, problems = check_device(merged)
    if form is None:
        raise InputFileError(path, problems, _FIX)
    clock = form.clock or _CLOCK
    gpu = form.tier in ("datacenter-gpu", "consumer-gpu")
    return Device(
        name=form.name or name,
        title=form.title,
        vendor=form.vendor,
        tier=form.tier,
        architecture=form.architecture,
        year=form.year,
        memory_bytes=form.memory,
        memory_bandwidth=form.memory_bandwidth,
        matrix_flops={str(p): rate for p, rate in form.matrix_flops.items()},
        vector_flops={str(p): rate for p, rate in form.vector_flops.items()},
        units=form.units or _guess_units(form, clock),
        clock_hz=clock,
        usable_bytes=form.usable_memory,
        l2_bytes=form.l2,
        power_w=form.power,
        link=form.link,
        host_link=form.host_link or (None if form.tier == "cpu" else "pcie4-x16"),
        network=form.network
        or ("infiniband-hdr" if form.tier == "datacenter-gpu" else "ethernet-10g"),
        network_ports=form.network_ports or 1,
        node_devices=form.node_devices or (8 if gpu and form.link else 4 if gpu else 1),
        sources=_citations(raw, form, base, path),
        aliases=tuple(form.aliases),
        notes=form.notes,
    )


def link_from_table(name: str, raw: Mapping[str, Any], path: Path) -> Link:
    """Return the link that one table describes."""
    form, problems = check_link(raw)
    if form is None:
        inside = path == CATALOG / "links.toml"
        raise InputFileError(path, [f"[{name}] {p}" if inside else p for p in problems], _FIX)
    default = form.sources.get("*", f"stated in {path.name}")
    return Link(
        name=form.name or name,
        title=form.title,
        kind=form.kind,
        latency_s=form.latency,
        bandwidth=form.bandwidth,
        sources={
            "latency_s": form.sources.get("latency", default),
            "bandwidth": form.sources.get("bandwidth", default),
        },
        aliases=tuple(form.aliases),
        notes=form.notes,
    )


def _with_base(raw: Mapping[str, Any], path: Path) -> tuple[Device | None, dict[str, Any]]:
    """Lay the file over the built-in device that its `base` names.

    A table of peaks is laid over peak by peak. The base keeps its own name and aliases, and its
    citations, which speak of its own figures only.
    """
    own = dict(raw)
    if "base" not in own:
        return None, own
    ref = own.pop("base")
    if not isinstance(ref, str):
        raise InputFileError(path, f"base = {ref!r} is not a name", 'write base = "h100"')
    try:
        name = resolve_device_name(ref)
    except TraincastError as error:
        raise InputFileError(path, f"base = {ref!r}: {error}") from None
    table = read_toml(CATALOG / "devices" / f"{name}.toml")
    merged = {k: v for k, v in table.items() if k not in ("aliases", "notes", "sources")}
    if "memory" in own:
        merged.pop("usable_memory", None)  # it was that of another capacity
    merged["title"] = f"{table['title']}, changed"
    for key, value in own.items():
        both_tables = key in _TABLES and isinstance(value, dict)
        merged[key] = {**merged.get(key, {}), **value} if both_tables else value
    return load_device(name), merged


def _stated(form: DeviceFile, key: str) -> bool:
    return getattr(form, key) is not None


def _guess_units(form: DeviceFile, clock: float) -> int:
    """Count the multiprocessors that would give the peak at 128 fp32 lanes each (as since Ampere).

    From the matrix units alone: 1024 dense 16-bit multiply-adds a cycle each, as in an A100.
    """
    if "fp32" in form.vector_flops:
        return max(1, round(form.vector_flops["fp32"] / (2 * 128 * clock)))
    best = max([*form.matrix_flops.values(), *form.vector_flops.values()])
    return max(1, round(best / (2 * 1024 * clock)))


def _citations(
    raw: Mapping[str, Any], form: DeviceFile, base: Device | None, path: Path
) -> dict[str, str]:
    """Say for each figure who states it: the file's own sources, its base's, or nobody."""
    sources: Mapping[str, str] = form.sources
    default = sources.get("*", f"stated in {path.name}")
    cited: dict[str, str] = {}
    for key, field in _FIELDS.items():
        if key in raw:
            cited[field] = sources.get(key, default)
        elif base is not None and field in base.sources and _stated(form, key):
            cited[field] = base.sources[field]
        elif key in ("units", "clock"):
            cited[field] = _ASSUMED
    for table in _TABLES:
        own = raw.get(table, {})
        for precision in getattr(form, table):
            peak = f"{table}.{precision}"
            if precision in own or base is None:
                cited[peak] = sources.get(peak, sources.get(table, default))
            else:
                cited[peak] = base.sources[peak]
    return cited
