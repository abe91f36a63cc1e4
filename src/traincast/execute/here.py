"""What a plan should take on the very processes that run it.

Two things are measured first: a step of each process on its share of the batch, all side by side
without a word to each other, so that shared cores and memory show; and how fast the processes sum
numbers together. A plan's parts are then priced in proportion: compute stretched to that step,
transfers and sums over links as fast as those.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traincast.errors import TraincastError
from traincast.execute.job import Job, Probe

if TYPE_CHECKING:
    import torch

    from traincast.execute.engine import Arguments
    from traincast.graph import Graph
    from traincast.simulate.planned import Priced

_STEPS = 4
"""Steps of each process alone; the first is not timed."""
_LARGE, _SMALL = 4 << 20, 1
"""Numbers that are summed to find bandwidth and latency."""
_STAND_IN = "xeon-8380"
"""A CPU for the proportions of kernels where this one is unknown; its speed does not matter."""


def probe(job: Job, module: torch.nn.Module, arguments: Arguments, data: Any, world: int) -> Probe:
    """Measure; every process calls it at once, with samples of its own."""
    import torch
    import torch.distributed as dist

    from traincast.execute.single import Single

    device = data[0].device
    alone = Single(module, arguments, optimizer=job.optimizer, lr=job.lr, seed=job.seed)
    times = []
    for _ in range(_STEPS):
        dist.barrier()
        began = time.perf_counter()
        alone.step(data)
        times.append(time.perf_counter() - began)
    mean = torch.tensor([statistics.median(times[1:])], device=device)
    dist.all_reduce(mean)
    hops = 2 * (world - 1)
    quick = _fastest_sum(_SMALL, device) / max(hops, 1)
    large = max(_fastest_sum(_LARGE, device) - hops * quick, 1e-9)
    return Probe(
        step_s=float(mean) / world,
        latency_s=quick,
        bandwidth=hops / world * _LARGE * 4 / large if world > 1 else 1.0,
    )


def _fastest_sum(numbers: int, device: torch.device) -> float:
    import torch
    import torch.distributed as dist

    values, times = torch.zeros(numbers, device=device), []
    for _ in range(5):
        dist.barrier()
        began = time.perf_counter()
        dist.all_reduce(values)
        values.sum().item()
        times.append(time.perf_counter() - began)
    slowest = torch.tensor([min(times)], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return float(slowest)


def predict_here(graph: Graph, job: Job, found: Probe) -> Priced | None:
    """Return what a plan should take here; None where it is none of this graph."""
    from traincast.hardware import Cluster, Link, load_device
    from traincast.simulate.planned import price_strategy
    from traincast.simulate.terms import Terms, pace_of, setting_for

    strategy = job.strategy
    link = Link(
        name="here", title="between the processes", kind="socket",
        latency_s=found.latency_s, bandwidth=found.bandwidth,
    )  # fmt: skip
    cluster = Cluster(
        name="here", device=load_device(device_here(job.backend) or _STAND_IN),
        nodes=strategy.devices, devices_per_node=1, intra_link=link, inter_link=link,
    )  # fmt: skip
    terms = Terms(precision="fp32", optimizer=job.optimizer, scheme="ring")
    setting = setting_for(terms, cluster, strategy.batch, strategy.seq)
    try:
        setting = replace(setting, pace=pace_of(graph, setting, found.step_s))
        return price_strategy(graph, strategy, setting)
    except TraincastError:
        return None


def device_here(backend: str) -> str | None:
    """Return the catalog's name of what a process computes on; None where it is unknown."""
    from traincast.measure.machine import catalog_name

    if backend == "nccl":
        import torch

        return catalog_name("cuda", torch.cuda.get_device_name())
    from traincast.measure.cpu import this_cpu

    return catalog_name("cpu", this_cpu().name)
