"""Poisson's loss with a log link: counts, and rates of events."""

from dataclasses import dataclass

import numpy as np

from fireset._util.errors import InputError
from fireset.training.losses import spread
from fireset.training.losses.base import Loss

MAX_LOG = 300.0  # e to the power of it, times any weight, is still a number
_MIN_CURVATURE = 1e-4  # so that rows whose mean is next to 0 still count


def _means(u: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(u, MAX_LOG))


@dataclass(frozen=True)
class Poisson(Loss):
    """Half of the Poisson deviance, L = Σ_i e^(u_i) − y_i − y_i (u_i − log y_i): predictions are means e^u.

    Targets are at least 0. For events in unequal exposures, targets are rates, events/exposure, and the exposure is
    the ``sample_weight``. A network begins at u = 0, a mean of 1: divide targets by their mean, as the regressor does.
    """

    name = "poisson"
    tasks = ("regression",)

    def value(self, u, targets, sample_weight) -> float:
        from scipy.special import xlogy

        # Linear beyond the largest mean, as the residual has it: a loss that is constant there would stop descent.
        beyond = 1.0 + np.maximum(u - MAX_LOG, 0.0)
        rows = _means(u) * beyond - targets - targets * u + xlogy(targets, targets)
        return float(sample_weight @ rows.sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return (_means(u) - targets) * sample_weight[:, None]

    def curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        """None is the largest."""
        return np.inf

    def step_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        """At a mean of 1; where that is too little, the loss grows, and the step is halved."""
        return 1.0

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        """e^u, or where the target is above, the slope of the chord of e^v between u and log y.

        That parabola is least where the row's loss is, and lies above the loss for all v ≤ max(u, log y). With e^u
        alone a row with y = 100 that is predicted as 1 would be sent to e^99.
        """
        means = _means(u)
        above = targets > means * (1.0 + 1e-6)
        rise = np.log(np.where(above, targets, 1.0)) - u
        chord = np.divide(targets - means, rise, out=means.copy(), where=above)
        return np.maximum(chord, _MIN_CURVATURE) * sample_weight[:, None]

    def check_targets(self, targets) -> None:
        if targets.min() < 0:
            raise InputError(
                f"y must be at least 0 for loss='poisson', got {targets.min():g}; "
                "give counts or rates, or use another loss"
            )

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """0 and the mean of each column: u = 0 then predicts the mean."""
        mean = np.average(y, axis=0, weights=sample_weight)
        return np.zeros(y.shape[1]), np.where(mean > 0, mean, 1.0)

    def screening(self, y, sample_weight) -> np.ndarray:
        """Roots, whose variance hardly depends on the mean."""
        roots = spread.centred(np.sqrt(np.maximum(y, 0.0)), sample_weight)
        deviation = np.sqrt(np.average(roots**2, axis=0, weights=sample_weight))
        return roots / np.where(deviation > 0, deviation, 1.0)

    def predictions(self, u) -> np.ndarray:
        return _means(u)
