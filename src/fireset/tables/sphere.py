"""Mapping rows of any table to rows of norm 1, as the network needs them."""

from dataclasses import dataclass

import numpy as np

_CLIP = 3.0  # standard deviations; after normalizing, an outlier in one column would make all others tiny


@dataclass(frozen=True)
class SphereMap:
    """x ↦ (z, bias) / ‖(z, bias)‖ with z = clip((x − mean)/scale, ±3)/typical.

    Columns are standardized, rows scaled so that a typical ‖z‖ is 1, a constant coordinate appended, rows normalized.
    The constant keeps what normalizing alone would lose, the length of z; the larger it is beside 1, the smaller the
    patch of the sphere that the data fill and the smoother the functions that training finds first.
    """

    mean: np.ndarray
    scale: np.ndarray
    typical: float
    bias: float

    @classmethod
    def learn(cls, X: np.ndarray, weight: np.ndarray, bias: float) -> "SphereMap":
        """From (n, p) rows that count by ``weight``: rows of weight 2 count as two rows."""
        mean = np.average(X, axis=0, weights=weight)
        scale = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weight))
        # A column that varies by rounding only is constant; dividing by its scale would blow the rounding up.
        scale[scale <= 1e-12 * np.abs(mean)] = 1.0
        scale[scale < 1e-150] = 1.0
        z = np.clip((X - mean) / scale, -_CLIP, _CLIP)
        typical = float(np.sqrt(np.average(np.sum(z**2, axis=1), weights=weight)))
        return cls(mean, scale, typical or 1.0, float(bias))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """(n, p) rows to (n, p + 1) rows of norm 1, float64."""
        mapped = np.empty((X.shape[0], X.shape[1] + 1))
        mapped[:, :-1] = np.clip((X - self.mean) / self.scale, -_CLIP, _CLIP) / self.typical
        mapped[:, -1] = self.bias
        mapped /= np.linalg.norm(mapped, axis=1, keepdims=True)
        return mapped
