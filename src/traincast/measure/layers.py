"""Times of a step by layer, through marks in the stream of work.

A mark is set where a module's forward is entered and left, and where each node of the autograd
graph begins to run. The time from one mark to the next belongs to the innermost module that was
running; a node belongs to the module in whose forward it was made, which its sequence number tells.
What a module does itself, such as the addition of a residual, counts for it and not for its parts.
"""

from __future__ import annotations

import contextlib
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from traincast.errors import InvalidValueError
from traincast.measure.breakdown import Breakdown, Part, undisturbed
from traincast.measure.clock import Clock
from traincast.measure.trainer import Trainer

PHASES = ("forward", "backward", "optimizer")
ITSELF = "(the model itself, loss)"
_WATCHER = "(watcher)"
"""Owns the time that preparing to watch the backward pass takes, which is no part of the step."""
_ACCUMULATE = 2**64 - 1
"""Sequence number of the nodes that add to a parameter's gradient: they run as soon as they can."""


class _Trail:
    """The marks of one step: when, whose time begins, in which phase."""

    def __init__(self, mark: Callable[[], Any]) -> None:
        self._mark = mark
        self._stack = [""]
        self._made: list[tuple[int, str]] = []
        self.phase = "forward"
        self.points: list[tuple[Any, str, str]] = []

    def point(self, owner: str | None = None) -> None:
        """Let an owner's time begin now; by default that of the innermost module."""
        owner = self._stack[-1] if owner is None else owner
        self.points.append((self._mark(), owner, self.phase))

    def enter(self, path: str, *_: Any) -> None:
        self._stack.append(path)
        self._turn()

    def leave(self, *_: Any) -> None:
        self._stack.pop()
        self._turn()

    def _turn(self) -> None:
        self.point()
        self._made.append((torch.autograd._get_sequence_nr(), self._stack[-1]))

    def attend(self, loss: torch.Tensor) -> None:
        """Have every node that backward will run set a mark when it begins."""
        numbers, owners = [n for n, _ in self._made], [o for _, o in self._made]
        todo: list[tuple[Any, str]] = [(loss.grad_fn, "")]
        seen = set()
        while todo:
            node, user = todo.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            number = node._sequence_nr()
            before = bisect_right(numbers, number) - 1
            owner = user if number == _ACCUMULATE else owners[before] if before >= 0 else ""
            node.register_prehook(partial(self._begin, owner))
            todo += [(following, owner) for following, _ in node.next_functions]

    def _begin(self, owner: str, _: Any) -> None:
        self.point(owner)


@contextlib.contextmanager
def _watched(module: torch.nn.Module, trail: _Trail) -> Iterator[None]:
    hooks = []
    for path, inner in module.named_modules():
        if path:
            hooks.append(inner.register_forward_pre_hook(partial(trail.enter, path)))
            hooks.append(inner.register_forward_hook(trail.leave))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _one(trainer: Trainer, clock: Clock) -> dict[tuple[str, str], tuple[float, int]]:
    """Train one step; returns seconds and marks by owner and phase."""
    trail = _Trail(clock.mark)
    trail.point()
    trainer.optimizer.zero_grad(set_to_none=True)
    with _watched(trainer.module, trail):
        loss = trainer.forward()
    trail.point(_WATCHER)
    trail.attend(loss)
    trail.phase = "backward"
    trail.point()
    loss.backward()
    trail.phase = "optimizer"
    trail.point()
    trainer.optimizer.step()
    trail.point()
    clock.wait()
    found: dict[tuple[str, str], tuple[float, int]] = {}
    for (start, owner, phase), (end, _, _) in zip(trail.points, trail.points[1:], strict=False):
        seconds, marks = found.get((owner, phase), (0.0, 0))
        found[owner, phase] = (seconds + clock.between(start, end), marks + 1)
    del found[_WATCHER, "forward"]
    return found


def by_layer(
    trainer: Trainer, clock: Clock, *, step_s: float, phases_s: tuple[float, float, float],
    steps: int,
) -> Breakdown:  # fmt: skip
    """Return the times of a step by module; `step_s` and `phases_s` are the undisturbed ones."""
    if trainer.workload.compiled:
        raise InvalidValueError("a compiled model has no layers to time; use --depth op or step")
    runs = [_one(trainer, clock) for _ in range(steps + 1)][1:]
    keys = list(runs[0])
    seconds = {k: statistics.median(r.get(k, (0.0, 0))[0] for r in runs) for k in keys}
    marks = {k: runs[0][k][1] for k in keys}
    whole = sum(phases_s)
    lean: dict[tuple[str, str], float] = {}
    for phase, phase_s in zip(PHASES, phases_s, strict=True):
        mine = [k for k in keys if k[1] == phase]
        target = step_s * phase_s / whole
        times = undisturbed([seconds[k] for k in mine], [marks[k] for k in mine], target)
        lean |= dict(zip(mine, times, strict=True))
    parts = [
        _part(owner, lean, marks) for owner in dict.fromkeys(o for o, p in keys if p != PHASES[2])
    ]
    update = sum(s for (_, phase), s in lean.items() if phase == PHASES[2])
    parts.append(Part(name=f"({PHASES[2]})", calls=1, seconds=update))
    parts.sort(key=lambda part: -part.seconds)
    excess = sum(seconds.values()) - step_s
    return Breakdown(depth="layer", parts=tuple(parts), overhead_s=excess, step_s=step_s)


def _part(
    owner: str, lean: dict[tuple[str, str], float], marks: dict[tuple[str, str], int]
) -> Part:
    forward, backward = (lean.get((owner, phase), 0.0) for phase in PHASES[:2])
    calls = sum(marks.get((owner, phase), 0) for phase in PHASES[:2])
    return Part(
        name=owner or ITSELF, calls=calls, seconds=forward + backward, forward_s=forward,
        backward_s=backward,
    )  # fmt: skip
