"""Absolute error: the network predicts the median, which outliers hardly change."""

from dataclasses import dataclass, replace

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset.training.losses import spread
from fireset.training.losses.base import Loss


def check_smoothing(smoothing: float) -> None:
    if not (is_number(smoothing) and 0 < smoothing < np.inf):
        raise InputError(f"`smoothing` must be a positive number, got {smoothing!r}.")


@dataclass(frozen=True)
class AbsoluteError(Loss):
    """L = Σ_i |u_i − y_i|, minimal where u is the median.

    The kink of |r| at 0 is smoothed: |r| for |r| ≥ ε, and (r²/ε + ε)/2 below. The curvature 1/max(|r|, ε) is the
    majorizer of iteratively reweighted least squares, which is valid everywhere.

    Parameters
    ----------
    smoothing : float
        ε relative to the spread of the targets (interquartile range/1.349; the smallest of several columns).
        ``for_targets`` multiplies by the spread. The methods use the number as it is.
    """

    smoothing: float = spread.SMOOTHING

    name = "absolute_error"
    gauss_newton_tol = spread.GAUSS_NEWTON_TOL
    tasks = ("regression",)

    def __post_init__(self):
        check_smoothing(self.smoothing)

    def value(self, u, targets, sample_weight) -> float:
        return float(sample_weight @ spread.smoothed_abs(u - targets, self.smoothing).sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return np.clip((u - targets) / self.smoothing, -1.0, 1.0) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 1.0 / self.smoothing

    def step_curvature(self, n_outputs: int) -> float:
        return spread.CURVED_FRACTION * self.max_curvature(n_outputs)

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        return sample_weight[:, None] / np.maximum(np.abs(u - targets), self.smoothing)

    def for_targets(self, targets, sample_weight) -> "AbsoluteError":
        return replace(self, smoothing=self.smoothing * float(spread.spreads(targets, sample_weight).min()))

    def smoothed(self, errors, sample_weight) -> "AbsoluteError":
        return replace(self, smoothing=spread.wider_smoothing(self.smoothing, errors, sample_weight))

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """Return median and spread of each column."""
        return spread.quantiles(y, sample_weight, 0.5), spread.spreads(y, sample_weight)

    def selection_targets(self, y, sample_weight) -> np.ndarray:
        return spread.winsorized(y, sample_weight)
