"""The network and gradient descent from the formulas, in NumPy and float64. Nothing of the package is used.

    f(x) = (κ/√m) Σ_r a_r max(⟨w_r, x⟩ − b, 0),  L = Σ_i s_i ℓ(f(x_i), y_i),  V ← μV + ∂L/∂W,  W ← W − ηV (or Nesterov)

Neuron r fires for x_i when ⟨w_r, x_i⟩ > b, where the product is one fused multiply-add after the other, left to right.
Where NumPy's product is too close to b to decide, that chain is computed in fractions, which are exact.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from math import sqrt

import numpy as np


def fused_dot(w: np.ndarray, x: np.ndarray) -> float:
    """Return ⟨w, x⟩ with one rounding for each product and sum."""
    total = 0.0
    for a, b in zip(w.tolist(), x.tolist(), strict=True):
        total = float(Fraction(a) * Fraction(b) + Fraction(total))
    return total


def above(normals: np.ndarray, points: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Return whether each point lies strictly above each (normal, threshold); (normals, points)."""
    normals, points = normals.astype(np.float64), points.astype(np.float64)
    values = normals @ points.T
    result = values > thresholds[:, None]
    lengths = np.linalg.norm(normals, axis=1)[:, None] * np.linalg.norm(points, axis=1)[None]
    unsure = np.abs(values - thresholds[:, None]) <= 4e-16 * (normals.shape[1] + 2) * lengths
    for q, i in zip(*np.nonzero(unsure), strict=True):
        result[q, i] = fused_dot(normals[q], points[i]) > thresholds[q]
    return result


@dataclass
class Descent:
    """Gradient descent on a copy of some weights.

    ``loss`` is "squared_error" or "log_loss"; ``outputs`` (m, c) are a_r, ``weight`` (n,) are s_i.
    """

    weights: np.ndarray
    outputs: np.ndarray
    threshold: float
    scale: float
    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    loss: str
    rate: float
    momentum: float
    nesterov: bool
    velocity: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.weights = self.weights.copy()
        self.velocity = np.zeros_like(self.weights)

    def fires(self) -> np.ndarray:
        """Return whether each pair is active, (n, m)."""
        return above(self.weights, self.X, np.full(len(self.weights), self.threshold)).T

    def closest(self) -> float:
        """Return the smallest distance of a product from the threshold."""
        return float(np.abs(self.X @ self.weights.T - self.threshold).min())

    def predictions(self, active: np.ndarray) -> np.ndarray:
        """Return u, (n, c), for given active pairs."""
        rows = np.flatnonzero(active.any(axis=1))
        u = np.zeros((len(self.X), self.outputs.shape[1]))
        excess = self.X[rows] @ self.weights.T - self.threshold
        u[rows] = (active[rows] * excess) @ self.outputs
        return self.scale / sqrt(len(self.weights)) * u

    def step(self, active: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Return the gradient on some rows, or all, for given active pairs."""
        rows = np.arange(len(self.X)) if rows is None else rows
        chosen = np.zeros_like(active)
        chosen[rows] = active[rows]
        residual = (self._expected(self.predictions(chosen)) - self.y) * self.weight[:, None]
        push = chosen * (residual @ self.outputs.T)
        gradient = self.scale / sqrt(len(self.weights)) * (push.T @ self.X)
        self.velocity = self.momentum * self.velocity + gradient
        move = gradient + self.momentum * self.velocity if self.nesterov else self.velocity
        self.weights = self.weights - self.rate * move

    def _expected(self, u: np.ndarray) -> np.ndarray:
        """Return the predictions that the loss compares with the targets."""
        if self.loss == "squared_error":
            return u
        if u.shape[1] == 1:
            return 1.0 / (1.0 + np.exp(-u))
        shares = np.exp(u - u.max(axis=1, keepdims=True))
        return shares / shares.sum(axis=1, keepdims=True)

    def epoch(self, batch_size: int, order: np.ndarray) -> float:
        """Make one pass in batches; return the smallest distance of a product from the threshold."""
        closest = np.inf
        for lo in range(0, len(order), batch_size):
            closest = min(closest, self.closest())
            self.step(self.fires(), order[lo : lo + batch_size])
        return closest
