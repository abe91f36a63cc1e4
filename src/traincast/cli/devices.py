"""traincast devices."""

from __future__ import annotations

import contextlib
from typing import Annotated

from cyclopts import App

from traincast.cli.options import Json, flag, option

app = App(
    name="devices",
    help="List the devices and links, or show one or a cluster.",
    help_format="markdown",
)


@app.default
def devices(*, links: Annotated[bool, flag()] = False, json: Json = False) -> None:
    """List the devices of the catalog, or its links.

    Parameters
    ----------
    links
        List the links instead.
    json
        Print JSON with SI units instead of a table.
    """
    from traincast.hardware import all_devices, all_links
    from traincast.report.hardware import device_dict, device_table, link_dict, link_table
    from traincast.report.output import show as out

    if links:
        found = all_links()
        out([link_dict(link) for link in found] if json else link_table(found))
        return
    listed = all_devices()
    if json:
        out([device_dict(device) for device in listed])
        return
    from rich.text import Text

    out(device_table(listed))
    out(
        Text(
            f"\n{len(listed)} devices; peaks in FLOP/s, dense. `traincast devices show NAME` gives "
            "the source of each figure. Your own FILE.toml serves wherever a name does."
        )
    )


@app.command
def show(
    name: str, /, *, network: Annotated[str | None, option("LINK")] = None, json: Json = False
) -> None:
    """Explain a device, a link or a cluster shape, with the source of every figure.

    Parameters
    ----------
    name
        A device (h200), your own FILE.toml, a link (nvlink4) or a cluster shape (4x8xh100).
    network
        For a cluster: the link between its nodes, and how many of it (2xethernet-100g).
    json
        Print JSON with SI units instead of a table.
    """
    from traincast.errors import InvalidValueError, UnknownNameError
    from traincast.hardware import (
        device_names,
        link_names,
        load_cluster,
        load_device,
        load_link,
    )
    from traincast.report import hardware as report
    from traincast.report.output import show as out

    device = None
    with contextlib.suppress(UnknownNameError):
        device = load_device(name)
    if device is None and name[:1].isdigit():
        cluster = load_cluster(name, network)
        out(report.cluster_dict(cluster) if json else report.cluster_card(cluster))
        return
    if network is not None:
        raise InvalidValueError(f"{name} is no cluster; leave out --network, or write 2x8x{name}")
    if device is not None:
        from traincast.estimate.registry import estimator_for

        basis = estimator_for("auto", device).basis
        if json:
            out({**report.device_dict(device), "basis": basis})
            return
        from rich.text import Text

        out(report.device_card(device))
        out(Text(f"\nPredictions rest on: {basis}."))
        return
    try:
        link = load_link(name)
    except UnknownNameError:
        known = [*device_names(), *link_names()]
        hint = "see `traincast devices` and `traincast devices --links`"
        raise UnknownNameError("device or link", name, known, hint) from None
    out(report.link_dict(link) if json else report.link_card(link))
