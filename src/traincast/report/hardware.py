"""Devices, links and clusters for people and machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from traincast.hardware import Cluster, Device, Link
from traincast.units import format_bytes, format_seconds, format_si


def device_dict(device: Device) -> dict[str, Any]:
    """Return a device as plain data; SI units."""
    return {
        "name": device.name,
        "title": device.title,
        "vendor": device.vendor,
        "tier": device.tier,
        "architecture": device.architecture,
        "year": device.year,
        "memory_bytes": device.memory_bytes,
        "available_bytes": device.available_bytes,
        "memory_bandwidth_bytes_per_s": device.memory_bandwidth,
        "matrix_flops_per_s": dict(device.matrix_flops),
        "vector_flops_per_s": dict(device.vector_flops),
        "units": device.units,
        "clock_hz": device.clock_hz,
        "l2_bytes": device.l2_bytes,
        "power_w": device.power_w,
        "link": device.link,
        "host_link": device.host_link,
        "network": device.network,
        "node_devices": device.node_devices,
        "aliases": list(device.aliases),
        "sources": dict(device.sources),
        "notes": device.notes,
    }


def device_table(devices: Iterable[Device]) -> RenderableType:
    """Return the catalog, newest architectures last."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("name", "title", "year", "memory", "bandwidth", "fp32", "16-bit", "fp8"):
        table.add_column(head, justify="left" if head in ("name", "title") else "right")
    for d in sorted(devices, key=lambda d: (d.vendor, d.tier, d.year, d.name)):
        sixteen = d.matrix_flops.get("bf16") or d.matrix_flops.get("fp16")
        table.add_row(
            d.name,
            d.title,
            str(d.year or ""),
            format_bytes(d.memory_bytes),
            format_si(d.memory_bandwidth, "B/s"),
            format_si(d.peak("fp32"), ""),
            format_si(sixteen, "") if sixteen else "",
            format_si(d.matrix_flops["fp8"], "") if "fp8" in d.matrix_flops else "",
        )
    return table


def _card() -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim")
    return table


def device_card(device: Device) -> RenderableType:
    """Return one device with the source of each figure."""
    table = _card()
    source = device.sources

    def row(label: str, text: str, key: str) -> None:
        table.add_row(label, text, source.get(key, ""))

    table.add_row("device", device.name, ", ".join(device.aliases))
    table.add_row("title", device.title, f"{device.vendor} {device.architecture}, {device.year}")
    row("memory", format_bytes(device.memory_bytes), "memory_bytes")
    if device.usable_bytes:
        row("offered to programs", format_bytes(device.usable_bytes), "usable_bytes")
    row("bandwidth", format_si(device.memory_bandwidth, "B/s"), "memory_bandwidth")
    for name, peak in device.matrix_flops.items():
        row(f"matrix {name}", format_si(peak, "FLOP/s"), f"matrix_flops.{name}")
    for name, peak in device.vector_flops.items():
        row(f"vector {name}", format_si(peak, "FLOP/s"), f"vector_flops.{name}")
    row("units", str(device.units), "units")
    row("clock", format_si(device.clock_hz, "Hz"), "clock_hz")
    if device.l2_bytes:
        row("L2 cache", format_bytes(device.l2_bytes), "l2_bytes")
    if device.power_w:
        row("power", f"{device.power_w:g} W", "power_w")
    for label, link in (("link to peers", device.link), ("link to host", device.host_link)):
        if link:
            table.add_row(label, link, "")
    table.add_row(
        "usual node", f"{device.node_devices} devices, {device.network} between nodes", ""
    )
    if device.notes:
        table.add_row("notes", "", device.notes)
    return table


def link_dict(link: Link) -> dict[str, Any]:
    """Return a link as plain data; SI units."""
    return {
        "name": link.name,
        "title": link.title,
        "kind": link.kind,
        "latency_s": link.latency_s,
        "bandwidth_bytes_per_s": link.bandwidth,
        "sources": dict(link.sources),
        "notes": link.notes,
    }


def link_table(links: Iterable[Link]) -> RenderableType:
    """Return the links, by kind and speed."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for head in ("name", "title", "kind", "latency", "bandwidth"):
        table.add_column(head, justify="right" if head in ("latency", "bandwidth") else "left")
    for link in sorted(links, key=lambda k: (k.kind, k.bandwidth)):
        table.add_row(
            link.name,
            link.title,
            link.kind,
            format_seconds(link.latency_s),
            format_si(link.bandwidth, "B/s"),
        )
    return table


def link_card(link: Link) -> RenderableType:
    """Return one link with its sources."""
    table = _card()
    table.add_row("link", link.name, link.title)
    table.add_row("latency", format_seconds(link.latency_s), link.sources.get("latency_s", ""))
    bandwidth = f"{format_si(link.bandwidth, 'B/s')} each way"
    table.add_row("bandwidth", bandwidth, link.sources.get("bandwidth", ""))
    if link.notes:
        table.add_row("notes", "", link.notes)
    return table


def cluster_dict(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plain data; SI units."""
    return {
        "name": cluster.name,
        "device": cluster.device.name,
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "devices": cluster.devices,
        "intra_link": link_dict(cluster.intra_link),
        "inter_link": link_dict(cluster.inter_link),
    }


def cluster_card(cluster: Cluster) -> RenderableType:
    """Return what a cluster shape stands for."""
    table = _card()
    shape = f"{cluster.nodes} nodes × {cluster.devices_per_node} {cluster.device.title}"
    table.add_row("cluster", cluster.name, "")
    table.add_row("shape", shape, f"{cluster.devices} devices")
    for label, link in (("inside a node", cluster.intra_link), ("between", cluster.inter_link)):
        speed = f"{format_si(link.bandwidth, 'B/s')}, {format_seconds(link.latency_s)}"
        table.add_row(label, link.name, speed)
    return table
