"""What a run of a plan is asked to do, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from traincast.parallel.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run under a plan."""

    strategy: Strategy
    steps: int = 10
    """Training steps, at least 1."""
    warmup: int = 2
    """Steps at the beginning that are not timed, fewer than `steps`."""
    optimizer: str = "sgd"
    lr: float = 0.01
    seed: int = 0
    backend: str = "gloo"
    """gloo (CPUs) or nccl (one GPU a process)."""
    data: Path | None = None
    """Folder of images; None for drawn samples."""
    precision: str = "fp32"
    """fp32 or fp64, of weights and activations."""
    check: bool = False
    """Whether to train the same in one process too, and compare."""
    calibrate: bool = False
    """Whether to measure compute and links first, to predict the plan on these processes."""
    threads: int = 1
    """Threads of each process."""
    root: Path | None = None
    """What relative files in the model reference start from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How far a plan's training is from that of one process."""

    loss: float
    """Largest difference of a step's loss."""
    weight: float
    """Largest difference of a parameter or buffer after the last step."""
    name: str
    """Where that is."""
    travel: float
    """How far training has moved that tensor at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What the processes can do, measured before a run."""

    step_s: float
    """Seconds of one process's step on its share of the batch, all computing side by side."""
    latency_s: float
    """Seconds of one message of a sum."""
    bandwidth: float
    """Bytes/s that a process sends in a sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A finished run; seconds and bytes."""

    losses: tuple[float, ...]
    steps_s: tuple[float, ...]
    """Time of each step that was timed, without loading its batch."""
    load_s: tuple[float, ...]
    """Time that device 0 took to load each batch."""
    moved_bytes: float
    """Activations and their gradients sent in a step, all processes together."""
    summed_bytes: float
    """Sent in a step to sum gradients and statistics, as a ring all-reduce sends."""
    held_bytes: tuple[int, ...]
    """Parameters that each process holds."""
    waited_s: float = 0.0
    """Time in a step that a process waits for what others send, mean over processes."""
    check: Check | None = None
    probe: Probe | None = None
    notes: tuple[str, ...] = field(default=())
