"""What tests of sweeps share."""

from __future__ import annotations

from pathlib import Path


def make_environment(folder: Path, framework: str, *command: str) -> None:
    """Make an environment whose python is a command of the shell's."""
    python = folder / framework / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text("#!/bin/sh\nexec " + " ".join(command) + "\n")
    python.chmod(0o755)


def parameters_by_hand(s: dict) -> int:
    """k·k·in·out + out a convolution; what is left of the map, times 10, + 10 for the dense layer.

    A map of n becomes ⌈n / stride⌉ with padding and ⌈(n − k + 1) / stride⌉ without; ⌊n / 2⌋ pooled.
    """
    inputs, side = {"mnist": (1, 28), "cifar": (3, 32)}[s["dataset"]]
    k, filters, total = s["kernel"], s["filters"], 0
    for layer in range(s["layers"]):
        total += k * k * inputs * filters + filters
        stride = s["stride"] if layer == 0 else 1
        side = -(-(side if s["padding"] == "same" else side - k + 1) // stride)
        side = side // 2 if s["pool"] != "none" else side
        inputs = filters
    return total + filters * side * side * 10 + 10
