"""Kernel regression with H^cts: the predictions of an infinitely wide network after training."""

import numpy as np

from fireset.theory.kernel import shifted_ntk, unit_rows
from fireset.theory.spectrum import ShiftedCholesky


class KernelRegression:
    """Predictor f(z) = H^cts(z, X) α, the infinite-width limit of training on (X, y) from a network with output 0.

    A network of finite width starts from f_0 ≠ 0: fit y − f_0(X) and add f_0(z) to the predictions.

    Parameters
    ----------
    threshold : float
        b.
    """

    def __init__(self, threshold: float):
        self.threshold = float(threshold)

    def fit(self, X, y, *, factor: ShiftedCholesky | None = None) -> "KernelRegression":
        """Fit as training to convergence does: α = (H^cts)⁻¹ y; rows X (n, d), targets y (n,) or (n, c).

        The system has a ridge of 1e-10 λ_max (``ShiftedCholesky``). Where H^cts is singular, as for equal rows, the
        result is the least-squares solution. ``factor`` is the factor of H^cts if it exists already. Cost n³/3; memory
        8 n² bytes.
        """
        self._rows = unit_rows(X, "X")
        if factor is None:
            factor = ShiftedCholesky(shifted_ntk(self._rows, self.threshold), overwrite=True)
        self._coefficients = factor.solve(np.asarray(y, np.float64))
        return self

    def fit_steps(self, X, y, *, rate: float, steps: int) -> "KernelRegression":
        """Fit as t = ``steps`` steps of gradient descent with rate η < 2/λ_max do: α = H⁻¹ (I − (I − η H)^t) y.

        Uses all eigenvectors: cost about 10 n³, memory 24 n² bytes.
        """
        self._rows = unit_rows(X, "X")
        values, vectors = np.linalg.eigh(shifted_ntk(self._rows, self.threshold))
        values = np.maximum(values, 0.0)
        # (1 − (1 − ηλ)^t)/λ, which is η t for λ = 0
        filters = np.full(len(values), rate * steps)
        positive = values > 1e-14 * values[-1]
        filters[positive] = (1.0 - (1.0 - rate * values[positive]) ** steps) / values[positive]
        in_eigenbasis = (vectors.T @ np.asarray(y, np.float64)).T * filters
        self._coefficients = vectors @ in_eigenbasis.T
        return self

    def predict(self, Z) -> np.ndarray:
        """Predict for the rows of Z (k, d); shape (k,) or (k, c)."""
        return shifted_ntk(Z, self.threshold, self._rows) @ self._coefficients
