"""A strategy: how every layer of a network is split over devices, and its file.

A layer has a degree for each dim of its output; the product of the degrees is the number of its
parts, at most the number of devices. Part k runs on device k, parts counted in row-major order over
the dims in the order of `DIMS`. An axis of length L split p ways gives part i the positions from
i·L // p to (i + 1)·L // p, so parts differ by at most one.

An op that is not listed follows the layer it reads from: elementwise ops, batch norm, dropout and
views do. One that reads from several, such as a residual's addition, follows the last of those that
give it a tensor of its output's shape (`layers.network_of` tells).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, InvalidValueError

SCHEMA = "traincast-strategy/1"
DIMS = ("sample", "channel", "height", "width", "depth", "length", "sequence", "head", "expert")
"""Dims that a layer can be split along, in the order in which parts are counted."""


@dataclass(frozen=True, slots=True)
class LayerSplit:
    """One layer's configuration."""

    name: str
    """Name of the op in the graph."""
    op: str
    """Kind of the op, such as conv."""
    degrees: Mapping[str, int] = field(default_factory=dict)
    """Degree of each dim, at least 1; a dim left out has degree 1."""

    def __post_init__(self) -> None:
        for dim, degree in self.degrees.items():
            if dim not in DIMS:
                raise InvalidValueError(
                    f"layer {self.name!r}: no dim is called {dim!r}; there are {', '.join(DIMS)}"
                )
            if not isinstance(degree, int) or isinstance(degree, bool) or degree < 1:
                raise InvalidValueError(
                    f"layer {self.name!r}: {dim} = {degree!r} has to be a whole number from 1"
                )
        ordered = {dim: self.degrees[dim] for dim in DIMS if self.degrees.get(dim, 1) > 1}
        object.__setattr__(self, "degrees", ordered)

    @property
    def parts(self) -> int:
        """Number of parts, and of devices 0, 1, … that hold one."""
        return math.prod(self.degrees.values())

    def degree(self, dim: str) -> int:
        """Return the degree of a dim, 1 where it is not split."""
        return self.degrees.get(dim, 1)

    def place(self, part: int) -> dict[str, int]:
        """Return the index of a part along each dim that is split."""
        index: dict[str, int] = {}
        for dim in reversed(tuple(self.degrees)):
            part, index[dim] = divmod(part, self.degrees[dim])
        return {dim: index[dim] for dim in self.degrees}

    def __str__(self) -> str:
        return " ".join(f"{dim} {degree}" for dim, degree in self.degrees.items()) or "1 device"


@dataclass(frozen=True, slots=True)
class Strategy:
    """One configuration for every layer of a model."""

    model: str
    """Model reference, as `traincast predict` takes it."""
    batch: int
    """Samples of all devices together in a step."""
    devices: int
    layers: tuple[LayerSplit, ...]
    """Layers in the order of the graph."""
    seq: int = 0
    """Positions in a sequence; 0 for a network without."""
    image: int | None = None
    """Side of square input images, pixels; None for the model's own."""
    source: str = ""
    """What made it, for people."""

    def __post_init__(self) -> None:
        if self.batch < 1 or self.devices < 1:
            raise InvalidValueError(
                f"strategy of {self.model}: batch = {self.batch} and devices = {self.devices} "
                "have to be 1 or more"
            )
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise InvalidValueError(f"layer {layer.name!r} is listed twice; keep one")
            seen.add(layer.name)
            if layer.parts > self.devices:
                product = " · ".join(f"{k} {v}" for k, v in layer.degrees.items())
                raise InvalidValueError(
                    f"layer {layer.name!r}: {product} = {layer.parts} parts, but there are "
                    f"{self.devices} devices"
                )

    def split(self, name: str) -> LayerSplit | None:
        """Return the configuration of a layer, None where it is not listed."""
        return next((layer for layer in self.layers if layer.name == name), None)


def bounds(length: int, parts: int, index: int) -> tuple[int, int]:
    """Return the first position of a part of an axis, and the one after its last."""
    return index * length // parts, (index + 1) * length // parts


def strategy_to_dict(strategy: Strategy, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return a strategy as plain data, with further keys such as `predicted` behind."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "model": strategy.model,
        "batch": strategy.batch,
        "seq": strategy.seq,
        "image": strategy.image,
        "devices": strategy.devices,
        "source": strategy.source,
        "layers": layers_to_list(strategy.layers),
    }
    return data | {key: value for key, value in (extra or {}).items() if key not in data}


def layers_to_list(layers: Iterable[LayerSplit]) -> list[dict[str, Any]]:
    """Return layers as plain data."""
    return [{"name": x.name, "op": x.op, "degrees": dict(x.degrees)} for x in layers]


def strategy_to_json(strategy: Strategy, extra: Mapping[str, Any] | None = None) -> str:
    """Return the text of a strategy's file; `extra` keys are carried and not read back."""
    data = strategy_to_dict(strategy, extra)
    dump = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = ",\n".join(f"  {dump(layer)}" for layer in data["layers"])
    body = [
        f' "layers": [\n{lines}\n ]' if key == "layers" else f" {dump(key)}: {dump(value)}"
        for key, value in data.items()
    ]
    return "{\n" + ",\n".join(body) + "\n}\n"


def read_strategy(path: str | Path) -> Strategy:
    """Read a strategy's file; every malformed layer is reported at once."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror or error}") from error
    except (UnicodeDecodeError, RecursionError):
        raise InputFileError(path, "is no JSON text") from None
    except json.JSONDecodeError as error:
        raise InputFileError(
            path, f"is not valid JSON: line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    return strategy_from_dict(data, str(path))


def strategy_from_dict(data: object, where: str) -> Strategy:
    """Return the strategy that plain data describes; `where` names it in errors."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        given = data.get("schema") if isinstance(data, dict) else None
        raise InputFileError(
            where, f'is no plan: "schema" is {given!r}, not "{SCHEMA}"',
            "write one with `traincast plan MODEL --cluster SHAPE -o PLAN.json`",
        )  # fmt: skip
    problems: list[str] = []
    for key, kind in (("model", str), ("batch", int), ("devices", int), ("layers", list)):
        if not isinstance(data.get(key), kind) or isinstance(data.get(key), bool):
            problems.append(f'"{key}" is {data.get(key)!r}, not of type {kind.__name__}')
    if not isinstance(data.get("seq", 0), int) or not isinstance(data.get("image"), int | None):
        problems.append('"seq" and "image" have to be whole numbers; "image" may be null')
    if problems:
        raise InputFileError(where, problems)
    layers = []
    for number, entry in enumerate(data["layers"]):
        try:
            layers.append(_layer(entry))
        except InvalidValueError as error:
            problems.append(f"layer {number}: {error}")
    if problems:
        raise InputFileError(where, problems)
    try:
        return Strategy(
            model=data["model"],
            batch=data["batch"],
            devices=data["devices"],
            layers=tuple(layers),
            seq=data.get("seq", 0),
            image=data.get("image"),
            source=str(data.get("source", "")),
        )
    except InvalidValueError as error:
        raise InputFileError(where, str(error)) from None


def _layer(entry: object) -> LayerSplit:
    if not isinstance(entry, dict) or not isinstance(entry.get("degrees", {}), dict):
        raise InvalidValueError("is no object with name, op and degrees")
    name, op = entry.get("name"), entry.get("op", "")
    if not isinstance(name, str) or not isinstance(op, str):
        raise InvalidValueError('"name" and "op" have to be text')
    return LayerSplit(name, op, entry.get("degrees", {}))
