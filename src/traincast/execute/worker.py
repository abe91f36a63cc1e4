"""One process of a run: builds the model, keeps its part, trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from traincast.errors import InvalidValueError
from traincast.execute.data import Drawn, Images, batches, drawn_below
from traincast.execute.engine import Arguments, Engine
from traincast.execute.job import Check, Job, Outcome, Probe
from traincast.execute.wire import Wire
from traincast.parallel.strategy import Strategy

Tell = Callable[[int, float, float], None]
"""Told on device 0 after each step: its number, loss and seconds."""


def build(job: Job, device: str = "cpu") -> tuple[torch.nn.Module, Arguments]:
    """Return the model with its first weights, and arguments of its forward for one sample."""
    from traincast.measure.workload import Workload, source_of

    strategy = job.strategy
    workload = Workload(
        model=strategy.model, batch=strategy.batch, seq=strategy.seq or None,
        image=strategy.image, root=job.root,
    )  # fmt: skip
    source = source_of(workload)
    torch.manual_seed(job.seed)
    with torch.device(device):
        module = source.build().train()
    return module, source.inputs(1, strategy.seq or source.seq)


def lay_out(job: Job) -> Engine:
    """Lay the plan out without processes or data; raises where it does not fit the model."""
    wire = Wire(0, job.strategy.devices, connected=False)
    for device in ("meta", "cpu"):
        try:
            module, arguments = build(job, device)
            return Engine(module, job.strategy, arguments, wire, optimizer=job.optimizer, lr=job.lr)
        except (NotImplementedError, RuntimeError):
            if device == "cpu":  # a model that computes with its weights needs their values
                raise
    raise AssertionError


def train(job: Job, rank: int, world: int, tell: Tell) -> Outcome | None:
    """Train as one of the processes; the group is there. Device 0 returns the outcome."""
    torch.set_num_threads(job.threads)
    torch.set_default_dtype(torch.float64 if job.precision == "fp64" else torch.float32)
    device = torch.device("cuda", rank) if job.backend == "nccl" else torch.device("cpu")
    found = _probe(job, device, world) if job.calibrate else None
    module, arguments = build(job)
    limit = drawn_below(module)
    wire = Wire(rank, world)
    engine = Engine(
        module.to(device), job.strategy, arguments, wire, optimizer=job.optimizer, lr=job.lr,
        seed=job.seed,
    )  # fmt: skip
    engine.session.device = device
    dataset = _dataset(job, engine, limit)
    losses, seconds, loading, before = [], [], [], (0.0, 0.0, 0.0)
    feed = batches(dataset, job.strategy.batch, engine.samples, job.steps)
    torch.manual_seed(job.seed)  # what a model draws itself is the same in every process
    for step in range(job.steps):
        began = time.perf_counter()
        data = next(feed)
        loaded = time.perf_counter()
        dist.barrier()
        if step == job.warmup:
            before = wire.counts()
        start = time.perf_counter()
        loss = engine.step(data)
        if device.type == "cuda":
            torch.cuda.synchronize()
        ended = time.perf_counter()
        losses.append(loss or 0.0)
        loading.append(loaded - began)
        seconds.append(ended - start)
        if rank == 0:
            tell(step, losses[-1], seconds[-1])
    timed = job.steps - job.warmup
    slowest = torch.tensor([seconds[job.warmup :]], device=device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    counted = [now - then for now, then in zip(wire.counts(), before, strict=True)]
    traffic = torch.tensor(counted, dtype=torch.float64, device=device)
    dist.all_reduce(traffic)
    own = sum(
        p.numel() * p.element_size()
        for n, p in module.named_parameters()
        if engine.session.held[n][rank] is not None
    )
    held = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(held, torch.tensor([own], device=device))
    state = engine.state() if job.check else {}
    if rank:
        return None
    moved, summed, waited = (traffic / timed).tolist()
    return Outcome(
        losses=tuple(losses), steps_s=tuple(slowest[0].tolist()), load_s=tuple(loading),
        moved_bytes=moved, summed_bytes=summed, held_bytes=tuple(int(h) for h in held),
        waited_s=waited / world, probe=found, notes=_notes(engine),
        check=_check(job, dataset, losses, state) if job.check else None,
    )  # fmt: skip


def _dataset(job: Job, engine: Engine, limit: int) -> Any:
    inputs, loss = engine.inputs, engine.loss
    if job.data is None:
        return Drawn(inputs, loss.shape, loss.classes, limit, job.strategy.batch, job.seed)
    if len(inputs) != 1 or inputs[0].dim() != 4 or inputs[0].shape[1] not in (1, 3) or loss.shape:
        raise InvalidValueError(
            f"{job.strategy.model} does not take images and tell classes apart; leave out --data"
        )
    return Images(job.data, tuple(inputs[0].shape[1:]), loss.classes)


def _probe(job: Job, device: torch.device, world: int) -> Probe:
    """Measure what a process can do on its share of the batch."""
    from traincast.execute.here import probe

    module, arguments = build(job)
    limit, share = drawn_below(module), max(1, job.strategy.batch // world)
    blank = Wire(0, 1, connected=False)
    plan = Strategy(job.strategy.model, share, 1, (), job.strategy.seq, job.strategy.image)
    engine = Engine(module, plan, arguments, blank, optimizer=job.optimizer, lr=job.lr)
    drawn = Drawn(engine.inputs, engine.loss.shape, engine.loss.classes, limit, share, job.seed)
    data = next(iter(batches(drawn, share, (0, share), 1)))
    return probe(job, module.to(device), arguments, [t.to(device) for t in data], world)


def _notes(engine: Engine) -> tuple[str, ...]:
    return tuple(
        f"{function} has no rule: device 0 computes it whole ({layer})"
        for function, layer in sorted(engine.session.whole_ops.items())
    )


def _check(job: Job, dataset: Any, losses: list[float], state: dict[str, torch.Tensor]) -> Check:
    """Train the same in this process alone and compare."""
    from traincast.execute.single import Single

    module, arguments = build(job)
    named = dict(module.named_parameters()) | dict(module.named_buffers())
    first = {name: value.detach().clone() for name, value in named.items()}
    alone = Single(module, arguments, optimizer=job.optimizer, lr=job.lr, seed=job.seed)
    feed = batches(dataset, job.strategy.batch, (0, job.strategy.batch), job.steps)
    torch.manual_seed(job.seed)
    off = max(abs(alone.step(data) - loss) for data, loss in zip(feed, losses, strict=True))
    worst = Check(loss=off, weight=0.0, name="", travel=0.0)
    for name, value in named.items():
        largest = _apart(value, state[name])
        if largest >= worst.weight:
            travel = _apart(value, first[name])
            worst = Check(loss=off, weight=largest, name=name, travel=travel)
    return worst


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    gap = (a.detach().double().cpu() - b.detach().double().cpu()).abs()
    return float(gap.max()) if gap.numel() else 0.0
