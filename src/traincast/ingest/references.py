"""A model reference to a graph: what a user types to name a network."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from traincast.errors import (
    GraphError,
    IngestError,
    InputFileError,
    InvalidValueError,
    UnknownNameError,
    near_names,
)
from traincast.graph import Graph, graph_from_dict

FORMS = (
    "a built-in NAME (see `traincast models`), torchvision:NAME, timm:NAME, hf:CONFIG.json, "
    "FILE.py:FUNCTION, package.module:FUNCTION, FILE.onnx, FILE.json or paleo:NAME"
)
_PALEO = "paleo:"
"""Names the networks of Paleo's authors, of which only some are built in as well."""


def resolve(
    reference: str,
    *,
    image: int | None = None,
    batch: int | None = None,
    seq: int | None = None,
    fixed: tuple[int, int] | None = None,
    root: Path | None = None,
) -> Graph:
    """Return the graph that a model reference names.

    `image` sets the side of square input images in pixels, where the source can be rebuilt for
    it. `batch` and `seq`, the sequence length, are those that are wanted: they matter only to a
    module that runs other ops at other sizes, whose graph then holds for these. `fixed` traces at
    one (batch, sequence) only. `root` is what relative files start from.
    """
    name, options = split_reference(reference)
    if name.startswith(_PALEO) or (zoo_name(name) is None and name in _paleo_names()):
        return _from_paleo(name.removeprefix(_PALEO), options, image)
    if ":" in name:
        from traincast.ingest.traced import Wanted, traced

        wanted = Wanted(options=options, image=image, batch=batch, seq=seq, fixed=fixed)
        return traced(reference, name, wanted, root or Path())
    if name.endswith((".json", ".onnx", ".py")):
        return _from_file(_at(root, name), name, options, image)
    if image is None and fixed is None and not options:
        return zoo_graph(name)
    from traincast.ingest.traced import Wanted, rebuilt

    return rebuilt(_zoo_name(name), Wanted(options=options, image=image, fixed=fixed))


def is_traced(reference: str, image: int | None = None) -> bool:
    """Tell whether a reference names a network that PyTorch has to run, which takes seconds."""
    name, options = split_reference(reference)
    if ":" in name:
        return not name.startswith(_PALEO)
    return (image is not None or bool(options)) and zoo_name(name) is not None


def _paleo_names() -> list[str]:
    from traincast.ingest.paleo import paleo_net_names

    return paleo_net_names()


def _from_paleo(name: str, options: dict[str, Any], image: int | None) -> Graph:
    from traincast.ingest.paleo import load_paleo, paleo_net

    names = _paleo_names()
    if name not in names:
        raise UnknownNameError("Paleo network", name, names, f"(known: {', '.join(names)})")
    if options or image is not None:
        raise InvalidValueError(f"{_PALEO}{name} is a fixed network; leave out `?` and image size")
    return replace(load_paleo(paleo_net(name), where=name), name=name, source=f"{_PALEO}{name}")


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


def spell(reference: str, options: Mapping[str, Any]) -> str:
    """Return a reference with its builder arguments, as `split_reference` reads them."""
    if not options:
        return reference
    return reference + "?" + "&".join(f"{k}={json.dumps(v)}" for k, v in options.items())


def _from_file(path: Path, name: str, options: dict[str, Any], image: int | None) -> Graph:
    if path.suffix == ".py":
        if not path.is_file():
            raise InputFileError(path, _missing(path))
        raise InvalidValueError(f"{name} is a Python file; name its function as {name}:FUNCTION")
    if options:
        raise InvalidValueError(f"{name} is a file and takes no arguments; leave out the `?`")
    if image is not None:
        raise InvalidValueError(f"{name} has a fixed image size; leave out the image option")
    try:
        return _from_onnx(path) if path.suffix == ".onnx" else _from_json(path, name)
    except GraphError as error:
        raise GraphError(str(path), error.problems) from None
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        said = f"is malformed: {type(error).__name__}: {str(error)[:200]}"
        fix = "compare it with what `traincast models export` writes"
        raise InputFileError(path, said, fix) from error


def _from_onnx(path: Path) -> Graph:
    from traincast.ingest.onnx_file import load_onnx

    try:
        return load_onnx(path)
    except IngestError as error:
        if path.name in str(error):
            raise
        raise IngestError(f"{path}: {error}") from error


def _from_json(path: Path, name: str) -> Graph:
    data = read_json(path)
    if isinstance(data, dict) and "format" not in data:
        if "layers" in data:
            from traincast.ingest.paleo import load_paleo

            return load_paleo(data, where=str(path))
        if "model_type" in data:
            fix = f"refer to it as hf:{name}"
            raise InputFileError(path, "is a Transformers configuration", fix)
    if not isinstance(data, dict) or "format" not in data:
        raise InputFileError(
            path,
            "is neither a graph nor a network in Paleo's format",
            "`traincast models export NAME` writes a graph",
        )
    return graph_from_dict(data, where=str(path))


def read_json(path: Path) -> Any:
    """Return what a JSON file holds, or say where it is malformed."""
    text = read_text(path)
    if not text.strip():
        raise InputFileError(path, "is empty")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InputFileError(path, f"is not valid JSON: {where}: {error.msg}") from None
    except (RecursionError, ValueError) as error:
        raise InputFileError(path, f"cannot be read as JSON: {error}") from None


def read_text(path: Path) -> str:
    """Return the text of a file, or say why it cannot be had."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputFileError(path, _missing(path)) from None
    except IsADirectoryError:
        raise InputFileError(path, "is a folder, not a file") from None
    except UnicodeDecodeError:
        raise InputFileError(path, "is not a text file") from None
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # a NUL in the path
        raise InputFileError(path, f"cannot be read: {error}") from None


def _missing(path: Path) -> str:
    """Say that a file is missing, and name those that it may have been meant to be."""
    said = "there is no such file"
    if path.is_dir():
        return "is a folder, not a file"
    try:
        others = [other.name for other in path.parent.iterdir() if other.suffix == path.suffix]
    except OSError:
        return said
    close = near_names(path.name, others)
    return said + ("; did you mean " + " or ".join(close) + "?" if close else "")


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
    from traincast.ingest.zoo.entries import ALIASES, ENTRIES

    found = zoo_name(name)
    if found is None:
        raise UnknownNameError("model", name, [*ENTRIES, *ALIASES], _forms(name))
    return found


def _forms(name: str) -> str:
    """Say what a name that is not built in might have been meant to be."""
    path = Path(name)
    if path.suffix in (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".h5"):
        return "a file of weights does not describe the network: give FILE.py:FUNCTION"
    if path.suffix in (".yaml", ".yml", ".toml", ".txt", ".gz") or path.is_dir():
        what = "folder" if path.is_dir() else f"{path.suffix} file"
        return f"a {what} is no model: give {FORMS}"
    return f"give {FORMS}"
