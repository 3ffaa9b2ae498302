"""Losses. An engine only ever sees the residual ∂L/∂u; everything else about a loss is here.

``targets`` have the shape of the predictions u, (n, c); ``sample_weight`` multiplies each row's share.
"""

from abc import ABC, abstractmethod

import numpy as np

from fireset._util.errors import InputError
from fireset._util.registry import load


class Loss(ABC):
    """A loss of predictions u (n, c): its value, its gradient in u, and how curved it is at most."""

    name: str

    @abstractmethod
    def value(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> float:
        """L, a sum over the rows."""

    @abstractmethod
    def residual(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        """∂L/∂u, (n, c)."""

    @abstractmethod
    def curvature(self, n_outputs: int) -> float:
        """Largest eigenvalue that the Hessian of one row's loss in u can have; the step size is made from it."""

    def curvatures(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """(n, c): a diagonal matrix that bounds the Hessian of L in u from above, at these predictions."""
        return np.broadcast_to(self.curvature(u.shape[1]) * sample_weight[:, None], u.shape).copy()

    def check_targets(self, targets: np.ndarray) -> None:
        """Refuse targets that make no sense, with the remedy. By default any finite number is one."""


class SquaredError(Loss):
    """The paper's L = ½ Σ_i ‖u_i − y_i‖²."""

    name = "squared_error"

    def value(self, u, targets, sample_weight) -> float:
        return 0.5 * float(np.sum(sample_weight * np.sum((u - targets) ** 2, axis=1)))

    def residual(self, u, targets, sample_weight) -> np.ndarray:
        return (u - targets) * sample_weight[:, None]

    def curvature(self, n_outputs: int) -> float:  # noqa: ARG002
        return 1.0


_LEAST_CURVATURE = 1e-4  # of log loss, so that rows that are predicted with certainty still count


class LogLoss(Loss):
    """−log of the probability given to the target.

    One output: targets 0 or 1, P(1) = 1/(1 + e^(−u)). Several: rows of targets are distributions over the outputs
    (one-hot, say), P = softmax(u).
    """

    name = "log_loss"

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
        return np.maximum(bound, _LEAST_CURVATURE) * sample_weight[:, None]

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


# Where each class is; what there is to say about it, the class says itself.
LOSSES = {
    "squared_error": "fireset.training.losses:SquaredError",
    "log_loss": "fireset.training.losses:LogLoss",
}


def get_loss(loss: str | Loss) -> Loss:
    """A loss by name, or the object itself."""
    if isinstance(loss, Loss):
        return loss
    if loss not in LOSSES:
        raise InputError(f"loss must be one of {', '.join(LOSSES)}; got {loss!r}")
    return load(LOSSES[loss])()
