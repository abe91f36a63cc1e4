"""What one run of a sweep trains, and which combinations make sense."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from traincast.measure.sweep.workers.harness import SHAPES

FRAMEWORKS = ("pytorch", "tensorflow", "mxnet")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One training run.

    The network is `layers` blocks of a convolution, an activation, a pooling and a dropout, and one
    dense layer to ten classes.
    """

    dataset: str = "mnist"
    """Shape of the images: mnist is 1×28×28, cifar 3×32×32; the pixels are random."""
    kernel: int = 3
    """Side of the convolutions' kernels, pixels."""
    filters: int = 16
    """Output channels of every convolution."""
    layers: int = 2
    """Blocks."""
    pool: str = "max"
    """Pooling over 2×2 pixels after each activation: max, avg or none."""
    activation: str = "relu"
    """relu, tanh or sigmoid."""
    optimizer: str = "sgd"
    """sgd, momentum, adam or rmsprop."""
    dropout: float = 0.0
    """Share of values that each block drops; 0 leaves the layer out."""
    stride: int = 1
    """Stride of the first convolution; the others have 1."""
    padding: str = "same"
    """same: half the kernel on each side; valid: none."""
    batch: int = 64
    """Images in a step, over all workers."""
    samples: int = 1024
    """Images in an epoch, over all workers: a whole number of batches."""
    threads: int = 1
    """Threads that each worker computes with."""
    workers: int = 1
    """Data-parallel processes."""


NAMES = tuple(field.name for field in fields(Settings))
CHOICES: Mapping[str, tuple[str, ...]] = {
    "dataset": tuple(SHAPES),
    "pool": ("none", "max", "avg"),
    "activation": ("relu", "tanh", "sigmoid"),
    "optimizer": ("sgd", "momentum", "adam", "rmsprop"),
    "padding": ("same", "valid"),
}
LIMITS: Mapping[str, tuple[float, float]] = {
    "kernel": (1, 32),
    "filters": (1, 4096),
    "layers": (1, 100),
    "dropout": (0, 0.95),
    "stride": (1, 32),
    "batch": (1, 10**6),
    "samples": (1, 10**8),
    "threads": (1, 1024),
    "workers": (1, 64),
}
"""The least and the greatest value; all are whole numbers but `dropout`."""


def value_problem(name: str, value: Any) -> str | None:
    """Say what is wrong with a value of a setting, and what is right; None where nothing is."""
    if name in CHOICES:
        known = CHOICES[name]
        return None if value in known else f"{value!r} is not one of {', '.join(known)}"
    low, high = LIMITS[name]
    whole = name != "dropout"
    number = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    if number and low <= value <= high:
        return None
    return f"{value!r} is no {'whole ' if whole else ''}number from {low:,} to {high:,}"


def in_whole_batches(settings: Settings) -> Settings:
    """Return settings whose samples are the nearest whole number of batches, so all steps equal."""
    steps = max(1, round(settings.samples / settings.batch))
    return replace(settings, samples=steps * settings.batch)


def problem(settings: Settings, most_threads: int) -> str | None:
    """Say why a combination cannot be trained, or None; `most_threads` counts all workers'."""
    s = settings
    if s.workers * s.threads > most_threads:
        return f"{s.workers} workers × {s.threads} threads are more than most_threads"
    if s.samples < s.batch:
        return "fewer samples than one batch"
    if s.batch % s.workers:
        return f"the batch does not divide by {s.workers} workers"
    if s.padding == "same" and s.kernel % 2 == 0:
        return "an even kernel has no equal padding on both sides"
    side = SHAPES[s.dataset][1]
    for layer in range(s.layers):
        padded = side + (2 * (s.kernel // 2) if s.padding == "same" else 0)
        if s.kernel > padded:
            return f"layer {layer + 1}: the kernel is larger than the map"
        side = (padded - s.kernel) // (s.stride if layer == 0 else 1) + 1
        if s.pool != "none":
            side //= 2
        if side == 0:
            return f"layer {layer + 1}: the map is too small to be pooled"
    return None
