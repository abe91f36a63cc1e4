"""Paleo: an analytical model of one training step (Qi, Sparks, Talwalkar, ICLR 2017).

An independent implementation of both generations of the authors' rules, `paper` and `head`, with
their quirks, because published numbers rest on these. See `docs/models/paleo.md`.
"""

from traincast.estimate.paleo.algorithms import Choice
from traincast.estimate.paleo.from_graph import paleo_from_graph
from traincast.estimate.paleo.model import LayerRow, PaleoModel, PaleoStep
from traincast.estimate.paleo.net import Layer, LayerNet, layer_net
from traincast.estimate.paleo.schemes import SCHEMES
from traincast.estimate.paleo.strategies import STRATEGIES, Part
from traincast.estimate.paleo.sweep import SweepRow, sweep
from traincast.estimate.paleo.tables import (
    DEVICES,
    NETWORKS,
    SOFTWARE,
    PaleoDevice,
    PaleoNetwork,
    Software,
    paleo_device,
    paleo_network,
)
from traincast.estimate.paleo.training import TrainingTotal, training_total

__all__ = [
    "DEVICES",
    "NETWORKS",
    "SCHEMES",
    "SOFTWARE",
    "STRATEGIES",
    "Choice",
    "Layer",
    "LayerNet",
    "LayerRow",
    "PaleoDevice",
    "PaleoModel",
    "PaleoNetwork",
    "PaleoStep",
    "Part",
    "Software",
    "SweepRow",
    "TrainingTotal",
    "layer_net",
    "paleo_device",
    "paleo_from_graph",
    "paleo_network",
    "sweep",
    "training_total",
]
