"""The squared norm of the features as a further feature, for functions of the distance from a centre.

The map to the sphere has such a coordinate, but a small one: the norms of rows with many columns differ little. Without
it, a fit has to combine all columns to the squared norm, which takes many rows. A metric (``metric.py``) can also
stretch the feature.
"""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SquaredNorm:
    """The feature (‖z‖² − mean)/scale of rows z."""

    mean: float
    scale: float

    @classmethod
    def learn(cls, Z: np.ndarray, weight: np.ndarray) -> "SquaredNorm | None":
        """Learn mean and standard deviation from rows Z (n, p) with weights (n,); None if the norms do not vary."""
        squares = _squared_norms(Z)
        mean = float(np.average(squares, weights=weight))
        scale = float(np.sqrt(np.average((squares - mean) ** 2, weights=weight)))
        return cls(mean, scale) if scale > 1e-6 * mean else None

    def append_to(self, Z: np.ndarray) -> np.ndarray:
        """Return Z (n, p) with the feature as a last column, in the precision of Z."""
        column = (_squared_norms(Z) - self.mean) / self.scale
        return np.hstack([Z, column[:, None]], dtype=Z.dtype, casting="same_kind")

    def through(self, gradients: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Turn gradients by the features and this one, (n, p + 1), into gradients by the features Z, (n, p)."""
        return gradients[:, :-1] + gradients[:, -1:] * (2.0 / self.scale * Z)


def _squared_norms(Z: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->i", Z, Z, dtype=np.float64)
