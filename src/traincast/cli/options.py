"""What commands share: option declarations, reading of values, loading of models."""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from traincast.errors import InvalidValueError
from traincast.units import parse_count

if TYPE_CHECKING:
    from traincast.graph import Graph

LARGEST = {"--batch": 10**9, "--seq": 10**9, "--accumulate": 10**6, "--image": 10**5}
"""Beyond these a prediction means nothing: no device holds them, and numbers lose their digits."""

_EXAMPLES = {
    "--batch": "256, or max for the largest that fits",
    "--seq": "4096",
    "--accumulate": "4",
    "--image": "224",
}
_PARAMETER = inspect.signature(Parameter).parameters


def option(value: str = "", **more: Any) -> Parameter:
    """Declare an option; `value` is what the help shows in place of its value."""
    if "metavar" in _PARAMETER:
        more["metavar"] = value
    return Parameter(**more)


def flag(**more: Any) -> Parameter:
    """Declare an option that is on when given."""
    return Parameter(negative="", show_default=False, **more)


Json = Annotated[bool, flag()]
Seq = Annotated[str | None, option("N")]
Image = Annotated[str | None, option("PIXELS")]


def count(name: str, text: str | None) -> int | None:
    """Read a whole number of at least 1, within what makes sense for the option."""
    if text is None:
        return None
    most = LARGEST.get(name, 10**20)
    try:
        value = parse_count(text, name)
    except InvalidValueError:
        value = 0
        with contextlib.suppress(ValueError, OverflowError):
            value = int(float(text))  # too many digits to be read exactly
        if value <= most:
            example = _EXAMPLES.get(name, "1281167 or 1.28M")
            raise InvalidValueError(
                f"{name} {text!r} is not a whole number of at least 1; write {example}"
            ) from None
    if value > most:
        raise InvalidValueError(f"{name} {text} is too large; give at most {most:,}")
    return value


def above_zero(name: str, text: str | None) -> float | None:
    """Read a finite number above zero."""
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise InvalidValueError(f"{name} {text!r} is not a number above 0; write 90 or 2.5")
    return value


def rows(name: str, text: str) -> int:
    """Read how many rows to list: 0 or more, or `all`."""
    if text.strip().lower() == "all":
        return sys.maxsize
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 19):
        raise InvalidValueError(f"{name} {text!r} is not a number of rows; write 0, 20 or all")
    return int(text)


def load_model(
    reference: str,
    *,
    image: int | None = None,
    batch: int | str | None = None,
    seq: int | None = None,
) -> Graph:
    """Return the graph of a model reference, showing on a terminal that it takes a while.

    A `batch` in words, such as max, is none to trace at.
    """
    from traincast.ingest.references import is_traced, resolve

    waits = is_traced(reference, image)
    with _status(f"tracing {reference} …") if waits else contextlib.nullcontext():
        wanted = batch if isinstance(batch, int) else None
        graph = resolve(reference, image=image, batch=wanted, seq=seq)
    if seq is not None and not graph.has_sequence and "seq" not in graph.fixed:
        raise InvalidValueError(f"{graph.name} has no sequence axis; leave out --seq")
    return graph


@contextlib.contextmanager
def _status(text: str) -> Iterator[None]:
    """Show a line while something runs; what that prints goes where it spoils no output."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    shown = console.status(Text(text)) if console.is_terminal else contextlib.nullcontext()
    with contextlib.redirect_stdout(sys.stderr), shown:
        yield
