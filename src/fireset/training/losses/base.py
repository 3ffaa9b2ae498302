"""The contract of a loss. An engine only ever sees the residual ∂L/∂u; everything else about a loss is said here.

``targets`` have the shape of the predictions u, (n, c); ``sample_weight`` multiplies each row's share.
"""

from abc import ABC, abstractmethod

import numpy as np


class Loss(ABC):
    """A loss of predictions u (n, c): its value, its gradient in u, and how curved it is.

    The first three methods are enough to train a network. The last three tell ``ShiftedReLURegressor`` how to treat
    targets, and are by default what squared error wants.

    Attributes
    ----------
    name : str
        What users type.
    tasks : tuple of str
        What the estimators take it for.
    shares_target : bool
        Whether all outputs predict the same column of targets, as those for several quantiles do.
    round_tolerance : float
        ``tol`` of the estimators for rounds of Gauss–Newton, where it is "auto": stop when a round promises less than
        this share of the objective.
    ridge_rounds : int
        Rounds of leave-one-out by which ``ridge="auto"`` is found (``training/solvers/choose_ridge.py``).
    """

    name: str
    tasks: tuple[str, ...] = ("regression", "classification")
    shares_target: bool = False
    round_tolerance: float = 3e-3
    ridge_rounds: int = 4

    @abstractmethod
    def value(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> float:
        """L ≥ 0, a sum over the rows."""

    @abstractmethod
    def residual(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        """∂L/∂u, (n, c)."""

    @abstractmethod
    def curvature(self, n_outputs: int) -> float:
        """Largest eigenvalue that the Hessian of one row's loss in u can have."""

    def step_curvature(self, n_outputs: int) -> float:
        """What ``learning_rate="auto"`` divides by; less than ``curvature`` where few rows are as curved at a time."""
        return self.curvature(n_outputs)

    def curvatures(self, u: np.ndarray, targets: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """b, (n, c): with v near u, L(v) ≤ L(u) + Σ e (v − u) + ½ Σ b (v − u)², e the residual at u.

        Rounds of Gauss–Newton minimize the right-hand side, and look afterwards at what became of the left.
        """
        return np.broadcast_to(self.curvature(u.shape[1]) * sample_weight[:, None], u.shape).copy()

    def check_targets(self, targets: np.ndarray) -> None:
        """Refuse targets that make no sense, with the remedy. By default any finite number is one."""

    def for_targets(self, targets: np.ndarray, sample_weight: np.ndarray) -> "Loss":  # noqa: ARG002
        """The loss as it is used on these targets, for one that has a part relative to how they spread."""
        return self

    def broadened(self, errors: np.ndarray, sample_weight: np.ndarray) -> "Loss":  # noqa: ARG002
        """A loss much like it that is curved over the range of these errors (n, k): the ridge is found with it.

        By default itself. A loss with a kink weighs rows next to it a hundred times others, which is the way to its
        minimum and no way to judge predictions of rows that are left out.
        """
        return self

    def for_ridge(self, targets: np.ndarray, sample_weight: np.ndarray) -> "tuple[Loss, np.ndarray]":  # noqa: ARG002
        """The loss that the ridge is chosen for, and its targets, as many columns at most; by default as they are."""
        return self, targets

    def standardization(self, y: np.ndarray, sample_weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Centre and scale, (c,) each, so that targets (y − centre)/scale suit a network that begins at 0.

        By default mean and standard deviation of each column of y, (n, columns).
        """
        centre = np.average(y, axis=0, weights=sample_weight)
        scale = np.sqrt(np.average((y - centre) ** 2, axis=0, weights=sample_weight))
        return centre, np.where(scale > 1e-12 * np.abs(centre), scale, 1.0)

    def screening(self, y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
        """What least squares is asked to predict where it chooses bias and column scales, (n, k), centred.

        By default the standardized targets.
        """
        centre, scale = self.standardization(y, sample_weight)
        return (y - centre) / scale

    def predictions(self, u: np.ndarray) -> np.ndarray:
        """Targets that outputs u stand for, before they are scaled back: the inverse of the link. By default u."""
        return u

    def __str__(self) -> str:
        """The name, with what the loss was made with: what tells one run from another."""
        made_with = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{self.name}({made_with})" if made_with else self.name
