"""Mapping rows of any table to rows of norm 1, as the network needs them."""

from dataclasses import dataclass

import numpy as np

from fireset.tables.columns import ColumnMap


@dataclass(frozen=True)
class SphereMap:
    """x ↦ (s·z, bias) / ‖(s·z, bias)‖, z being the columns as ``ColumnMap`` has them, divided by ``typical``.

    Columns are weighted by ``column_scales`` s, rows scaled so that a typical ‖s·z‖ is 1, a constant
    coordinate appended, rows normalized. The constant keeps what normalizing alone would lose, the length of s·z; the
    larger it is beside 1, the smaller the patch of the sphere that the data fill and the smoother the functions that
    training finds first.
    """

    columns: ColumnMap
    column_scales: np.ndarray
    typical: float
    bias: float

    @classmethod
    def learn(
        cls, columns: ColumnMap, Z: np.ndarray, weight: np.ndarray, bias: float, column_scales: np.ndarray
    ) -> "SphereMap":
        """From rows Z, mapped by ``columns``, (n, p) that count by ``weight``."""
        return cls(columns, column_scales, typical_norm(Z * column_scales, weight), float(bias))

    def __call__(self, X: np.ndarray) -> np.ndarray:
        """(n, p) rows to (n, p + 1) rows of norm 1, float64."""
        return to_sphere(self.columns(X) * self.column_scales, self.typical, self.bias)[0]


def typical_norm(Z: np.ndarray, weight: np.ndarray) -> float:
    """Root mean square of ‖z‖; 1 where all rows are 0."""
    return float(np.sqrt(np.average(np.einsum("ij,ij->i", Z, Z), weights=weight))) or 1.0


def to_sphere(Z: np.ndarray, typical: float, bias: float) -> tuple[np.ndarray, np.ndarray]:
    """(z/typical, bias) normalized, (n, p + 1), in the precision of Z, and the norms before."""
    mapped = np.empty((Z.shape[0], Z.shape[1] + 1), Z.dtype)
    np.divide(Z, typical, out=mapped[:, :-1])
    mapped[:, -1] = bias
    norms = np.sqrt(np.einsum("ij,ij->i", mapped, mapped))
    mapped /= norms[:, None]
    return mapped, norms
