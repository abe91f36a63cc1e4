"""The JSON file of measured parameters, checked entry by entry (pydantic)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeast = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MachineForm(_Form):
    """As `Machine`."""

    name: str
    clock_hz: Above
    cores: Count
    cpi: Annotated[list[Above], Field(min_length=1)]


class NetworkForm(_Form):
    """As `Measured`."""

    batch: Count = 1
    prepare_s: AtLeast
    forward_s: Above
    backward_s: Above
    contention_s: Annotated[dict[Count, AtLeast], Field(min_length=1)]
    spread: AtLeast = 0.0
    forward_ops: Above
    backward_ops: Above
    forward_calls: AtLeast = 0.0
    backward_calls: AtLeast = 0.0
    written_bytes: AtLeast = 0.0
    measured_at: str = ""


class FileForm(_Form):
    """The whole file."""

    format: str
    machine: MachineForm
    software: dict[str, str] = {}
    networks: dict[str, NetworkForm]
