"""What a network trains on: devices, the links between them, and clusters of both.

Every figure of the built-in catalog has its source. Importing this package reads no file.
"""

from traincast.hardware.cluster import Cluster
from traincast.hardware.device import PRECISIONS, TIERS, Device
from traincast.hardware.link import LINK_KINDS, Link
from traincast.hardware.lookup import (
    all_devices,
    all_links,
    device_names,
    link_names,
    load_cluster,
    load_device,
    load_link,
    resolve_device_name,
    resolve_link_name,
)

__all__ = [
    "LINK_KINDS",
    "PRECISIONS",
    "TIERS",
    "Cluster",
    "Device",
    "Link",
    "all_devices",
    "all_links",
    "device_names",
    "link_names",
    "load_cluster",
    "load_device",
    "load_link",
    "resolve_device_name",
    "resolve_link_name",
]
