"""The log of a framework's runs: one JSON object a line, on disk before the next run starts."""

from __future__ import annotations

import contextlib
import json
import os
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from traincast.errors import InputFileError, OutputFileError
from traincast.measure.sweep.settings import NAMES

Record = Mapping[str, Any]
State = Literal["ok", "failed", "timeout"]


@dataclass(frozen=True, slots=True)
class Log:
    """What was run in one framework so far."""

    path: Path

    def read(self) -> list[Record]:
        """Return the records, oldest first; one that was cut off in writing is none."""
        if not self.path.exists():
            return []
        try:
            lines = self.path.read_bytes().split(b"\n")
        except OSError as error:
            raise InputFileError(self.path, f"cannot be read: {error.strerror}") from error
        return [self._record(number, line) for number, line in enumerate(lines[:-1], 1)]

    def _record(self, number: int, line: bytes) -> Record:
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and {"run", "status", "settings"} <= set(found):
                return found
        fix = "remove that line, or name another output folder"
        raise InputFileError(self.path, f"line {number} is no record of a run", fix)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other sweeps from writing the same log; drop what was cut off at its end."""
        import fcntl

        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.seek(0)
                whole = file.read().rfind(b"\n") + 1
                file.truncate(whole)
                yield
        except BlockingIOError as error:
            raise OutputFileError(
                f"{self.path}: another sweep is writing it; wait for its end"
            ) from error
        except OSError as error:
            raise OutputFileError(f"{self.path}: cannot be written: {error.strerror}") from error

    def append(self, record: Record) -> None:
        """Add a record, and return when it is on disk."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())
            file.flush()
            os.fsync(file.fileno())


def latest(records: Iterable[Record]) -> dict[str, Record]:
    """Return what is known of each run: its last success, or else its last failure."""
    found: dict[str, Record] = {}
    for record in records:
        if record["status"] == "ok" or found.get(record["run"], record)["status"] != "ok":
            found[record["run"]] = record
    return found


def table(records: Iterable[Record], factors: Iterable[str]) -> tuple[list[str], list[list[Any]]]:
    """Return head and rows of the table of successful runs: factors, and seconds of an epoch.

    A setting has a column where it is one of the factors, or where it differs between runs. A point
    that was run several times has one row, the median.
    """
    points: dict[str, list[Record]] = {}
    for record in latest(records).values():
        if record["status"] == "ok":
            points.setdefault(json.dumps(record["settings"], sort_keys=True), []).append(record)
    chosen = [found[0]["settings"] for found in points.values()]
    wanted = set(factors)
    head = [n for n in NAMES if n in wanted or len({str(s.get(n)) for s in chosen}) > 1]
    times = [statistics.median(r["epoch_s"] for r in found) for found in points.values()]
    rows = [
        [*(settings.get(name) for name in head), seconds]
        for settings, seconds in zip(chosen, times, strict=True)
    ]
    return [*head, "epoch_s"], rows
