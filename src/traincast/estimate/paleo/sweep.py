"""Many steps at once: workers × batches × schemes × strategies, as plain rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from traincast.errors import InvalidValueError
from traincast.estimate.paleo.model import (
    DeviceRef,
    NetRef,
    NetworkRef,
    PaleoModel,
    PaleoStep,
    one_of,
    share_batch,
    whole,
)
from traincast.estimate.paleo.net import LayerNet, layer_net
from traincast.estimate.paleo.schemes import SCHEMES, scheme_named
from traincast.estimate.paleo.strategies import STRATEGIES
from traincast.estimate.paleo.tables import paleo_network

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128)


class SweepRow(NamedTuple):
    """One step of a sweep."""

    strategy: str
    devices: int
    scheme: str
    compute_ms: float
    communication_ms: float
    step_ms: float
    speedup: float
    """Over one device: t(1) / t(K) in strong scaling, K · t(1) / t(K) in weak scaling."""
    efficiency: float
    """Speed-up by devices."""
    scaling: str
    batch: int
    """As asked for: of one worker in weak scaling, of all in strong."""
    worker_batch: int


def sweep(
    model: PaleoModel,
    net: NetRef | Mapping[int, NetRef],
    device: DeviceRef,
    *,
    workers: Sequence[int] = WORKERS,
    batches: Sequence[int] | None = None,
    network: NetworkRef = "ethernet",
    schemes: Sequence[str] = ("one-to-all", "tree", "butterfly"),
    scalings: Sequence[str] = ("weak",),
    strategies: Sequence[str] = ("data",),
    strict: bool = False,
) -> list[SweepRow]:
    """Return a row for every strategy, scaling, batch, scheme and number of workers.

    A network that is split has to be given for each number of workers: {1: …, 2: …}. Data
    parallelism then uses the one for one worker.
    """
    for strategy in strategies:
        one_of("strategy", strategy, STRATEGIES)
    nets = _by_workers(net)
    counts = [whole("workers", count) for count in workers]
    known = [scheme_named(scheme) for scheme in schemes]
    one = nets[1] if 1 in nets else next(iter(nets.values()))
    rows: list[SweepRow] = []
    for strategy in strategies:
        for scaling in scalings if strategy != "model" else scalings[:1]:
            for batch in batches or (one.batch,):
                where = (device, whole("batch", batch), network, scaling)
                if strategy == "data":
                    rows += _data_rows(model, one, counts, known, where, strict)
                else:
                    rows += _split_rows(model, nets, counts, strategy, where, strict)
    return rows


_Where = tuple[DeviceRef, int, NetworkRef, str]


def _by_workers(net: NetRef | Mapping[int, NetRef]) -> dict[int, LayerNet]:
    if isinstance(net, Mapping) and net and all(isinstance(key, int) for key in net):
        return {int(key): layer_net(value) for key, value in net.items()}
    return {0: layer_net(net)}  # type: ignore[arg-type]


def _data_rows(
    model: PaleoModel,
    net: LayerNet,
    counts: Sequence[int],
    schemes: Sequence[str],
    where: _Where,
    strict: bool,
) -> list[SweepRow]:
    """Compute is priced once for each batch of a worker, the exchange for all counts at once."""
    device, batch, network, scaling = where
    shares = [share_batch(batch, count, scaling, strict=strict)[0] for count in [1, *counts]]
    priced = {share: model.step(net, device, share).compute_s for share in dict.fromkeys(shares)}
    compute = np.array([priced[share] for share in shares])
    k = np.array([1, *counts])
    bandwidth = paleo_network(network).bandwidth * model.ppp_comm
    rows = []
    for scheme in schemes:
        crossings = np.array([SCHEMES[scheme](int(count)) for count in k])
        exchange = crossings * net.weight_bytes / bandwidth
        total = compute + exchange
        gain = (k if scaling == "weak" else 1) * total[0] / total
        columns = zip(counts, shares[1:], compute[1:], exchange[1:], gain[1:], strict=True)
        rows += [
            _row("data", count, scheme, (c, e), float(g), (scaling, batch, share))
            for count, share, c, e, g in columns
        ]
    return rows


def _split_rows(
    model: PaleoModel,
    nets: Mapping[int, LayerNet],
    counts: Sequence[int],
    strategy: str,
    where: _Where,
    strict: bool,
) -> list[SweepRow]:
    device, batch, network, scaling = where
    nets, counts = _needed(nets, counts, strategy)

    def step(count: int) -> PaleoStep:
        net = nets[count]
        return model.step(
            net, device, batch, count, network, "tree", scaling, strategy, strict=strict
        )

    alone = _alone(model, nets[1], device, batch) if strategy == "model" else step(1).total_s
    rows = []
    for count in counts:
        found = step(count)
        gain = found.global_batch / (batch if strategy == "model" else step(1).global_batch)
        rows.append(
            _row(
                strategy,
                found.workers,
                "" if strategy == "model" else found.scheme,
                (found.compute_s, found.communication_s),
                gain * alone / found.total_s,
                (scaling, batch, found.worker_batch),
            )
        )
    return rows


def _needed(
    nets: Mapping[int, LayerNet], counts: Sequence[int], strategy: str
) -> tuple[Mapping[int, LayerNet], Sequence[int]]:
    """Return a network for one worker and for each count; one alone has to do for all.

    How many devices model parallelism takes, an only network says by its branches.
    """
    if 0 in nets:
        only = nets[0]
        counts = [only.width] if strategy == "model" else counts
        return dict.fromkeys([1, *counts], only), counts
    missing = [count for count in [1, *counts] if count not in nets]
    if missing:
        raise InvalidValueError(
            f"{strategy} parallelism needs the network split for {missing[0]} workers; "
            f"add the key {missing[0]} to the networks"
        )
    return nets, counts


def _alone(model: PaleoModel, net: LayerNet, device: DeviceRef, batch: int) -> float:
    """Return the seconds of one device that runs every layer, fetches nothing, updates nothing."""
    step = replace(model, pipeline=False).step(net, device, batch)
    return step.forward_s + step.backward_s


def _row(
    strategy: str,
    devices: int,
    scheme: str,
    seconds: tuple[float, float],
    speedup: float,
    labels: tuple[str, int, int],
) -> SweepRow:
    compute, communication = (1e3 * float(value) for value in seconds)
    return SweepRow(
        strategy,
        devices,
        scheme,
        compute,
        communication,
        compute + communication,
        speedup,
        speedup / devices,
        *labels,
    )
