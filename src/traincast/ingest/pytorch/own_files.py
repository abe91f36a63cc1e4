"""Which files a user's function is made from, so that its graph is kept while they stay the same.

They are the Python modules outside the installed packages, and whatever else was opened for
reading while the function ran. What else code may depend on leaves no file: the environment, the
network, other programs, the contents of a folder. The graph of code that mentions one of those is
not kept.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType, TracebackType
from typing import Any

from traincast.ingest.cache import digest_of

LARGEST_BYTES = 64 * 2**20
"""Files of more than this in all are not read again at every prediction."""

_UNSEEN = re.compile(
    rb"\b(environ|getenv|argv|subprocess|popen|socket|urllib|requests|safetensors|"
    rb"listdir|scandir|iterdir|r?glob|walk)\b"
)
_NOT_OWN = frozenset({"site-packages", "dist-packages", "__pycache__"})
_PLACES = (
    *(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")),
    str(Path(__file__).resolve().parents[2]),
    "/proc",
    "/sys",
    "/dev",
)
"""Python itself, traincast, and what is no file in truth."""
_STARTED = time.time()
_loaded: dict[str, float] = {}
"""When a module was loaded, by name, for those that a watched run loaded; seconds, at the least."""
_watches: list[set[str]] = []


class OwnFiles:
    """Watches a user's code run; afterwards `digests` tells what it was made from."""

    def __init__(self, target: str) -> None:
        """Watch the code of a FILE.py, or of a module by name."""
        self._target = os.path.realpath(target) if target.endswith(".py") else target
        self._opened: set[str] = set()
        self._before: dict[str, ModuleType] = {}
        self._began = 0.0

    def __enter__(self) -> OwnFiles:
        _listen()
        self._before = dict(sys.modules)
        self._began = time.time()
        _watches.append(self._opened)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _watches[:] = [opened for opened in _watches if opened is not self._opened]
        for name, module in list(sys.modules.items()):
            if self._before.get(name) is not module:
                _loaded[name] = self._began

    def digests(self) -> dict[str, str] | None:
        """Return hashes by path, or nothing where these files are not all that matters.

        Nothing either where a file was changed after it was read: what ran is not what stands
        there now.
        """
        try:
            modules = self._modules()
            read_at = {p: self._began for p in map(os.path.realpath, self._opened) if _is_own(p)}
            for name, module in modules.items():
                read_at[_file(module)] = _loaded.get(name, _STARTED)
            present = {path: Path(path).stat() for path in read_at if Path(path).exists()}
            if sum(status.st_size for status in present.values()) > LARGEST_BYTES:
                return None
            if any(max(s.st_mtime, s.st_ctime) > read_at[path] for path, s in present.items()):
                return None
            if any(_UNSEEN.search(Path(path).read_bytes()) for path in self._code(modules)):
                return None
            return {path: digest_of(path) for path in sorted(read_at)}
        except (OSError, ValueError):
            return None

    def _modules(self) -> dict[str, ModuleType]:
        """Return the loaded modules that the user's code may consist of, by name."""
        found = {}
        for name, module in list(sys.modules.items()):
            path = _file(module)
            # The program that asks, and the models that it asked for before, are others.
            other = name == "__main__" or name.startswith("traincast_user_")
            if path and _is_own(path) and (path == self._target or not other):
                found[name] = module
        return found

    def _code(self, modules: Mapping[str, ModuleType]) -> set[str]:
        """Return the files of the modules that were loaded just now or that the target uses."""
        seen = {
            name
            for name, module in modules.items()
            if self._before.get(name) is not module or self._target in (name, _file(module))
        }
        left = list(seen)
        while left:
            used = {name for name in _used(modules[left.pop()]) if name in modules} - seen
            seen |= used
            left += used
        return {_file(modules[name]) for name in seen}


def _used(module: ModuleType) -> Iterator[str]:
    """Yield the names of the modules that a module's globals are or come from."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(value, type | FunctionType):
            yield str(value.__module__)


def _file(module: ModuleType) -> str:
    """Return where a module lies; nothing for those of installed packages, which are many."""
    path = vars(module).get("__file__") if isinstance(module, ModuleType) else None
    if not isinstance(path, str) or "site-packages" in path:
        return ""
    return os.path.realpath(path)


def _is_own(path: str) -> bool:
    """Tell a user's file from those of Python, of installed packages and of traincast."""
    if _NOT_OWN.intersection(Path(path).parts) or Path(path).is_dir():
        return False
    return not any(Path(path).is_relative_to(place) for place in _PLACES)


def _listen() -> None:
    """Hear of every file that this process opens; once, since a hook cannot be taken back."""
    if not hasattr(_listen, "done"):
        sys.addaudithook(_hear)
        _listen.done = True  # type: ignore[attr-defined]


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if event != "open" or not _watches:
        return
    path, _, flags = args
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) == os.O_WRONLY
    if isinstance(path, str | bytes | os.PathLike) and not writes:
        with contextlib.suppress(OSError):  # the current folder may be gone
            _note(Path(os.fsdecode(path)).absolute())


def _note(path: Path) -> None:
    for opened in _watches:
        opened.add(str(path))
