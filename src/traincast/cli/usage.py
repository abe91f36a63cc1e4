"""What is wrong with a command line, in our words; cyclopts only tells which kind of mistake."""

from __future__ import annotations

from collections.abc import Sequence

from cyclopts import (
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from traincast.cli import COMMANDS
from traincast.errors import near_names

_LISTS = {"models": "show and export", "devices": "show"}


def explain_usage(error: CycloptsError, tokens: Sequence[str]) -> str:
    """Return one line that names the mistake and where to read on."""
    chain = [name for name in error.command_chain or () if name]
    return f"{_mistake(error, chain, tokens)} (see `{' '.join(['traincast', *chain])} --help`)"


def _mistake(error: CycloptsError, chain: list[str], tokens: Sequence[str]) -> str:
    if isinstance(error, UnknownCommandError):
        return _unknown_command(next(iter(error.unused_tokens or tokens), ""))
    if isinstance(error, UnusedCliTokensError):
        extra = " ".join(error.unused_tokens or ())
        if len(chain) == 1 and chain[0] in _LISTS:
            return f"{chain[0]} has no command {extra!r}; it has {_LISTS[chain[0]]}"
        return f"unexpected argument {extra!r}"
    if isinstance(error, UnknownOptionError):
        given = (error.token.keyword or error.token.value).partition("=")[0]
        names = [name for argument in error.argument_collection for name in argument.names]
        close = near_names(given.strip("-"), [n.strip("-") for n in names if n[:2] == "--"])
        hint = f"; did you mean --{' or --'.join(close)}?" if close else ""
        return f"unknown option {given}{hint}"
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        if error.keyword:
            return f"{error.keyword} needs a value"
        return f"{error.argument.name.lstrip('-').upper()} is missing"
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given more than once"
    return str(error).rstrip(".")


def _unknown_command(name: str) -> str:
    if name.startswith("-"):
        return f"unknown option {name}"
    close = near_names(name, COMMANDS)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(COMMANDS)}"
    return f"unknown command {name!r}; {hint}"
