"""What the training scripts of the three frameworks share; it needs the standard library alone.

A script reads its settings as one line of JSON from standard input, trains, and prints one JSON
object. With several data-parallel processes the first starts the others, and tells them before
every epoch whether there is another one. It ends, with all that it started, when its standard
input does: when whoever ran it is gone.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import Any

SHAPES = {"mnist": (1, 28, 28), "cifar": (3, 32, 32)}
"""Channels, height and width of one image."""
CLASSES = 10


class Job:
    """One training run as one of its processes sees it."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # whatever a framework prints stays clear of the result
        self.order: dict[str, Any] = json.loads(_line())
        self.settings: dict[str, Any] = self.order["settings"]
        self.rank: int = self.order.get("rank", 0)
        self.workers: int = self.settings["workers"]
        self.local_batch: int = self.settings["batch"] // self.workers
        self.steps: int = self.settings["samples"] // self.settings["batch"]
        self._times: list[float] = []
        self._began: float | None = None
        self._cpu = 0.0
        self._peers: list[subprocess.Popen[bytes]] = []
        self._helpers: list[subprocess.Popen[bytes]] = []
        os.environ["OMP_NUM_THREADS"] = str(self.settings["threads"])
        if self.rank == 0:
            self._load = os.getloadavg()[0]
            threading.Thread(target=_end_with_input, daemon=True).start()
            if self.workers > 1:
                self.order["ports"] = free_ports(self.workers)
                self._start_peers()

    def _start_peers(self) -> None:
        for rank in range(1, self.workers):
            peer = subprocess.Popen([sys.executable, sys.argv[0]], stdin=subprocess.PIPE)
            assert peer.stdin is not None
            peer.stdin.write(json.dumps(self.order | {"rank": rank}).encode() + b"\n")
            peer.stdin.flush()
            self._peers.append(peer)

    def help_by(self, code: str, environment: dict[str, str]) -> None:
        """Start a process that runs some code beside the training, until that ends."""
        command = [sys.executable, "-W", "ignore", "-c", code]
        self._helpers.append(subprocess.Popen(command, env=os.environ | environment))

    def data(self) -> tuple[Any, Any]:
        """Return this process's images, (samples, channels, height, width), and their labels."""
        import numpy as np

        samples = self.steps * self.local_batch
        draw = np.random.default_rng(self.rank)
        images = draw.random((samples, *SHAPES[self.settings["dataset"]]), dtype=np.float32)
        return images, draw.integers(0, CLASSES, samples).astype(np.int32)

    def more(self) -> bool:
        """Say whether to train another epoch; the time from one call to the next is that epoch's.

        The first process decides, and all do the same.
        """
        now = time.perf_counter()
        if self.rank:
            return _line() == "go"
        if self._began is not None:
            self._times.append(now - self._began)
        else:
            self._cpu = time.process_time()
        total, epochs = sum(self._times), len(self._times)
        goal, most = self.order["timed_s"], self.order["most_s"]
        enough = (epochs >= self.order["least_epochs"] and total >= goal) or total >= most
        for peer in self._peers:
            assert peer.stdin is not None
            peer.stdin.write(b"stop\n" if enough else b"go\n")
            peer.stdin.flush()
        if enough:
            self._cpu = time.process_time() - self._cpu
        self._began = time.perf_counter()
        return not enough

    def finish(self, parameters: int, version: str) -> None:
        """Print the result, and end."""
        if self.rank == 0:
            epoch = statistics.median(self._times)
            result = {
                "epoch_s": epoch,
                "epoch_min_s": min(self._times),
                "epoch_max_s": max(self._times),
                "epochs": len(self._times),
                "step_ms": epoch / self.steps * 1e3,
                "spread": _spread(self._times) / epoch,
                "steps": self.steps,
                "parameters": parameters,
                "version": version,
                "busy_cores": self._cpu / sum(self._times),
                "load": self._load,
            }
            print(json.dumps(result), file=self._out, flush=True)
            for helper in self._helpers:
                helper.kill()
            for peer in self._peers:
                try:
                    peer.wait(5)
                except subprocess.TimeoutExpired:
                    peer.kill()
        # Some frameworks take seconds to put their threads to rest, or wait for their peers.
        sys.stderr.flush()
        os._exit(0)


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nothing listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


def _spread(times: list[float]) -> float:
    """Return the distance between the quartiles, in seconds; 0 for a single time."""
    if len(times) < 2:
        return 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return high - low


def _line() -> str:
    """Read one line from standard input, unbuffered, so that the rest stays there."""
    read = bytearray()
    while (byte := os.read(0, 1)) not in {b"\n", b""}:
        read += byte
    if not read and not byte:
        os._exit(1)
    return read.decode()


def _end_with_input() -> None:
    """Wait for the end of standard input, and end all processes of this run."""
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)
