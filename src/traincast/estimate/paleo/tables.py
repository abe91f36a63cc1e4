"""Paleo's own devices, networks and software, and how names find them.

The figures are those of the authors' code (H. Qi, E. R. Sparks, A. Talwalkar, ICLR 2017;
github.com/TalwalkarLab/paleo), not of datasheets: published numbers rest on them. A name that is
not in these tables is looked up in traincast's catalog, so any device and link will do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from traincast.errors import InvalidValueError, UnknownNameError
from traincast.hardware import Device, Link, device_names, link_names, load_device, load_link
from traincast.hardware.names import fold


@dataclass(frozen=True, slots=True, kw_only=True)
class PaleoDevice:
    """A device as Paleo sees it."""

    name: str
    """As users choose it."""
    title: str
    """Name for people."""
    clock_hz: float
    """Clock; one cycle is the least time that any piece of work takes."""
    peak_flops: float
    """fp32 peak in FLOP/s."""
    bandwidth: float
    """Memory bandwidth in bytes/s."""
    gpu: bool = True
    """Whether cuDNN runs on it; others use GEMM only."""
    catalog: str | None = None
    """The device of traincast's catalog that is meant, where there is one."""

    @property
    def cycle_s(self) -> float:
        """Seconds of one clock cycle."""
        return 1 / self.clock_hz


@dataclass(frozen=True, slots=True, kw_only=True)
class PaleoNetwork:
    """A link between workers as Paleo sees it: a bandwidth, no latency."""

    name: str
    """As users choose it."""
    title: str
    """Name for people."""
    bandwidth: float
    """Bytes/s, decimal."""
    catalog: str | None = None
    """The link of traincast's catalog that is meant, where there is one."""


class Software(NamedTuple):
    """Share of the peak that a framework reaches, Paleo's "platform percent of peak" (PPP)."""

    compute: float
    """Of FLOP/s and, by a quirk that published numbers rest on, of memory bandwidth."""
    communication: float
    """Of the bandwidth between workers."""


def _device(
    name: str,
    title: str,
    mhz: float,
    gflops: float,
    gbs: float,
    catalog: str | None = None,
    gpu: bool = True,
) -> PaleoDevice:
    return PaleoDevice(
        name=name,
        title=title,
        clock_hz=mhz * 1e6,
        peak_flops=gflops * 1e9,
        bandwidth=gbs * 1e9,
        gpu=gpu,
        catalog=catalog,
    )


def _network(name: str, title: str, gbit: float, catalog: str | None = None) -> PaleoNetwork:
    return PaleoNetwork(name=name, title=title, bandwidth=gbit / 8 * 1e9, catalog=catalog)


# The K80 is the board with both its GPUs at base clock; the catalog's k80 is one GPU.
# The CPU's clock is written as 6 · 35000 MHz, where 6 · 3500 was meant; it only sets the cycle.
DEVICES: dict[str, PaleoDevice] = {
    device.name: device
    for device in (
        _device("titan-x", "Titan X", 1000, 6144, 336.5, "titan-x"),
        _device("k20", "K20", 1000, 3520, 208, "k20"),
        _device("k20x", "K20X", 1000, 3935, 250, "k20x"),
        _device("k40", "K40", 745, 4290, 288, "k40"),
        _device("k80", "K80", 560, 5600, 480, "k80"),
        _device("geforce-780-ti", "GeForce 780 Ti", 875, 5040, 336),
        _device("geforce-750-m", "GeForce 750 M", 941, 722.7, 80),
        _device("cpu-i7", "CPU i7 5930K", 210_000, 289, 68, gpu=False),
    )
}

NETWORKS: dict[str, PaleoNetwork] = {
    network.name: network
    for network in (
        _network("aws", "AWS", 2),
        _network("ethernet", "Ethernet", 10, "ethernet-10g"),
        _network("ethernet20", "Ethernet", 20),
        _network("infiniband", "Infiniband", 70),
        _network("pcie2", "PCIe 2.0", 64, "pcie2-x16"),
        _network("pcie3", "PCIe 3.0", 128, "pcie3-x16"),
    )
}

SOFTWARE: dict[str, Software] = {
    "caffe": Software(0.21, 0.56),
    "mxnet": Software(0.49, 0.72),
    "tensorflow": Software(0.62, 0.72),
    "cuda-convnet2": Software(0.46, 0.75),
    "scaling-study": Software(0.62, 1.0),
    "peak": Software(1.0, 1.0),
}
"""From the authors' demo and scripts; `peak` is the default of their command line."""


_BY_FOLDED_NAME = {fold(device.name): device for device in DEVICES.values()}


def paleo_device(ref: str | Device | PaleoDevice) -> PaleoDevice:
    """Return the device that `ref` names: Paleo's own first, then one of the catalog or a file.

    A `Device` keeps its own figures, even where Paleo has a device of that name.
    """
    if isinstance(ref, PaleoDevice):
        return ref
    if isinstance(ref, str) and fold(ref) in _BY_FOLDED_NAME:
        return _BY_FOLDED_NAME[fold(ref)]
    try:
        device = load_device(ref)
    except UnknownNameError as error:
        raise UnknownNameError(
            "device", str(ref), [*DEVICES, *device_names()], f"Paleo has {', '.join(DEVICES)}"
        ) from error
    return PaleoDevice(
        name=device.name,
        title=device.title,
        clock_hz=device.clock_hz,
        peak_flops=device.peak("fp32"),
        bandwidth=device.memory_bandwidth,
        gpu=device.tier not in ("cpu", "manycore"),
        catalog=device.name,
    )


def paleo_network(ref: str | Link | PaleoNetwork) -> PaleoNetwork:
    """Return the network that `ref` names: Paleo's own first, then a link of the catalog."""
    if isinstance(ref, PaleoNetwork):
        return ref
    if isinstance(ref, str) and fold(ref) in NETWORKS:
        return NETWORKS[fold(ref)]
    try:
        link = load_link(ref)
    except UnknownNameError as error:
        raise UnknownNameError(
            "network", str(ref), [*NETWORKS, *link_names()], f"Paleo has {', '.join(NETWORKS)}"
        ) from error
    return PaleoNetwork(
        name=link.name, title=link.title, bandwidth=link.bandwidth, catalog=link.name
    )


def software_named(name: str) -> Software:
    """Return the percent of peak of a framework."""
    if name.lower() not in SOFTWARE:
        raise UnknownNameError(
            "software", name, SOFTWARE, f"Paleo gives figures for {', '.join(SOFTWARE)}"
        )
    return SOFTWARE[name.lower()]


def check_share(name: str, value: float) -> float:
    """Return a percent of peak, which is above 0 and at most 1."""
    if not 0 < value <= 1:
        raise InvalidValueError(
            f"{name} = {value!r} is no share of the peak; give a number above 0 and at most 1"
        )
    return float(value)
