"""What was measured on one machine, and what model A learns from it; kept as a JSON file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincast.errors import InputFileError, PredictionError
from traincast.estimate.viebke.machine import Machine
from traincast.estimate.viebke.models import Contention, Factors, Times, Work

if TYPE_CHECKING:
    from traincast.estimate.viebke.parameters_form import FileForm

FORMAT = "traincast-many-core/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One network on one machine."""

    times: Times
    """Seconds with one thread."""
    contention: Contention
    """Seconds that an image takes longer, by threads."""
    work: Work
    """Operations counted from the network's graph."""
    batch: int = 1
    """Images that a thread takes at a time, >= 1."""
    spread: float = 0.0
    """Half the range of repeated measurements of a training image, relative to their median."""
    measured_at: str = ""
    """Date and time, ISO 8601."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What `traincast calibrate --many-core` found out."""

    machine: Machine
    """The processor, with its CPI as measured."""
    networks: Mapping[str, Measured]
    """By model reference."""
    software: Mapping[str, str]
    """Versions that the times hold for."""

    @property
    def batch(self) -> int:
        """Images that a thread takes at a time, where all networks agree; otherwise 1."""
        batches = {m.batch for m in self.networks.values()}
        return batches.pop() if len(batches) == 1 else 1

    def of(self, name: str) -> Measured:
        """Return what was measured of a network."""
        if name not in self.networks:
            known = ", ".join(self.networks) or "none"
            raise PredictionError(
                f"model b needs measured times of {name}, and the parameters have {known}; measure "
                f"it with `traincast calibrate --many-core {name}`, or use model a"
            )
        return self.networks[name]

    def factors(self, without: Collection[str] = ()) -> Factors:
        """Return model A's factors, fitted to the measured networks except those in `without`."""
        known = [m for name, m in self.networks.items() if name not in without]
        if not known:
            raise PredictionError(
                "model a needs at least one measured network to fit its factors on; measure one "
                "with `traincast calibrate --many-core`"
            )
        clock = self.machine.clock_hz
        forward, forward_call = _fit(
            [(m.work.forward, m.work.forward_calls, m.times.forward * clock) for m in known]
        )
        backward, backward_call = _fit(
            [(m.work.backward, m.work.backward_calls, m.times.backward * clock) for m in known]
        )
        return Factors(
            sequential=1.0,
            forward=forward,
            backward=backward,
            forward_call=forward_call,
            backward_call=backward_call,
        )

    def prepare_cycles(self, without: Collection[str] = ()) -> float:
        """Return the cycles of the preparation, the mean over the networks."""
        known = [m.times.prepare for n, m in self.networks.items() if n not in without]
        return self.machine.clock_hz * sum(known) / max(len(known), 1)

    def contention(self, written: float, without: Collection[str] = ()) -> Contention:
        """Return the contention of a network that writes so many bytes an image, going forward.

        In proportion to the bytes: that of all measured networks together over their bytes.
        """
        known = [m for name, m in self.networks.items() if name not in without]
        counts = sorted({threads for m in known for threads, _ in m.contention.rows})
        bytes_known = sum(m.work.written for m in known)
        share = written / bytes_known if bytes_known else 0.0
        return Contention(
            tuple((p, share * sum(m.contention.at(p) for m in known)) for p in counts or [1])
        )


def _fit(rows: list[tuple[float, float, float]]) -> tuple[float, float]:
    """Return cycles per operation and per call, neither negative, from (ops, calls, cycles).

    Least squares of the relative error, so that a small network weighs as much as a large one. One
    network cannot tell the two apart: then all cycles go to the operations.
    """
    ops = [o / cycles for o, _, cycles in rows]
    calls = [c / cycles for _, c, cycles in rows]
    oo, cc = sum(o * o for o in ops), sum(c * c for c in calls)
    oc = sum(o * c for o, c in zip(ops, calls, strict=True))
    determinant = oo * cc - oc * oc
    if len(rows) > 1 and determinant > 1e-9 * oo * cc:
        per_op = (sum(ops) * cc - sum(calls) * oc) / determinant
        per_call = (sum(calls) * oo - sum(ops) * oc) / determinant
        if per_op >= 0 and per_call >= 0:
            return per_op, per_call
        if per_op < 0:
            return 0.0, sum(calls) / cc
    return sum(ops) / oo, 0.0


def parameters_to_dict(found: Parameters) -> dict[str, Any]:
    """Return parameters as plain data, SI units in the key names."""
    return {
        "format": FORMAT,
        "machine": {
            "name": found.machine.name,
            "clock_hz": found.machine.clock_hz,
            "cores": found.machine.cores,
            "cpi": list(found.machine.cpi),
        },
        "software": dict(found.software),
        "networks": {name: _network_dict(m) for name, m in found.networks.items()},
    }


def _network_dict(m: Measured) -> dict[str, Any]:
    return {
        "batch": m.batch,
        "prepare_s": m.times.prepare,
        "forward_s": m.times.forward,
        "backward_s": m.times.backward,
        "contention_s": {str(threads): seconds for threads, seconds in m.contention.rows},
        "spread": m.spread,
        "forward_ops": m.work.forward,
        "backward_ops": m.work.backward,
        "forward_calls": m.work.forward_calls,
        "backward_calls": m.work.backward_calls,
        "written_bytes": m.work.written,
        "measured_at": m.measured_at,
    }


def read_parameters(path: Path) -> Parameters:
    """Read what `traincast calibrate --many-core` wrote; every problem of the file is named."""
    from traincast.ingest.references import read_json

    fix = "`traincast calibrate --many-core` writes such a file"
    data = read_json(path)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise InputFileError(path, f'has no "format": "{FORMAT}"', fix)
    from pydantic import ValidationError

    from traincast.estimate.viebke.parameters_form import FileForm

    try:
        form = FileForm.model_validate_json(json.dumps(data))
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors()]
        raise InputFileError(path, problems, fix) from None
    return _from_form(form)


def _from_form(form: FileForm) -> Parameters:
    return Parameters(
        machine=Machine(
            name=form.machine.name,
            clock_hz=form.machine.clock_hz,
            cores=form.machine.cores,
            cpi=tuple(form.machine.cpi),
        ),
        software=form.software,
        networks={
            name: Measured(
                times=Times(prepare=n.prepare_s, forward=n.forward_s, backward=n.backward_s),
                contention=Contention(tuple(sorted(n.contention_s.items()))),
                work=Work(
                    prepare=0.0,
                    forward=n.forward_ops,
                    backward=n.backward_ops,
                    forward_calls=n.forward_calls,
                    backward_calls=n.backward_calls,
                    written=n.written_bytes,
                ),
                batch=n.batch,
                spread=n.spread,
                measured_at=n.measured_at,
            )
            for name, n in form.networks.items()
        },
    )


def with_network(found: Parameters, name: str, measured: Measured) -> Parameters:
    """Return parameters with one network more, or measured anew."""
    return replace(found, networks={**found.networks, name: measured})
