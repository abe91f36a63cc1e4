"""How each torch function runs in parts: one rule a function, found by name."""

from traincast.execute.rules import (
    dense,
    entire,
    heads,
    loss,
    moves,
    norms,
    pointwise,
    resize,
    transposed,
    windows,
)

__all__ = [
    "dense", "entire", "heads", "loss", "moves", "norms", "pointwise", "resize", "transposed",
    "windows",
]  # fmt: skip
