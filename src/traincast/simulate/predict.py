"""The main job: a model, a device and a way of training to a Prediction."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

from traincast.errors import InvalidValueError
from traincast.estimate.intervals import interval_of
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_for
from traincast.estimate.roofline import Estimator
from traincast.graph import Graph
from traincast.graph.evaluation import evaluated
from traincast.graph.precision import Precision, precision_named
from traincast.hardware import Device, load_device
from traincast.ingest import resolve
from traincast.simulate.fit import default_precision, largest_batch, step_memory
from traincast.simulate.prediction import Prediction, Totals
from traincast.simulate.step import Plan, Step, program_for, simulate_step

_POSITIONS = re.compile(r"\bwpe\b|\bposition_embeddings?\b|\bembed_positions\b")
_LAYOUTS = ("nchw", "nhwc")
_WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


def predict(
    model: str | Graph,
    device: str | Device = "h200",
    *,
    batch: int | str | None = None,
    seq: int | None = None,
    image: int | None = None,
    precision: str | None = None,
    optimizer: str = "adamw",
    accumulate: int = 1,
    recompute: bool = False,
    layout: str = "nchw",
    compiled: bool = False,
    inference: bool = False,
    estimator: str = "auto",
    profile: Path | None = None,
    dataset_size: int | None = None,
    epochs: float | None = None,
    tokens: float | None = None,
    price_per_hour: float | None = None,
    root: Path | None = None,
) -> Prediction:
    """Predict one training step of a model on a device.

    `model` is a model reference or a Graph; `device` a catalog name, a TOML file or a Device.
    `batch` is samples in one forward pass, or "max" for the largest that fits; `seq` positions in
    a sequence; `image` the side of square images in pixels. `precision` is one of fp32, tf32,
    bf16, fp16, amp_bf16, amp_fp16, fp8; by default mixed precision where the device has units for
    it. `accumulate` passes make one update. `recompute` keeps only what enters each block.
    `inference` predicts a forward pass alone. `estimator` is `auto` (a calibrated profile of the
    device, else of a similar one, else its datasheet) or a name; `profile` a profile's file.

    `dataset_size` (samples) with `epochs`, or `tokens`, add the totals of a run, and
    `price_per_hour` of one device its cost.
    """
    graph = model if isinstance(model, Graph) else _traced(model, image, batch, seq, root)
    unit = load_device(device)
    how = precision_named(precision) if precision else default_precision(unit)
    if inference:
        graph = evaluated(graph, how.autocast)
    engine = estimator_for(estimator, unit, profile)
    if layout.lower() not in _LAYOUTS:
        raise InvalidValueError(f"layout {layout!r} is unknown; use nchw or nhwc")
    plan = Plan(
        batch=graph.batch,
        seq=_sequence(graph, seq),
        optimizer=None if inference else optimizer_named(optimizer),
        accumulate=_whole("accumulate", accumulate),
        recompute=recompute and not inference,
        layout=layout.lower(),
        eager=not compiled,
    )
    if batch == "max":
        _check_any_batch(graph)
        plan = replace(plan, batch=largest_batch(graph, unit, how, plan))
    elif batch is not None:
        plan = replace(plan, batch=_batch(graph, batch))
    step = simulate_step(program_for(graph, how, unit, engine, plan), unit, engine, plan)
    memory = step_memory(step, unit)
    found = Prediction(
        model=graph.name,
        graph=graph,
        device=unit,
        precision=how.name,
        optimizer=optimizer_named(optimizer).name,
        step=step,
        memory=memory,
        interval_s=_interval(engine, unit, step),
        engine=engine,
        totals=None,
        notes=(*_notes(graph, plan, unit, how, engine), *step.notes),
    )
    return replace(found, totals=_totals(found, dataset_size, epochs, tokens, price_per_hour))


def _traced(
    model: str, image: int | None, batch: int | str | None, seq: int | None, root: Path | None
) -> Graph:
    wanted = _whole("batch", batch) if batch is not None and _is_whole(batch) else None
    return resolve(model, image=image, batch=wanted, seq=seq, root=root)


def _is_whole(value: int | str) -> bool:
    return _WHOLE.fullmatch(str(value)) is not None


def _whole(name: str, value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidValueError(f"{name} {value!r} is not a whole number of at least 1")
    return value


def _batch(graph: Graph, value: int | str) -> int:
    if isinstance(value, str) and not _WHOLE.fullmatch(value):
        raise InvalidValueError(f"batch {value!r} is neither a whole number of at least 1 nor max")
    batch = _whole("batch", value)
    if "batch" in graph.fixed and batch != graph.batch:
        raise InvalidValueError(
            f"{graph.name} holds for batch {graph.batch} only; export it with a symbolic batch "
            "axis, or trace it at that batch"
        )
    return batch


def _check_any_batch(graph: Graph) -> None:
    """Refuse to look for a batch where the one that was traced is no limit of the network's own."""
    if any(note.startswith("the batch is held") for note in graph.notes):
        raise InvalidValueError(
            f"{graph.name} runs other ops at other batches and is traced at one alone, so that the "
            "largest that fits is not known; give a batch, and the prediction says whether it fits"
        )


def _sequence(graph: Graph, seq: int | None) -> int:
    if not graph.has_sequence and "seq" not in graph.fixed:
        if seq is not None:
            raise InvalidValueError(f"{graph.name} has no sequence axis; leave out seq")
        return 0
    length = _whole("seq", seq) if seq is not None else graph.seq
    if "seq" in graph.fixed and length != graph.seq:
        raise InvalidValueError(f"{graph.name} holds for seq {graph.seq} only")
    longest = _learned_positions(graph)
    if longest and length > longest:
        raise InvalidValueError(
            f"{graph.name} has learned {longest} positions; give a seq of at most {longest}"
        )
    return length


def _learned_positions(graph: Graph) -> int | None:
    """Return the rows of a table of learned positions, told by its name; None without one."""
    tables = [
        graph.tensors[op.inputs[0]]
        for op in graph.ops
        if op.kind == "embedding" and _POSITIONS.search(op.inputs[0])
    ]
    return min((t.shape[0].at(1, 1) for t in tables if t.role == "parameter"), default=None)


COMPILED = 1.07
"""How much wider the interval of a compiled step is: which kernels a compiler makes is derived by
rule. Of eight compiled steps on an H200 all lie inside then."""


def _interval(engine: Estimator, device: Device, step: Step) -> tuple[float, float]:
    low, high = interval_of(engine, device.name, step.seconds, step.host_bound, step.spread)
    wider = 1.0 if step.plan.eager else COMPILED
    return low / wider, high * wider


def _notes(
    graph: Graph, plan: Plan, device: Device, precision: Precision, engine: Estimator
) -> tuple[str, ...]:
    notes = list(graph.notes)
    if precision.peak not in (*device.matrix_flops, "fp32"):
        notes.append(
            f"{device.title} has no matrix units for {precision.peak}: products run at "
            f"{device.peak(precision.peak) / 1e12:.3g} TFLOP/s"
        )
    if not plan.training:
        notes = [n for n in notes if not n.startswith("loss")]
    if plan.training and any("checkpoint" in o.attrs for o in graph.ops):
        notes.append("calls of torch.utils.checkpoint run again in the backward pass")
    if any(o.kind == "rnn" for o in graph.ops) and not getattr(engine, "lowers", False):
        notes.append("recurrent layers are priced as a chain of small products")
    return tuple(notes)


def _totals(
    found: Prediction,
    dataset_size: int | None,
    epochs: float | None,
    tokens: float | None,
    price_per_hour: float | None,
) -> Totals | None:
    for name, value in (
        ("dataset_size", dataset_size),
        ("epochs", epochs),
        ("tokens", tokens),
        ("price_per_hour", price_per_hour),
    ):
        if value is not None and not value > 0:
            raise InvalidValueError(f"{name} {value!r} must be above 0")
        if value is not None and not math.isfinite(value):
            raise InvalidValueError(f"{name} {value!r} must be finite")
    if tokens is not None:
        if dataset_size is not None or epochs is not None:
            raise InvalidValueError("give either tokens, or dataset_size and epochs, not both")
        if found.tokens_per_s is None:
            raise InvalidValueError(
                f"{found.model} has no tokens; give dataset_size and epochs instead"
            )
        steps = tokens / (found.samples * found.step.plan.seq)
    elif dataset_size is not None:
        steps = -(-dataset_size // found.samples) * (epochs or 1)
    elif epochs is not None:
        raise InvalidValueError("epochs needs dataset_size, the number of samples in an epoch")
    elif price_per_hour is not None:
        raise InvalidValueError("price_per_hour needs dataset_size and epochs, or tokens")
    else:
        return None
    seconds = steps * found.seconds
    cost = seconds / 3600 * price_per_hour if price_per_hour is not None else None
    return Totals(steps=steps, seconds=seconds, cost=cost)
