"""What was measured on this machine, in one SQLite file: training steps and calibrations.

The file is `$TRAINCAST_STORE`, or `traincast/store.db` in the user's data folder. Every write is
committed at once, so that a process which is killed loses nothing that it had measured.

    with open_store() as store:
        add_run(store, model="resnet50", batch=32, step_ms=12.3)
        start_calibration(store, "h200-1", {"device": "h200"})
        add_result(store, "h200-1", "gemm/512x512x512", {"seconds": 1.2e-5})
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from traincast.errors import InputFileError, OutputFileError

VERSION = 1
"""Of the schema; a store of a later one is refused."""
_MARK = 0x7472636E
"""`application_id` of our files, which no other program's has."""
_WAIT_S = 2.0
"""How long to wait for another process that is writing."""

TEXTS = ("date", "model", "precision", "optimizer", "layout", "mode", "device", "torch", "error",
         "depth")  # fmt: skip
COUNTS = ("batch", "seq", "image", "params", "steps")
REALS = ("step_ms", "step_p10", "step_p90", "wall_ms", "fwd_ms", "bwd_ms", "opt_ms", "infer_ms",
         "peak_gib")  # fmt: skip
_RUN_COLUMNS = (*TEXTS, *COUNTS, *REALS)


def _schema() -> Iterator[str]:
    kinds = dict.fromkeys(TEXTS, "TEXT") | dict.fromkeys(COUNTS, "INTEGER")
    kinds |= dict.fromkeys(REALS, "REAL")
    kinds |= {"date": "TEXT NOT NULL", "model": "TEXT NOT NULL"}
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    yield f"CREATE TABLE runs (id INTEGER PRIMARY KEY, {columns}) STRICT"
    yield (
        "CREATE TABLE calibrations "
        "(run TEXT PRIMARY KEY, started TEXT NOT NULL, header TEXT NOT NULL) STRICT"
    )
    yield (
        "CREATE TABLE results (id INTEGER PRIMARY KEY, run TEXT NOT NULL REFERENCES calibrations, "
        "key TEXT NOT NULL, row TEXT NOT NULL, UNIQUE (run, key)) STRICT"
    )


@dataclass(frozen=True, slots=True)
class Store:
    """An open store."""

    path: Path
    connection: sqlite3.Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """One calibration: what was measured, and when it began."""

    run: str
    started: str
    """UTC, ISO 8601."""
    header: Mapping[str, Any]


def store_path() -> Path:
    """Return where the store is: TRAINCAST_STORE, or a file in the user's data folder."""
    named = os.environ.get("TRAINCAST_STORE")
    if named:
        return Path(named).expanduser()
    data = os.environ.get("XDG_DATA_HOME")
    folder = Path(data) if data else Path.home() / ".local" / "share"
    return folder / "traincast" / "store.db"


@contextlib.contextmanager
def open_store(path: Path | None = None) -> Iterator[Store]:
    """Open the store, made if it is not there yet; what SQLite refuses becomes an error of ours."""
    path = path or store_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputFileError(
            f"{path}: its folder cannot be made: {error.strerror}; set TRAINCAST_STORE to a file "
            "that can be written"
        ) from error
    try:
        # autocommit: each statement is its own transaction
        connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
        with contextlib.closing(connection):
            connection.row_factory = sqlite3.Row
            _prepare(path, connection)
            yield Store(path, connection)
    except sqlite3.IntegrityError:
        raise  # a mistake of ours
    except sqlite3.OperationalError as error:
        raise _refused(path, error) from error
    except sqlite3.DatabaseError as error:
        said = f"is not a store of traincast: {error}"
        raise InputFileError(path, said, "set TRAINCAST_STORE to another file") from error


def _prepare(path: Path, connection: sqlite3.Connection) -> None:
    def pragma(name: str) -> int:
        return int(connection.execute(f"PRAGMA {name}").fetchone()[0])

    def is_empty() -> bool:
        return not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]

    if is_empty():
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("BEGIN IMMEDIATE")
        if is_empty():  # still: two processes may want to make it at once
            for statement in _schema():
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {_MARK}")
            connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    if pragma("application_id") != _MARK:
        fix = "set TRAINCAST_STORE to another file"
        raise InputFileError(path, "is a database of another program", fix)
    found = pragma("user_version")
    if found > VERSION:
        raise InputFileError(
            path,
            f"was written by a newer traincast (store version {found}; this one reads {VERSION})",
            "update traincast, or set TRAINCAST_STORE to another file",
        )
    connection.execute("PRAGMA synchronous = NORMAL")  # with WAL, safe against being killed
    connection.execute("PRAGMA foreign_keys = ON")


def _refused(path: Path, error: sqlite3.OperationalError) -> InputFileError | OutputFileError:
    other = "or set TRAINCAST_STORE to another file"
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return InputFileError(
            path, "is locked by another process", f"wait until that one is done, {other}"
        )
    return OutputFileError(f"{path}: {error}; make it a file that can be written, {other}")


def add_run(store: Store, **columns: Any) -> int:
    """Keep one measured training step; returns its id.

    Columns are those of the validate table, with `step_p10`, `step_p90`, `wall_ms`, `params`,
    `steps` (how many were timed), `torch` (its version), `date` (by default now) and `depth` (what
    a deeper measurement found, as plain data). `optimizer` is named as in `traincast predict`.
    """
    unknown = columns.keys() - set(_RUN_COLUMNS)
    assert not unknown, unknown
    columns.setdefault("date", now())
    if columns.get("depth") is not None:
        columns["depth"] = _dump(columns["depth"])
    names = ", ".join(columns)
    marks = ", ".join("?" * len(columns))
    done = store.connection.execute(
        f"INSERT INTO runs ({names}) VALUES ({marks})", tuple(columns.values())
    )
    assert done.lastrowid is not None
    return done.lastrowid


def runs(
    store: Store, *, model: str | None = None, device: str | None = None, since: str | None = None
) -> list[dict[str, Any]]:
    """Return the measured steps, oldest first: of one model, of one device, since a date."""
    given = {"model =": model, "device =": device, "date >=": since}
    wanted = {test: value for test, value in given.items() if value is not None}
    where = " AND ".join(f"{test} ?" for test in wanted) or "1"
    found = store.connection.execute(
        f"SELECT * FROM runs WHERE {where} ORDER BY id", tuple(wanted.values())
    )
    rows = [dict(row) for row in found]
    for row in rows:
        row["depth"] = json.loads(row["depth"]) if row["depth"] else None
    return rows


def start_calibration(store: Store, run: str, header: Mapping[str, Any]) -> Calibration:
    """Note that a calibration begins; one that was broken off keeps its first header."""
    store.connection.execute(
        "INSERT INTO calibrations (run, started, header) VALUES (?, ?, ?) "
        "ON CONFLICT (run) DO NOTHING",
        (run, now(), _dump(header)),
    )
    found = calibration(store, run)
    assert found is not None
    return found


def calibration(store: Store, run: str) -> Calibration | None:
    """Return a calibration by its id; None where there is none."""
    return next((c for c in calibrations(store) if c.run == run), None)


def calibrations(store: Store) -> list[Calibration]:
    """Return all calibrations, oldest first."""
    found = store.connection.execute("SELECT * FROM calibrations ORDER BY started, rowid")
    return [
        Calibration(run=row["run"], started=row["started"], header=json.loads(row["header"]))
        for row in found
    ]


def add_result(store: Store, run: str, key: str, row: Mapping[str, Any]) -> None:
    """Keep one measurement of a calibration; one with the same key is replaced."""
    store.connection.execute(
        "INSERT INTO results (run, key, row) VALUES (?, ?, ?) "
        "ON CONFLICT (run, key) DO UPDATE SET row = excluded.row",
        (run, key, _dump(row)),
    )


def results(store: Store, run: str) -> dict[str, dict[str, Any]]:
    """Return the measurements of a calibration by key, in the order in which they were made."""
    found = store.connection.execute(
        "SELECT key, row FROM results WHERE run = ? ORDER BY id", (run,)
    )
    return {row["key"]: json.loads(row["row"]) for row in found}


def result_keys(store: Store, run: str) -> set[str]:
    """Return the keys of what a calibration has measured so far."""
    found = store.connection.execute("SELECT key FROM results WHERE run = ?", (run,))
    return {row["key"] for row in found}


def now() -> str:
    """Return the present as the store writes it: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
