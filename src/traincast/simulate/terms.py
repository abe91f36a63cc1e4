"""The terms under which a layer-wise strategy is priced, as names: what a saved plan carries.

A plan's file holds the strategy and, under `setting`, where and how it was priced, so that the same
prices can be had again, or those on another cluster of as many devices.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, InvalidValueError
from traincast.estimate.optimizer import optimizer_named
from traincast.estimate.registry import estimator_for
from traincast.graph import Graph
from traincast.graph.precision import precision_named
from traincast.hardware import Cluster, load_cluster
from traincast.parallel.strategy import SCHEMA, Strategy, read_strategy
from traincast.simulate.fit import default_precision
from traincast.simulate.layerwise import Setting
from traincast.simulate.step import Plan, program_for, simulate_step
from traincast.simulate.sync import SERVER

MOST_DEVICES = 64
"""Devices up to which layers are split."""
_NUMBERS = ("server_bandwidth", "pace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Where and how a strategy is priced; None for what follows from the rest."""

    cluster: str | None = None
    """A shape such as 4x4xp100."""
    network: str | None = None
    """The link between nodes; by default the device's usual one."""
    precision: str | None = None
    """By default mixed where the device has it."""
    optimizer: str | None = None
    """adamw by default."""
    layout: str | None = None
    """nchw by default, or nhwc."""
    estimator: str | None = None
    """auto by default."""
    objective: str | None = None
    """overlap by default, or published."""
    scheme: str | None = None
    """By default auto, and server under the published objective."""
    server_bandwidth: float | None = None
    """Bytes/s of one parameter server."""
    degrees: str | None = None
    """powers by default, or all."""
    pace: float | None = None
    """Factor on predicted compute, 1 by default."""

    def over(self, other: Terms) -> Terms:
        """Return these terms where they are given, and another's elsewhere."""
        mine = {k: v for k, v in asdict(self).items() if v is not None}
        if "cluster" in mine:
            # Another place has its own usual network, and was not measured.
            mine = {"network": None, "pace": None} | mine
        if "scheme" in mine:
            mine.setdefault("server_bandwidth", None)
        return Terms(**{**asdict(other), **mine})

    def place(self) -> Cluster:
        """Return the cluster; raise where none is named or it is too large."""
        if self.cluster is None:
            raise InvalidValueError("the plan names no cluster; give one with --cluster 4x4xp100")
        found = load_cluster(self.cluster, self.network)
        if found.devices > MOST_DEVICES:
            raise InvalidValueError(
                f"{found.devices} devices: layers are split over up to {MOST_DEVICES}; "
                "`traincast scale` takes more with --strategy data"
            )
        return found


def setting_for(terms: Terms, cluster: Cluster, batch: int, seq: int) -> Setting:
    """Return terms as a setting on a cluster, for a batch of all devices together."""
    layout = terms.layout or "nchw"
    if layout not in ("nchw", "nhwc"):
        raise InvalidValueError(f"--layout {layout!r} is unknown; write nchw or nhwc")
    device, objective = cluster.device, terms.objective or "overlap"
    return Setting(
        cluster=cluster,
        estimator=estimator_for(terms.estimator or "auto", device),
        precision=(
            precision_named(terms.precision) if terms.precision else default_precision(device)
        ),
        plan=Plan(
            batch=batch,
            seq=seq,
            optimizer=optimizer_named(terms.optimizer or "adamw"),
            layout=layout,
        ),
        objective=objective,
        scheme=terms.scheme or (SERVER if objective == "published" else "auto"),
        server_bandwidth=terms.server_bandwidth,
        degrees=terms.degrees or "powers",
        pace=terms.pace or 1.0,
    )


def pace_of(graph: Graph, setting: Setting, measured_s: float) -> float:
    """Return how much longer a measured step on one device takes than what is costed of it."""
    device = setting.cluster.device
    batch = max(1, setting.plan.batch // setting.cluster.devices)
    alone = Plan(
        batch=batch, seq=setting.plan.seq, optimizer=setting.plan.optimizer,
        layout=setting.plan.layout,
    )  # fmt: skip
    program = program_for(graph, setting.precision, device, setting.estimator, alone)
    phases = simulate_step(program, device, setting.estimator, alone).device_s
    if setting.objective == "published":
        phases = phases | {"optimizer": 0.0}
    return measured_s / sum(phases.values())


def terms_to_dict(setting: Setting, estimator: str, network: str | None = None) -> dict[str, Any]:
    """Return a setting as what a plan's file carries; `estimator` is what the user asked for."""
    optimizer = setting.plan.optimizer
    terms = Terms(
        cluster=setting.cluster.name,
        network=network,
        precision=setting.precision.name,
        optimizer=optimizer.name if optimizer else None,
        layout=setting.plan.layout,
        estimator=estimator,
        objective=setting.objective,
        scheme=setting.scheme,
        server_bandwidth=setting.server_bandwidth,
        degrees=setting.degrees,
        pace=None if setting.pace == 1.0 else setting.pace,
    )
    return asdict(terms)


def is_plan(reference: str) -> bool:
    """Tell whether a model reference is the file of a saved plan."""
    if not reference.endswith(".json"):
        return False
    try:
        text = Path(reference).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return f'"{SCHEMA.partition("/")[0]}/' in text


def read_plan(path: str | Path) -> tuple[Strategy, Terms]:
    """Read a saved plan: its strategy, and the terms under which it was made."""
    strategy = read_strategy(path)
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    given = data.get("setting", {"cluster": data.get("cluster")})
    known = [f.name for f in fields(Terms)]
    problems = []
    if not isinstance(given, dict):
        raise InputFileError(path, '"setting" is no object with names and values')
    for key, value in given.items():
        if key not in known:
            problems.append(f'"setting" has an unknown key {key!r}; known: {", ".join(known)}')
        elif value is None:
            continue
        elif key in _NUMBERS:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or not 0 < value < 1e30:
                problems.append(f'"setting": {key} is {value!r}, not a number above zero')
        elif not isinstance(value, str):
            problems.append(f'"setting": {key} is {value!r}, not text')
    if problems:
        raise InputFileError(path, problems)
    return strategy, Terms(**given)
