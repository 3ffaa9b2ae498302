"""Poisson loss with a log link, for counts and rates."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from fireset._util.errors import InputError
from fireset.training.losses import spread
from fireset.training.losses.base import Loss

_MAX_LOG_MEAN = 300.0  # e^300 times any sample weight is finite in float64
_MIN_CURVATURE = 1e-4  # keeps rows with a mean near 0 in the least-squares problems


def _means(u: np.ndarray) -> np.ndarray:
    return np.exp(np.minimum(u, _MAX_LOG_MEAN))


@dataclass(frozen=True)
class Poisson(Loss):
    """Half of the Poisson deviance, L = Σ_i e^(u_i) − y_i − y_i (u_i − log y_i). Predictions are means e^u.

    Targets are at least 0. For events with unequal exposures, targets are rates (events/exposure) and ``sample_weight``
    is the exposure. A network that starts at u = 0 predicts a mean of 1; the regressor divides targets by their mean.
    """

    name = "poisson"
    tasks = ("regression",)

    def value(self, u, targets, sample_weight) -> float:
        from scipy.special import xlogy

        # Linear above the largest mean, as the residual is: a constant loss would stop descent.
        beyond = 1.0 + np.maximum(u - _MAX_LOG_MEAN, 0.0)
        rows = _means(u) * beyond - targets - targets * u + xlogy(targets, targets)
        return float(sample_weight @ rows.sum(axis=1))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return (_means(u) - targets) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        """Return ∞: the curvature e^u has no bound."""
        return np.inf

    def step_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        """Return the curvature at a mean of 1. Where it is larger, the loss grows and the learning rate is halved."""
        return 1.0

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:
        """Return e^u, or, for targets above the mean, the slope of the chord of e^v between u and log y.

        The parabola and the loss of the row have the same minimum, and the parabola is above for all v ≤ max(u, log y).
        With e^u alone, one iteration would move a row with y = 100 and a predicted mean of 1 to u = 99.
        """
        means = _means(u)
        above = targets > means * (1.0 + 1e-6)
        rise = np.log(np.where(above, targets, 1.0)) - u
        chord = np.divide(targets - means, rise, out=means.copy(), where=above)
        return np.maximum(chord, _MIN_CURVATURE) * sample_weight[:, None]

    def check_targets(self, targets) -> None:
        if targets.min() < 0:
            raise InputError(
                f"`y` must be at least 0 for loss='poisson', got {targets.min():g}; pass counts or rates, or use "
                "another loss."
            )

    def standardization(self, y, sample_weight) -> tuple[np.ndarray, np.ndarray]:
        """Return 0 and the mean of each column, so that u = 0 predicts the mean."""
        mean = np.average(y, axis=0, weights=sample_weight)
        return np.zeros(y.shape[1]), np.where(mean > 0, mean, 1.0)

    def selection_targets(self, y, sample_weight) -> np.ndarray:
        """Return standardized square roots, whose variance hardly depends on the mean."""
        roots = spread.centred(np.sqrt(np.maximum(y, 0.0)), sample_weight)
        deviation = np.sqrt(np.average(roots**2, axis=0, weights=sample_weight))
        return roots / np.where(deviation > 0, deviation, 1.0)

    def predictions(self, u) -> np.ndarray:
        return _means(u)

    def add_predictions(self, graph, u: str) -> str:
        largest = graph.constant("largest_log", _MAX_LOG_MEAN)
        above = graph.add("Greater", u, largest, name="is_above")  # not Min, which need not keep NaN
        return graph.add("Exp", graph.add("Where", above, largest, u, name="logs"), name="means")

    def metrics(self, y, predictions) -> dict[str, Any]:
        found = super().metrics(y, predictions)
        if y.min() >= 0:
            logs = np.log(np.maximum(predictions, np.finfo(np.float64).tiny))  # predictions may underflow to 0
            found["poisson_deviance"] = 2.0 * self.value(logs[:, None], y[:, None], np.ones(len(y))) / len(y)
        return found
