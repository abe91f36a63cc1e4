"""All estimators on the same work: how long each takes it to be, and over which ops they differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from traincast.errors import TraincastError
from traincast.estimate.registry import CPU_ONLY, ESTIMATORS
from traincast.graph import Graph
from traincast.hardware import Device
from traincast.simulate.predict import predict
from traincast.simulate.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """One estimator's view of a step; seconds."""

    estimator: str
    forward_s: float
    backward_s: float
    optimizer_s: float
    step_s: float
    notes: tuple[str, ...] = ()
    problem: str | None = None
    """Why it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One layer by several estimators, forward and backward on the device; seconds."""

    layer: str
    seconds: dict[str, float]
    """By estimator."""

    @property
    def spread(self) -> float:
        """Longest minus shortest: what this layer adds to the estimators' difference."""
        return max(self.seconds.values()) - min(self.seconds.values())


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """What the estimators say."""

    graph: Graph
    device: Device
    batch: int
    seq: int
    precision: str
    opinions: tuple[Opinion, ...]
    disagreements: tuple[Disagreement, ...]
    """Largest spread first."""


def compare(graph: Graph, device: Device, **options: Any) -> Comparison:
    """Return every estimator's view of a training step; options as for `predict`."""
    opinions: list[Opinion] = []
    errors: list[TraincastError] = []
    found: dict[str, Prediction] = {}
    cpu = device.tier in ("cpu", "manycore")
    for name in ("auto", *(n for n in ESTIMATORS if cpu or n not in CPU_ONLY)):
        try:
            prediction = predict(graph, device, estimator=name, **options)
        except TraincastError as error:
            errors.append(error)
            opinions.append(
                Opinion(
                    estimator=name, forward_s=0, backward_s=0, optimizer_s=0, step_s=0,
                    problem=str(error),
                )
            )  # fmt: skip
            continue
        if name == "auto":
            if prediction.estimator in ESTIMATORS:
                continue
            name = prediction.estimator  # noqa: PLW2901
        found[name] = prediction
        phases = prediction.step.phase_s
        opinions.append(
            Opinion(
                estimator=name,
                forward_s=phases["forward"],
                backward_s=phases["backward"],
                optimizer_s=phases["optimizer"],
                step_s=prediction.seconds,
                notes=(*_assumed(prediction), *prediction.step.notes),
            )
        )
    if not found:
        raise errors[0]  # what no estimator takes is wrong with the request
    first = next(iter(found.values()))
    return Comparison(
        graph=graph,
        device=device,
        batch=first.step.plan.batch,
        seq=first.step.plan.seq,
        precision=first.precision,
        opinions=tuple(opinions),
        disagreements=_disagreements(found),
    )


def _assumed(prediction: Prediction) -> tuple[str, ...]:
    """Return what an estimator takes for granted, whatever was asked for."""
    if prediction.estimator != "paleo":
        return ()
    said = [] if prediction.precision == "fp32" else ["computes in fp32"]
    said += [] if prediction.optimizer == "sgd" else ["updates by plain SGD"]
    return (f"{' and '.join(said)}, whatever is asked for",) if said else ()


def _disagreements(found: dict[str, Prediction]) -> tuple[Disagreement, ...]:
    layers: dict[str, dict[str, float]] = {}
    for name, prediction in found.items():
        step = prediction.step
        seconds = step.op_seconds.sum(axis=1) * step.plan.accumulate
        index: dict[str, int] = {}
        at = np.array([index.setdefault(layer, len(index)) for layer in step.program.layers])
        totals = np.bincount(at, seconds, len(index))
        for layer, i in index.items():
            layers.setdefault(layer, dict.fromkeys(found, 0.0))[name] = float(totals[i])
    rows = [Disagreement(layer=layer, seconds=seconds) for layer, seconds in layers.items()]
    return tuple(sorted(rows, key=lambda row: -row.spread))
