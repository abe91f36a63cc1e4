"""Which CPUs a measurement may use, and in what order."""

from __future__ import annotations

from pathlib import Path

import pytest

from traincast.measure import cpu as module
from traincast.measure.cpu import Cpu, this_cpu, thread_counts


def machine(*cores: tuple[int, ...]) -> Cpu:
    return Cpu(name="x", clock_hz=1e9, cores=cores, pinned=True)


def test_threads_are_placed_on_cores_of_their_own_first() -> None:
    assert machine((0, 4), (1, 5), (2, 6)).order == (0, 1, 2, 4, 5, 6)
    assert machine((0, 4), (1,)).order == (0, 1, 4)
    assert machine((0, 4), (1,)).threads_per_core == 2


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, (1,)), (2, (1, 2)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))],
)
def test_thread_counts_are_powers_of_two_and_all(cores: int, counts: tuple[int, ...]) -> None:
    assert thread_counts(machine(*((i,) for i in range(cores)))) == counts


def test_thread_counts_include_all_cores_and_all_hardware_threads() -> None:
    assert thread_counts(machine(*((i, i + 6) for i in range(6)))) == (1, 2, 4, 6, 8, 12)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of two cores with two hardware threads each, as Linux tells."""
    for i in range(4):
        folder = tmp_path / f"cpu{i}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{i % 2}\n")
    (tmp_path / "cpuinfo").write_text("model name : Some CPU\ncpu MHz\t: 2500.5\n")
    monkeypatch.setattr(module, "_SYSTEM", tmp_path)
    monkeypatch.setattr(module, "_CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(module, "_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    return tmp_path


def test_the_topology_of_linux(system: Path) -> None:
    found = this_cpu()
    assert found.cores == ((0, 2), (1, 3))
    assert (found.name, found.clock_hz) == ("Some CPU", 2.5005e9)


def test_a_container_uses_no_more_than_its_share(system: Path) -> None:
    (system / "cpu.max").write_text("100000 100000\n")
    assert this_cpu().order == (0,)
    (system / "cpu.max").write_text("max 100000\n")
    assert len(this_cpu().order) == 4


def test_a_system_that_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("_SYSTEM", "_CPUINFO", "_QUOTA"):
        monkeypatch.setattr(module, name, tmp_path / "nothing")
    monkeypatch.delattr(module.os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(module.os, "cpu_count", lambda: 3)
    found = this_cpu()
    assert found.order == (0, 1, 2)
    assert found.clock_hz == 0
    assert not found.pinned
