"""What a fit minimises: how far times are off, and the regulariser.

    J = (1/N) Σ ρ(r_k) / J_0 + λ · R,    R = share · Σ|x| + (1 − share) · Σ x²

r is the relative, absolute or logarithmic error; ρ its absolute value, square or Huber's function;
J_0 the loss of predicting the median time everywhere, which makes λ a number without a unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from traincast.errors import UnknownNameError
from traincast.fit.constants import Array

Error = Literal["relative", "absolute", "log"]
Shape = Literal["absolute", "squared", "huber"]
HUBER = 0.1
"""Relative error from which Huber's loss grows linearly."""
_TINY = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss by name."""

    name: str
    text: str
    """As a report says it."""
    error: Error
    shape: Shape

    def residual(self, times: Array, measured: Array) -> tuple[Array, Array]:
        """Return errors and their derivatives in the time."""
        if self.error == "log":
            safe = np.maximum(times, _TINY)
            return np.log(safe / measured), 1 / safe
        scale = measured if self.error == "relative" else np.ones_like(measured)
        return (times - measured) / scale, np.broadcast_to(1 / scale, times.shape)

    def rho(self, r: Array, smooth: float = 0.0) -> Array:
        """Return the loss of errors; `smooth` rounds the corner of the absolute value."""
        if self.shape == "squared":
            return r * r
        size = np.abs(r)
        if self.shape == "huber":
            return np.where(size <= HUBER, r * r, 2 * HUBER * size - HUBER**2)
        return np.sqrt(r * r + smooth * smooth) - smooth if smooth else size

    def weight(self, r: Array, smooth: float) -> Array:
        """Return ρ'(r)/r: what turns the loss into weighted squares."""
        if self.shape == "squared":
            return np.full_like(r, 2.0)
        if self.shape == "huber":
            return 2 * np.minimum(1.0, HUBER / np.maximum(np.abs(r), _TINY))
        return 1 / np.sqrt(r * r + smooth * smooth)

    def weights_of_squares(self, measured: Array) -> Array:
        """Return weights whose weighted squares stand in for the loss, runs alone known."""
        return np.ones_like(measured) if self.error == "absolute" else 1 / measured**2

    @property
    def smoothing(self) -> tuple[float, ...]:
        """How far the corner is rounded, from stage to stage."""
        return (0.1, 0.01, 0.001) if self.shape == "absolute" else (0.0,)

    def scale(self, measured: Array) -> float:
        """Return J_0, the loss of predicting the (scaled) median time 1 everywhere."""
        r, _ = self.residual(np.ones_like(measured), measured)
        return max(float(np.mean(self.rho(r))), _TINY)


LOSSES = {
    loss.name: loss
    for loss in (
        Loss(name="relative", text="mean relative absolute error", error="relative",
             shape="absolute"),
        Loss(name="absolute", text="mean absolute error", error="absolute", shape="absolute"),
        Loss(name="squared", text="mean squared error", error="absolute", shape="squared"),
        Loss(name="log", text="mean squared error of the logarithm", error="log",
             shape="squared"),
        Loss(name="huber", text=f"Huber's loss of the relative error, linear from {HUBER:.0%}",
             error="relative", shape="huber"),
    )
}  # fmt: skip
PENALTIES = {"none": 0.0, "l1": 1.0, "l2": 0.0, "elastic": 0.5}
"""The regularisers, with the share of Σ|x| in them."""


def loss_named(name: str) -> Loss:
    """Return a loss."""
    if name.lower() not in LOSSES:
        raise UnknownNameError("loss", name, LOSSES, f"use {', '.join(LOSSES)}")
    return LOSSES[name.lower()]


def check_penalty(name: str) -> str:
    """Return the name of a regulariser as we write it."""
    if name.lower() not in PENALTIES:
        raise UnknownNameError("regularisation", name, PENALTIES, f"use {', '.join(PENALTIES)}")
    return name.lower()
