"""The CPU at hand: which logical CPUs may be used, how they share cores, its name and clock."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

_SYSTEM = Path("/sys/devices/system/cpu")
_CPUINFO = Path("/proc/cpuinfo")
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cpu:
    """The logical CPUs that this process may run on, grouped by core."""

    name: str
    """What the processor calls itself."""
    clock_hz: float
    """Its clock at the time of asking; 0 where the system does not tell."""
    cores: tuple[tuple[int, ...], ...]
    """Logical CPUs of each core; one tuple a core, all that may be used."""
    pinned: bool
    """Whether the system lets a process be tied to one logical CPU."""

    @property
    def order(self) -> tuple[int, ...]:
        """Logical CPUs in the order in which threads are placed: a core each first."""
        deepest = max(map(len, self.cores))
        return tuple(core[i] for i in range(deepest) for core in self.cores if i < len(core))

    @property
    def threads_per_core(self) -> int:
        """Logical CPUs of the core that has most."""
        return max(map(len, self.cores))


def this_cpu() -> Cpu:
    """Return the CPU that this process runs on."""
    pinned = hasattr(os, "sched_getaffinity")
    usable = sorted(os.sched_getaffinity(0)) if pinned else list(range(os.cpu_count() or 1))
    name, clock = _identity()
    groups: dict[tuple[str, str], list[int]] = {}
    for cpu in usable:
        groups.setdefault(_core_of(cpu), []).append(cpu)
    cores = [tuple(group) for group in groups.values()]
    limit = _quota()
    if limit is not None and limit < len(usable):
        # A container may own fewer CPUs' worth of time than it sees.
        cores = [core[:1] for core in cores][: max(limit, 1)]
    return Cpu(name=name, clock_hz=clock, cores=tuple(cores), pinned=pinned)


def thread_counts(cpu: Cpu) -> tuple[int, ...]:
    """Return the thread counts to measure: powers of two, all cores, all logical CPUs."""
    most = len(cpu.order)
    counts = {1, len(cpu.cores), most}
    power = 2
    while power < most:
        counts.add(power)
        power *= 2
    return tuple(sorted(counts))


def pin(cpu: int) -> None:
    """Tie this process to one logical CPU, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {cpu})


def _core_of(cpu: int) -> tuple[str, str]:
    folder = _SYSTEM / f"cpu{cpu}" / "topology"
    try:
        package = (folder / "physical_package_id").read_text().strip()
        return package, (folder / "core_id").read_text().strip()
    except OSError:
        return "", str(cpu)


def _identity() -> tuple[str, float]:
    entries: dict[str, str] = {}
    try:
        for line in _CPUINFO.read_text().splitlines():
            key, _, value = line.partition(":")
            entries.setdefault(key.strip(), value.strip())
    except OSError:
        pass
    name = entries.get("model name") or platform.processor() or platform.machine() or "CPU"
    try:
        clock = float(entries.get("cpu MHz", "0")) * 1e6
    except ValueError:
        clock = 0.0
    return name, clock


def _quota() -> int | None:
    """Return the whole CPUs' worth of time that a container may use; None for no limit."""
    try:
        quota, period = _QUOTA.read_text().split()[:2]
        return None if quota == "max" else int(quota) // int(period)
    except (OSError, ValueError):
        return None
