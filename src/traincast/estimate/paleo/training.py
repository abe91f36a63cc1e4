"""From a step to a whole training run: iterations, hours, cost."""

from __future__ import annotations

import math
from typing import NamedTuple

from traincast.errors import InvalidValueError
from traincast.estimate.paleo.model import PaleoStep


class TrainingTotal(NamedTuple):
    """A training run."""

    iterations: float
    hours: float
    cost_usd: float


def training_total(
    step: PaleoStep,
    *,
    dataset: float = 1.2e6,
    epochs: float = 20,
    usd_per_hour: float = 0.9,
    demo: bool = False,
) -> TrainingTotal:
    """Return the iterations, hours and cost of `epochs` passes over `dataset` samples.

    `usd_per_hour` is the price of one worker. `demo` counts as the authors' web page does: by the
    batch as entered, so that weak scaling does not shorten the run, with hours rounded up and
    dollars to the nearest.
    """
    for name, value in (("dataset", dataset), ("epochs", epochs)):
        if not value > 0:
            raise InvalidValueError(f"{name} = {value!r} has to be above 0")
    entered = step.worker_batch if demo and step.scaling == "weak" else step.global_batch
    iterations = dataset / entered * epochs
    hours = iterations * step.total_s / 3600
    if demo:
        hours = math.ceil(hours)
    cost = hours * usd_per_hour * step.workers
    return TrainingTotal(iterations, hours, math.floor(cost + 0.5) if demo else cost)
