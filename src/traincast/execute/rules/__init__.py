"""How each torch function runs in parts: one rule a function, found by name."""

from traincast.execute.rules import dense, heads, loss, moves, norms, pointwise, transposed, windows

__all__ = [
    "dense", "heads", "loss", "moves", "norms", "pointwise", "transposed", "windows",
]  # fmt: skip
