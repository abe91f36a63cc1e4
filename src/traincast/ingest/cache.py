"""Traced graphs on disk, found again by what they were made from.

Running a network to see its ops takes PyTorch and a second or more, and gives the same graph every
time. A graph is kept in a file named after a hash of what determines it, so that a change leads
to another file. What cannot be known beforehand (the files that a user's code imports and opens)
is listed in the entry with the hash of each, and the entry is good while all of them match.

The cache never stands in the way: an entry that cannot be read is traced again, a folder that
cannot be written is left alone.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import hashlib
import json
import os
import platform
import sys
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from traincast.errors import TraincastError
from traincast.graph import Graph, graph_from_dict, graph_to_dict

VARIABLE = "TRAINCAST_CACHE"
LIMIT_BYTES = 256 * 2**20
"""Beyond this the entries used longest ago are removed."""

_FORM = 1
_SUFFIX = ".graph.gz"
_UNFINISHED = ".traincast-"
_OFF = ("off", "0", "no", "false")
_SWITCHES = ("PYTORCH_", "TIMM_", "TORCH_", "TRANSFORMERS_")
"""Environment variables by which these libraries choose what they run."""
_KEPT = 16
_memory: dict[tuple[Path, str], tuple[Mapping[str, str], Graph]] = {}
"""The graphs used last in this process: a second call gets the same object."""


def folder() -> Path | None:
    """Return where graphs are kept, or nothing where they are not."""
    given = os.environ.get(VARIABLE, "")
    if given.lower() in _OFF:
        return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if given:
            return Path(given).expanduser()
        root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no home folder
        return None
    return root / "traincast" / "graphs"


def key_of(kind: str, packages: Mapping[str, str | None], **content: Any) -> str | None:
    """Return the name of an entry: a hash of what determines the graph.

    `packages` are versions by name; one that is not known, and a content that JSON cannot say,
    give nothing, and then nothing is kept.
    """
    if None in packages.values():
        return None
    known = {
        "kind": kind,
        "packages": dict(packages),
        "importer": importer(),
        "python": [*sys.version_info[:2], platform.machine()],
        "switches": sorted(v for v in os.environ.items() if v[0].startswith(_SWITCHES)),
        "content": content,
    }
    try:
        return hashlib.sha256(json.dumps(known).encode()).hexdigest()
    except (TypeError, ValueError):
        return None


def lookup(key: str | None) -> Graph | None:
    """Return the graph of an entry, if there is one and it is sound."""
    where = folder()
    if where is None or key is None:
        return None
    found = _memory.get((where, key)) or _read(_entry(where, key), key)
    if found is None or not _unchanged(found[0]):
        return None
    _remember(where, key, *found)
    with contextlib.suppress(OSError):
        os.utime(_entry(where, key))
    return found[1]


def store(key: str | None, graph: Graph, files: Mapping[str, str] | None) -> None:
    """Keep a graph; `files` are hashes by path, or nothing where they cannot be told."""
    where = folder()
    if where is None or key is None or files is None:
        return
    _remember(where, key, files, graph)
    entry = {"form": _FORM, "key": key, "files": dict(files), "graph": graph_to_dict(graph)}
    text = json.dumps(entry, separators=(",", ":"))
    with contextlib.suppress(OSError):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(_entry(where, key), gzip.compress(text.encode(), 6, mtime=0))
        _trim(where)


def clear() -> int:
    """Remove every entry; return how many bytes that freed."""
    _memory.clear()
    freed = 0
    for path, status in _entries(folder()):
        with contextlib.suppress(OSError):
            path.unlink()
            freed += status.st_size
    return freed


def usage() -> tuple[int, int]:
    """Return the number of entries and the bytes that they take."""
    sizes = [status.st_size for path, status in _entries(folder()) if path.suffix == ".gz"]
    return len(sizes), sum(sizes)


def digest_of(path: str | Path) -> str:
    """Return the hash of a file's content; empty where there is no such file."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


@functools.cache
def version_of(package: str) -> str | None:
    """Return a package's installed version without importing it; empty where it is absent.

    Nothing is returned for one that is installed in place: its version stays while its code
    changes.
    """
    try:
        found = metadata.distribution(package)
        origin = json.loads(found.read_text("direct_url.json") or "{}")
    except metadata.PackageNotFoundError:
        return ""
    except ValueError:
        return None
    return None if origin.get("dir_info", {}).get("editable") else found.version


def installed() -> str:
    """Return a hash of the names and versions of all installed packages."""
    names: set[str] = set()
    for place in sys.path:
        with contextlib.suppress(OSError), os.scandir(place or os.curdir) as files:
            names.update(file.name for file in files if file.name.endswith("-info"))
    return hashlib.sha256(repr(sorted(names)).encode()).hexdigest()


@functools.cache
def importer() -> str:
    """Return a hash of the code here that makes graphs."""
    here = Path(__file__).parent
    made_by = [here / "references.py", here / "traced.py"]
    for part in (here / "pytorch", here / "zoo", here.parent / "graph"):
        made_by += sorted(part.rglob("*.py"))
    return hashlib.sha256("".join(map(digest_of, made_by)).encode()).hexdigest()


def _entry(where: Path, key: str) -> Path:
    return where / f"{key}{_SUFFIX}"


def _read(path: Path, key: str) -> tuple[Mapping[str, str], Graph] | None:
    try:
        entry = json.loads(gzip.decompress(path.read_bytes()))
        if entry["form"] != _FORM or entry["key"] != key:
            return None
        graph = graph_from_dict(entry["graph"], where=str(path), trusted=True)
        return dict(entry["files"]), graph
    except (OSError, EOFError, KeyError, TypeError, ValueError, zlib.error, TraincastError):
        return None


def _unchanged(files: Mapping[str, str]) -> bool:
    try:
        return all(digest_of(path) == digest for path, digest in files.items())
    except (OSError, ValueError):
        return False


def _remember(where: Path, key: str, files: Mapping[str, str], graph: Graph) -> None:
    _memory.pop((where, key), None)
    _memory[where, key] = (files, graph)
    for oldest in list(_memory)[:-_KEPT]:
        del _memory[oldest]


def _write(path: Path, data: bytes) -> None:
    """Write a file whole, whoever else writes it at the same time."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_UNFINISHED)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise


def _entries(where: Path | None) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files of the cache, finished or not, and no other that may lie in its folder."""
    try:
        found = list(os.scandir(where)) if where else []
    except OSError:
        return
    for file in found:
        if file.name.endswith(_SUFFIX) or file.name.startswith(_UNFINISHED):
            with contextlib.suppress(OSError):
                yield Path(file.path), file.stat()


def _trim(where: Path) -> None:
    by_use = sorted(_entries(where), key=lambda entry: entry[1].st_mtime)
    over = sum(status.st_size for _, status in by_use) - LIMIT_BYTES
    for path, status in by_use:
        if over <= 0:
            return
        path.unlink(missing_ok=True)
        over -= status.st_size
