"""What the many-core models know of a processor: clock, cores, and how threads share a core."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from traincast.errors import InvalidValueError
from traincast.hardware import Device, load_device

TIERS = ("cpu", "manycore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A processor with `cores` alike, each running up to len(cpi) threads at once."""

    name: str
    """A catalog id, or what the processor calls itself."""
    clock_hz: float
    """Cycles a second, > 0."""
    cores: int
    """Cores that do the work, >= 1: 60 of the 61 of a Xeon Phi, whose last one runs the system."""
    cpi: tuple[float, ...] = (1.0,)
    """Cycles per instruction of one thread by threads on its core; at least one, all > 0."""

    def __post_init__(self) -> None:
        problems = []
        if not (math.isfinite(self.clock_hz) and self.clock_hz > 0):
            problems.append(f"clock {self.clock_hz} has to be above 0 Hz")
        if self.cores < 1:
            problems.append(f"cores {self.cores} has to be at least 1")
        if not self.cpi or not all(math.isfinite(c) and c > 0 for c in self.cpi):
            problems.append(f"CPI {list(self.cpi)} has to be numbers above 0, at least one")
        if problems:
            raise InvalidValueError(f"machine {self.name!r}: " + "; ".join(problems))

    @property
    def threads(self) -> int:
        """Threads that the machine can run at once."""
        return self.cores * len(self.cpi)

    def threads_per_core(self, threads: int) -> int:
        """Return how many share a core: spread evenly, and never more than a core can hold.

        Beyond the hardware the models think of more cores of the same kind, all full.
        """
        check_threads(threads)
        return min(-(-threads // self.cores), len(self.cpi))

    def cpi_at(self, threads: int) -> float:
        """Return the cycles per instruction of each of so many threads."""
        return self.cpi[self.threads_per_core(threads) - 1]


def check_threads(threads: int) -> int:
    """Return a thread count if it is one."""
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InvalidValueError(f"threads {threads!r} is not a whole number of at least 1")
    return threads


def shared_issue(threads_per_core: int, issue_rate: float) -> tuple[float, ...]:
    """Return the CPI by threads on a core that issues `issue_rate` instructions a cycle.

    One thread issues at most one a cycle, t threads share the rate: CPI(t) = max(1, t / rate).
    A rate of 2 gives 1, 1, 1.5, 2: the published table of the Xeon Phi.
    """
    if threads_per_core < 1 or not (math.isfinite(issue_rate) and issue_rate > 0):
        raise InvalidValueError(
            f"threads per core {threads_per_core} and issue rate {issue_rate} have to be above 0"
        )
    return tuple(max(1.0, t / issue_rate) for t in range(1, threads_per_core + 1))


def machine_of(
    device: str | Device,
    *,
    cores: int | None = None,
    clock_hz: float | None = None,
    threads_per_core: int | None = None,
    issue_rate: float | None = None,
) -> Machine:
    """Return the machine that a catalog entry describes, with what is given in its place.

    The catalog has clock and cores. How threads share a core it does not say: without
    `threads_per_core` each core runs one, and without `issue_rate` a core that is shared by t
    threads runs each at 1/t of its speed. The Xeon Phi 7120P has its published figures.
    """
    found = load_device(device)
    if found.tier not in TIERS:
        raise InvalidValueError(
            f"{found.name} is no CPU, which the many-core models are for; `traincast predict "
            f"--device {found.name}` is for it"
        )
    from traincast.estimate.viebke.tables import PUBLISHED

    machine = Machine(name=found.name, clock_hz=found.clock_hz, cores=found.units)
    if found.name == PUBLISHED.machine.name:
        machine = PUBLISHED.machine
    if threads_per_core is not None or issue_rate is not None:
        rate = issue_rate
        if rate is None:
            rate = len(machine.cpi) / machine.cpi[-1]
        machine = replace(machine, cpi=shared_issue(threads_per_core or len(machine.cpi), rate))
    return replace(machine, cores=cores or machine.cores, clock_hz=clock_hz or machine.clock_hz)
