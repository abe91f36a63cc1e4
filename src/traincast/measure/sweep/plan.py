"""A sweep, and the runs that it consists of."""

from __future__ import annotations

import hashlib
import json
import random
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError
from traincast.measure.sweep.design import Factor, Point, grid, latin_hypercube
from traincast.measure.sweep.settings import NAMES, Settings, in_whole_batches, problem

MOST_POINTS = 100_000
"""Points that a design may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long a run trains."""

    warmup_steps: int = 5
    """Steps before the timed epochs."""
    timed_s: float = 2.0
    """Epochs are timed until they took so many seconds together, …"""
    least_epochs: int = 3
    """… and were so many, …"""
    most_s: float = 10.0
    """… or took so many seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a TOML file asks for."""

    design: str
    """latin or grid."""
    runs: int
    """Points of a Latin hypercube."""
    seed: int
    repeats: int
    """How often each point is run."""
    frameworks: tuple[str, ...]
    most_threads: int
    """Workers times threads of a run at most: the cores of the machine."""
    output: Path
    """The folder that results go to."""
    time_limit: float
    """Seconds after which a run is ended."""
    effort: Effort
    factors: Mapping[str, Factor]
    fixed: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One training run to be done."""

    framework: str
    settings: Settings
    repeat: int = 0

    @property
    def key(self) -> str:
        """A short name that the same run has in every sweep."""
        text = json.dumps([asdict(self.settings), self.repeat], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of a sweep in the order they are done, and what is left out."""

    runs: tuple[Run, ...]
    left_out: Mapping[str, int]
    """Why points cannot be run, and how many they are."""


def read_sweep(path: Path) -> Sweep:
    """Read a sweep's TOML file; every problem of it is named."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputFileError(path, f"is not TOML: {error}") from error
    from traincast.measure.sweep.form import sweep_from

    return sweep_from(data, path)


def plan_of(sweep: Sweep) -> Plan:
    """Return the runs of a sweep, shuffled, so that what drifts with time sways no factor.

    Every point is run once before any is repeated.
    """
    points = _points(sweep)
    reasons: Counter[str] = Counter()
    good: dict[Settings, None] = {}
    for point in points:
        settings = Settings(**{**sweep.fixed, **point})
        why = problem(settings, sweep.most_threads)
        if why is None:
            good.setdefault(in_whole_batches(settings))
        else:
            reasons[why] += 1
    twice = len(points) - len(good) - reasons.total()
    if twice:
        reasons["the same as another point"] = twice
    draw = random.Random(sweep.seed)
    runs: list[Run] = []
    for repeat in range(sweep.repeats):
        once = [
            Run(framework=framework, settings=settings, repeat=repeat)
            for settings in good
            for framework in sweep.frameworks
        ]
        draw.shuffle(once)
        runs += once
    return Plan(tuple(runs), dict(reasons))


def _points(sweep: Sweep) -> list[Point]:
    def fits(point: Point) -> bool:
        return problem(Settings(**{**sweep.fixed, **point}), sweep.most_threads) is None

    if sweep.design == "latin":
        return latin_hypercube(sweep.factors, sweep.runs, sweep.seed, fits)
    size = 1
    for name, factor in sweep.factors.items():
        size *= len(factor.levels())
        if size > MOST_POINTS:
            raise InputFileError(
                "factors",
                f"the grid has more than {MOST_POINTS:,} points, counted up to {name}",
                'take fewer levels, or design = "latin"',
            )
    return grid(sweep.factors)


def columns(sweep: Sweep) -> tuple[str, ...]:
    """Return the names of the factors, in the order of the settings."""
    return tuple(name for name in NAMES if name in sweep.factors)
