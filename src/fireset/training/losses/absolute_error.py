"""Absolute error: the median, whatever a few targets say."""

from dataclasses import dataclass, replace

import numpy as np

from fireset._util.checks import is_number
from fireset._util.errors import InputError
from fireset.training.losses import spread
from fireset.training.losses.base import Loss


def check_smoothing(smoothing: float) -> None:
    if not (is_number(smoothing) and 0 < smoothing < np.inf):
        raise InputError(f"smoothing must be a positive number, got {smoothing!r}")


@dataclass(frozen=True)
class AbsoluteError(Loss):
    """L = Σ_i |u_i − y_i|, least where u is the median.

    |r| has a kink at 0, which is rounded off: |r| from ε on, and (r²/ε + ε)/2 below. The curvature 1/max(|r|, ε) is the
    majorizer of iteratively reweighted least squares, and holds everywhere.

    Parameters
    ----------
    smoothing : float
        ε beside the spread of the targets (quartile range/1.349; with several columns the least one). Training
        multiplies by the spread (``for_targets``); the value itself is of this loss as it stands.
    """

    smoothing: float = spread.SMOOTHING

    name = "absolute_error"
    round_tolerance = spread.ROUND_TOLERANCE
    tasks = ("regression",)

    def __post_init__(self):
        check_smoothing(self.smoothing)

    def value(self, u, targets, sample_weight) -> float:
        return float(sample_weight @ spread.smoothed_size(u - targets, self.smoothing).sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return np.clip((u - targets) / self.smoothing, -1.0, 1.0) * sample_weight[:, None]

    def curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 1.0 / self.smoothing

    def step_curvature(self, n_outputs: int) -> float:
        return spread.CURVED_SHARE * self.curvature(n_outputs)

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        return sample_weight[:, None] / np.maximum(np.abs(u - targets), self.smoothing)

    def for_targets(self, targets, sample_weight) -> "AbsoluteError":
        return replace(self, smoothing=self.smoothing * float(spread.spreads(targets, sample_weight).min()))

    def broadened(self, errors, sample_weight) -> "AbsoluteError":
        return replace(self, smoothing=spread.broad(self.smoothing, errors, sample_weight))

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """Median and spread of each column."""
        return spread.quantiles(y, sample_weight, 0.5), spread.spreads(y, sample_weight)

    def screening(self, y, sample_weight) -> np.ndarray:
        return spread.winsorized(y, sample_weight)
