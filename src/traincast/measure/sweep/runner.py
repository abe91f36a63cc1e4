"""Runs one training after the other, each in processes of its own, and records how it went."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from traincast.measure.sweep.environment import python_of
from traincast.measure.sweep.log import Log, Record, latest
from traincast.measure.sweep.plan import Effort, Run, Sweep

WORKERS = Path(__file__).parent / "workers"
KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""Makes the C library keep freed memory for the next step.

Otherwise it depends on the accidents of a process's heap whether every step gives memory back and
faults it in again, page by page: the same run took 10 % longer or shorter from one process to the
next on two cores, and 5 % like this.
"""
_MESSAGE = 400
"""Characters kept of what a failed run said."""


@dataclass(frozen=True, slots=True)
class Pending:
    """What there is to do: runs that are not in the log."""

    runs: tuple[Run, ...]
    done: int
    """Runs that the log has as successful."""
    failed: int
    """Runs that the log has as failed, and that are not tried again."""


def log_of(sweep: Sweep, framework: str) -> Log:
    """Return the log of a framework's runs."""
    return Log(sweep.output / f"{framework}.jsonl")


def pending(sweep: Sweep, runs: Sequence[Run], *, again: bool = False) -> Pending:
    """Return which of the runs are still to be done; failed ones only if asked for again."""
    known = {f: latest(log_of(sweep, f).read()) for f in sweep.frameworks}
    todo, done, failed = [], 0, 0
    for run in runs:
        record = known[run.framework].get(run.key)
        if record is None or (again and record["status"] != "ok"):
            todo.append(run)
        elif record["status"] == "ok":
            done += 1
        else:
            failed += 1
    return Pending(tuple(todo), done, failed)


def run_all(
    sweep: Sweep, runs: Sequence[Run], done: Callable[[Run, Record], None] = lambda *_: None
) -> None:
    """Do the runs in turn; each is in its log before `done` hears of it."""
    pythons = {f: python_of(f) for f in dict.fromkeys(run.framework for run in runs)}
    logs = {f: log_of(sweep, f) for f in pythons}
    machine = _machine()
    with contextlib.ExitStack() as stack:
        for log in logs.values():
            stack.enter_context(log.writing())
        for run in runs:
            script = WORKERS / f"on_{run.framework}.py"
            command = [str(pythons[run.framework]), "-W", "ignore", str(script)]
            began, clock = datetime.now(UTC), time.monotonic()
            outcome = train(command, run, sweep.effort, sweep.time_limit)
            record = {
                "run": run.key,
                "framework": run.framework,
                "repeat": run.repeat,
                "settings": asdict(run.settings),
                **outcome,
                "started": began.isoformat(timespec="seconds"),
                "run_s": round(time.monotonic() - clock, 3),
                "machine": machine,
            }
            logs[run.framework].append(record)
            done(run, record)


def train(command: Sequence[str], run: Run, effort: Effort, limit: float) -> dict[str, Any]:
    """Run a training script, and return its result, or the status and message of its failure."""
    order = {"settings": asdict(run.settings), **asdict(effort)}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with _group(command, order, out, err) as process:
            try:
                code = process.wait(limit)
            except subprocess.TimeoutExpired:
                return {"status": "timeout", "message": f"ran past its limit of {limit:g} s"}
        said, complaint = _text(out), _text(err)
    if code:
        what = f"signal {-code}" if code < 0 else f"status {code}"
        lines = complaint.strip().splitlines() or ["no message"]
        return {"status": "failed", "message": f"{what}: {lines[-1].strip()[:_MESSAGE]}"}
    return _result(said)


@contextlib.contextmanager
def _group(
    command: Sequence[str], order: Mapping[str, Any], out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a script with its order; whatever happens, none of its processes outlives this.

    Its standard input stays open: should this process be killed, that ends, and the script with it.
    """
    drop = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
    environment = {name: value for name, value in os.environ.items() if name not in drop}
    environment |= KEEP_MEMORY
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        process.wait()


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _result(said: str) -> dict[str, Any]:
    """Read what a script printed: one JSON object with a time above zero."""
    try:
        found = json.loads(said)
        epoch = found["epoch_s"]
        good = math.isfinite(epoch) and epoch > 0
    except (ValueError, TypeError, KeyError):
        good = False
    if not good:
        shown = " ".join(said.split())[:_MESSAGE] or "nothing"
        return {"status": "failed", "message": f"printed no result, but {shown}"}
    return {"status": "ok", **found}


def _machine() -> dict[str, Any]:
    """Describe the machine, and how its runs are scheduled."""
    from traincast.measure.cpu import this_cpu

    cpu = this_cpu()
    policies = {os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr"}
    return {
        "cpu": cpu.name,
        "cores": len(cpu.cores),
        "scheduling": policies.get(os.sched_getscheduler(0), "normal"),
    }
