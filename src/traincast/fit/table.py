"""Reading a table of runs: CSV, one run a row, of any size, in bounded memory."""

from __future__ import annotations

import csv
import gzip
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from traincast.errors import InputFileError, UnknownNameError

MOST_ROWS = 5_000
"""Runs that a fit takes; of a longer table an even sample."""
MOST_COLUMNS = 500
_LONGEST_LINE = 1 << 20
_EVERY = 1 << 22
_MISSING = frozenset({"", "nan", "na", "n/a", "null"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The cells of a table as text."""

    path: str
    columns: dict[str, list[str]]
    rows: list[int]
    """Where each run stands in the file, the header being row 1."""
    total: int
    """Runs in the file, which are more than those kept if it is long."""
    repeated: tuple[str, ...] = ()
    """Names that head several columns; the first is used."""

    def column(self, name: str) -> list[str]:
        """Return the cells of a column."""
        if name not in self.columns:
            raise UnknownNameError("column", name, self.columns, f"{self.path} has {self.names()}")
        return self.columns[name]

    def names(self) -> str:
        """Return the names of the columns for a message."""
        shown = list(self.columns)[:20]
        more = len(self.columns) - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")


def missing(cell: str) -> bool:
    """Tell whether a cell says nothing."""
    return cell.strip().lower() in _MISSING


def say_rows(rows: Sequence[int], most: int = 8) -> str:
    """Return row numbers for a message: `row 7`, `rows 2, 5, 9 and 12 more`."""
    shown = ", ".join(map(str, rows[:most]))
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more}"


def read_table(
    path: Path,
    *,
    most: int = MOST_ROWS,
    seed: int = 0,
    tell: Callable[[float], None] = lambda _: None,
) -> Table:
    """Return the runs of a CSV, gzipped or not; of more than `most`, an even random sample.

    Rows are read one after the other and at most `most` are kept, so that memory is bounded
    whatever the size of the file. `tell` is given which share of it was read.
    """
    try:
        size = max(path.stat().st_size, 1)
        with _open(path) as file:
            return _read(path, _lines(path, file, lambda at: tell(min(at / size, 1))), most, seed)
    except FileNotFoundError:
        raise InputFileError(path, "there is no such file", "check the path") from None
    except IsADirectoryError:
        raise InputFileError(path, "is a folder", "name a CSV in it") from None
    except (UnicodeDecodeError, gzip.BadGzipFile, EOFError):
        fix = "write a CSV with a header, one run a row"
        raise InputFileError(path, "is not a text in UTF-8", fix) from None
    except csv.Error as error:
        raise InputFileError(path, f"is not a CSV: {error}", "quote cells with commas") from None
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputFileError(path, f"cannot be read ({why})", "check its permissions") from None


def _open(path: Path) -> IO[str]:
    if path.suffix.lower() == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _lines(path: Path, file: IO[str], tell: Callable[[int], None]) -> Iterator[str]:
    read, told = 0, 0
    while line := file.readline(_LONGEST_LINE):
        read += len(line)
        if read - told > _EVERY:
            told = read
            tell(read)
        if len(line) >= _LONGEST_LINE:
            fix = "write a CSV with a header, one run a row"
            raise InputFileError(path, "has a line of over a million characters", fix)
        if "\0" in line:
            raise InputFileError(path, "holds binary data", "write a CSV with a header")
        yield line


def _read(path: Path, lines: Iterator[str], most: int, seed: int) -> Table:
    reader = csv.reader(lines, skipinitialspace=True)
    head = [name.strip() for name in next(reader, [])]
    if not any(head):
        raise InputFileError(path, "is empty", "write a CSV with a header, one run a row")
    if len(head) > MOST_COLUMNS:
        raise InputFileError(path, f"has {len(head)} columns", f"keep at most {MOST_COLUMNS}")
    kept: list[tuple[int, list[str]]] = []
    draw = random.Random(seed)
    total = 0
    for number, cells in enumerate(reader, 2):
        if not any(cell.strip() for cell in cells):
            continue
        if len(cells) > len(head):
            problem = f"row {number} has {len(cells)} cells under {len(head)} names"
            raise InputFileError(path, problem, "quote cells with commas")
        total += 1
        if len(kept) < most:
            kept.append((number, cells))
        elif (place := draw.randrange(total)) < most:
            kept[place] = (number, cells)
    kept.sort(key=lambda row: row[0])
    columns: dict[str, list[str]] = {}
    repeated = []
    for i, name in enumerate(head):
        if name in columns:
            repeated.append(name)
        elif name:
            columns[name] = [cells[i].strip() if i < len(cells) else "" for _, cells in kept]
    return Table(path=str(path), columns=columns, rows=[n for n, _ in kept], total=total,
                 repeated=tuple(repeated))  # fmt: skip
