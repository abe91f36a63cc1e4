"""Processes that train cases under plans, started once for many tests, and the one to equal."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import nn

from traincast.parallel.strategy import LayerSplit, Strategy

STEPS = 10
CLASSES = 6


def data_of(inputs: Any, classes: tuple[int, ...], batch: int, step: int) -> list[torch.Tensor]:
    """Inputs and targets of one step, the same in every process."""
    generator = torch.Generator().manual_seed(1000 + step)
    data = [
        torch.randn((batch, *t.shape[1:]), generator=generator)
        if t.is_floating_point()
        else torch.randint(0, 7, (batch, *t.shape[1:]), generator=generator)
        for t in inputs
    ]
    target = (batch, *classes[1:])
    return [*data, torch.randint(0, classes[0], target, generator=generator)]


def _module(build: Any) -> tuple[nn.Module, tuple[torch.Tensor, ...], tuple[int, ...]]:
    torch.manual_seed(0)
    module, inputs, classes = build()
    return module.train(), inputs, classes


@contextlib.contextmanager
def precision(dtype: torch.dtype) -> Iterator[None]:
    """Everything that is built inside has elements of this type; it runs in one thread."""
    before, threads = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
        torch.set_num_threads(threads)


def single(
    build: Any, batch: int, optimizer: str, lr: float
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights after the steps in one process."""
    from traincast.execute.single import Single

    module, inputs, classes = _module(build)
    run = Single(module, (inputs, {}), optimizer=optimizer, lr=lr)
    losses = [run.step(data_of(inputs, classes, batch, s)) for s in range(STEPS)]
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return losses, {k: v.detach() for k, v in named.items()}


def split(build: Any, strategy: Strategy, optimizer: str, lr: float, rank: int, world: int) -> Any:
    """The same in one of several processes: losses and weights on rank 0, what it holds on all."""
    from traincast.execute.engine import Engine
    from traincast.execute.wire import Wire

    module, inputs, classes = _module(build)
    wire = Wire(rank, world)
    engine = Engine(module, strategy, (inputs, {}), wire, optimizer=optimizer, lr=lr)
    low, high = engine.samples or (0, 0)
    losses = []
    for step in range(STEPS):
        whole = data_of(inputs, classes, strategy.batch, step)
        losses.append(engine.step([t[low:high] for t in whole]))
    held = {n: tuple(p.shape) for n, p in module.named_parameters()}
    return losses, engine.state(), held, (wire.sent, wire.summed)


def _work(rank: int, world: int, port: int, pipe: Any) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    while True:
        try:
            order = pipe.recv()
        except EOFError:
            dist.destroy_process_group()
            return
        try:
            dtype, *case = order
            with precision(dtype):
                pipe.send((True, split(*case, rank, world)))
        except Exception:
            pipe.send((False, traceback.format_exc()))


class Crew:
    """A process group that stays for many cases."""

    def __init__(self, world: int) -> None:
        import torch.distributed as dist

        self.world = world
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        context = mp.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_work, args=(rank, world, self._store.port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def train(
        self, build: Any, strategy: Strategy, optimizer: str, lr: float, dtype: torch.dtype
    ) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((dtype, build, strategy, optimizer, lr))
        answers, problems = [], []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(5 if problems else 120):
                self.end()
                raise AssertionError("\n".join([f"rank {rank} hangs", *problems]))
            good, answer = pipe.recv()
            (answers if good else problems).append(answer)
        assert not problems, problems[0]
        return answers

    def end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(2)
            if process.is_alive():
                process.kill()
                process.join()


@contextlib.contextmanager
def crew_of(world: int) -> Iterator[Crew]:
    crew = Crew(world)
    try:
        yield crew
    finally:
        crew.end()


def strategy_of(world: int, batch: int, seq: int = 0, **layers: dict[str, int]) -> Strategy:
    splits = tuple(LayerSplit(name.replace("__", "."), "", d) for name, d in layers.items())
    return Strategy(model="case", batch=batch, devices=world, layers=splits, seq=seq)


def assert_same(
    crew: Crew,
    build: Any,
    strategy: Strategy,
    optimizer: str = "sgd",
    dtype: torch.dtype = torch.float64,
    lr: float = 0.02,
) -> list[Any]:
    """Train both ways and compare losses and all weights.

    In float64 a wrong term cannot hide behind rounding; in float32 the bounds are those of it.
    """
    with precision(dtype):
        losses, weights = single(build, strategy.batch, optimizer, lr)
    answers = crew.train(build, strategy, optimizer, lr, dtype)
    rtol, atol = (1e-9, 1e-11) if dtype == torch.float64 else (1e-4, 2e-5)
    torch.testing.assert_close(
        torch.tensor(answers[0][0]), torch.tensor(losses), rtol=rtol, atol=atol
    )
    assert set(answers[0][1]) == set(weights)
    for name, value in weights.items():
        torch.testing.assert_close(
            answers[0][1][name], value, rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
    assert losses[0] != losses[-1]
    return answers
