"""What rows were measured on: the header of a results file."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from traincast.measure.bench.timing import HERE

SCHEMA = 1


def header(seed: int) -> dict[str, Any]:
    """Return device, software and date of a run; nothing in it names the host or a user."""
    found: dict[str, Any] = {"schema": SCHEMA, "kind": HERE.device, "seed": seed}
    found |= _gpu() if HERE.device == "cuda" else _processor()
    return found | {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_name(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def cpu_name() -> str:
    """Return what the processor calls itself."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine() or "CPU"


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "capability": f"{properties.major}.{properties.minor}",
        **_driver(),
    }


def _driver() -> dict[str, Any]:
    """Return what nvidia-smi says of the first device; nothing where there is none."""
    names = {
        "driver": "driver_version",
        "clock_sm_mhz": "clocks.sm",
        "clock_memory_mhz": "clocks.mem",
        "clock_sm_most_mhz": "clocks.max.sm",
        "power_limit_w": "power.limit",
    }
    command = [
        "nvidia-smi",
        f"--query-gpu={','.join(names.values())}",
        "--format=csv,noheader,nounits",
    ]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        values = [value.strip() for value in said.stdout.splitlines()[0].split(",")]
    except (OSError, subprocess.SubprocessError, IndexError):
        return {}
    return dict(zip(names, values, strict=False))


def _processor() -> dict[str, Any]:
    memory = 0
    with contextlib.suppress(OSError, ValueError, AttributeError):
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"device": cpu_name(), "memory_bytes": memory, "multiprocessors": os.cpu_count()}
