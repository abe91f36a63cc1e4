"""traincast: how long a training step takes, before anyone spends a GPU-hour."""

from traincast._version import __version__

__all__ = ["__version__"]
