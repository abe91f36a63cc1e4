"""Published tables of NCCL times as rows of one form, each marked `fit`, `judge` or `skip`.

The files are not part of this repository. Each reader says which of its rows are fitted, which are
judged, and which tell too little (no device, network or size) to be used.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from traincast.hardware import Cluster, load_cluster

MB = 2**20
NEW_OP = {"alltoall": "all-to-all", "AllReduce": "all-reduce", "AllGather": "all-gather"}
NEW_OP["ReduceScatter"] = "reduce-scatter"
SYSTEMS = {
    "a100_sxm": "a100-80gb",
    "h100_sxm": "h100",
    "h200_sxm": "h200",
    "b200_sxm": "b200",
    "b300_sxm": "b300",
    "gb200": "gb200",
    "gb300": "gb300",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",  # the catalog has the workstation's board
}
DEEPBENCH = {
    "NVIDIA GTX 1080 Ti": "gtx-1080-ti",
    "Nvidia TitanX Pascal": "titan-x-pascal",
    "Nvidia Tesla M40": "m40",
    "Nvidia TitanX": "titan-x",
    "NVIDIA Tesla P100": "p100-pcie",
}
# Published rows of several nodes whose network is named, as (nodes, devices, device, network).
CURVES = {
    "A100 (single 8-GPU node)": "1x8xa100-80gb",
    "H200 (single 8-GPU node)": "1x8xh200",
    "H200 8-GPU node": "1x8xh200",
    "B200 p6-b200 (8-GPU node)": "1x8xb200",
    "B200 8-GPU node": "1x8xb200",
    "V100 16GB 4-GPU node": "1x4xv100",
    "V100 32GB 4-GPU node": "1x4xv100",
    "B200 p6-b200 (4 nodes)": "4x8xb200 8xethernet-400g",
    "H200 p5en 4 nodes": "4x8xh200 8xethernet-400g",
    "V100 32GB x16 nodes (64 GPUs)": "16x4xv100 1xomni-path-100",
    "V100 32GB x4 nodes (16 GPUs)": "4x4xv100 1xomni-path-100",
    "A100 SXM4 40GB x3 nodes (24 GPUs)": "3x8xa100-40gb 4xinfiniband-hdr",
}


@dataclass(frozen=True, slots=True)
class Row:
    table: str
    shape: str
    """Cluster, and its network where it has one."""
    op: str
    ranks: int
    size: float
    seconds: float
    use: str
    """`fit`, `judge` or `skip`."""

    @property
    def cluster(self) -> Cluster:
        shape, _, network = self.shape.partition(" ")
        return load_cluster(shape, network or None)


def read(path: Path) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
        yield from csv.DictReader(file)


def rows(folder: Path) -> list[Row]:
    """Return every row that names its device, link and size, with its use."""
    return [
        *aiconfigurator(folder / "comm_aiconfigurator_nccl.csv.gz"),
        *vtrain(folder / "comm_vtrain_allreduce_lut.csv.gz"),
        *deepbench(folder / "ops_deepbench_allreduce.csv.gz"),
        *curves(folder / "comm_published_curves.csv.gz"),
        *ultrascale(folder / "comm_ultrascale_h100_busbw_vs_nodes.csv.gz"),
    ]


def aiconfigurator(path: Path) -> Iterator[Row]:
    """Fit half of the sizes (by checksum) of five systems; judge the rest, and whole systems.

    Never fitted: H200, B300, GB200 and GB300, and 4 ranks of A100. Other versions and types of a
    fitted (system, operation, ranks, size) are neither fitted nor judged.
    """
    fitted = {"a100_sxm", "h100_sxm", "b200_sxm", "l40s", "rtx_pro_6000_server"}
    for r in read(path):
        system, ranks, op = r["system"], int(r["n_ranks"]), op_name(r["collective"])
        key = f"{system} {op} {ranks} {r['bytes']}"
        fit = system in fitted and zlib.crc32(key.encode()) % 2 == 0
        fit = fit and not (system == "a100_sxm" and ranks == 4)
        newest = "2.23" not in r["source"] and r["dtype"] == "half"
        use = ("fit" if newest else "skip") if fit else "judge"
        device = SYSTEMS[system]
        yield Row(
            "aiconfigurator",
            f"1x{max(ranks, 8)}x{device}",
            op,
            ranks,
            float(r["bytes"]),
            float(r["latency_ms"]) / 1e3,
            use,
        )


def vtrain(path: Path) -> Iterator[Row]:
    """Fit V100 at powers of two of a MB; judge its other sizes, and all of A100."""
    for r in read(path):
        device = {"A100": "a100-80gb", "V100": "v100"}[r["device"]]
        size = int(r["bytes"])
        fit = device == "v100" and (size // MB).bit_count() == 1
        yield Row(
            f"vTrain {r['device']}",
            f"1x8x{device}",
            "all-reduce",
            int(r["n_ranks"]),
            size,
            float(r["time_us"]) / 1e6,
            "fit" if fit else "judge",
        )


def deepbench(path: Path) -> Iterator[Row]:
    """Fit GTX 1080 Ti, and M40; judge Titan X Pascal, and Titan X and P100. NCCL in one node only.

    The two hosts differ twofold in what their PCI Express achieves. The network between nodes is
    not stated there.
    """
    for r in read(path):
        device = DEEPBENCH.get(r["device"])
        if device is None or r["nodes"] not in ("", "1") or not r["algo"].startswith("NCCL"):
            continue
        fit = device in ("gtx-1080-ti", "m40")
        yield Row(
            "DeepBench",
            f"1x8x{device}",
            "all-reduce",
            int(r["n_ranks"]),
            float(r["bytes"]),
            float(r["time_ms"]) / 1e3,
            "fit" if fit else "judge",
        )


def curves(path: Path) -> Iterator[Row]:
    """Fit B200 on 4 nodes at every other size; judge all else that states its size and network."""
    for r in read(path):
        shape = CURVES.get(r["device"])
        if shape is None or not r["bytes"] or "ring" in r["notes"]:
            continue
        size, ranks = float(r["bytes"]), int(r["n_ranks"])
        op = op_name(r["collective"])
        factor = 2 if op == "all-reduce" else 1
        seconds = factor * (ranks - 1) / ranks * size / (float(r["busbw_GBps"]) * 1e9)
        if r["time_us"]:
            seconds = float(r["time_us"]) / 1e6
        several = shape.startswith("4x8xb200")
        if several and size < 131072:
            continue  # 6.3 and 3.2 ms for 32 and 64 KiB: a cold start, not a message
        fit = several and int(np.log2(size)) % 2
        table = "published curves, one node" if shape.startswith("1x") else "published, nodes"
        yield Row(table, shape, op, ranks, size, seconds, "fit" if fit else "judge")


def ultrascale(path: Path) -> Iterator[Row]:
    """Fit 2, 8 and 32 nodes of H100 on EFA; judge 4, 16 and 64.

    The table states no size. 256 MiB is inferred: it gives the 436 GB/s of one node's all-reduce.
    """
    for r in read(path):
        nodes, op = int(r["tick"]), op_name(r["collective"])
        if nodes == 1:
            continue
        ranks, factor = 8 * nodes, 2 if r["collective"] == "AllReduce" else 1
        seconds = factor * (ranks - 1) / ranks * 256 * MB / (float(r["median_busbw_GBps"]) * 1e9)
        yield Row(
            "Ultra-Scale",
            f"{nodes}x8xh100 32xethernet-100g",
            op,
            ranks,
            256 * MB,
            seconds,
            "fit" if nodes in (2, 8, 32) else "judge",
        )


def op_name(name: str) -> str:
    return NEW_OP.get(name, name.replace("_", "-"))
