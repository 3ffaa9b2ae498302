"""Squared error, the loss of the paper."""

from dataclasses import dataclass

import numpy as np

from fireset.training.losses.base import Loss


@dataclass(frozen=True)
class SquaredError(Loss):
    """The paper's L = ½ Σ_i ‖u_i − y_i‖²."""

    name = "squared_error"
    is_squared_error = True
    gauss_newton_tol = 3e-2
    ridge_iterations = 1
    suits_output_layer = True
    forecasts_score = True
    calibrates_classes = True

    def value(self, u, targets, sample_weight) -> float:
        return 0.5 * float(np.sum(sample_weight * np.sum((u - targets) ** 2, axis=1)))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return (u - targets) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 1.0
