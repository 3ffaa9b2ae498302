"""The map from features to rows of norm 1, the input of the network."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset.sparse_rows import is_sparse
from fireset.tables.column_map import ColumnMap
from fireset.tables.metric import apply_metric

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class SphereMap:
    """Map x ↦ (zP/t, bias) / ‖(zP/t, bias)‖, where z is the output of the column map.

    Rows z are multiplied by the metric P, or by its diagonal (``metric.py``), and divided by t = ``typical``, the root
    mean square of ‖zP‖. A constant coordinate, the bias, is appended, and rows are normalized. The bias preserves the
    norm of zP, which normalization alone would lose. The larger it is, the smaller the part of the sphere that the rows
    cover, and the smoother the fit.
    """

    columns: ColumnMap
    metric: np.ndarray  # (p,) or (p, p)
    typical: float
    bias: float

    @classmethod
    def learn(cls, columns: ColumnMap, Z: Any, weight: np.ndarray, bias: float, metric: np.ndarray) -> "SphereMap":
        """Learn ``typical`` from rows Z, (n, p), the output of ``columns``, with weights (n,)."""
        return cls(columns, metric, typical_norm(apply_metric(Z, metric), weight), float(bias))

    def __call__(self, X: Any) -> Any:
        """Map (n, p) rows to (n, p + 1) rows of norm 1, float64; sparse rows stay sparse, with one more entry each."""
        return self.map_standardized(self.columns(X))

    def map_standardized(self, Z: Any) -> Any:
        """Map rows that ``columns`` has standardized."""
        return to_sphere(apply_metric(Z, self.metric), self.typical, self.bias)[0]


def typical_norm(Z: Any, weight: np.ndarray) -> float:
    """Return the root mean square of ‖z‖, or 1 if all rows are 0."""
    return float(np.sqrt(np.average(_squared_norms(Z), weights=weight))) or 1.0


def _squared_norms(Z: Any) -> np.ndarray:
    if not is_sparse(Z):
        return np.einsum("ij,ij->i", Z, Z)
    rows = np.repeat(np.arange(Z.shape[0]), np.diff(Z.indptr))
    return np.bincount(rows, Z.data.astype(np.float64) ** 2, Z.shape[0])


def to_sphere(Z: Any, typical: float, bias: float) -> tuple[Any, np.ndarray]:
    """Return normalized rows (z/typical, bias), (n, p + 1), in the precision of Z, dense or CSR, and their norms."""
    if is_sparse(Z):
        return _sparse_to_sphere(Z, typical, bias)
    mapped = np.empty((Z.shape[0], Z.shape[1] + 1), Z.dtype)
    np.divide(Z, typical, out=mapped[:, :-1])
    mapped[:, -1] = bias
    norms = np.sqrt(np.einsum("ij,ij->i", mapped, mapped))
    mapped /= norms[:, None]
    return mapped, norms


def _sparse_to_sphere(Z: "csr_array", typical: float, bias: float) -> tuple["csr_array", np.ndarray]:
    from scipy.sparse import csr_array

    n, p = Z.shape  # pyright: ignore[reportGeneralTypeIssues]
    numbers = np.insert(Z.data / Z.dtype.type(typical), Z.indptr[1:], bias)  # at the end of each row
    indices = np.insert(Z.indices, Z.indptr[1:], p)
    mapped = csr_array((numbers, indices, Z.indptr + np.arange(n + 1)), shape=(n, p + 1))
    norms = np.sqrt(_squared_norms(mapped)).astype(Z.dtype)
    mapped.data /= np.repeat(norms, np.diff(mapped.indptr))
    return mapped, norms
