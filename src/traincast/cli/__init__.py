"""The command line. Commands are loaded when called, so `--help` stays light."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from traincast._version import __version__
from traincast.errors import TraincastError

COMMANDS = {
    "predict": ("predict:predict", "Predict a training step of a model on a device."),
    "models": ("models:app", "List the built-in models, or show one."),
    "devices": ("devices:app", "List the devices, links and clusters, or show one."),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 fine, 1 no prediction, 2 bad usage."""
    from cyclopts import App, CycloptsError

    app = App(
        name="traincast",
        help="How long a training step takes, before anyone spends a GPU-hour.",
        version=__version__,
        result_action="return_value",
    )
    for name, (target, text) in COMMANDS.items():
        app.command(f"traincast.cli.{target}", name=name, help=text)
    try:
        app(argv, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        return _fail(f"{error}; see traincast --help", 2)
    except TraincastError as error:
        return _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        # The reader (head, less) went away: keep the interpreter's last flush from complaining.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _fail(message: str, status: int) -> int:
    print(f"traincast: {message}", file=sys.stderr)
    return status


def run() -> None:
    """Entry point of the `traincast` command."""
    sys.exit(main())
