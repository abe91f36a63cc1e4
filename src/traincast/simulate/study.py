"""A scaling study by any estimator: one request, rows of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from traincast.errors import InvalidValueError
from traincast.graph import Graph
from traincast.hardware import Cluster, load_cluster, load_device
from traincast.simulate.predict import predict
from traincast.simulate.scale import (
    BUCKET_BYTES,
    STRATEGIES,
    ScaleRow,
    check_request,
    check_scheme,
    scale,
)

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
    estimator: str = "auto"
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
    servers: int | None = None
    """Parameter servers; by default one a node."""
    measured_s: float | None = None
    """A step measured on one device, to which compute is stretched."""


def study(graph: Graph, request: Request) -> list[ScaleRow]:
    """Return a row for each strategy, scheme and device count."""
    if not request.strategies:
        raise InvalidValueError(f"no strategy is given; choose among {', '.join(STRATEGIES)}")
    for scheme in request.schemes if request.estimator not in WHOLE_STEP else ():
        check_scheme(scheme)
    if request.estimator in WHOLE_STEP:
        return _paleo(graph, request)
    if request.software or request.pipeline or request.algorithms != "gemm":
        raise InvalidValueError(
            "software, algorithms and pipeline are settings of Paleo; add --estimator paleo"
        )
    counts = _counts(request)
    check_request(counts, request.strategies, request.scaling)
    cluster = _cluster(request, max(counts))
    alone = predict(
        graph,
        cluster.device,
        batch=request.batch,
        seq=request.seq,
        precision=request.precision,
        optimizer=request.optimizer,
        accumulate=request.accumulate,
        layout=request.layout,
        estimator=request.estimator,
    )
    whole = request.scaling == "strong" or set(request.strategies) - {"data"}
    if "batch" in graph.fixed and whole and max(counts) > 1:
        raise InvalidValueError(
            f"{graph.name} holds for batch {graph.batch} only: it can scale weakly by data; "
            "export it with a symbolic batch axis for more"
        )
    return scale(
        graph,
        cluster.device,
        cluster,
        alone.engine,
        alone.step.program.precision,
        alone.step.plan,
        devices=counts,
        strategies=request.strategies,
        schemes=request.schemes or ("auto",),
        scaling=request.scaling,
        bucket_bytes=request.bucket_bytes,
        overlap=request.overlap,
        servers=request.servers,
        measured_s=request.measured_s,
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
    batch = request.batch or graph.batch
    check_request(counts, request.strategies, request.scaling, batch)
    if request.measured_s is not None or request.servers is not None:
        raise InvalidValueError(
            "paleo takes neither servers nor a measured step; use --estimator roofline"
        )
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
            samples_per_s=_samples(row.strategy, row.devices, request.scaling, batch)
            / row.step_ms
            * 1e3,
            traffic_bytes=0.0,
        )
        for row in rows
    ]


def _samples(strategy: str, devices: int, scaling: str, batch: int) -> int:
    """Return the samples of a step; under `model` Paleo's devices all work on the same ones."""
    return batch * devices if scaling == "weak" and strategy != "model" else batch


def _paleo_net(graph: Graph, strategies: Sequence[str], counts: Sequence[int]) -> Any:
    """Return what Paleo reads: its own network where the graph is one, else the graph's layers."""
    from traincast.estimate.paleo import paleo_from_graph
    from traincast.ingest.paleo import paleo_net, paleo_net_names

    names = paleo_net_names()
    split: Mapping[int, str] = {}
    if graph.name.endswith("_1gpu") and set(strategies) - {"data"}:
        base = graph.name.removesuffix("1gpu")
        split = {k: f"{base}{k}gpu" for k in counts if f"{base}{k}gpu" in names}
    missing = [k for k in counts if k > 1 and k not in split]
    if missing and set(strategies) - {"data"}:
        raise InvalidValueError(
            f"paleo splits a network only where its description says how, and {graph.name} says "
            f"nothing of {missing[0]} devices; paleo:alex_v2_1gpu is split for 2, 4 and 8, and "
            "--estimator roofline splits any model"
        )
    if split:
        return {1: paleo_net(graph.name)} | {k: paleo_net(name) for k, name in split.items()}
    if graph.source == f"paleo:{graph.name}" and graph.name in names:
        return paleo_net(graph.name)
    return paleo_from_graph(graph)


def study_notes(request: Request, rows: Sequence[ScaleRow]) -> list[str]:
    """Return what a reader of the rows has to know."""
    most = max(row.devices for row in rows)
    if request.estimator in WHOLE_STEP:
        if set(request.strategies) - {"data"} and request.schemes:
            return ["Paleo's hybrid parallelism always exchanges over a tree, model none."]
        return []
    cluster = _cluster(request, most)
    notes = []
    if request.network and most <= cluster.devices_per_node:
        notes.append(
            f"All devices sit in one node, on {cluster.intra_link.title}: the network between "
            "nodes plays no part; --cluster says how many sit in each."
        )
    full = [row.devices for row in rows if row.fits is False]
    if full:
        notes.append(f"Does not fit in {cluster.device.title}'s memory: see the last column.")
    if request.measured_s is not None:
        notes.append("Compute is stretched to the step measured on one device.")
    return notes


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
