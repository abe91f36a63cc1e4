"""Results of the benchmark: files of rows, and what they were measured on."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError

SCHEMA = 1
"""Of results files; a test keeps it equal to the one that the benchmark writes."""
_FIX = "make one with the script that `traincast calibrate --emit-script` prints"
_SAME = ("device", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Rows of one device and one software stack."""

    header: Mapping[str, Any]
    """Device, memory, driver, versions, date."""
    rows: Sequence[Mapping[str, Any]]
    """One a case: its keys, and `seconds` or `error`."""

    @property
    def errors(self) -> int:
        """Cases that ended in an error."""
        return sum("error" in row for row in self.rows)

    @property
    def families(self) -> dict[str, int]:
        """Measured rows of each family, errors left out."""
        return dict(Counter(str(row["family"]) for row in self.rows if "error" not in row))


def case_key(row: Mapping[str, Any]) -> str:
    """Return what tells a case from others, as the benchmark's own function of this name does."""
    measured = ("seconds", "spread", "lag", "error")
    return json.dumps({k: v for k, v in row.items() if k not in measured}, sort_keys=True)


def read_results(paths: Sequence[Path]) -> Results:
    """Return the rows of one or more files, plain or compressed, all of the same device."""
    header: Mapping[str, Any] = {}
    rows: list[Mapping[str, Any]] = []
    for path in paths:
        own, found = _read_file(path)
        for key in _SAME:
            if header and own.get(key) != header.get(key):
                raise InputFileError(
                    path,
                    f"was measured with {key} {own.get(key)}, {paths[0]} with {header.get(key)}",
                    "give files of one device and one software stack",
                )
        header = header or own
        rows += found
    if not any("seconds" in row for row in rows):
        raise InputFileError(paths[0], "has a header but no measured row", "measure for longer")
    return Results(header=header, rows=rows)


def _read_file(path: Path) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    lines = _text(path).split("\n")
    lines.pop()  # after the last line's end; a line without one was being written at a kill
    if not any(line.strip() for line in lines):
        raise InputFileError(path, "is empty, or has no whole line", _FIX)
    header = _header(path, _object(path, 1, lines[0]))
    rows = [_row(path, number, line) for number, line in enumerate(lines[1:], 2) if line.strip()]
    return header, rows


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode()
    except OSError as error:
        reason = error.strerror or f"is damaged: {error}"
        raise InputFileError(path, "no such file" if not path.exists() else reason) from error
    except (EOFError, zlib.error) as error:
        raise InputFileError(path, f"is a damaged gzip file: {error}", _FIX) from error
    except UnicodeDecodeError as error:
        raise InputFileError(path, "is not text", _FIX) from error


def _object(path: Path, number: int, line: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError as error:
        raise InputFileError(path, f"line {number} is not JSON: {error}", _FIX) from None
    if not isinstance(found, dict):
        raise InputFileError(path, f"line {number} is no JSON object", _FIX)
    return found


def _header(path: Path, first: Mapping[str, Any]) -> Mapping[str, Any]:
    if first.get("family") == "machine":  # before headers had a schema
        return {"schema": 0, "kind": "cuda"} | {k: v for k, v in first.items() if k != "family"}
    header = first.get("header")
    if not isinstance(header, dict) or "device" not in header:
        raise InputFileError(path, "line 1 is no header of results", _FIX)
    if header.get("schema") != SCHEMA:
        raise InputFileError(
            path,
            f"has results of schema {header.get('schema')!r}; this traincast reads {SCHEMA}",
            "measure again with its own script, or use the version that wrote them",
        )
    return header


def _row(path: Path, number: int, line: str) -> Mapping[str, Any]:
    row = _object(path, number, line)
    if not isinstance(row.get("family"), str):
        raise InputFileError(path, f"line {number} has no family: it is no row of results", _FIX)
    if "error" in row:
        return row
    seconds = row.get("seconds")
    good = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not good or not 0 < float(seconds) < 1e6:  # type: ignore[arg-type]
        raise InputFileError(
            path, f"line {number} has seconds {seconds!r}, not a time above 0", _FIX
        )
    return row
