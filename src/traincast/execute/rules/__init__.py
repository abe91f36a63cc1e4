"""How each torch function runs in parts: one rule a function, found by name."""

from traincast.execute.rules import dense, loss, moves, norms, pointwise, windows

__all__ = ["dense", "loss", "moves", "norms", "pointwise", "windows"]
