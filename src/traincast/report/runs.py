"""Tables of measured runs, as `traincast validate` reads them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from traincast.errors import InputFileError
from traincast.report.files import check_writable, write_text


def check_table(path: Path) -> None:
    """Raise where a run could not be added to a table, before it is measured."""
    check_writable(path)
    _read(path)


def append_run(path: Path, row: Mapping[str, str]) -> None:
    """Add a run to a table, which is made if it is not there; the file changes at once or not.

    Columns that the table lacks are added at its right.
    """
    head, rows = _read(path)
    head += [name for name in row if name not in head]
    text = io.StringIO(newline="")
    table = csv.DictWriter(text, head, restval="", lineterminator="\n", extrasaction="ignore")
    table.writeheader()
    table.writerows([*rows, dict(row)])
    write_text(path, text.getvalue())


def _read(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    if not path.exists():
        return [], []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            table = csv.DictReader(file)
            rows = [{k: v for k, v in row.items() if k} for row in table]
            head = list(table.fieldnames or [])
    except OSError as error:
        raise InputFileError(path, f"cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputFileError(path, f"is not a CSV table: {error}") from error
    if head and "model" not in head:
        fix = "name another file, or a new one"
        raise InputFileError(path, "is no table of runs: it has no column 'model'", fix)
    return head, rows
