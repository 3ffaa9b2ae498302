"""Kernel regression of the infinitely wide network on some rows of a table, and its gradients."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from fireset.sparse_rows import is_sparse
from fireset.tables.metric import apply_metric
from fireset.tables.sphere import to_sphere, typical_norm
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import KernelSystem, LeaveOneOutFit

_MAX_OUTPUTS = 4  # gradients of more outputs are replaced by random combinations
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

    Cost n² p for the inner products of n rows, and n³/3 for each ridge that is tried, or double with all leave-one-out
    errors.
    """

    def __init__(self, rows: FitRows, metric: np.ndarray, bias: float, kernel: KernelFunction):
        self.rows, self.metric, self.bias, self.kernel = rows, metric, bias, kernel
        V = apply_metric(rows.Z, metric)
        self.typical = typical_norm(V, rows.weight)
        self._mapped, self._norms = to_sphere(V, self.typical, bias)
        self._cosines = _dense(self._mapped @ self._mapped.T)
        self.ridge_index = -1
        self.coefficients = np.zeros_like(rows.targets)

    @cached_property
    def _system(self) -> KernelSystem:
        kernel = self.kernel.values(self._cosines.copy(), lower=True)
        return KernelSystem(kernel, self.rows.targets, self.rows.weight)

    @property
    def _varies(self) -> bool:
        return self._system.mean_diagonal > 0 and bool(self.rows.targets.any())

    def search_ridge(self, start: int) -> None:
        """Fit with a ridge of small leave-one-out error, searched from index ``start`` of the grid."""
        if self._varies:
            self._keep(self._system.search(start))

    def leave_one_out(self, ridge_index: int) -> LeaveOneOutFit:
        """Fit with the ridge at this index, or a large one for −1, and compute all leave-one-out errors."""
        if ridge_index < 0:
            return self._keep(self._system.leave_one_out(1.0))
        return self._keep(self._system.leave_one_out_at(ridge_index))

    def solve(self, ridge_index: int) -> "KernelFit":
        """Fit with the ridge at this index."""
        self.ridge_index = ridge_index
        self.coefficients = self._system.coefficients(self._system.ridge(ridge_index))
        return self

    def predict(self, Z: Any) -> np.ndarray:
        """Predict targets of other rows, (k, c)."""
        mapped, _ = to_sphere(apply_metric(Z, self.metric), self.typical, self.bias)
        kernel = self.kernel.values(_dense(mapped @ self._mapped.T))
        return (kernel @ self.coefficients.astype(kernel.dtype)).astype(np.float64)

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
        """Yield gradients by the coordinates zP. A row's own term has a cusp and is left out.

        More than ``_MAX_OUTPUTS`` outputs are replaced by random combinations with the same expected sum of squares,
        which differ from row to row, so that averages over rows have little noise.
        """
        mapped, outputs = self._mapped, self.coefficients.shape[1]
        slopes = self.kernel.slopes(self._cosines.copy())
        coefficients = self.coefficients.astype(np.float32)
        random = np.random.default_rng(0)
        for k in range(min(outputs, _MAX_OUTPUTS)):
            few = outputs <= _MAX_OUTPUTS
            signs = np.float32(_MAX_OUTPUTS**-0.5) * random.choice(
                np.array([-1, 1], np.float32), (len(slopes), 0 if few else outputs)
            )
            pulled = _scaled_rows(mapped, coefficients[:, k]) if few else mapped
            for rows in self._row_blocks():
                own, pulls = _dense(mapped[rows]), slopes[rows]
                if not few:
                    pulls = signs[rows] @ coefficients.T
                    pulls *= slopes[rows]
                gradient = pulls @ pulled
                along = np.einsum("ij,ij->i", gradient, own)  # the normalization removes this component
                gradient -= along[:, None] * own
                yield rows, gradient[:, :-1] / (self._norms[rows] * np.float32(self.typical))[:, None]

    def _row_blocks(self) -> list[slice]:
        """Return chunks of rows: all rows, or for sparse rows as many as have gradients of a few megabytes."""
        n, p = self.rows.Z.shape
        at_once = max(1, _CHUNK_NUMBERS // max(1, p)) if is_sparse(self.rows.Z) else max(1, n)
        return [slice(lo, lo + at_once) for lo in range(0, n, at_once)]

    def _keep(self, found: LeaveOneOutFit) -> LeaveOneOutFit:
        self.ridge_index, self.coefficients = found.ridge_index, found.coefficients
        return found


def _dense(matrix: Any) -> np.ndarray:
    return matrix.toarray() if is_sparse(matrix) else matrix


def _scaled_rows(matrix: Any, scales: np.ndarray) -> Any:
    return matrix.multiply(scales[:, None]).tocsr() if is_sparse(matrix) else matrix * scales[:, None]
