"""Devices, links and clusters for people and machines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from traincast.hardware import Cluster, Device, Link
from traincast.report.fitted import Fitted, add_row, plain_table
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
    heads = ("name", "title", "year", "memory", "bandwidth", "fp32", "16-bit", "fp8")
    listed = sorted(devices, key=lambda d: (d.vendor, d.tier, d.year, d.name))

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("name", "title"))
        for d in listed:
            sixteen = d.matrix_flops.get("bf16") or d.matrix_flops.get("fp16")
            eight = d.matrix_flops.get("fp8")
            cells = (
                d.name,
                d.title,
                str(d.year or ""),
                format_bytes(d.memory_bytes),
                format_si(d.memory_bandwidth, "B/s"),
                format_si(d.peak("fp32"), ""),
                format_si(sixteen, "") if sixteen else "",
                format_si(eight, "") if eight else "",
            )
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    return Fitted(build, ("title", "fp8", "year", "16-bit"))


class _Card:
    """Labelled figures, each with the number of its source; the sources stand below, once each."""

    def __init__(self) -> None:
        self._table = Table.grid(padding=(0, 2))
        self._table.add_column(style="bold", no_wrap=True)
        self._table.add_column()
        self._sources: dict[str, int] = {}

    def row(self, label: str, text: str, source: str = "") -> None:
        """Add a figure."""
        shown = Text(text)
        if source:
            number = self._sources.setdefault(source, len(self._sources) + 1)
            shown.append(f"  [{number}]", style="dim")
        self._table.add_row(label, shown)

    def done(self) -> RenderableType:
        """Return the card with its sources."""
        cited = Table.grid(padding=(0, 1))
        cited.add_column(style="dim", no_wrap=True)
        cited.add_column(style="dim")
        for source, number in self._sources.items():
            cited.add_row(f"[{number}]", Text(source))
        return Group(self._table, Text(""), cited) if self._sources else self._table


def device_card(device: Device) -> RenderableType:
    """Return one device with the source of each figure."""
    card = _Card()
    source = device.sources

    def row(label: str, text: str, key: str) -> None:
        card.row(label, text, source.get(key, ""))

    card.row("device", device.name + "".join(f", {alias}" for alias in device.aliases))
    year = f", {device.year}" if device.year else ""
    card.row("title", f"{device.title} ({device.vendor} {device.architecture}{year})")
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
            card.row(label, link)
    some = "1 device" if device.node_devices == 1 else f"{device.node_devices} devices"
    card.row("usual node", f"{some}, {device.network} between nodes")
    if device.notes:
        card.row("notes", device.notes)
    return card.done()


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
    heads = ("name", "title", "kind", "latency", "bandwidth")
    listed = sorted(links, key=lambda k: (k.kind, k.bandwidth))

    def build(without: frozenset[str]) -> Table:
        table = plain_table(heads, without, left=("name", "title", "kind"))
        for link in listed:
            latency, bandwidth = format_seconds(link.latency_s), format_si(link.bandwidth, "B/s")
            cells = (link.name, link.title, link.kind, latency, bandwidth)
            add_row(table, list(zip(heads, cells, strict=True)))
        return table

    return Fitted(build, ("title", "kind"))


def link_card(link: Link) -> RenderableType:
    """Return one link with its sources."""
    card = _Card()
    card.row("link", link.name)
    card.row("title", link.title)
    card.row("latency", format_seconds(link.latency_s), link.sources.get("latency_s", ""))
    bandwidth = f"{format_si(link.bandwidth, 'B/s')} each way"
    card.row("bandwidth", bandwidth, link.sources.get("bandwidth", ""))
    if link.notes:
        card.row("notes", link.notes)
    return card.done()


def cluster_dict(cluster: Cluster) -> dict[str, Any]:
    """Return a cluster as plain data; SI units."""
    return {
        "name": cluster.name,
        "device": cluster.device.name,
        "nodes": cluster.nodes,
        "devices_per_node": cluster.devices_per_node,
        "devices": cluster.devices,
        "ports_per_node": cluster.ports_per_node,
        "intra_link": link_dict(cluster.intra_link),
        "inter_link": link_dict(cluster.inter_link),
    }


def cluster_card(cluster: Cluster) -> RenderableType:
    """Return what a cluster shape stands for."""
    card = _Card()
    nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
    shape = f"{nodes} × {cluster.devices_per_node} {cluster.device.title}"
    card.row("cluster", cluster.name)
    card.row("shape", f"{shape} ({cluster.devices} in all)")
    card.row("inside a node", _speed(cluster.intra_link))
    ports = "1 port" if cluster.ports_per_node == 1 else f"{cluster.ports_per_node} ports"
    card.row("between nodes", f"{_speed(cluster.inter_link)}, {ports} a node")
    return card.done()


def _speed(link: Link) -> str:
    bandwidth, latency = format_si(link.bandwidth, "B/s"), format_seconds(link.latency_s)
    return f"{link.name}: {bandwidth}, {latency}"
