"""Log loss, for classes."""

from dataclasses import dataclass

import numpy as np

from fireset._util.errors import InputError
from fireset.training.losses.base import Loss

_MIN_CURVATURE = 1e-4  # of log loss, so that rows that are predicted with certainty still count


@dataclass(frozen=True)
class LogLoss(Loss):
    """−log of the probability given to the target.

    One output: targets 0 or 1, P(1) = 1/(1 + e^(−u)). Several: rows of targets are distributions over the outputs
    (one-hot, say), P = softmax(u).
    """

    name = "log_loss"
    round_tolerance = 3e-2
    ridge_rounds = 1  # on classes that can be told apart, the loss goes on falling as the ridge does
    tasks = ("classification",)

    def value(self, u, targets, sample_weight) -> float:
        if u.shape[1] == 1:
            rows = np.logaddexp(0.0, u[:, 0]) - targets[:, 0] * u[:, 0]
        else:
            from scipy.special import logsumexp

            rows = logsumexp(u, axis=1) * targets.sum(axis=1) - np.sum(targets * u, axis=1)
        return float(np.sum(sample_weight * rows))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return (probabilities(u) - targets) * sample_weight[:, None]

    def curvature(self, n_outputs: int) -> float:
        return 0.25 if n_outputs == 1 else 0.5

    def curvatures(self, u, targets, sample_weight) -> np.ndarray:  # noqa: ARG002
        """p (1 − p) for one output; twice that for several, since diag(p) − p pᵀ is diagonally dominant."""
        p = probabilities(u)
        bound = p * (1.0 - p) * (1.0 if u.shape[1] == 1 else 2.0)
        return np.maximum(bound, _MIN_CURVATURE) * sample_weight[:, None]

    def check_targets(self, targets) -> None:
        if targets.min() < 0 or targets.max() > 1:
            raise InputError(
                f"y must hold probabilities between 0 and 1 for loss='log_loss', got {targets.min():g} … "
                f"{targets.max():g}; code classes as 0/1 or one-hot"
            )
        if targets.shape[1] > 1 and np.abs(targets.sum(axis=1) - 1).max() > 1e-6:
            raise InputError("every row of y must sum to 1 for loss='log_loss' with several outputs (one-hot codes)")


def probabilities(u: np.ndarray) -> np.ndarray:
    """What log loss takes predictions for: the logistic function of one output, softmax of several."""
    from scipy.special import expit, softmax

    return expit(u) if u.shape[1] == 1 else softmax(u, axis=1)
