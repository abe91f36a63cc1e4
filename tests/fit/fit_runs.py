"""Tables of runs made from known constants."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from traincast.fit.build import FormWish, load
from traincast.fit.evolve import Settings
from traincast.fit.fitting import Fit, Options, fit_form
from traincast.fit.prepare import Wish

QUICK = Settings(generations=40, population=8)


def write_table(path: Path, columns: Mapping[str, Any]) -> Path:
    """Write a CSV of columns and return its path."""
    lines = [",".join(columns)]
    lines += [",".join(_cell(v) for v in row) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _cell(value: Any) -> str:
    return value if isinstance(value, str) else repr(float(value))


def fitted(path: Path, wish: Wish | None = None, form: FormWish | None = None, **how: Any) -> Fit:
    """Fit a table; `how` are fields of Options."""
    runs, expression = load(path, wish or Wish(), form or FormWish())
    options = Options(**{"seeds": 1, "bootstrap": 0, "settings": QUICK, **how})
    return fit_form(expression, runs, options)


def reference_runs(noise: float = 0.0, block: int = 1) -> dict[str, Any]:
    """The grid of the recovery test: 192 points, known constants, log-normal noise.

    t = (0.5 k^2 + 0.02 f) · G^−0.9 · (b/32)^−0.3 + 2; the noise is a block of 192 normals of
    NumPy's default_rng(0).
    """
    grid = itertools.product([1, 3, 5, 7], [16, 64, 256], [1, 2, 4, 8], [32, 64, 128, 256])
    k, f, g, b = np.array(list(grid), float).T
    times = (0.5 * k**2 + 0.02 * f) * g**-0.9 * (b / 32) ** -0.3 + 2
    z = np.random.default_rng(0).normal(size=192 * (block + 1))[192 * block :]
    return {"kernel": k, "filters": f, "workers": g, "batch": b,
            "epoch_s": times * np.exp(noise * z)}  # fmt: skip
