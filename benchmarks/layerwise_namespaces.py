"""A layer-wise plan against data parallelism over real links of 1 Gbit/s, on one machine.

Four processes, each in a network namespace of its own, are joined by a bridge in a fifth; `tc`
holds every link to a rate, both ways. First the compute is measured: four processes train their
share of the batch side by side, alone, so that cores they share are in it. `traincast plan` makes
the plan from that and from the catalog's link; then data parallelism and the plan train in turn,
and the interfaces count the bytes.

    sudo python benchmarks/layerwise_namespaces.py

Needs root, `ip` and `tc`. Namespaces have names of this process and are deleted at the end,
whatever happens; nothing outside them is touched.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from traincast.parallel.strategy import (
    LayerSplit,
    Strategy,
    read_strategy,
    strategy_to_json,
)

PROCESSES = 4
NET = "10.77.0"
PORT = 29555
PATIENCE = 900.0
"""Seconds after which a training is given up."""
CUT = (signal.SIGINT, signal.SIGTERM)


def sh(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def cut(*_: object) -> None:
    """End in order; a second Ctrl-C must not leave half of it behind."""
    for number in CUT:
        signal.signal(number, lambda *_: None)
    sys.exit(130)


@contextlib.contextmanager
def network(rate: str) -> Iterator[list[str]]:
    """Give the names of namespaces that are joined by links of a rate."""
    switch = f"traincast-{os.getpid()}-switch"
    made: list[str] = []
    try:
        made.append(switch)
        sh("ip", "netns", "add", switch)
        sh("ip", "-n", switch, "link", "add", "bridge0", "type", "bridge")
        sh("ip", "-n", switch, "link", "set", "bridge0", "up")
        for k in range(PROCESSES):
            name, port = f"traincast-{os.getpid()}-{k}", f"port{k}"
            made.append(name)
            sh("ip", "netns", "add", name)
            sh("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0",
               "netns", name)  # fmt: skip
            sh("ip", "-n", switch, "link", "set", port, "master", "bridge0", "up")
            sh("ip", "-n", name, "address", "add", f"{NET}.{k + 1}/24", "dev", "eth0")
            sh("ip", "-n", name, "link", "set", "eth0", "up")
            sh("ip", "-n", name, "link", "set", "lo", "up")
            for where, device in ((switch, port), (name, "eth0")):
                sh("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", rate,
                   "burst", "256kb", "latency", "100ms")  # fmt: skip
        yield made[1:]
    finally:
        for name in reversed(made):
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)


def sent(spaces: list[str]) -> int:
    """Return the bytes that all processes have put on their links so far."""
    return sum(
        int(sh("ip", "netns", "exec", s, "cat", "/sys/class/net/eth0/statistics/tx_bytes"))
        for s in spaces
    )


def train(spaces: list[str], plans: list[Path], options: list[str], joined: bool) -> list[Any]:
    """Run a plan in every namespace, as one group or each on its own; return what they print."""
    running: list[subprocess.Popen[str]] = []
    command = [sys.executable, "-m", "traincast", "run"]
    try:
        for k, (space, plan) in enumerate(zip(spaces, plans, strict=True)):
            group = {
                "RANK": str(k), "WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": f"{NET}.1",
                "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": "eth0",
            } if joined else {}  # fmt: skip
            running.append(
                subprocess.Popen(
                    ["ip", "netns", "exec", space, *command, str(plan), "--json", *options],
                    env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR", **group},
                    stdout=subprocess.PIPE, text=True,
                )
            )  # fmt: skip
        outputs = [p.communicate(timeout=PATIENCE)[0] for p in running]
    finally:
        for p in running:
            if p.poll() is None:
                p.terminate()
        for p in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(10)
            if p.poll() is None:
                p.kill()
    if any(p.returncode for p in running):
        raise SystemExit("a process failed; see above")
    return [json.loads(o) for o in outputs if o.strip()]


def fastest_alone(spaces: list[str], plan: Path, options: list[str]) -> float:
    """Return the milliseconds of a process's share of the batch, all computing at once.

    Of each process its fastest step counts, as other work on the machine only ever adds; of the
    processes the mean.
    """
    found = train(spaces, [plan] * PROCESSES, options, joined=False)
    return statistics.mean(f["step_min_ms"] for f in found)


def main() -> None:
    parse = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parse.add_argument("--model", default="alexnet")
    parse.add_argument("--image", type=int, default=96)
    parse.add_argument("--batch", type=int, default=8, help="samples for each process")
    parse.add_argument("--rate", default="1gbit", help="of every link, both ways")
    parse.add_argument("--link", default="ethernet-1g", help="the same in the catalog")
    parse.add_argument("--device", default="grace", help="of the catalog; stretched to this one")
    parse.add_argument("--steps", type=int, default=10)
    parse.add_argument("--json", type=Path, help="keep the figures in a file")
    given = parse.parse_args()
    missing = [name for name in ("ip", "tc") if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        lacks = f"{' and '.join(missing)} of iproute2" if missing else "root; run it with sudo"
        raise SystemExit(f"making network namespaces and limiting their links needs {lacks}")
    for number in CUT:
        signal.signal(number, cut)
    steps = ["--steps", str(given.steps), "--warmup", "1", "--threads", "1", "--timeout", "600"]
    with tempfile.TemporaryDirectory() as folder, network(given.rate) as spaces:
        where = Path(folder)
        print("measuring compute alone …", file=sys.stderr)
        one = where / "one.json"
        one.write_text(strategy_to_json(Strategy(given.model, given.batch, 1, (), 0, given.image)))
        step_ms = fastest_alone(spaces, one, steps)
        plan = where / "plan.json"
        sh(sys.executable, "-m", "traincast", "plan", given.model, "--cluster",
           f"{PROCESSES}x1x{given.device}", "--network", given.link, "-b", str(given.batch),
           "--image", str(given.image), "-p", "fp32", "--optimizer", "sgd", "--step-ms",
           f"{step_ms:.3f}", "--scheme", "ring", "-o", str(plan))  # fmt: skip
        predicted = json.loads(plan.read_text())["strategies"]
        data = where / "data.json"
        data.write_text(strategy_to_json(data_parallel(read_strategy(plan))))
        rows = {}
        for name, file in (("data", data), ("layer-wise", plan)):
            print(f"training: {name} …", file=sys.stderr)
            before = sent(spaces)
            found = train(spaces, [file] * PROCESSES, steps, joined=True)[0]
            wire = (sent(spaces) - before) / given.steps
            rows[name] = {
                "step_ms": found["step_ms"],
                "range_ms": [found["step_min_ms"], found["step_max_ms"]],
                "splits": splits(file),
                "predicted_step_ms": predicted[name]["step_ms"],
                "wire_bytes": wire,
                "payload_bytes": found["communication_bytes"],
                "predicted_bytes": predicted[name]["communication_bytes"],
                "losses": found["losses"],
            }
        report(given, step_ms, rows)
        if given.json:
            given.json.write_text(json.dumps({"compute_ms": step_ms, "rows": rows}, indent=1))


def data_parallel(plan: Strategy) -> Strategy:
    """Return the strategy that splits every layer of a plan by sample."""
    layers = tuple(LayerSplit(x.name, x.op, {"sample": plan.devices}) for x in plan.layers)
    return Strategy(plan.model, plan.batch, plan.devices, layers, plan.seq, plan.image)


def splits(file: Path) -> list[str]:
    """Return a plan's layers, equal neighbours folded."""
    lines: list[list[str]] = []
    for layer in read_strategy(file).layers:
        if lines and lines[-1][2] == str(layer):
            lines[-1][1] = layer.name
        else:
            lines.append([layer.name, layer.name, str(layer)])
    return [f"{a if a == b else f'{a} … {b}'}: {split}" for a, b, split in lines]


def report(given: argparse.Namespace, step_ms: float, rows: dict[str, Any]) -> None:
    """Print measured beside predicted."""
    load, cores = os.getloadavg()[2], os.cpu_count()
    print(
        f"{given.model}, images of {given.image} pixels, {PROCESSES} × {given.batch} samples, "
        f"links of {given.rate}\n"
        f"{PROCESSES} processes of one thread on {cores} cores, load {load:.1f} over 15 minutes; "
        f"a share of the batch alone: {step_ms:.0f} ms\n"
    )
    for line in rows["layer-wise"]["splits"]:
        print(f"  {line}")
    print(
        f"\n{'':12}{'step':>9}{'fastest':>10}{'predicted':>11}"
        f"{'on the wire':>14}{'payload':>12}{'predicted':>12}"
    )
    for name, r in rows.items():
        print(
            f"{name:12}{r['step_ms']:>6.0f} ms{r['range_ms'][0]:>7.0f} ms"
            f"{r['predicted_step_ms']:>8.0f} ms{r['wire_bytes'] / 1e6:>11.1f} MB"
            f"{r['payload_bytes'] / 1e6:>9.1f} MB{r['predicted_bytes'] / 1e6:>9.1f} MB"
        )
    data, plan = rows["data"], rows["layer-wise"]
    print(
        f"\nspeed-up {data['step_ms'] / plan['step_ms']:.2f} (of the fastest steps "
        f"{data['range_ms'][0] / plan['range_ms'][0]:.2f}), predicted "
        f"{data['predicted_step_ms'] / plan['predicted_step_ms']:.2f}; "
        f"{data['wire_bytes'] / plan['wire_bytes']:.1f} times fewer bytes on the wire, predicted "
        f"{data['predicted_bytes'] / plan['predicted_bytes']:.1f}"
    )


if __name__ == "__main__":
    main()
