"""traincast devices."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Parameter

app = App(name="devices", help="List the devices, links and clusters, or show one.")
Json = Annotated[bool, Parameter(negative="")]


@app.default
def devices(*, links: Annotated[bool, Parameter(negative="")] = False, json: Json = False) -> None:
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
    else:
        listed = all_devices()
        out([device_dict(device) for device in listed] if json else device_table(listed))


@app.command
def show(name: str, *, network: str | None = None, json: Json = False) -> None:
    """Explain a device, a link or a cluster shape, with the source of every figure.

    Parameters
    ----------
    name
        A device (h200), your own FILE.toml, a link (nvlink4) or a cluster shape (4x8xh100).
    network
        For a cluster: the link between its nodes.
    json
        Print JSON with SI units instead of a table.
    """
    from traincast.errors import UnknownNameError
    from traincast.hardware import load_cluster, load_device, load_link
    from traincast.report import hardware as report
    from traincast.report.output import show as out

    if name[:1].isdigit() and "x" in name and "/" not in name:
        cluster = load_cluster(name, network)
        out(report.cluster_dict(cluster) if json else report.cluster_card(cluster))
        return
    try:
        device = load_device(name)
    except UnknownNameError as unknown:
        try:
            link = load_link(name)
        except UnknownNameError:
            raise unknown from None
        out(report.link_dict(link) if json else report.link_card(link))
        return
    out(report.device_dict(device) if json else report.device_card(device))
