"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from traincast.errors import OutputFileError


def check_writable(path: Path) -> None:
    """Refuse a path that cannot be written, before the work whose result goes there."""
    if path.is_dir():
        raise OutputFileError(f"{path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OutputFileError(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK) and not (path.exists() and os.access(path, os.W_OK)):
        raise OutputFileError(f"{path}: the folder {path.parent} is read-only; choose another")


def write_text(path: Path, text: str) -> None:
    """Write a text file as `write_bytes` does, in UTF-8."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: readers see the old file or the new one, never a part.

    What is no plain file, such as a terminal or a pipe, is written in place; so is what a link
    points to.
    """
    check_writable(path)
    temporary = ""
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
            return
        path = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:50]}.")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
        reason = error.strerror or str(error)
        raise OutputFileError(f"{path}: cannot be written: {reason}; choose another") from error
