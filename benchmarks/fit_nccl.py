"""Fit NCCL's constants to published tables, judge them on rows not used, write and print both.

    python benchmarks/fit_nccl.py              # refit, print the table of errors, write nccl.toml
    python benchmarks/fit_nccl.py --check      # only judge the constants that are shipped

The tables are read from the folder given by --data; they are not part of this repository.
`nccl_tables.py` says which rows are fitted and which are judged.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nccl_tables import Row, rows
from traincast.hardware import load_device, load_link
from traincast.network import nccl

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "published"
# Entry: the device whose rows it is fitted on, and the devices it holds for (none: all).
INSIDE = {
    "nvlink3": ("a100-80gb", ()),
    "nvlink4": ("h100", ()),
    "nvlink5": ("b200", ()),
    "nvlink2": ("v100", ()),
    "pcie5-x16": ("rtx-pro-6000", ()),
    "pcie4-x16": ("l40s", ("l40s",)),
    "pcie3-x16": ("gtx-1080-ti", ()),
    "pcie3-x16 of 2016": ("m40", ("m40", "titan-x", "p100-pcie")),
}


def fit_curve(data: list[Row], bandwidth: float, op: str, switch: bool) -> nccl.Curve:
    """Minimise the relative error of one operation on one link, from several starts."""
    from scipy.optimize import least_squares

    n = np.array([r.size for r in data])
    p = np.array([float(r.ranks) for r in data])
    t = np.array([r.seconds for r in data])
    counts = tuple(sorted({int(x) for x in p if not (switch and x > 4)}))

    def curve(theta: Any) -> nccl.Curve:
        # Small messages have the lower base and rate, or the two lines could change roles.
        v = np.exp(theta)
        return nccl.Curve(
            small_base_s=v[0] * 1e-6,
            small_step_s=v[1] * 1e-6,
            small_efficiency=v[2] * min(v[7:]),
            base_s=(v[0] + v[3]) * 1e-6,
            step_s=v[4] * 1e-6,
            switch_base_s=v[5] * 1e-6 if switch else 0.0,
            switch_efficiency=v[6] if switch else 0.0,
            ranks=counts,
            efficiency=tuple(v[7:]),
        )

    def residual(theta: Any) -> Any:
        return np.log(nccl.inside_seconds(curve(theta), bandwidth, op, n, p) / t)

    best = None
    for small in (0.02, 0.1, 0.3, 0.6):
        for base in (5.0, 15.0, 40.0):
            start = np.log([5, 0.8, small, base, 0.5, 40, 0.65, *[0.7] * len(counts)])
            low = np.log([0.5, 0.01, 1e-4, 0.5, 0.01, 5, 0.05, *[1e-3] * len(counts)])
            high = np.log([60, 40, 1, 300, 40, 300, 2, *[1.05] * len(counts)])
            found = least_squares(residual, start, bounds=(low, high), loss="soft_l1", f_scale=0.1)
            if best is None or found.cost < best.cost:
                best = found
    assert best is not None
    return curve(best.x)


def fit_network(data: list[Row], start: nccl.Between, names: tuple[str, ...]) -> nccl.Between:
    """Minimise the relative error of a network between nodes over the constants `names`."""
    from scipy.optimize import least_squares

    t = np.array([r.seconds for r in data])

    def network(theta: Any) -> nccl.Between:
        return replace(start, **dict(zip(names, np.exp(theta).tolist(), strict=True)))

    def residual(theta: Any) -> Any:
        net = network(theta)
        return np.log(np.array([between(r, net) for r in data]) / t)

    bounds = {"small_efficiency": (0.01, 1.0), "efficiency": (0.5, 1.0)}
    low, high = np.log([bounds.get(name, (1e-6, 3e-3)) for name in names]).T
    first = np.clip(np.log([getattr(start, name) for name in names]), low, high)
    found = least_squares(residual, first, bounds=(low, high), loss="soft_l1", f_scale=0.1)
    return network(found.x)


def between(row: Row, net: nccl.Between) -> float:
    cluster = row.cluster
    n, p = np.array([row.size]), np.array([float(row.ranks)])
    inside = next(e for e in nccl.load_constants()[0] if e.link == cluster.intra_link.name)
    placement = nccl.place(cluster, p, None)
    curve = nccl.curve_of(inside, row.op)
    return float(nccl.between_seconds(row.op, n, p, placement, cluster.inter_link, net, curve)[0])


def predict(row: Row) -> float:
    n, p = np.array([row.size]), np.array([float(row.ranks)])
    return float(nccl.nccl_times(row.op, n, p, row.cluster, None)[0])


def errors(data: list[Row]) -> list[tuple[str, str, int, float, float, int, float]]:
    """Return for each table: messages over 1 MB (rows, median, 90th percentile), and all sizes."""
    lines = []
    for table in dict.fromkeys(r.table for r in data):
        for use in ("fit", "judge"):
            mine = [r for r in data if r.table == table and r.use == use]
            error = np.array([abs(predict(r) / r.seconds - 1) for r in mine])
            large = np.array([r.size > 1e6 for r in mine], dtype=bool)
            if large.any():
                big = error[large]
                lines.append(
                    (
                        table,
                        use,
                        len(big),
                        float(np.median(big)),
                        float(np.quantile(big, 0.9)),
                        len(mine),
                        float(np.median(error)),
                    )
                )
    return lines


def show(lines: list[tuple[str, str, int, float, float, int, float]]) -> None:
    print(f"{'table':28}{'rows':7}{'over 1 MB':>10}{'median':>9}{'p90':>9}{'all':>8}{'median':>9}")
    for table, use, large, median, p90, count, overall in lines:
        print(f"{table:28}{use:7}{large:10}{median:9.1%}{p90:9.1%}{count:8}{overall:9.1%}")


HEAD = """# What NCCL achieves, as `nccl.py` uses it. Made by benchmarks/fit_nccl.py; do not edit.
#
# Fitted on, and judged on, different rows of published measurements:
#   aiconfigurator  github.com/ai-dynamo/aiconfigurator, nccl_perf tables (Apache-2.0)
#   vTrain          github.com/VIA-Research/vTrain, all-reduce look-up tables (MIT)
#   DeepBench       github.com/baidu-research/DeepBench, training results (Apache-2.0), NCCL 2.0
#   published       github.com/stas00/ml-engineering at 744d01e, network/README.md (facts)
#   Ultra-Scale     Hugging Face Ultra-Scale Playbook (Apache-2.0), 256 MiB inferred
#   NCCL            github.com/NVIDIA/nccl, src/graph/tuning.cc (BSD): latency of InfiniBand and TCP
# Which rows are which: benchmarks/nccl_tables.py. Errors are |predicted/measured - 1|.
"""


def number(value: float) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:.4g}"


def write(
    inside: list[tuple[nccl.Inside, str]], networks: list[tuple[nccl.Between, str]], lines: Any
) -> str:
    """Return the file of constants."""
    out = [HEAD]
    for table, use, large, median, p90, count, overall in lines:
        out.append(
            f'[[errors]]\ntable = "{table}"\nrows = "{use}"\nover_1mb = {large}\n'
            f"median_over_1mb = {median:.4f}\np90_over_1mb = {p90:.4f}\n"
            f"all_sizes = {count}\nmedian_all_sizes = {overall:.4f}\n"
        )
    for entry, provenance in inside:
        out.append(
            f'[[inside]]\nlink = "{entry.link}"\nkind = "{entry.kind}"\n'
            f"bandwidth = {number(entry.bandwidth)}\ndevices = {list(entry.devices)}\n"
            f'provenance = "{provenance}"\n'.replace("'", '"')
        )
        out.append("[inside.curves]")
        for op, c in entry.curves.items():
            values = {name: getattr(c, name) for name in nccl.Curve.__dataclass_fields__}
            values["ranks"] = list(c.ranks)
            values["efficiency"] = f"[{', '.join(map(number, c.efficiency))}]"
            body = ", ".join(
                f"{k} = {number(v) if isinstance(v, float) else v}" for k, v in values.items() if v
            )
            out.append(f"{op} = {{ {body} }}")
        out.append("")
    for net, provenance in networks:
        out.append("[[between]]")
        for name in nccl.Between.__dataclass_fields__:
            value = getattr(net, name)
            text = f'"{value}"' if isinstance(value, str) else number(value)
            out.append(f"{name} = {text}")
        out.append(f'provenance = "{provenance}"\n')
    return "\n".join(out)


# NCCL's own constants for a network: LL tree 5 µs and Simple ring 14 µs a hop, base 6.8 and 8.4 µs,
# half of an LL message is data. Efficiency: published asymptotes, 192 of 200, 24 of 25 and 48 of 50
# GB/s on InfiniBand, 10 of 12.5 GB/s by TCP on 100 Gb/s Ethernet.
INFINIBAND = nccl.Between(
    name="InfiniBand and RoCE asymptotes with NCCL's latencies",
    kind="infiniband",
    fitted=False,
    from_bandwidth=0.0,
    up_to_bandwidth=1e13,
    small_base_s=6.8e-6,
    small_hop_s=5e-6,
    small_efficiency=0.48,
    base_s=8.4e-6,
    hop_s=14e-6,
    tree_hop_s=14e-6,
    efficiency=0.96,
)
TCP = replace(
    INFINIBAND,
    name="TCP on 100 Gb/s Ethernet with NCCL's latencies",
    kind="ethernet",
    up_to_bandwidth=12.4e9,
    small_efficiency=0.4,
    efficiency=0.8,
)
EFA2 = replace(
    INFINIBAND,
    name="EFA of 100 Gb/s ports, H100 nodes",
    kind="ethernet",
    fitted=True,
    from_bandwidth=12.4e9,
    up_to_bandwidth=24e9,
    small_efficiency=0.03,
    hop_s=3e-4,
    tree_hop_s=6e-4,
)
EFA4 = replace(
    INFINIBAND,
    name="EFA of 400 Gb/s ports, B200 nodes",
    kind="ethernet",
    fitted=True,
    from_bandwidth=24e9,
    small_base_s=1e-4,
    small_hop_s=6e-5,
    hop_s=5e-5,
    tree_hop_s=5e-5,
    base_s=2e-4,
)


def refit(data: list[Row], path: Path) -> None:
    """Fit inside nodes, then between them, and write the file."""
    fitted = [r for r in data if r.use == "fit"]
    inside = []
    for name, (device, devices) in INSIDE.items():
        link = load_link(name.split()[0])
        mine = [r for r in fitted if r.shape.partition(" ")[0] == f"1x8x{device}"]
        found = {}
        for op in sorted({r.op for r in mine}):
            chosen = [r for r in mine if r.op == op]
            switch = op == "all-reduce" and name in ("nvlink4", "nvlink5")
            found[op] = fit_curve(chosen, link.bandwidth, op, switch)
        entry = nccl.Inside(
            link=link.name, kind=link.kind, bandwidth=link.bandwidth, devices=devices, curves=found
        )
        tables = ", ".join(sorted({r.table for r in mine}))
        title = load_device(device).title
        inside.append((entry, f"fitted on {len(mine)} rows of {title}: {tables}"))
        print(f"fitted {name} on {len(mine)} rows", file=sys.stderr)
    networks = [
        (INFINIBAND, "NCCL src/graph/tuning.cc; published asymptotes"),
        (TCP, "as InfiniBand"),
    ]
    path.write_text(write(inside, networks, []), encoding="utf-8")
    nccl.load_constants.cache_clear()
    large = ("base_s", "hop_s", "tree_hop_s", "efficiency")
    fit4 = [r for r in fitted if "x8xb200 " in r.shape]
    small = ("small_base_s", "small_hop_s", "small_efficiency")
    efa4 = fit_network(fit4, EFA4, (*large, *small))
    networks.append((efa4, f"fitted on {len(fit4)} rows: published, nodes"))
    # Only 256 MiB was measured on the older ports. Small messages take the newer ports' latency, at
    # the highest rate that leaves every measured row on the large line.
    start = replace(EFA2, small_base_s=efa4.small_base_s, small_hop_s=efa4.small_hop_s)
    fit2 = [r for r in fitted if "x8xh100 " in r.shape]
    efa2 = fit_network(fit2, start, large)
    networks.append((efa2, f"fitted on {len(fit2)} rows: Ultra-Scale; small messages transferred"))
    path.write_text(write(inside, networks, []), encoding="utf-8")
    nccl.load_constants.cache_clear()
    path.write_text(write(inside, networks, errors(data)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="Fit and judge NCCL's constants.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the published tables")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    data = rows(args.data)
    if not args.check:
        refit(data, nccl.CONSTANTS)
    show(errors(data))


if __name__ == "__main__":
    main()
