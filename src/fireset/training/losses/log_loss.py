"""Log loss (cross-entropy), for classes."""

from dataclasses import dataclass

import numpy as np

from fireset._util.errors import InputError
from fireset.training.losses.base import Loss, probabilities

_MIN_CURVATURE = 1e-4  # keeps rows that are predicted with certainty in the least-squares problems
_MIN_CLASS_SHARE = 1e-12  # keeps the logit of a constant prediction finite


@dataclass(frozen=True)
class LogLoss(Loss):
    """−log of the predicted probability of the target.

    One output: targets are 0 or 1, P(1) = 1/(1 + e^(−u)). Several outputs: each row of targets is a distribution over
    the outputs (for example one-hot), P = softmax(u).
    """

    name = "log_loss"
    zero_is_best_constant = False  # outputs of 0 are equal probabilities, whatever the shares of the classes
    gauss_newton_tol = 3e-2
    ridge_iterations = 1  # on separable classes, the loss decreases as long as the ridge does
    suits_output_layer = True
    tasks = ("classification",)
    forecasts_score = True

    def value(self, u, targets, sample_weight) -> float:
        if u.shape[1] == 1:
            rows = np.logaddexp(0.0, u[:, 0]) - targets[:, 0] * u[:, 0]
        else:
            from scipy.special import logsumexp

            rows = logsumexp(u, axis=1) * targets.sum(axis=1) - np.sum(targets * u, axis=1)
        return float(np.sum(sample_weight * rows))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return (probabilities(u) - targets) * sample_weight[:, None]

    def max_curvature(self, n_outputs: int) -> float:
        return 0.25 if n_outputs == 1 else 0.5

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:  # noqa: ARG002
        """Return p (1 − p) for one output; twice that for several, since diag(p) − p pᵀ is diagonally dominant."""
        p = probabilities(u)
        bound = p * (1.0 - p) * (1.0 if u.shape[1] == 1 else 2.0)
        return np.maximum(bound, _MIN_CURVATURE) * sample_weight[:, None]

    def check_targets(self, targets) -> None:
        if targets.min() < 0 or targets.max() > 1:
            raise InputError(
                f"`y` must hold probabilities between 0 and 1 for loss='log_loss', got {targets.min():g} to "
                f"{targets.max():g}; encode classes as 0/1 or one-hot."
            )
        sums = targets.sum(axis=1)
        if targets.shape[1] > 1 and np.abs(sums - 1).max() > 1e-6:
            worst = int(np.argmax(np.abs(sums - 1)))
            raise InputError(
                f"Rows of `y` must sum to 1 for loss='log_loss' with several outputs, got {sums[worst]:g} in row "
                f"{worst}; encode classes as one-hot."
            )

    def class_targets(self, one_hot) -> np.ndarray:
        """Return 0 and 1."""
        return one_hot.astype(np.float64)

    def constant_outputs(self, targets, sample_weight) -> np.ndarray:
        """Return the logits of the class shares."""
        from scipy.special import logit

        share = np.average(targets, axis=0, weights=sample_weight)
        share = np.clip(share, _MIN_CLASS_SHARE, 1 - _MIN_CLASS_SHARE)
        return np.broadcast_to(logit(share) if len(share) == 1 else np.log(share), targets.shape)
