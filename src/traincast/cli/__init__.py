"""The command line. Commands are loaded when called, so `--help` stays light."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from traincast._version import __version__
from traincast.errors import TraincastError

if TYPE_CHECKING:
    import cyclopts

COMMANDS = {
    "predict": ("predict:predict", "Predict a training step of a model on a device."),
    "manycore": ("manycore:manycore", "Predict a training run on a many-core CPU, by threads."),
    "calibrate": ("calibrate:calibrate", "Measure this machine for the models that need it."),
    "measure": ("measure:measure", "Measure a real training step on this machine."),
    "run": ("run:run", "Train under a layer-wise plan for real, one process a device."),
    "scale": ("scale:scale", "Predict how a step scales over devices and strategies."),
    "plan": ("plan:plan", "Find the best split of every layer over a cluster."),
    "compare": ("compare:compare", "Put all estimators side by side on the same work."),
    "sweep": ("sweep:sweep", "Time real training over many settings, in three frameworks."),
    "fit": ("fit:fit", "Fit an expression of time to a table of runs; say what drives it."),
    "validate": ("validate:validate", "Compare predictions with measured runs, row by row."),
    "explore": ("explore:explore", "Compare data and model parallelism over five axes."),
    "models": ("models:app", "List the built-in models, show one, or export its graph."),
    "devices": ("devices:app", "List the devices and links, or show one or a cluster."),
}
_HELP = """How long a training step takes, before anyone spends a GPU-hour.

traincast predict resnet50 --device h200 --batch 256
traincast predict model.py:build --device a100-80gb --batch max
traincast predict hf:config.json --device h100 --seq 4096 --precision bf16

`traincast COMMAND --help` lists the options of a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status: 0 fine, 1 no prediction, 2 bad usage."""
    from cyclopts import CycloptsError

    # A command makes many small objects that live as long as it does: looking for cycles among
    # them again and again takes a tenth of its time.
    gc.set_threshold(200_000, 20, 100)
    _prepare_streams()
    tokens = list(sys.argv[1:] if argv is None else argv)
    try:
        _app()(tokens, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        from traincast.cli.usage import explain_usage

        return _fail(explain_usage(error, tokens), 2)
    except TraincastError as error:
        return _fail(str(error), error.exit_status)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except BrokenPipeError:
        _drop_output()  # the reader (head, less) has seen enough
    except OSError as error:
        _drop_output()
        return _fail(f"cannot write the output: {error.strerror or error}", 2)
    except Exception as error:
        if os.environ.get("TRAINCAST_DEBUG"):
            raise
        return _fail(
            f"{type(error).__name__}: {error}\n"
            "This is a defect of traincast: please report it with the command and with what it "
            "prints when TRAINCAST_DEBUG=1 is set.",
            1,
        )
    return 0


def _app() -> cyclopts.App:
    from cyclopts import App

    app = App(
        name="traincast",
        help=_HELP,
        help_format="plaintext",
        version=__version__,
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for place, (name, (target, text)) in enumerate(COMMANDS.items()):
        own = {} if target.endswith(":app") else {"help_format": "markdown"}
        app.command(f"traincast.cli.{target}", name=name, help=text, sort_key=place, **own)
    return app


def _prepare_streams() -> None:
    """Make sure that printing cannot fail on a closed stream or on a sign that it lacks."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if not (getattr(stream, "encoding", None) or "utf-8").lower().startswith("utf"):
            with contextlib.suppress(AttributeError):
                stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def _drop_output() -> None:
    """Keep the interpreter's last flush from complaining about a stream that takes no more."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> int:
    print(f"traincast: {message}", file=sys.stderr)
    return status


def run() -> None:
    """Entry point of the `traincast` command."""
    sys.exit(main())
