"""The built-in networks: a table of them, their graphs as package data, and how to make these.

`ENTRIES` describes each network. Its graph, NAME.json.gz next to this file, was made by `rebuild`
through `scripts/build-zoo` and is read without any framework. Making one again, for another image
size or other builder arguments, needs the library that its source names.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from traincast.errors import InvalidValueError, MissingExtraError, UnknownNameError
from traincast.graph import Graph
from traincast.ingest.references import split_reference
from traincast.ingest.zoo.entries import ALIASES, ENTRIES, Entry

if TYPE_CHECKING:
    from traincast.ingest.pytorch.probe import Source

__all__ = ["ALIASES", "ENTRIES", "Entry", "module_source", "rebuild"]


def rebuild(
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    image: int | None = None,
    fixed: tuple[int, int] | None = None,
) -> Graph:
    """Make a network's graph from its source.

    `options` go to whatever builds the network: the torchvision builder, the Transformers
    configuration or the function in `modules`. `image` is the side of a square image in pixels.
    `fixed` traces at one (batch, sequence length) only.
    """
    name, entry = _entry(name)
    if entry.source.startswith("paleo:"):
        return _paleo(name, entry, options or {}, image, fixed)
    source = module_source(name, options=options, image=image)
    from traincast.ingest.pytorch.probe import trace_source

    return trace_source(source, fixed=fixed)


def module_source(
    name: str, *, options: Mapping[str, Any] | None = None, image: int | None = None
) -> Source:
    """Return what builds a network's PyTorch module and feeds it, for tracing or a real run."""
    name, entry = _entry(name)
    reference, given = split_reference(entry.source)
    given |= options or {}
    prefix, _, rest = reference.partition(":")
    if prefix == "paleo":
        raise InvalidValueError(f"{name} is a network in Paleo's format and has no PyTorch module")
    try:
        from traincast.ingest.pytorch import sources
    except ImportError as error:
        raise MissingExtraError("torch", "torch", f"building the network {name!r}") from error
    if prefix == "torchvision":
        if image and rest.startswith("vit_"):
            given.setdefault("image_size", image)
        elif image and rest.startswith("maxvit_"):
            given.setdefault("input_size", (image, image))
        source = sources.torchvision_source(rest, given, image or entry.image)
    elif prefix == "transformers":
        source = _configured(name, reference, given, image)
    else:
        source = _own(name, prefix, rest, given, image)
    seq = entry.seq if source.seq else 0
    return replace(source, name=name, batch=entry.batch, seq=seq, notes=entry.notes)


def _entry(name: str) -> tuple[str, Entry]:
    name = ALIASES.get(name, name)
    if name not in ENTRIES:
        raise UnknownNameError("model", name, [*ENTRIES, *ALIASES])
    return name, ENTRIES[name]


def _own(
    name: str, module: str, function: str, options: Mapping[str, Any], image: int | None
) -> Source:
    from traincast.ingest.pytorch.sources import function_source
    from traincast.ingest.zoo import modules

    if (
        image is not None
        and "image" not in inspect.signature(getattr(modules, function)).parameters
    ):
        raise InvalidValueError(f"{name} takes no other image size; leave out the image option")
    return function_source(module, function, options, image)


def _configured(name: str, reference: str, options: Mapping[str, Any], image: int | None) -> Source:
    from traincast.ingest.pytorch.sources import hf_config_source
    from traincast.ingest.zoo.configs import CONFIGS

    if image is not None:
        raise InvalidValueError(f"{name} takes text; leave out the image option")
    config = CONFIGS[name]
    for option in options:
        if option not in config:
            raise UnknownNameError(f"entry of the configuration of {name}", option, config)
    if options:
        reference += "?" + "&".join(f"{k}={json.dumps(v)}" for k, v in options.items())
    return hf_config_source({**config, **options}, name, reference)


def _paleo(
    name: str,
    entry: Entry,
    options: Mapping[str, Any],
    image: int | None,
    fixed: tuple[int, int] | None,
) -> Graph:
    from traincast.ingest.paleo import load_paleo, paleo_net

    if options or image is not None:
        raise InvalidValueError(
            f"{name} is a fixed network of the Paleo publication; "
            "leave out the image size and the builder arguments"
        )
    graph = load_paleo(paleo_net(entry.source.removeprefix("paleo:")), where=name)
    batch = fixed[0] if fixed else entry.batch
    return replace(graph, name=name, source=entry.source, batch=batch)
