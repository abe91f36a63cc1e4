"""Networks that PyTorch has to run, and what determines each one's graph.

A graph that was traced before comes from the cache, without PyTorch being imported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from traincast.errors import (
    IngestError,
    InputFileError,
    InvalidValueError,
    MissingExtraError,
    UnknownNameError,
)
from traincast.graph import Graph
from traincast.ingest import cache
from traincast.ingest.references import FORMS, read_json, spell

_EXTRAS = {"torchvision": "vision", "timm": "vision", "hf": "hf"}
Files = Mapping[str, str] | None
"""Hashes by path of the files that a graph was made from; nothing where they are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which graph of a network is wanted."""

    options: Mapping[str, Any]
    """Arguments of whatever builds the network."""
    image: int | None = None
    """Side of square images, pixels."""
    batch: int | None = None
    """Batch to hold the graph to, where it cannot hold for all."""
    seq: int | None = None
    """Sequence length to hold the graph to, where it cannot hold for all."""
    fixed: tuple[int, int] | None = None
    """The one (batch, sequence length) to trace at."""


def traced(reference: str, name: str, wanted: Wanted, root: Path) -> Graph:
    """Return the graph of a reference with a colon; `name` is the reference without arguments."""
    prefix, _, rest = name.partition(":")
    if prefix in _EXTRAS and not rest:
        what = "CONFIG.json" if prefix == "hf" else "NAME"
        raise InvalidValueError(f"{reference!r} names no model; write {prefix}:{what}")
    if prefix == "hf":
        return _configured(reference, root / rest, wanted)
    if prefix in _EXTRAS:
        return _of_library(reference, prefix, rest, wanted)
    target, _, function = name.rpartition(":")
    if not (function.isidentifier() and _is_module(target)):
        raise UnknownNameError("model reference", reference, (), f"give {FORMS}")
    return _of_function(reference, target, function, wanted, root)


def rebuilt(name: str, wanted: Wanted) -> Graph:
    """Return the graph of a built-in network for another image size or other arguments."""
    from traincast.ingest.zoo import rebuild

    def trace() -> tuple[Graph, Files]:
        options, image, fixed = wanted.options, wanted.image, wanted.fixed
        return rebuild(name, options=options, image=image, fixed=fixed), {}

    return _kept("zoo", _packages("torchvision", "transformers"), wanted, trace, name=name)


def config_file(path: Path) -> tuple[Path, str, dict[str, Any]]:
    """Return the file of a Transformers configuration, the model's name, and what it says.

    `path` is the file or its folder.
    """
    if path.is_dir():
        path /= "config.json"
    elif not path.exists() and path.suffix != ".json":
        fix = "nothing is downloaded: give the path of the model's config.json"
        raise InputFileError(path, "there is no such file or folder", fix)
    data = read_json(path)
    if not isinstance(data, dict) or "model_type" not in data:
        raise InputFileError(
            path, 'has no "model_type"', "give the config.json of a Transformers model"
        )
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    return path, name or path.stem, data


def _configured(reference: str, path: Path, wanted: Wanted) -> Graph:
    path, name, data = config_file(path)

    def trace() -> tuple[Graph, Files]:
        sources, probe = _tracer(reference, "hf")
        source = sources.hf_source(path, wanted.options, wanted.image)
        return _trace(probe, source, wanted), {}

    packages = _packages("torchvision", "timm", "transformers")
    graph = _kept("hf", packages, wanted, trace, name=name, config=data)
    return _called(graph, spell(f"hf:{path}", wanted.options))


def _of_library(reference: str, library: str, name: str, wanted: Wanted) -> Graph:
    def trace() -> tuple[Graph, Files]:
        sources, probe = _tracer(reference, "vision")
        make = {"torchvision": sources.torchvision_source, "timm": sources.timm_source}[library]
        source = make(name, wanted.options, wanted.image)
        return _trace(probe, source, wanted), {}

    packages = {p: cache.version_of(p) for p in ("torch", "torchvision", library)}
    return _kept(library, packages, wanted, trace, name=name)


def _of_function(reference: str, target: str, function: str, wanted: Wanted, root: Path) -> Graph:
    file = str(root / target) if target.endswith(".py") else ""

    def trace() -> tuple[Graph, Files]:
        sources, probe = _tracer(reference, "torch")
        from traincast.ingest.pytorch.own_files import OwnFiles

        with OwnFiles(file or target) as own:
            try:
                source = sources.function_source(
                    file or target, function, wanted.options, wanted.image
                )
                graph = _trace(probe, source, wanted)
            except SystemExit as error:
                raise IngestError(probe.explain(reference, error, "running it")) from error
        return graph, own.digests()

    graph = _kept(
        "function",
        _packages(),
        wanted,
        trace,
        # A module is looked for in the current folder, a file may read its neighbours.
        target=os.path.realpath(file) if file else [target, str(Path.cwd())],
        function=function,
        path=sys.path,
    )
    return _called(graph, spell(f"{file or target}:{function}", wanted.options))


def _is_module(target: str) -> bool:
    return target.endswith(".py") or all(part.isidentifier() for part in target.split("."))


def _tracer(reference: str, extra: str) -> Any:
    """Return what makes sources and what traces them; both need PyTorch."""
    try:
        from traincast.ingest.pytorch import probe, sources
    except ImportError as error:
        raise MissingExtraError("torch", extra, f"the model reference {reference!r}") from error
    return sources, probe


def _trace(probe: Any, source: Any, wanted: Wanted) -> Graph:
    graph: Graph = probe.trace_source(
        source, fixed=wanted.fixed, batch=wanted.batch, seq=wanted.seq
    )
    return graph


def _packages(*libraries: str) -> dict[str, str | None]:
    """Return the versions of PyTorch and some libraries, and what stands for all others.

    Transformers runs whatever packages it finds, and a user's function does what it likes.
    """
    known = {name: cache.version_of(name) for name in ("torch", *libraries)}
    return {"all": cache.installed(), **known}


def _called(graph: Graph, source: str) -> Graph:
    """Return the graph under the reference by which it was asked for."""
    return graph if graph.source == source else replace(graph, source=source)


def _kept(
    kind: str,
    packages: Mapping[str, str | None],
    wanted: Wanted,
    trace: Callable[[], tuple[Graph, Files]],
    **content: Any,
) -> Graph:
    """Return a graph from the cache, or trace it and keep it there."""

    def key(batch: int | None, seq: int | None) -> str | None:
        options = list(wanted.options.items())
        return cache.key_of(
            kind,
            packages,
            options=options,
            image=wanted.image,
            fixed=wanted.fixed,
            batch=batch,
            seq=seq,
            **content,
        )

    # Most graphs hold for every batch and sequence length and are kept once for all of them.
    sizes = [(b, s) for b in (None, wanted.batch) for s in (None, wanted.seq)]
    for size in dict.fromkeys(sizes):
        graph = cache.lookup(key(*size))
        if graph is not None and _serves(graph, wanted):
            return graph
    graph, files = trace()
    held = graph.fixed if wanted.fixed is None else ()
    batch = wanted.batch if "batch" in held else None
    cache.store(key(batch, wanted.seq if "seq" in held else None), graph, files)
    return graph


def _serves(graph: Graph, wanted: Wanted) -> bool:
    """Tell whether a graph that may be held to a size is held to the one that is wanted."""
    given = {"batch": (wanted.batch, graph.batch), "seq": (wanted.seq, graph.seq)}
    return wanted.fixed is not None or all(given[n][0] in (None, given[n][1]) for n in graph.fixed)
