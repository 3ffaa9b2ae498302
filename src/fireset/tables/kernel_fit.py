"""Kernel regression of the infinitely wide network on some rows of a table, and its gradients."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fireset.sparse_rows import is_sparse
from fireset.tables.metric import apply_metric
from fireset.tables.sphere import to_sphere, typical_norm
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import (
    RELATIVE_RIDGES,
    LeaveOneOutFit,
    best_ridge,
    kernel_coefficients,
    leave_one_out_at,
)

_MAX_OUTPUTS = 16  # gradients of more outputs are replaced by random combinations
_MAX_GRADIENT_NUMBERS = 1500  # columns times outputs; beyond, gradients of fewer combinations are computed
_MIN_OUTPUTS = 4
_CHUNK_NUMBERS = 5_000_000  # numbers of a chunk of gradients of sparse rows: 20 MB


class FitRows(NamedTuple):
    """Rows to fit."""

    Z: Any  # (n, p), float32, dense or CSR
    targets: np.ndarray  # (n, c)
    weight: np.ndarray  # (n,)

    def take(self, rows: np.ndarray) -> "FitRows":
        return FitRows(self.Z[rows], self.targets[rows], self.weight[rows])

    def centred(self) -> tuple["FitRows", np.ndarray]:
        """Return the rows with targets of mean 0, and the mean."""
        mean = np.average(self.targets, axis=0, weights=self.weight)
        return self._replace(targets=self.targets - mean), mean


class KernelFit:
    """Kernel regression with given bias and metric. ``solve`` or a search of the ridge sets ``coefficients``.

    Cost n² p for the inner products of n rows, and two n³/3 for each ridge that is tried, one without leave-one-out.
    """

    def __init__(self, rows: FitRows, metric: np.ndarray, bias: float, kernel: KernelFunction):
        self.rows, self.metric, self.bias, self.kernel = rows, metric, bias, kernel
        V = apply_metric(rows.Z, metric)
        self.typical = typical_norm(V, rows.weight)
        self._mapped, self._norms = to_sphere(V, self.typical, bias)
        self._cosines = _dense(self._mapped @ self._mapped.T)
        self.ridge_index = -1
        self.coefficients = np.zeros_like(rows.targets)

    def search_ridge(self, start: int) -> LeaveOneOutFit:
        """Fit with the ridge of least leave-one-out error, searched from index ``start`` of the grid."""
        return self._keep(best_ridge(self._kernel_matrix(), self.rows.targets, self.rows.weight, start))

    def leave_one_out(self, ridge_index: int) -> LeaveOneOutFit:
        """Fit with the ridge at this index and compute leave-one-out errors."""
        return self._keep(leave_one_out_at(self._kernel_matrix(), self.rows.targets, self.rows.weight, ridge_index))

    def solve(self, ridge_index: int) -> "KernelFit":
        """Fit with the ridge at this index."""
        self.ridge_index = ridge_index
        relative = RELATIVE_RIDGES[ridge_index]
        self.coefficients = kernel_coefficients(
            self._kernel_matrix(), self.rows.targets, self.rows.weight, relative_ridge=relative
        )
        return self

    def predict(self, Z: Any) -> np.ndarray:
        """Predict targets of other rows, (k, c)."""
        mapped, _ = to_sphere(apply_metric(Z, self.metric), self.typical, self.bias)
        return self.kernel.values(_dense(mapped @ self._mapped.T)) @ self.coefficients

    def outer_product(self, full: bool) -> np.ndarray:
        """Return the mean of ∇f ∇fᵀ over rows and outputs, (p, p), or for a diagonal metric its diagonal (p,)."""
        total = 0.0
        for rows, gradients in self._gradients():
            weighted = gradients * self.rows.weight[rows, None].astype(gradients.dtype)
            total = total + (weighted.T @ gradients if full else np.einsum("ij,ij->j", weighted, gradients))
        total = np.asarray(total, np.float64) / self.rows.weight.sum()
        if self.metric.ndim == 2:
            return self.metric @ total @ self.metric
        return self.metric[:, None] * total * self.metric if full else self.metric**2 * total

    def gradients(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield ∇f for a range of rows and one output after another, (k, p), by the columns of Z."""
        for rows, gradients in self._gradients():
            yield rows, apply_metric(gradients, self.metric)

    def _gradients(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield gradients by the coordinates zP. A row's own term has a cusp and is left out."""
        mapped = self._mapped
        slopes = self.kernel.slopes(self._cosines.copy())
        coefficients = _few_columns(self.coefficients, mapped.shape[1]).astype(np.float32)
        for column in coefficients.T:
            pulled = mapped.multiply(column[:, None]).tocsr() if is_sparse(mapped) else column[:, None] * mapped
            for rows in self._row_blocks():
                own = _dense(mapped[rows])
                gradient = slopes[rows] @ pulled
                along = np.einsum("ij,ij->i", gradient, own)  # the normalization removes this component
                gradient -= along[:, None] * own
                yield rows, gradient[:, :-1] / (self._norms[rows] * np.float32(self.typical))[:, None]

    def _row_blocks(self) -> list[slice]:
        """Return chunks of rows: all rows, or for sparse rows as many as have gradients of a few megabytes."""
        n, p = self.rows.Z.shape
        at_once = max(1, _CHUNK_NUMBERS // max(1, p)) if is_sparse(self.rows.Z) else max(1, n)
        return [slice(lo, lo + at_once) for lo in range(0, n, at_once)]

    def _kernel_matrix(self) -> np.ndarray:
        return self.kernel.values(self._cosines.copy())

    def _keep(self, found: LeaveOneOutFit) -> LeaveOneOutFit:
        self.ridge_index, self.coefficients = found.ridge_index, found.coefficients
        return found


def _dense(matrix: Any) -> np.ndarray:
    return matrix.toarray() if is_sparse(matrix) else matrix


def _few_columns(coefficients: np.ndarray, columns: int) -> np.ndarray:
    """Return a few columns: random combinations with the same expected sum of squares."""
    outputs = coefficients.shape[1]
    most = min(_MAX_OUTPUTS, max(_MIN_OUTPUTS, _MAX_GRADIENT_NUMBERS // columns))
    if outputs <= most:
        return coefficients
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (outputs, most))
    return coefficients @ signs / np.sqrt(most)
