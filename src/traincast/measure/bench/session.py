"""Measures this machine's device into the store, through a process that may die."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from traincast.errors import InvalidValueError, MissingExtraError, PredictionError
from traincast.measure import store as stored
from traincast.measure.bench.results import Results, case_key

_RESTARTS = 5
_START_S, _CASE_S = 600.0, 180.0
"""How long to wait for the process to start, and for one case, before it counts as hung."""
_SEED = 0
_SAME = ("schema", "device", "torch", "threads")
"""What a later session has to share to go on with an earlier one."""
_CHILD = (sys.executable, "-m", "traincast.measure.bench.child")
Told = Callable[[int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a session ended with."""

    results: Results
    """All rows of this device and software, those of earlier sessions included."""
    new: int
    """Rows of this session."""
    problem: str = ""
    """Why it ended early; empty when the time was up."""


def measure_here(
    *, device: str | None, minutes: float, again: bool = False, told: Told = lambda *_: None
) -> Measured:
    """Measure this machine's device (`cuda` or `cpu`; by default the first that is there).

    Rows go to the store one by one. A later session goes on where this one ended, unless `again`.
    `told` hears, before each case, how many rows there are and the family of the case.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "torch", "measuring this machine")
    deadline = time.monotonic() + 60 * minutes
    with stored.open_store() as store:
        session = _Session(store, device, told)
        for attempt in range(_RESTARTS + 1):
            finished = session.run_child(deadline, again=again and attempt == 0)
            if finished or time.monotonic() > deadline:
                break
        rows = list(stored.results(store, session.run).values()) if session.run else []
    if session.header is None:
        raise InvalidValueError(session.problem)
    if not any("seconds" in row for row in rows):
        why = session.problem or "there was no time for a single case; give more --minutes"
        raise PredictionError(f"nothing was measured on {session.header['device']}: {why}")
    results = Results(header=session.header, rows=rows)
    return Measured(results=results, new=session.new, problem=session.problem)


class _Session:
    """The store's side of one or more measuring processes."""

    def __init__(self, store: stored.Store, device: str | None, told: Told) -> None:
        self.store, self.device, self.told = store, device, told
        self.run, self.new, self.problem = "", 0, ""
        self.header: Mapping[str, Any] | None = None

    def run_child(self, deadline: float, *, again: bool) -> bool:
        """Measure in a process until the time is up; False where it died and another may go on."""
        current: Mapping[str, Any] | None = None
        with _child() as (send, lines, end):
            send({"device": self.device, "seed": _SEED})
            self.problem = ""
            for said in lines:
                if "problem" in said:
                    self.problem = said["problem"]
                elif "header" in said:
                    self._begin(said["header"], again)
                    left = max(0.0, deadline - time.monotonic()) / 60
                    send({"minutes": left, "done": sorted(self._keys())})
                elif "begin" in said:
                    current = said["begin"]
                    self.told(self.new, current["family"])
                elif "row" in said:
                    self._keep(said["row"])
                    current = None
            status, complaint = end()
        if status == 0 or self.problem:
            return True
        self.problem = complaint
        if current is not None:
            self._keep({**current, "error": complaint})
        return self.header is None

    def _begin(self, header: Mapping[str, Any], again: bool) -> None:
        if self.header is None:
            alike = [
                c.run
                for c in stored.calibrations(self.store)
                if all(c.header.get(key) == header.get(key) for key in _SAME)
            ]
            name = f"{header['device']}, torch {header['torch']}, {stored.now()}, {len(alike) + 1}"
            self.run = name if again or not alike else alike[-1]
            self.header = stored.start_calibration(self.store, self.run, header).header

    def _keys(self) -> set[str]:
        return stored.result_keys(self.store, self.run)

    def _keep(self, row: Mapping[str, Any]) -> None:
        stored.add_result(self.store, self.run, case_key(row), row)
        self.new += 1


Send = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def _child() -> Iterator[tuple[Send, Iterator[dict[str, Any]], Callable[[], tuple[int, str]]]]:
    """Start the measuring process; give what sends to it, what it says, and how it ended."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            _CHILD, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            start_new_session=True, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        heard: queue.Queue[str] = queue.Queue()
        listener = threading.Thread(target=_listen, args=(process.stdout, heard), daemon=True)
        listener.start()

        def send(said: Mapping[str, Any]) -> None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(said) + "\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]

        def end() -> tuple[int, str]:
            status = process.wait()
            errors.seek(0)
            return status, _complaint(status, errors.read())

        try:
            yield send, _said(heard, process), end
        finally:
            process.kill()
            process.wait()
            listener.join()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
            process.stdout.close()


def _listen(stream: IO[str], heard: queue.Queue[str]) -> None:
    for line in stream:
        heard.put(line)
    heard.put("")


def _said(heard: queue.Queue[str], process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield what the process says until it ends; one that says nothing for long is killed."""
    patience = _START_S
    while True:
        try:
            line = heard.get(timeout=patience)
        except queue.Empty:
            process.kill()
            return
        if not line.endswith("\n"):  # its end, or half a line of a process that was killed
            return
        yield json.loads(line)
        patience = _CASE_S


def _complaint(status: int, errors: str) -> str:
    if status == 3:
        return "the device was left unusable and the process began anew"
    if status == -signal.SIGKILL:
        return "the measuring process was killed: out of the host's memory, or hung"
    if status < 0:
        return f"the measuring process ended with {signal.Signals(-status).name}"
    last = (errors.strip().splitlines() or ["no message"])[-1]
    return f"the measuring process failed: {last[:200]}"
