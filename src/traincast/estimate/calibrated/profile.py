"""A profile: what was measured on one device with one software stack, as kernel models.

JSON, under 500 kB: the models' parameters as numbers, in the order that `columns` tells, and where
everything comes from. The shapes that correct them stand together, one model's after the other's in
the order of their keys: their features as 16-bit fixed-point values (1/128 of a doubling) by
columns, their weights as 16-bit floats, both compressed (LZMA) and in base 85.
"""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from traincast.errors import InputFileError
from traincast.estimate.calibrated.models import FIXED, KernelModel, Residual, short
from traincast.estimate.optimizer import CHUNK, Optimizer
from traincast.estimate.program import Floats

SCHEMA = 3
"""Version of the form; a profile of another version is refused."""
LARGEST = 500_000
"""Bytes that a profile may take."""
_COLUMNS = ("compute", "bandwidth", "floor_s", "error", "spread", "rows")
_CORRECTED = ("mean", "amplitude", "noise", "shapes", "scales")
"""What stands for each model, and after it for one that shapes correct."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the host takes to issue eager ops; seconds."""

    ops: Mapping[str, tuple[float, float, float]] = field(hash=False)
    """For each op measured: without autograd, recording for autograd, and its backward."""
    python_s: float = 0.0
    """Python around each op of a forward pass in training, on a CPU that computes too."""
    infer_s: float = 0.0
    """The same without autograd."""
    parameter_s: float = 0.0
    """For each parameter in the backward pass: its gradient is put in place."""
    update: Mapping[str, tuple[float, float]] = field(hash=False, default_factory=dict)
    """For each optimizer: seconds a step, and seconds for each parameter tensor."""
    fresh_s: float = 0.0
    """For each byte of memory that a CPU's system has to clear before it hands it out."""
    scale: float = 1.0
    """Factor on all of it."""


class TensorUpdate(NamedTuple):
    """What an optimizer update takes where it goes tensor by tensor, as on a CPU."""

    floor_s: float
    tensor_s: float
    bandwidth: float
    """Of memory bandwidth."""

    def seconds(
        self, optimizer: Optimizer, sizes: tuple[int, ...], each: float, bandwidth: float
    ) -> float:
        """Return seconds for tensors of these sizes, of `each` bytes an element.

        `bandwidth` is that of the device's memory, bytes/s.
        """
        moved = sum(sizes) * optimizer.traffic * each
        return self.floor_s + self.tensor_s * len(sizes) + moved / (bandwidth * self.bandwidth)


COLD_CHUNK_S = 7e-6
"""What a block takes longer for a chunk that lies in memory instead of the L2 cache: 32 turns one
after the other, each about 200 ns longer. As recorded in 51 training steps of an H200
(benchmarks/kernel_times.py --update), in which updates take a fifth longer than alone."""


class BlockUpdate(NamedTuple):
    """The same in launches over many tensors: the slower of the memory and of the largest block."""

    launch_s: float
    chunk_s: float
    """One block, for a value of 4 bytes of each element of a full chunk."""
    bandwidth: float
    """Of memory bandwidth."""
    odd_chunk_s: float
    """The same two in tensors whose size vectors do not divide."""
    odd_bandwidth: float

    def seconds(
        self,
        optimizer: Optimizer,
        sizes: tuple[int, ...],
        each: float,
        bandwidth: float,
        hot: bool = False,
    ) -> float:
        """Return seconds for tensors of these sizes, as `TensorUpdate` does.

        `hot`: one update after the other, so that small tensors lie in the L2 cache.
        """
        total = 0.0
        for one, rows in zip(optimizer.passes, optimizer.launches(sizes), strict=True):
            times, even, odd, largest_even, largest_odd = rows.T
            block = np.maximum(largest_even * self.chunk_s, largest_odd * self.odd_chunk_s)
            work = block / CHUNK * one.traffic * each / 4.0
            if one.traffic and not hot:
                work = work + np.maximum(largest_even, largest_odd) / CHUNK * COLD_CHUNK_S
            memory = (even / self.bandwidth + odd / self.odd_bandwidth) / bandwidth
            whole = _slower(work, memory * one.traffic * each)
            total += float((times * (self.launch_s + whole)).sum())
        return total


Update = TensorUpdate | BlockUpdate


def _slower(one: Floats, other: Floats) -> Floats:
    """Return the larger of two times, a little more where both are close."""
    return (one**4 + other**4) ** 0.25


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Profile:
    """A device's kernel models and host costs."""

    device: str
    """Catalog name of the device that was measured."""
    models: Mapping[str, KernelModel]
    """By key, as `species.key` makes it."""
    host: Host | None
    updates: Mapping[str, Update] = field(default_factory=dict)
    """By optimizer and type: `momentum|fp32`."""
    factors: Mapping[str, float] = field(default_factory=dict)
    """What runs of whole steps say about groups of kernels: multiplies their seconds."""
    errors: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """5th and 95th percentile of measured over predicted steps, by regime."""
    spread: float = 0.0
    """How unsure the kernels of a step are for which those of the regime `device` hold: a standard
    deviation of logarithms. 0: they hold for all steps alike."""
    gap_s: float = 0.0
    """Seconds that each launch takes longer from a stream than in the graphs it was timed in."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Device, clocks, driver, software, date, rows used: for people and for checks."""


def profile_to_json(profile: Profile) -> str:
    """Return a profile as text."""
    host = profile.host
    body = {
        "schema": SCHEMA,
        "device": profile.device,
        "provenance": dict(profile.provenance),
        "gap_s": short(profile.gap_s),
        "factors": dict(profile.factors),
        "errors": {k: list(v) for k, v in profile.errors.items()},
        **({"spread": short(profile.spread)} if profile.spread else {}),
        "host": None
        if host is None
        else {
            "ops": {k: [short(v) for v in row] for k, row in host.ops.items()},
            "python_s": short(host.python_s),
            "infer_s": short(host.infer_s),
            "parameter_s": short(host.parameter_s),
            "update": {k: [short(v) for v in row] for k, row in host.update.items()},
            **({"fresh_s": short(host.fresh_s)} if host.fresh_s else {}),
            "scale": host.scale,
        },
        "updates": {k: [short(v) for v in u] for k, u in sorted(profile.updates.items())},
        "shapes": _shapes_form([profile.models[key].residual for key in sorted(profile.models)]),
        "columns": [*_COLUMNS, *_CORRECTED],
        "models": {},
    }
    lines = ",\n".join(
        f"{json.dumps(key)}:{json.dumps(_model_form(model), separators=(',', ':'))}"
        for key, model in sorted(profile.models.items())
    )
    text = json.dumps(body, indent=1)
    return text.replace('"models": {}', f'"models": {{\n{lines}\n}}') + "\n"


_PAIRS = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lp": 1, "pb": 1}
"""For numbers of two bytes each."""


def _packed(raw: bytes) -> str:
    return base64.b85encode(lzma.compress(raw, filters=[_PAIRS])).decode()


def _unpacked(text: str) -> bytes:
    try:
        return lzma.decompress(base64.b85decode(text))
    except (lzma.LZMAError, EOFError) as error:
        raise ValueError(f"packed numbers do not unpack: {error}") from error


def _shapes_form(residuals: Sequence[Residual | None]) -> dict[str, str]:
    points, weights = [], []
    for r in residuals:
        if r is not None:
            fixed = np.rint(r.points * r.scales * FIXED).astype("<i2")
            # Columns of few values compress best as long runs, so that they are sorted by first.
            variety = [len(np.unique(column)) for column in fixed.T]
            order = np.lexsort(fixed.T[np.argsort(variety, kind="stable")[::-1]])
            fixed = fixed[order]
            points.append(fixed.T.tobytes())
            weights.append(r.weights[order].astype("<f2").tobytes())
    return {"points": _packed(b"".join(points)), "weights": _packed(b"".join(weights))}


class _Shapes:
    """Hands out the packed shapes of one model after the other."""

    def __init__(self, form: Mapping[str, str]) -> None:
        self.points = np.frombuffer(_unpacked(form["points"]), dtype="<i2")
        self.weights = np.frombuffer(_unpacked(form["weights"]), dtype="<f2").astype(np.float64)

    def take(self, count: int, scales: Floats) -> tuple[Floats, Floats]:
        size = count * len(scales)
        points, weights = self.points[:size], self.weights[:count]
        if len(points) < size or len(weights) < count:
            raise ValueError("there are fewer shapes than models have")
        self.points, self.weights = self.points[size:], self.weights[count:]
        return points.reshape(len(scales), count).T / FIXED / scales, weights


def _model_form(model: KernelModel) -> list[float]:
    """Return a model's numbers, those of `_COLUMNS` and `_CORRECTED`; scales are the last."""
    form = [short(float(getattr(model, name))) for name in _COLUMNS[:-1]]
    form.append(model.rows)
    r = model.residual
    if r is not None:
        form += [short(r.mean), short(r.amplitude), short(r.noise), len(r.weights)]
        form += [short(float(s)) for s in r.scales]
    return [int(v) if v == int(v) else v for v in form]


def profile_from_json(text: str, source: Path | str) -> Profile:
    """Return the profile that a text holds; raise an error that names what is wrong with it."""
    path = Path(source)
    try:
        body = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputFileError(path, f"is not JSON: {error}") from error
    if not isinstance(body, dict) or "schema" not in body or "models" not in body:
        raise InputFileError(
            path, "is not a profile", "make one with `traincast calibrate -o FILE`"
        )
    if body["schema"] != SCHEMA:
        raise InputFileError(
            path,
            f"is a profile of schema {body['schema']!r}; this traincast reads schema {SCHEMA}",
            "calibrate again, or use the version of traincast that wrote it",
        )
    try:
        host, models = body.get("host"), body["models"]
        shapes = _Shapes(body["shapes"]) if models else None
        return Profile(
            device=str(body["device"]),
            models={key: _model(models[key], shapes) for key in sorted(models)},
            host=None if host is None else _host(host),
            updates={k: _update(v) for k, v in body.get("updates", {}).items()},
            gap_s=float(body.get("gap_s", 0.0)),
            factors={k: float(v) for k, v in body.get("factors", {}).items()},
            errors={k: (float(v[0]), float(v[1])) for k, v in body.get("errors", {}).items()},
            spread=float(body.get("spread", 0.0)),
            provenance=body.get("provenance", {}),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputFileError(
            path, f"is a damaged profile: {error!r}", "calibrate again, or fetch the file again"
        ) from error


def _host(form: Mapping[str, Any]) -> Host:
    return Host(
        ops={k: (float(v[0]), float(v[1]), float(v[2])) for k, v in form["ops"].items()},
        python_s=float(form.get("python_s", 0.0)),
        infer_s=float(form.get("infer_s", 0.0)),
        parameter_s=float(form.get("parameter_s", 0.0)),
        update={k: (float(v[0]), float(v[1])) for k, v in form.get("update", {}).items()},
        fresh_s=float(form.get("fresh_s", 0.0)),
        scale=float(form.get("scale", 1.0)),
    )


def _update(form: Sequence[Any]) -> Update:
    kind = TensorUpdate if len(form) == len(TensorUpdate._fields) else BlockUpdate
    return kind(*map(float, form))


def _model(form: Sequence[float], shapes: _Shapes | None) -> KernelModel:
    own, corrected = form[: len(_COLUMNS)], form[len(_COLUMNS) :]
    residual = None
    if corrected and shapes is not None:
        mean, amplitude, noise, count, *rest = corrected
        scales = np.array(rest, dtype=np.float64)
        points, weights = shapes.take(int(count), scales)
        residual = Residual(
            mean=float(mean), amplitude=float(amplitude), noise=float(noise), scales=scales,
            points=points, weights=weights,
        )  # fmt: skip
    compute, bandwidth, floor, error, spread, rows = map(float, own)
    return KernelModel(
        compute=compute, bandwidth=bandwidth, floor_s=floor, error=error, spread=spread,
        rows=int(rows), residual=residual,
    )  # fmt: skip


def read_profile(path: Path) -> Profile:
    """Return the profile in a file; read once for each version of the file."""
    try:
        stamp = path.stat().st_mtime_ns
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    return _read(path, stamp)


@lru_cache(maxsize=32)
def _read(path: Path, stamp: int) -> Profile:
    del stamp
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputFileError(path, f"cannot be read: {error}") from error
    return profile_from_json(text, path)
