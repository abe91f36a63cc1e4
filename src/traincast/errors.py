"""Everything traincast raises on purpose.

TraincastError                    base; a message that names the thing and the fix
├── UsageError                    the request is wrong                       exit status 2
│   ├── UnknownNameError          no model, device, precision … of that name
│   ├── InvalidValueError         a value out of range or of the wrong form
│   ├── InputFileError            a file that cannot be read or is malformed
│   ├── OutputFileError           a file that cannot be written
│   ├── GraphError                a graph that breaks the specification
│   ├── IngestError               a model that cannot be turned into a graph
│   └── MissingExtraError         an optional package that the request needs
└── PredictionError               the request is fine, a prediction is not   exit status 1
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class TraincastError(Exception):
    """Base of every error that traincast raises on purpose."""

    exit_status = 2

    def __reduce__(self) -> tuple[object, ...]:
        # An error has to come back whole from a worker process, whatever its constructor takes.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[TraincastError], args: tuple[object, ...], state: dict[str, object]
) -> TraincastError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class UsageError(TraincastError):
    """The request itself is wrong; nothing was computed or written."""


class UnknownNameError(UsageError):
    """A name that is not in the list it should come from."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.suggestions = near_names(name, known)
        message = f"unknown {kind} {name!r}"
        if self.suggestions:
            message += "; did you mean " + " or ".join(self.suggestions) + "?"
        if hint:
            message += ("" if self.suggestions else ";") + f" {hint}"
        super().__init__(message)


class InvalidValueError(UsageError):
    """A value out of range or of the wrong form."""


class InputFileError(UsageError):
    """A file that cannot be read or is malformed; carries every problem found in it."""

    def __init__(self, path: object, problems: str | Sequence[str], fix: str = "") -> None:
        self.path = str(path)
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        if len(self.problems) == 1:
            message = f"{self.path}: {self.problems[0]}"
        else:
            message = f"{self.path}: {len(self.problems)} problems\n" + "\n".join(
                f"  - {problem}" for problem in self.problems
            )
        if fix:
            message += ("; " if len(self.problems) == 1 else "\n") + fix
        super().__init__(message)


class OutputFileError(UsageError):
    """A file that cannot be written; whatever was there before is untouched."""


class GraphError(UsageError):
    """A graph that breaks the specification; lists every rule it breaks."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        self.name = name
        self.problems = list(problems)
        shown = "\n".join(f"  - {problem}" for problem in self.problems[:20])
        more = f"\n  … and {len(self.problems) - 20} more" if len(self.problems) > 20 else ""
        super().__init__(f"graph {name!r} is not valid:\n{shown}{more}")


class IngestError(UsageError):
    """A model that cannot be turned into a graph; names the line or node and what to do."""


class MissingExtraError(UsageError):
    """An optional package that the request needs is not installed."""

    def __init__(self, package: str, extra: str, what: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"{what} needs the package {package!r}, which is not installed; "
            f"install it with: pip install 'traincast[{extra}]'"
        )


class PredictionError(TraincastError):
    """The request is well-formed but no prediction can be made for it."""

    exit_status = 1


def near_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` known names close to `name`, closest first."""
    folded = {candidate.lower(): candidate for candidate in known}
    close = difflib.get_close_matches(name.lower(), folded, n=count, cutoff=0.55)
    inside = [c for c in folded if len(name) >= 3 and name.lower() in c and c not in close]
    return [folded[c] for c in (close + sorted(inside, key=len))[:count]]
