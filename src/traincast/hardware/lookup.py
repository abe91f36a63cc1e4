"""Finding devices and links by name, and reading the files they stand in.

Names are resolved from the list of files and two small tables of aliases, so that finding one
device reads one device file. The checker of files (pydantic) is imported when a file is read.
"""

from __future__ import annotations

import functools
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, InvalidValueError, UnknownNameError
from traincast.hardware.cluster import Cluster, parse_shape, spread
from traincast.hardware.device import Device
from traincast.hardware.files import profiles_folder, read_toml
from traincast.hardware.link import Link
from traincast.hardware.names import fold

CATALOG = Path(__file__).parent / "catalog"
_PORTS = re.compile(r"\s*(\d{1,4})\s*[x×]\s*(.+?)\s*", re.DOTALL)


def device_names() -> list[str]:
    """Return the ids of the built-in devices, sorted."""
    return list(_device_names())


def all_devices() -> list[Device]:
    """Return every built-in device, sorted by id. This reads every file of the catalog."""
    return [_builtin_device(name) for name in device_names()]


def load_device(ref: str | Device) -> Device:
    """Return the device that `ref` names: a built-in id or alias, or a path to a device file.

    Case, `-`, `_`, spaces and a leading vendor word do not count: "NVIDIA H200" is h200. Anything
    that ends in `.toml` or contains a slash is a path. A `Device` is returned as it is. A name that
    the catalog lacks may be one that `traincast calibrate` gave to this machine's: this-cpu.
    """
    if isinstance(ref, Device):
        return ref
    if is_path(ref):
        return _user_device(ref)
    if fold(ref) not in _device_index() and own_device(ref).is_file():
        return _user_device(str(own_device(ref)))
    return _builtin_device(resolve_device_name(ref))


def own_device(name: str) -> Path:
    """Return where the file of a device that this user calibrated is, if there is one."""
    return profiles_folder() / f"{name.strip().lower()}.toml"


def resolve_device_name(ref: str) -> str:
    """Return the id of the built-in device that `ref` names, without reading its file."""
    name = _device_index().get(fold(ref))
    if name is None:
        hint = "list them with `traincast devices`, or give a device file such as ./my-gpu.toml"
        raise UnknownNameError("device", ref, [*device_names(), *_device_aliases()], hint)
    return name


def link_names() -> list[str]:
    """Return the ids of the built-in links, sorted."""
    return sorted(_link_tables())


def all_links() -> list[Link]:
    """Return every built-in link, sorted by id."""
    return [_builtin_link(name) for name in link_names()]


def load_link(ref: str | Link) -> Link:
    """Return the link that `ref` names: a built-in id or alias, or a path to a link file."""
    if isinstance(ref, Link):
        return ref
    if is_path(ref):
        from traincast.hardware.build import link_from_table

        path = Path(ref)
        return link_from_table(path.stem, read_toml(path), path)
    return _builtin_link(resolve_link_name(ref))


def resolve_link_name(ref: str) -> str:
    """Return the id of the built-in link that `ref` names."""
    name = _link_index().get(fold(ref))
    if name is None:
        hint = "links are named like pcie4-x16, nvlink4, infiniband-ndr or ethernet-100g"
        raise UnknownNameError("link", ref, link_names(), hint)
    return name


def load_cluster(shape: str | Cluster, network: str | Link | None = None) -> Cluster:
    """Return the cluster that `shape` describes.

    `16xp100` is 16 devices on as few equal nodes as the usual node of that device (its
    `node_devices`) allows; `4x8xh100` is 4 nodes of 8; `h100` is one device. The link inside a node
    is the device's own, or else the one to its host.

    `network` names the link between nodes; without it, it is the device's usual one. A node has the
    device's usual number of ports of it (in proportion, where a node is not full), unless a count
    says otherwise: `1xethernet-10g`.
    """
    if isinstance(shape, Cluster):
        if network is None:
            return shape
        inter, ports = _network(network)
        return replace(shape, inter_link=inter, ports_per_node=ports or shape.ports_per_node)
    nodes, count, ref = parse_shape(shape, _is_device)
    device = load_device(ref)
    per_node = count or 1
    if nodes is None:
        nodes, per_node = spread(shape, per_node, device)
    inter, ports = _network(network if network is not None else device.network)
    intra = device.link or device.host_link
    return Cluster(
        name=shape.strip(),
        device=device,
        nodes=nodes,
        devices_per_node=per_node,
        intra_link=load_link(intra) if intra else inter,
        inter_link=inter,
        # A node that is not full has fewer ports too: clouds sell them along with devices.
        ports_per_node=ports
        or max(1, round(device.network_ports * per_node / device.node_devices)),
    )


def _network(ref: str | Link) -> tuple[Link, int | None]:
    """Read `ethernet-10g` or, with the number of ports of a node, `2xethernet-10g`."""
    if isinstance(ref, Link):
        return ref, None
    match = _PORTS.fullmatch(ref)
    if match is None:
        return load_link(ref), None
    if int(match[1]) < 1:
        raise InvalidValueError(f"network {ref!r} has no ports; write 1x{match[2]} or more")
    return load_link(match[2]), int(match[1])


def _is_device(ref: str) -> bool:
    return is_path(ref) or fold(ref) in _device_index() or own_device(ref).is_file()


def is_path(ref: str) -> bool:
    """Tell a path from a name: it ends in `.toml` or has a slash."""
    return ref.lower().endswith(".toml") or "/" in ref or os.sep in ref


@functools.cache
def _device_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in (CATALOG / "devices").glob("*.toml")))


@functools.cache
def _builtin_device(name: str) -> Device:
    from traincast.hardware.build import device_from_table

    path = CATALOG / "devices" / f"{name}.toml"
    return device_from_table(name, read_toml(path), path)


def _user_device(ref: str) -> Device:
    path = Path(ref).expanduser()
    try:
        stat = path.stat()
        stamp = (stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError):
        stamp = (0, 0)  # reading it says what is wrong
    return _user_device_at(path, stamp)


@functools.lru_cache(maxsize=64)
def _user_device_at(path: Path, stamp: tuple[int, int]) -> Device:
    """Read a user's file; `stamp` makes an edited file a new one to the cache."""
    from traincast.hardware.build import device_from_table

    return device_from_table(path.stem, read_toml(path), path)


@functools.cache
def _device_aliases() -> dict[str, str]:
    """Return alias to id; a test keeps this table equal to what the device files say."""
    table: dict[str, str] = read_toml(CATALOG / "aliases.toml")
    return table


@functools.cache
def _device_index() -> dict[str, str]:
    names = {fold(alias): name for alias, name in _device_aliases().items()}
    return names | {fold(name): name for name in device_names()}


@functools.cache
def _link_tables() -> dict[str, dict[str, Any]]:
    path = CATALOG / "links.toml"
    tables = read_toml(path)
    strays = [key for key, table in tables.items() if not isinstance(table, dict)]
    if strays:
        raise InputFileError(path, f"{strays} are not tables", "write [name] above each link")
    return tables


@functools.cache
def _link_index() -> dict[str, str]:
    tables = _link_tables()
    names = {fold(alias): name for name, t in tables.items() for alias in t.get("aliases", [])}
    return names | {fold(name): name for name in tables}


@functools.cache
def _builtin_link(name: str) -> Link:
    from traincast.hardware.build import link_from_table

    return link_from_table(name, _link_tables()[name], CATALOG / "links.toml")
