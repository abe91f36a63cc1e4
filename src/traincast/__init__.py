"""traincast: how long a training step takes, before anyone spends a GPU-hour.

>>> import traincast
>>> traincast.predict("resnet50", device="h200", batch=256)  # doctest: +SKIP

Importing this package is light: numpy and everything heavier load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traincast._version import __version__

if TYPE_CHECKING:
    from traincast.errors import TraincastError
    from traincast.graph import Graph
    from traincast.hardware import Cluster, Device, Link, load_cluster, load_device, load_link
    from traincast.ingest import resolve, zoo_names
    from traincast.simulate.predict import predict
    from traincast.simulate.prediction import Prediction

__all__ = [
    "Cluster",
    "Device",
    "Graph",
    "Link",
    "Prediction",
    "TraincastError",
    "__version__",
    "load_cluster",
    "load_device",
    "load_link",
    "predict",
    "resolve",
    "zoo_names",
]

_WHERE = {
    "Cluster": "traincast.hardware",
    "Device": "traincast.hardware",
    "Graph": "traincast.graph",
    "Link": "traincast.hardware",
    "Prediction": "traincast.simulate.prediction",
    "TraincastError": "traincast.errors",
    "load_cluster": "traincast.hardware",
    "load_device": "traincast.hardware",
    "load_link": "traincast.hardware",
    "predict": "traincast.simulate.predict",
    "resolve": "traincast.ingest",
    "zoo_names": "traincast.ingest",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'traincast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
