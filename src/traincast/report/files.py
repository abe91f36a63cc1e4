"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from traincast.errors import OutputFileError


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically: readers see the old file or the new one, never a part."""
    if path.is_dir():
        raise OutputFileError(f"{path}: is a folder; name a file in it")
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
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
        fix = "make the folder first" if isinstance(error, FileNotFoundError) else "choose another"
        raise OutputFileError(f"{path}: cannot be written: {reason}; {fix}") from error
