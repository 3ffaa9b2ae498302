"""Huber's loss: quadratic for small errors, linear for large ones."""

from dataclasses import dataclass

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset.training.losses import spread
from fireset.training.losses.base import Loss


@dataclass(frozen=True)
class Huber(Loss):
    """L = Σ_i ρ(u_i − y_i), with ρ(r) = r²/2 for |r| ≤ δ and δ (|r| − δ/2) beyond (Huber 1964).

    Parameters
    ----------
    delta : float
        δ, in the units of the targets that the network is trained on. ``ShiftedReLURegressor`` and ``fireset train``
        divide y by its spread (interquartile range/1.349), so that δ is in units of that spread.
    """

    delta: float = 1.35

    name = "huber"
    tasks = ("regression",)

    def __post_init__(self):
        if not (is_number(self.delta) and 0 < self.delta < np.inf):
            raise InputError(f"`delta` must be a positive number, got {self.delta!r}.")

    def value(self, u, targets, sample_weight) -> float:
        size = np.abs(u - targets)
        near = np.minimum(size, self.delta)
        return float(sample_weight @ (near * (size - near / 2)).sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return np.clip(u - targets, -self.delta, self.delta) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 1.0

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        """Return 1 for |r| ≤ δ and δ/|r| beyond: the parabola through (±r, ρ(r)), which lies above ρ."""
        return sample_weight[:, None] * np.minimum(1.0, self.delta / np.maximum(np.abs(u - targets), self.delta))

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """Return median and spread of each column."""
        return spread.quantiles(y, sample_weight, 0.5), spread.spreads(y, sample_weight)

    def selection_targets(self, y, sample_weight) -> np.ndarray:
        return spread.winsorized(y, sample_weight)
