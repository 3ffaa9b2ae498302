"""The map from features to rows of norm 1, the input of the network."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fireset.sparse_rows import is_sparse
from fireset.tables.column_map import ColumnMap
from fireset.tables.metric import apply_metric

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_MIN_COLUMNS_FOR_ROW_SPACE = 500  # with fewer, weights take little time and memory


@dataclass(frozen=True)
class SphereMap:
    """Map x ↦ (zP/t, bias) / ‖(zP/t, bias)‖, where z is the output of the column map.

    Rows z are multiplied by the metric P, or by its diagonal (``metric.py``), and divided by t = ``typical``, the root
    mean square of ‖zP‖. A constant coordinate, the bias, is appended, and rows are normalized. The bias preserves the
    norm of zP, which normalization alone would lose. The larger it is, the smaller the part of the sphere that the rows
    cover, and the smoother the fit.

    With many more columns than training rows, v = zP/t is replaced by (vB, ‖v − vBBᵀ‖), where the columns of B are an
    orthonormal basis of a space that contains v of all training rows. Inner products with training rows and norms stay
    the same, and with them the kernels of the network, whose weights are rotation invariant when drawn. The network has
    n + 2 inputs instead of p + 1.
    """

    columns: ColumnMap
    metric: np.ndarray  # (p,) or (p, p)
    typical: float
    bias: float
    row_space: np.ndarray | None = None  # B, (p, n)

    @classmethod
    def learn(cls, columns: ColumnMap, Z: Any, weight: np.ndarray, bias: float, metric: np.ndarray) -> "SphereMap":
        """Learn ``typical`` from rows Z, (n, p), the output of ``columns``, with weights (n,)."""
        return cls(columns, metric, typical_norm(apply_metric(Z, metric), weight), float(bias))

    def in_row_space(self, Z: np.ndarray) -> "SphereMap":
        """Return the map with the basis B of these n rows. Cost O(p n²)."""
        # Householder reflections: orthonormal, and its span contains the rows, whatever their rank.
        basis, _ = np.linalg.qr((apply_metric(Z, self.metric) / self.typical).T)
        return replace(self, row_space=np.ascontiguousarray(basis))

    @property
    def n_outputs(self) -> int:
        """Number of coordinates of a mapped row."""
        return self.columns.n_outputs + 1 if self.row_space is None else self.row_space.shape[1] + 2

    def __call__(self, X: Any) -> Any:
        """Map (n, p) rows to (n, ``n_outputs``) rows of norm 1, float64. Sparse rows stay sparse."""
        return self.map_standardized(self.columns(X))

    def map_standardized(self, Z: Any) -> Any:
        """Map rows that ``columns`` has standardized."""
        V = apply_metric(Z, self.metric)
        if self.row_space is not None:
            inside = V @ self.row_space
            outside = V - inside @ self.row_space.T  # not √(‖v‖² − ‖vB‖²), which would cancel
            V = np.column_stack([inside, np.sqrt(np.einsum("ij,ij->i", outside, outside))])
        return to_sphere(V, self.typical, self.bias)[0]


def suits_row_space(rows: int, columns: int) -> bool:
    """Return whether a table has so many columns that a basis of its rows makes the network much smaller."""
    return columns >= max(_MIN_COLUMNS_FOR_ROW_SPACE, 2 * rows)


def count_inputs(rows: int, columns: int) -> int:
    """Return the number of inputs of a network for a dense table of this size, without pieces."""
    return rows + 2 if suits_row_space(rows, columns) else columns + 1


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
