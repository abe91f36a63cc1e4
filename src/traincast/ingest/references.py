"""A model reference to a graph: what a user types to name a network."""

from __future__ import annotations

import gzip
import json
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, InvalidValueError, MissingExtraError, UnknownNameError
from traincast.graph import Graph, graph_from_dict, graph_from_json

FORMS = (
    "a built-in NAME (see `traincast models`), torchvision:NAME, timm:NAME, hf:CONFIG.json, "
    "FILE.py:FUNCTION, package.module:FUNCTION, FILE.onnx or FILE.json"
)


def resolve(
    reference: str,
    *,
    image: int | None = None,
    fixed: tuple[int, int] | None = None,
    root: Path | None = None,
) -> Graph:
    """Return the graph that a model reference names.

    `image` sets the side of square input images in pixels, where the source can be rebuilt for
    it. `fixed` traces at one (batch, sequence) only. `root` is what relative files start from.
    """
    name, options = split_reference(reference)
    prefix, colon, rest = name.partition(":")
    if not colon and not name.endswith((".json", ".onnx", ".py")):
        if image is None and fixed is None and not options:
            return zoo_graph(name)
        return _zoo_rebuilt(name, options, image, fixed)
    if not colon:
        return _from_file(_at(root, name), name, image)
    try:
        from traincast.ingest.pytorch.probe import trace_source
        from traincast.ingest.pytorch.sources import (
            function_source,
            hf_source,
            timm_source,
            torchvision_source,
        )
    except ImportError as error:
        raise MissingExtraError("torch", "torch", f"the model reference {reference!r}") from error
    if prefix == "torchvision":
        source = torchvision_source(rest, options, image)
    elif prefix == "timm":
        source = timm_source(rest, options, image)
    elif prefix == "hf":
        source = hf_source(_at(root, rest), options, image)
    else:
        target, _, function = name.rpartition(":")
        if not function.isidentifier():
            raise UnknownNameError("model reference", reference, (), f"give {FORMS}")
        path = str(_at(root, target)) if target.endswith(".py") else target
        source = function_source(path, function, options, image)
    return trace_source(source, fixed=fixed)


def _at(root: Path | None, name: str) -> Path:
    return (root / name) if root else Path(name)


def split_reference(reference: str) -> tuple[str, dict[str, Any]]:
    """Split `name?key=value&key=value` into the name and its options, read as JSON values."""
    name, mark, query = reference.partition("?")
    if not name:
        raise InvalidValueError(f"{reference!r} names no model; give {FORMS}")
    options: dict[str, Any] = {}
    for part in query.split("&") if mark else ():
        key, equals, value = part.partition("=")
        if not key or not equals:
            raise InvalidValueError(
                f"{part!r} in {reference!r} is no builder argument; write name?key=value&key=value"
            )
        try:
            options[key] = json.loads(value)
        except json.JSONDecodeError:
            options[key] = {"True": True, "False": False, "None": None}.get(value, value)
    return name, options


def _from_file(path: Path, name: str, image: int | None) -> Graph:
    if image is not None:
        raise InvalidValueError(f"{name} has a fixed image size; leave out the image option")
    if path.suffix == ".py":
        raise InvalidValueError(f"{name} is a Python file; name its function as {name}:FUNCTION")
    if path.suffix == ".onnx":
        from traincast.ingest.onnx_file import load_onnx

        return load_onnx(path)
    text = read_text(path)
    try:
        data = json.loads(text)
    except json.JSONDecodeError:
        return graph_from_json(text, where=str(path))
    if isinstance(data, dict) and "format" not in data and "layers" in data:
        from traincast.ingest.paleo import load_paleo

        return load_paleo(data, where=str(path))
    if isinstance(data, dict) and "model_type" in data:
        raise InputFileError(path, "is a Transformers configuration", f"refer to it as hf:{name}")
    return graph_from_json(text, where=str(path))


def read_text(path: Path) -> str:
    """Return the text of a file, or say why it cannot be had."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputFileError(path, "there is no such file") from None
    except IsADirectoryError:
        raise InputFileError(path, "is a folder, not a file") from None
    except UnicodeDecodeError:
        raise InputFileError(path, "is not a text file") from None
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error


def zoo_names() -> list[str]:
    """Return the names of the built-in networks, sorted."""
    from traincast.ingest.zoo.entries import ENTRIES

    return sorted(ENTRIES)


def _zoo() -> Traversable:
    return resources.files("traincast.ingest") / "zoo"


@lru_cache(maxsize=16)
def zoo_graph(name: str) -> Graph:
    """Return a built-in network's graph, from package data."""
    file = _zoo() / f"{_zoo_name(name)}.json.gz"
    data = json.loads(gzip.decompress(file.read_bytes()))
    return graph_from_dict(data, where=name, trusted=True)


def zoo_name(name: str) -> str | None:
    """Return the built-in network that a name or an alias stands for; case, - and _ are alike."""
    from traincast.ingest.zoo.entries import ALIASES, ENTRIES

    folded = _fold(name)
    known = {_fold(n): n for n in ENTRIES} | {_fold(a): n for a, n in ALIASES.items()}
    return known.get(folded)


def _fold(name: str) -> str:
    return name.lower().replace("_", "-")


def _zoo_name(name: str) -> str:
    found = zoo_name(name)
    if found is None:
        raise UnknownNameError("model", name, zoo_names(), f"Give {FORMS}.")
    return found


def _zoo_rebuilt(
    name: str, options: dict[str, Any], image: int | None, fixed: tuple[int, int] | None
) -> Graph:
    """Build a built-in network again for another image size or other arguments; needs torch."""
    from traincast.ingest.zoo import rebuild

    return rebuild(_zoo_name(name), options=options, image=image, fixed=fixed)
