"""Where each framework is installed."""

from __future__ import annotations

import os
from pathlib import Path

from traincast.errors import UsageError


def environments() -> Path:
    """Return the folder of the frameworks' environments."""
    given = os.environ.get("TRAINCAST_FRAMEWORKS")
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "traincast" / "frameworks"


def python_of(framework: str) -> Path:
    """Return the interpreter that has a framework; raise, naming what makes one, where none has."""
    python = environments() / framework / "bin" / "python"
    if not os.access(python, os.X_OK):
        raise UsageError(
            f"there is no environment of {framework}: {python} is missing; run "
            f"`scripts/frameworks {framework}` in traincast's repository, or set "
            "TRAINCAST_FRAMEWORKS to the folder that has it"
        )
    return python
