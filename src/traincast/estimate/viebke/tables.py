"""The published parameters of three networks on a Xeon Phi 7120P: recalled, unverified.

`published.toml`, next to this file, holds them with their citation.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from traincast.estimate.viebke.machine import Machine
from traincast.estimate.viebke.models import Contention, Factors, Run, Times, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What was published about one network."""

    name: str
    """As in the built-in zoo."""
    epochs: int
    """Epochs that it was trained for."""
    work: Work
    """Operation counts, for model A."""
    times: Times
    """Measured times, for model B."""
    contention: Contention
    """Measured up to 240 threads, extrapolated by the authors from there to 3840."""
    deviation: Mapping[str, float]
    """Mean deviation of each model from the authors' measurements, as a fraction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Derived:
    """What goes with operation counts taken from a graph; our derivation from the tables."""

    forward: float
    """Cycles for each operation forward, on the Xeon Phi."""
    backward: float
    """Cycles for each operation backward, on the Xeon Phi."""
    contention: float
    """Seconds per image and thread for each byte that the forward pass writes, on the Phi."""
    deviation: float
    """Mean deviation to expect on the Xeon Phi, as a fraction."""
    cpu_ratio: float
    """Cycles on an ordinary CPU core, as a multiple of those on the Phi's; from one run alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Everything that `published.toml` holds."""

    citation: str
    provenance: str
    machine: Machine
    factors: Factors
    run: Run
    networks: Mapping[str, Network]
    derived: Derived
    calibrated: Mapping[str, float]
    """Mean deviation of each model on a machine that was calibrated, as a fraction."""


def _read() -> Published:
    file = resources.files("traincast.estimate.viebke") / "published.toml"
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    machine, run, derived = data["machine"], data["run"], data["derived"]
    factor = float(machine["operation_factor"])
    return Published(
        citation=data["source"]["citation"],
        provenance=data["source"]["provenance"],
        machine=Machine(
            name=machine["device"],
            clock_hz=machine["clock_hz"],
            cores=machine["cores"],
            cpi=tuple(map(float, machine["cpi"])),
        ),
        factors=Factors(sequential=factor, forward=factor, backward=factor),
        run=Run(images=run["images"], test_images=run["test_images"]),
        networks={
            name: Network(
                name=name,
                epochs=n["epochs"],
                work=Work(
                    prepare=n["prepare_ops"], forward=n["forward_ops"], backward=n["backward_ops"]
                ),
                times=Times(
                    prepare=n["prepare_s"], forward=n["forward_s"], backward=n["backward_s"]
                ),
                contention=Contention(tuple(zip(run["threads"], n["contention_s"], strict=True))),
                deviation=n["deviation"],
            )
            for name, n in data["networks"].items()
        },
        derived=Derived(
            forward=derived["forward_factor"],
            backward=derived["backward_factor"],
            contention=derived["contention_s_per_byte"],
            deviation=derived["deviation"],
            cpu_ratio=derived["cpu"]["ratio"],
        ),
        calibrated=data["calibrated"]["deviation"],
    )


PUBLISHED = _read()
