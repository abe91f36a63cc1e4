"""Many equal devices: nodes of devices on a fast link, joined by a network."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from traincast.errors import InvalidValueError
from traincast.hardware.device import Device
from traincast.hardware.link import Link

_COUNT = re.compile(r"\s*([+-]?\d{1,7})\s*[x×]\s*(.*?)\s*", re.DOTALL)
_COUNT_LAST = re.compile(r"\s*(.+?)\s*[x×]\s*(\d{1,7})\s*", re.DOTALL)
_FORMS = "write DEVICE, COUNTxDEVICE or NODESxDEVICESxDEVICE, such as h100, 16xh100 or 4x8xh100"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal devices."""

    name: str
    """The shape as the user wrote it, such as `4x8xh100`."""
    device: Device
    """What every device is."""
    nodes: int
    """Number of nodes, >= 1."""
    devices_per_node: int
    """Devices in each node, >= 1."""
    intra_link: Link
    """What joins the devices of one node."""
    inter_link: Link
    """What joins the nodes: one port of the network."""
    ports_per_node: int = 1
    """Ports of `inter_link` in each node, >= 1; the devices of the node share them."""

    def __post_init__(self) -> None:
        for field in ("nodes", "devices_per_node", "ports_per_node"):
            if getattr(self, field) < 1:
                raise InvalidValueError(
                    f"cluster {self.name!r}: {field} = {getattr(self, field)} has to be 1 or more"
                )

    @property
    def devices(self) -> int:
        """Devices in all nodes together."""
        return self.nodes * self.devices_per_node

    @property
    def inter_bandwidth(self) -> float:
        """Bytes/s out of a node, per direction, for each device when all of the node send."""
        return self.inter_link.bandwidth * self.ports_per_node / self.devices_per_node


def parse_shape(shape: str, is_device: Callable[[str], bool]) -> tuple[int | None, int | None, str]:
    """Split `4x8xh100` into (nodes, devices per node, device); `16xh100` has no nodes: None.

    A bare device has neither: (None, None, "h100"). `is_device` tells a device from a count, since
    a device's own name may look like one (`7900xtx`); the reading with most counts wins.
    """
    readings: list[tuple[tuple[int, ...], str]] = [((), shape.strip())]
    while len(readings) < 3 and (match := _COUNT.fullmatch(readings[-1][1])):
        readings.append(((*readings[-1][0], int(match[1])), match[2]))
    counts, device = next((r for r in reversed(readings) if is_device(r[1])), readings[-1])
    if not device or device in "x×":
        raise InvalidValueError(f"cluster {shape!r} names no device; {_FORMS}")
    for count in counts:
        if count < 1:
            raise InvalidValueError(
                f"cluster {shape!r} has a count of {count}, which has to be 1 or more; {_FORMS}"
            )
    reversed_form = _COUNT_LAST.fullmatch(device)
    if reversed_form and not is_device(device) and is_device(reversed_form[1]):
        fix = "x".join([*map(str, counts), reversed_form[2], reversed_form[1]])
        raise InvalidValueError(f"cluster {shape!r} has a count behind the device; write {fix}")
    if len(counts) == 2:
        return counts[0], counts[1], device
    return None, (counts[0] if counts else None), device


def spread(shape: str, count: int, device: Device) -> tuple[int, int]:
    """Place `count` devices on as few equal nodes as the device's usual node allows.

    With nodes of 8, 16 devices are 2 nodes of 8, 12 are 2 of 6, and 4 are one node of 4. A count
    that leaves the nodes unequal, such as 9, is refused: how it is split changes the answer.
    """
    nodes = -(-count // device.node_devices)
    if count % nodes == 0:
        return nodes, count // nodes
    best = max(d for d in range(1, device.node_devices + 1) if count % d == 0)
    raise InvalidValueError(
        f"cluster {shape!r}: {count} devices do not fill {nodes} nodes evenly "
        f"(a node of {device.name} holds up to {device.node_devices}); "
        f"say how they are split, such as {count // best}x{best}x{device.name}"
    )
