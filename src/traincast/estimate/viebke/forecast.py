"""A training run on many threads: parameters found, a model applied, seconds by thread count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from traincast.errors import InvalidValueError, PredictionError, UnknownNameError
from traincast.estimate.viebke.counts import work_of
from traincast.estimate.viebke.machine import Machine, machine_of
from traincast.estimate.viebke.models import (
    Breakdown,
    Contention,
    Factors,
    Run,
    Times,
    Work,
    model_a,
    model_b,
)
from traincast.estimate.viebke.parameters import Parameters
from traincast.estimate.viebke.tables import PUBLISHED
from traincast.hardware import Device, load_device

if TYPE_CHECKING:
    from traincast.graph import Graph

MODELS = ("a", "b")
THREADS = (1, 15, 30, 60, 120, 240, 480)
_NINETY = 2.06
"""Half-width of a 90 % interval over the mean absolute error, if errors are normal."""


class Row(NamedTuple):
    """One thread count."""

    threads: int
    cpi: float
    seconds: Breakdown
    speedup: float
    """Over one thread, by the same model."""
    contention: str
    """Where its contention comes from: table, interpolated or extrapolated."""
    beyond: bool
    """Whether the machine runs fewer threads at once: as if it had more of the same cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Seconds of a training run by thread count, and what they rest on."""

    network: str
    model: str
    """a or b."""
    machine: Machine
    run: Run
    rows: tuple[Row, ...]
    basis: str
    """published tables, operation counts of the graph, or a calibration."""
    deviation: float | None
    """Mean deviation from measurements to expect, a fraction; None where none was measured."""
    measured_to: int
    """Threads up to which it holds: nothing was measured beyond."""
    notes: tuple[str, ...] = ()

    def interval(self, row: Row) -> tuple[float, float] | None:
        """Return between which seconds 90 % of real runs are to be expected, where known."""
        if self.deviation is None or row.threads > self.measured_to:
            return None
        share = min(_NINETY * self.deviation, 1.0)
        return row.seconds.total * (1 - share), row.seconds.total * (1 + share)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, SI units in the key names."""
        return {
            "network": self.network,
            "model": f"viebke-{self.model}",
            "machine": {
                "name": self.machine.name,
                "clock_hz": self.machine.clock_hz,
                "cores": self.machine.cores,
                "cpi": list(self.machine.cpi),
            },
            "images": self.run.images,
            "validation_images": self.run.validated,
            "test_images": self.run.test_images,
            "epochs": self.run.epochs,
            "basis": self.basis,
            "mean_deviation": self.deviation,
            "measured_to_threads": self.measured_to,
            "notes": list(self.notes),
            "rows": [self._row_dict(row) for row in self.rows],
        }

    def _row_dict(self, row: Row) -> dict[str, Any]:
        between = self.interval(row)
        return {
            "threads": row.threads,
            "cpi": row.cpi,
            "total_s": row.seconds.total,
            "interval_s": list(between) if between else None,
            "sequential_s": row.seconds.sequential,
            "training_s": row.seconds.training,
            "validation_s": row.seconds.validation,
            "test_s": row.seconds.test,
            "memory_s": row.seconds.memory,
            "speedup": row.speedup,
            "contention": row.contention,
            "beyond_hardware": row.beyond,
        }

    def __repr__(self) -> str:
        said = ", ".join(f"{r.threads}: {r.seconds.total:.4g} s" for r in self.rows)
        return f"Forecast({self.network!r}, model {self.model}, {self.machine.name}, {said})"


class _Ready(NamedTuple):
    """Everything a model needs."""

    machine: Machine
    contention: Contention
    basis: str
    work: Work | None = None
    factors: Factors | None = None
    times: Times | None = None
    deviation: float | None = None
    measured_to: int = 0
    """Threads up to which the deviation holds; 0 for all that the machine has."""
    notes: tuple[str, ...] = ()

    def seconds(self, run: Run, threads: int) -> Breakdown:
        if self.times is not None:
            return model_b(self.times, self.machine, self.contention, run, threads)
        assert self.work is not None
        assert self.factors is not None
        return model_a(self.work, self.factors, self.machine, self.contention, run, threads)


def forecast(
    network: str,
    *,
    model: str = "a",
    threads: Sequence[int] = THREADS,
    run: Run | None = None,
    device: str | Device | None = None,
    machine: Machine | None = None,
    parameters: Parameters | None = None,
    graph: Graph | None = None,
    operation_factor: float | None = None,
    contention: float | None = None,
) -> Forecast:
    """Predict a whole training run of a network on a many-core CPU.

    `model` is a (operation counts) or b (measured times). The parameters are the published ones
    for the three MNIST networks on the Xeon Phi 7120P, which is the default `device`; those of a
    calibration where `parameters` are given; and otherwise, for model a, operation counts of the
    network's graph. `machine` overrides what the catalog says of the device.

    `operation_factor` sets model a's instructions per operation, one for all, and `contention`
    the seconds per image and thread. `run` is by default the published one.
    """
    if model not in MODELS:
        raise UnknownNameError("many-core model", model, MODELS, "(a: counts, b: measured times)")
    if parameters is not None and device is not None:
        raise InvalidValueError("parameters were measured on one machine; leave out the device")
    if not threads:
        raise InvalidValueError("no thread count is given; name at least one, such as 60")
    name = _name(network)
    if parameters is not None:
        ready = _calibrated(name, model, parameters, graph)
    else:
        where = load_device(device if device is not None else PUBLISHED.machine.name)
        on = machine or machine_of(where)
        if where.name == PUBLISHED.machine.name and name in PUBLISHED.networks:
            ready = _published(name, model, on)
        else:
            ready = _derived(name, model, where, on, graph)
    ready = _given(ready, model, machine, operation_factor, contention)
    run = run or default_run(name)
    one = ready.seconds(run, 1).total
    rows = tuple(_row(ready, run, p, one) for p in threads)
    notes = list(ready.notes)
    if any(row.beyond for row in rows):
        notes.append(
            f"beyond {ready.machine.threads} threads the machine is imagined with more cores of "
            "the same kind"
        )
    return Forecast(
        network=name,
        model=model,
        machine=ready.machine,
        run=run,
        rows=rows,
        basis=ready.basis,
        deviation=ready.deviation,
        measured_to=ready.measured_to or ready.machine.threads,
        notes=tuple(notes),
    )


def default_run(network: str) -> Run:
    """Return the published run: 60,000 and 10,000 images, 70 epochs, 15 for the large network."""
    known = PUBLISHED.networks.get(_name(network))
    return replace(PUBLISHED.run, epochs=known.epochs if known else 70)


def _name(network: str) -> str:
    from traincast.ingest.references import zoo_name

    return zoo_name(network) or network


def _row(ready: _Ready, run: Run, threads: int, one: float) -> Row:
    seconds = ready.seconds(run, threads)
    return Row(
        threads=threads,
        cpi=ready.machine.cpi_at(threads),
        seconds=seconds,
        speedup=one / seconds.total,
        contention=ready.contention.origin(threads),
        beyond=threads > ready.machine.threads,
    )


def _published(name: str, model: str, machine: Machine) -> _Ready:
    known = PUBLISHED.networks[name]
    same = machine == PUBLISHED.machine
    ready = _Ready(
        machine,
        known.contention,
        f"published tables ({PUBLISHED.provenance}): {PUBLISHED.citation}",
        deviation=known.deviation[model] if same else None,
        notes=() if same else ("the contention was measured on the machine as published",),
    )
    if model == "b":
        return ready._replace(times=known.times)
    return ready._replace(work=known.work, factors=PUBLISHED.factors)


def _derived(
    name: str, model: str, device: Device, machine: Machine, graph: Graph | None
) -> _Ready:
    """Count operations in the graph; factors and contention as derived from the tables."""
    if model == "b":
        known = ", ".join(PUBLISHED.networks)
        raise PredictionError(
            f"model b needs measured times of {name} on {device.name}; published are {known} on "
            f"{PUBLISHED.machine.name}. Measure it with `traincast calibrate --many-core {name}` "
            "and give --parameters FILE.json, or use model a"
        )
    work, notes = work_of(graph or _graph(name))
    derived, published = PUBLISHED.derived, load_device(PUBLISHED.machine.name)
    ratio = 1.0 if device.tier == "manycore" else derived.cpu_ratio
    # Contention on another machine is not known: taken in inverse proportion to its bandwidth.
    slower = published.memory_bandwidth / device.memory_bandwidth
    same = device.name == published.name
    if not same:
        notes.append(
            "no run on this machine was measured: cycles per operation "
            + ("as on the Xeon Phi" if ratio == 1.0 else "from one run on a Xeon E5")
            + ", contention as on the Xeon Phi by memory bandwidth; calibrate for better"
        )
    return _Ready(
        machine,
        Contention(((1, derived.contention * slower * work.written),)),
        "operation counts of the graph, with factors derived from the published tables",
        work=work,
        factors=Factors(
            sequential=PUBLISHED.factors.sequential * ratio,
            forward=derived.forward * ratio,
            backward=derived.backward * ratio,
        ),
        deviation=derived.deviation if same and machine == PUBLISHED.machine else None,
        notes=tuple(notes),
    )


def _calibrated(name: str, model: str, parameters: Parameters, graph: Graph | None) -> _Ready:
    versions = ", ".join(f"{k} {v}" for k, v in parameters.software.items())
    basis = f"calibration of {parameters.machine.name}" + (f" ({versions})" if versions else "")
    if model == "b":
        found = parameters.of(name)
        return _Ready(
            parameters.machine,
            found.contention,
            basis,
            times=found.times,
            deviation=PUBLISHED.calibrated["b"],
            measured_to=found.contention.rows[-1][0],
            notes=_contention_note(found.contention),
        )
    factors = parameters.factors()
    work, notes = work_of(graph or _graph(name), batch=parameters.batch)
    shared = parameters.contention(work.written)
    return _Ready(
        parameters.machine,
        shared,
        f"operation counts of the graph, factors from a {basis}",
        work=replace(work, prepare=parameters.prepare_cycles()),
        factors=factors,
        deviation=PUBLISHED.calibrated["a"],
        measured_to=shared.rows[-1][0],
        notes=(*notes, *_contention_note(shared)),
    )


def _contention_note(contention: Contention) -> tuple[str, ...]:
    if contention.rows[-1][0] > 1:
        return ()
    return ("contention was measured at one thread alone, so none is counted",)


def _given(
    ready: _Ready,
    model: str,
    machine: Machine | None,
    operation_factor: float | None,
    contention: float | None,
) -> _Ready:
    if machine is not None:
        ready = ready._replace(machine=machine)
    if operation_factor is not None:
        if model != "a":
            raise InvalidValueError("the operation factor is model a's; leave it out with model b")
        one = Factors(
            sequential=operation_factor, forward=operation_factor, backward=operation_factor
        )
        ready = ready._replace(factors=one, deviation=None)
    if contention is not None:
        ready = ready._replace(contention=Contention(((1, contention),)), deviation=None)
    return ready


def _graph(name: str) -> Graph:
    from traincast.ingest import resolve

    return resolve(name)
