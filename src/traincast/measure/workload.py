"""What is to be measured: a model, the machine's unit, and how it is trained."""

from __future__ import annotations

import contextlib
import importlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from traincast.errors import InvalidValueError, MissingExtraError, UnknownNameError
from traincast.graph.precision import precision_named

if TYPE_CHECKING:
    from traincast.ingest.pytorch.probe import Source

UNITS = ("cuda", "cpu")
_NOT_ON_CPU = ("tf32", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step of one model; what is None is chosen when it is prepared."""

    model: str
    """A model reference that PyTorch can build."""
    batch: int | None = None
    """Samples; by default the model's."""
    seq: int | None = None
    """Positions; by default the model's, None for a model without a sequence."""
    image: int | None = None
    """Side of square images in pixels; by default the model's."""
    precision: str | None = None
    """As in `traincast predict`; by default mixed on a GPU that can, fp32 otherwise."""
    optimizer: str = "adamw"
    """sgd (plain), momentum (SGD with momentum 0.9), adam, adamw or adafactor."""
    layout: str = "nchw"
    """nchw, or nhwc (channels_last)."""
    compiled: bool = False
    """Whether it runs through torch.compile."""
    unit: str | None = None
    """cuda or cpu; by default cuda where there is one."""
    root: Path | None = None
    """What relative files in `model` start from."""


def choose(workload: Workload) -> Workload:
    """Return the workload with unit and precision chosen; refuse what cannot run here."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("torch", "torch", "measuring a training step") from error
    gpu = bool(torch.cuda.is_available())
    unit = workload.unit or ("cuda" if gpu else "cpu")
    if unit not in UNITS:
        raise UnknownNameError("device to measure on", unit, UNITS, "use cuda or cpu")
    if unit == "cuda" and not gpu:
        raise InvalidValueError("PyTorch finds no CUDA device here; use --device cpu")
    if workload.layout not in ("nchw", "nhwc"):
        raise InvalidValueError(f"layout {workload.layout!r} is unknown; use nchw or nhwc")
    if workload.precision is None:
        major = torch.cuda.get_device_capability()[0] if unit == "cuda" else 0
        precision = "amp_bf16" if major >= 8 else "amp_fp16" if major == 7 else "fp32"
    else:
        precision = precision_named(workload.precision).name
    if precision == "fp8" or (unit == "cpu" and precision in _NOT_ON_CPU):
        what = "PyTorch alone trains nothing in fp8" if precision == "fp8" else "tf32 is for GPUs"
        raise InvalidValueError(f"precision {precision} cannot be measured: {what}; choose another")
    return replace(workload, unit=unit, precision=precision)


def _load_torchvision() -> None:
    """Import torchvision where it can be as it is, with its own operators.

    The importers declare some of these for builds whose compiled part does not load; where it does
    load, it has to come first.
    """
    with contextlib.suppress(ImportError, RuntimeError):
        importlib.import_module("torchvision")


def source_of(workload: Workload) -> Source:
    """Return what builds the model for real and feeds it."""
    _load_torchvision()
    from traincast.ingest.references import resolve, split_reference, zoo_name
    from traincast.ingest.zoo import module_source

    name, options = split_reference(workload.model)
    image, root = workload.image, workload.root or Path()
    built_in = zoo_name(name)
    if built_in is not None:
        return module_source(built_in, options=options, image=image)
    target, _, function = name.rpartition(":")
    prefix, _, rest = name.partition(":")
    if not target or prefix == "paleo" or not rest:
        resolve(workload.model, root=workload.root)  # says what is wrong with it, if anything is
        raise InvalidValueError(_WHY.format(model=workload.model, what=_kind(name)))
    from traincast.ingest.pytorch import sources

    if prefix == "torchvision":
        return sources.torchvision_source(rest, options, image)
    if prefix == "timm":
        return sources.timm_source(rest, options, image)
    if prefix == "hf":
        return sources.hf_source(root / rest, options, image)
    path = str(root / target) if target.endswith(".py") else target
    return sources.function_source(path, function, options, image)


def sized(workload: Workload, source: Source) -> Workload:
    """Return the workload with batch and sequence length chosen."""
    if workload.seq is not None and not source.seq:
        raise InvalidValueError(f"{workload.model} has no sequence axis; leave out --seq")
    return replace(
        workload, batch=workload.batch or source.batch, seq=workload.seq or source.seq or None
    )


_WHY = (
    "{model} {what}, which says what is computed but is no PyTorch module that could run; "
    "measure the module itself: torchvision:NAME, timm:NAME, hf:CONFIG.json or FILE.py:FUNCTION"
)


def _kind(name: str) -> str:
    if name.endswith(".onnx"):
        return "is an ONNX file"
    return "is a graph in JSON" if name.endswith(".json") else "is a network in Paleo's format"


def file_in(reference: str) -> tuple[str, str, str] | None:
    """Split a reference that names a file into what stands before it, the file, and the rest.

    `hf:a/b.json?x=1` is `hf:`, `a/b.json`, `?x=1`; None for a reference without a file.
    """
    name, mark, query = reference.partition("?")
    rest = mark + query
    if name.startswith("hf:"):
        return "hf:", name[3:], rest
    target, _, function = name.rpartition(":")
    if target.endswith(".py"):
        return "", target, f":{function}{rest}"
    return None


def located(workload: Workload, to: Path | None = None) -> str:
    """Return the model reference with its file as an absolute path, or relative to a folder."""
    import os

    parts = file_in(workload.model)
    if parts is None:
        return workload.model
    before, file, after = parts
    path = ((workload.root or Path()) / file).resolve()
    shown = os.path.relpath(path, to.resolve()) if to is not None else str(path)
    return f"{before}{shown}{after}"
