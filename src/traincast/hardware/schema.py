"""The form of the catalog's files, checked by pydantic. Imported only when a file is read.

A quantity in a file is text with its unit. Everything wrong with a file is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)

from traincast.errors import InvalidValueError, UnknownNameError, near_names
from traincast.hardware.lookup import resolve_link_name
from traincast.units import parse_quantity

EXAMPLES = {
    "title": '"My accelerator"',
    "memory": '"80 GiB"',
    "usable_memory": '"79 GiB"',
    "memory_bandwidth": '"3.35 TB/s"',
    "matrix_flops": '"989 TFLOP/s"',
    "vector_flops": '"66.9 TFLOP/s"',
    "clock": '"1.98 GHz"',
    "l2": '"50 MiB"',
    "power": '"700 W"',
    "latency": '"1.5 us"',
    "bandwidth": '"450 GB/s" or "100 Gbit/s"',
    "kind": '"pcie"',
}


def _quantity(unit: str, *, zero: bool = False) -> Callable[[object], float]:
    def read(value: object) -> float:
        if not isinstance(value, str):
            raise ValueError(f"has to be quoted text with its unit ({unit})")
        try:
            number = parse_quantity(value, unit)
        except InvalidValueError as error:
            raise ValueError(str(error)) from None
        if number < 0 or (number == 0 and not zero):
            raise ValueError(f"{value!r} has to be {'zero or more' if zero else 'above zero'}")
        return number

    return read


def _link_name(value: str) -> str:
    try:
        return resolve_link_name(value)
    except UnknownNameError as error:
        raise ValueError(str(error)) from None


Bytes = Annotated[float, BeforeValidator(_quantity("bytes"))]
BytesPerSecond = Annotated[float, BeforeValidator(_quantity("bytes/s"))]
Flops = Annotated[float, BeforeValidator(_quantity("FLOP/s"))]
Hertz = Annotated[float, BeforeValidator(_quantity("Hz"))]
Latency = Annotated[float, BeforeValidator(_quantity("s", zero=True))]
Watts = Annotated[float, BeforeValidator(_quantity("W"))]
LinkName = Annotated[str, AfterValidator(_link_name)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1)]
Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
Tier = Literal["datacenter-gpu", "consumer-gpu", "accelerator", "tpu", "cpu", "manycore"]
Kind = Literal["pcie", "nvlink", "fabric", "socket", "ici", "ethernet", "infiniband"]
Model = TypeVar("Model", bound=BaseModel)


class DeviceFile(BaseModel):
    """A device file as written, its quantities in SI; None where the file says nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Text | None = None
    title: Text
    vendor: Text = "unknown"
    tier: Tier = "datacenter-gpu"
    architecture: Text = "unknown"
    year: Annotated[int, Field(strict=True, ge=1970, le=2100)] = 0
    memory: Bytes
    usable_memory: Bytes | None = None
    memory_bandwidth: BytesPerSecond
    matrix_flops: dict[Precision, Flops] = {}
    vector_flops: dict[Precision, Flops] = {}
    units: Count | None = None
    clock: Hertz | None = None
    l2: Bytes | None = None
    power: Watts | None = None
    link: LinkName | None = None
    host_link: LinkName | None = None
    network: LinkName | None = None
    network_ports: Count | None = None
    node_devices: Count | None = None
    aliases: list[Text] = []
    notes: str = ""
    sources: dict[str, Text] = {}


class LinkFile(BaseModel):
    """A link's table as written, its quantities in SI."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Text | None = None
    title: Text
    kind: Kind
    latency: Latency
    bandwidth: BytesPerSecond
    aliases: list[Text] = []
    notes: str = ""
    sources: dict[str, Text] = {}


def check_device(raw: Mapping[str, Any]) -> tuple[DeviceFile | None, list[str]]:
    """Return the checked device file, or None and every problem in it."""
    form, problems = _check(DeviceFile, raw)
    if not raw.get("matrix_flops") and not raw.get("vector_flops"):
        problems.append(
            "no peak is given; add a table [matrix_flops] or [vector_flops], "
            'with a line such as bf16 = "989 TFLOP/s"'
        )
    problems += _source_problems(raw)
    return (None if problems else form), problems


def check_link(raw: Mapping[str, Any]) -> tuple[LinkFile | None, list[str]]:
    """Return the checked link table, or None and every problem in it."""
    return _check(LinkFile, raw)


def _check(model: type[Model], raw: Mapping[str, Any]) -> tuple[Model | None, list[str]]:
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        found = [_problem(model, detail) for detail in error.errors(include_url=False)]
        return None, list(dict.fromkeys(found))


def _source_problems(raw: Mapping[str, Any]) -> list[str]:
    sources = raw.get("sources")
    if not isinstance(sources, Mapping):
        return []
    known = ["*", *DeviceFile.model_fields]
    for table in ("matrix_flops", "vector_flops"):
        peaks = raw.get(table)
        if isinstance(peaks, Mapping):
            known += [f"{table}.{precision}" for precision in peaks]
    return [
        f"sources.{key!r} cites no field" + _suggest(key, known)
        for key in sources
        if key not in known
    ]


def _problem(model: type[BaseModel], detail: Any) -> str:
    """Say in a sentence what pydantic found: the field, its value and the right form."""
    path = [str(part) for part in detail["loc"] if part != "[key]"]
    where, field, value = ".".join(path), path[0], detail["input"]
    example = EXAMPLES.get(field)
    match detail["type"]:
        case "missing":
            return f"{where} is missing; add {where} = {example or '...'}"
        case "extra_forbidden":
            return f"unknown field {where!r}" + _suggest(where, ["base", *model.model_fields])
        case "literal_error" if len(path) > 1:
            known = get_args(Precision)
            return f"{field} has no precision {path[1]!r}" + _suggest(path[1], known, all_of=True)
        case "literal_error":
            known = get_args(model.model_fields[field].annotation)
            return f"{where} = {value!r} is not known" + _suggest(str(value), known, all_of=True)
        case "value_error":
            said = str(detail["ctx"]["error"])
            right = f"; write {where} = {example}" if example and "write" not in said else ""
            shown = "" if repr(value) in said else f" = {value!r}"
            return f"{where}{shown}: {said}{right}"
        case _:
            right = f"; write {where} = {example}" if example else ""
            return f"{where} = {value!r}: {_lower(detail['msg'])}{right}"


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def _suggest(name: str, known: Any, *, all_of: bool = False) -> str:
    close = near_names(name, known)
    if close:
        return "; did you mean " + " or ".join(close) + "?"
    return "; known: " + ", ".join(known) if all_of or len(list(known)) < 40 else ""
