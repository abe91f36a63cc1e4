"""Where a user's devices are, and reading a TOML file that a person wrote.

Every way in which reading can fail names the file and the fix.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, near_names


def profiles_folder() -> Path:
    """Return where this user's profiles are, with files of devices that the catalog lacks."""
    chosen = os.environ.get("TRAINCAST_PROFILES")
    if chosen:
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(data).expanduser() / "traincast" / "profiles"


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        raise InputFileError(path, "there is no such file", _missing_fix(path)) from None
    except (IsADirectoryError, NotADirectoryError):
        what = (
            "is a directory, not a file" if path.is_dir() else "lies under a file, not a directory"
        )
        raise InputFileError(path, what, "name a .toml file") from None
    except UnicodeDecodeError:
        raise InputFileError(path, "is not UTF-8 text", "write a TOML file") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputFileError(path, f"cannot be read ({why})", "check its permissions") from None
    except ValueError as error:  # TOMLDecodeError, and a NUL in the path
        fix = 'quantities are quoted text, such as memory_bandwidth = "4.8 TB/s"'
        raise InputFileError(path, f"is not TOML: {error}", fix) from None


def _missing_fix(path: Path) -> str:
    if not path.parent.is_dir():
        return f"the directory {path.parent} does not exist either; check the path"
    close = near_names(path.name, [other.name for other in path.parent.glob("*.toml")])
    return "did you mean " + " or ".join(close) + "?" if close else "check the path"
