"""A scaling study by any estimator: one request, rows of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from traincast.errors import InvalidValueError
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_named
from traincast.graph import Graph
from traincast.graph.precision import precision_named
from traincast.hardware import Cluster, load_cluster, load_device
from traincast.simulate.fit import default_precision
from traincast.simulate.scale import BUCKET_BYTES, ScaleRow, check_request, scale
from traincast.simulate.step import Plan

WHOLE_STEP = ("paleo",)
"""Published models that predict whole steps by equations of their own."""
_PAYS = 0.5
"""A further device pays as long as it adds at least this part of what the first one does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to study; None leaves the estimator's own default."""

    device: str = "h200"
    cluster: str | None = None
    """A shape such as 4x8xh100; gives device and network."""
    network: str | None = None
    devices: tuple[int, ...] = ()
    """Device counts; by default powers of two up to the cluster's size, or 8."""
    strategies: tuple[str, ...] = ("data",)
    schemes: tuple[str, ...] = ()
    scaling: str = "weak"
    batch: int | None = None
    seq: int | None = None
    precision: str | None = None
    optimizer: str = "adamw"
    accumulate: int = 1
    layout: str = "nchw"
    estimator: str = "roofline"
    overlap: bool = True
    bucket_bytes: float = BUCKET_BYTES
    rules: str = "paper"
    """Paleo: paper or head."""
    software: str | None = None
    """Paleo: a framework whose percent of peak applies."""
    algorithms: str = "gemm"
    """Paleo: gemm, fft, fft-tiled or cudnn4."""
    pipeline: bool = False
    """Paleo: memory traffic runs while a layer computes."""


def study(graph: Graph, request: Request) -> list[ScaleRow]:
    """Return a row for each strategy, scheme and device count."""
    if request.estimator in WHOLE_STEP:
        return _paleo(graph, request)
    engine = estimator_named(request.estimator)
    counts = _counts(request)
    cluster = _cluster(request, max(counts))
    unit = cluster.device if isinstance(cluster, Cluster) else load_device(request.device)
    how = precision_named(request.precision) if request.precision else default_precision(unit)
    plan = Plan(
        batch=request.batch or graph.batch,
        seq=(request.seq or graph.seq) if graph.has_sequence else 0,
        optimizer=optimizer_named(request.optimizer),
        accumulate=request.accumulate,
        layout=request.layout,
    )
    return scale(
        graph,
        unit,
        cluster,
        engine,
        how,
        plan,
        devices=counts,
        strategies=request.strategies,
        schemes=request.schemes or ("auto",),
        scaling=request.scaling,
        bucket_bytes=request.bucket_bytes,
        overlap=request.overlap,
    )


def _counts(request: Request) -> tuple[int, ...]:
    if request.devices:
        return request.devices
    most = load_cluster(request.cluster, request.network).devices if request.cluster else 8
    counts = [1]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return tuple(counts if counts[-1] == most else [*counts, most])


def _cluster(request: Request, most: int) -> Cluster:
    if request.cluster:
        found = load_cluster(request.cluster, request.network)
        if most > found.devices:
            raise InvalidValueError(
                f"{most} devices are more than the {found.devices} of {request.cluster}; "
                "give a larger cluster or fewer devices"
            )
        return found
    unit = load_device(request.device)
    node = min(unit.node_devices, most)
    return load_cluster(f"{-(-most // node)}x{node}x{request.device}", request.network)


def _paleo(graph: Graph, request: Request) -> list[ScaleRow]:
    from traincast.estimate.paleo import PaleoModel, sweep

    counts = request.devices or (1, 2, 4, 8, 16, 32, 64, 128)
    check_request(counts, request.strategies, request.scaling)
    if request.cluster:
        raise InvalidValueError("paleo knows no nodes: give device and network instead of cluster")
    settings: dict[str, Any] = {
        "rules": request.rules,
        "algorithms": request.algorithms,
        "pipeline": request.pipeline,
    }
    model = (
        PaleoModel.for_software(request.software, **settings)
        if request.software
        else PaleoModel(**settings)
    )
    batch = request.batch or graph.batch
    rows = sweep(
        model,
        _paleo_net(graph, request.strategies, counts),
        request.device,
        workers=counts,
        batches=[batch],
        network=request.network or "ethernet",
        schemes=request.schemes or ("one-to-all", "tree", "butterfly"),
        scalings=[request.scaling],
        strategies=request.strategies,
    )
    return [
        ScaleRow(
            strategy=row.strategy,
            devices=row.devices,
            scheme=row.scheme,
            batch=row.worker_batch,
            compute_s=row.compute_ms / 1e3,
            communication_s=row.communication_ms / 1e3,
            step_s=row.step_ms / 1e3,
            speedup=row.speedup,
            efficiency=row.efficiency,
            samples_per_s=(row.devices if request.scaling == "weak" else 1)
            * batch
            / row.step_ms
            * 1e3,
            traffic_bytes=0.0,
        )
        for row in rows
    ]


def _paleo_net(graph: Graph, strategies: Sequence[str], counts: Sequence[int]) -> Any:
    """Return what Paleo reads: its own network where the graph is one, else the graph's layers."""
    from traincast.estimate.paleo import paleo_from_graph
    from traincast.ingest.paleo import paleo_net, paleo_net_names

    names = paleo_net_names()
    split: Mapping[int, str] = {}
    if graph.name.endswith("_1gpu") and set(strategies) - {"data"}:
        base = graph.name.removesuffix("1gpu")
        split = {k: f"{base}{k}gpu" for k in counts if f"{base}{k}gpu" in names}
    if split:
        return {1: paleo_net(graph.name)} | {k: paleo_net(name) for k, name in split.items()}
    if graph.source == f"paleo:{graph.name}" and graph.name in names:
        return paleo_net(graph.name)
    return paleo_from_graph(graph)


def stops_paying(rows: Sequence[ScaleRow]) -> dict[tuple[str, str], int]:
    """Return, for each strategy and scheme, the count after which a device adds less than half.

    Half of what one device does alone, going from each count to the next.
    """
    result: dict[tuple[str, str], int] = {}
    groups: dict[tuple[str, str], list[ScaleRow]] = {}
    for row in rows:
        groups.setdefault((row.strategy, row.scheme), []).append(row)
    for key, found in groups.items():
        ordered = sorted(found, key=lambda row: row.devices)
        result[key] = ordered[0].devices
        for before, after in pairwise(ordered):
            gained = (after.speedup - before.speedup) / max(after.devices - before.devices, 1)
            if gained < _PAYS:
                break
            result[key] = after.devices
    return result
