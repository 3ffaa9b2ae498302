"""Leave-one-out errors of kernel regression in closed form, from one factorization.

With row weights R² = diag(weight), A = R K R + λ and z = A⁻¹ R t, the coefficients are α = R z. The error of row i in
the regression without row i is z_i / (√weight_i [A⁻¹]_ii).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fireset._util.cholesky import cholesky, cholesky_solve, inverse_diagonal

# Candidates for λ relative to the mean diagonal of the kernel, from very smooth to interpolation.
RELATIVE_RIDGES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-5)
_TIE_RATIO = 1.005  # errors within this ratio count as equal
_MIN_FLOAT32_RIDGE = 3e-3  # relative ridge; for smaller ones float32 has too few digits


class LeaveOneOutFit(NamedTuple):
    """Kernel regression on n rows with the leave-one-out error of each."""

    ridge: float  # λ
    ridge_index: int  # index of λ in RELATIVE_RIDGES, or −1
    coefficients: np.ndarray  # α, (n, c)
    errors: np.ndarray  # target minus leave-one-out prediction, (n, c)
    error: float  # score of the errors divided by the score of the targets


def leave_one_out(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    ridge: float,
    ridge_index: int = -1,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeaveOneOutFit:
    """Fit with λ = ``ridge`` and compute all leave-one-out errors; cost 2/3 n³.

    Only the lower triangle of ``kernel`` (n, n) is read, and it is not changed; ``targets`` (n, c). ``score(errors)``
    replaces the weighted sum of squares.
    """
    A, roots = _scaled_system(kernel, weight, ridge)
    if not cholesky(A):
        return LeaveOneOutFit(ridge, ridge_index, np.zeros_like(targets), targets, np.inf)
    solved = cholesky_solve(A, roots[:, None] * targets).astype(np.float64)
    inverse = inverse_diagonal(A)
    errors = solved / np.maximum(inverse * roots, 1e-300)[:, None]
    score = score or (lambda errors: float(weight @ (errors**2).sum(axis=1)))
    target_score = score(targets)
    error = score(errors) / target_score if target_score > 0 else 1.0
    return LeaveOneOutFit(ridge, ridge_index, roots[:, None] * solved, errors, error)


def kernel_coefficients(
    kernel: np.ndarray, targets: np.ndarray, weight: np.ndarray, *, relative_ridge: float
) -> np.ndarray:
    """Fit with λ = ``relative_ridge`` times the mean diagonal, without leave-one-out; cost 1/3 n³.

    Returns α (n, c), or 0 if the matrix is not positive definite within rounding.
    """
    A, roots = _scaled_system(kernel, weight, relative_ridge * _mean_diagonal(kernel, weight))
    if not cholesky(A):
        return np.zeros_like(targets)
    return roots[:, None] * cholesky_solve(A, roots[:, None] * targets).astype(np.float64)


def best_ridge(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    start: int = 6,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeaveOneOutFit:
    """Fit with the λ of smallest error among ``RELATIVE_RIDGES``, found downhill from index ``start``.

    The error has a single valley in nearly all cases. Of two equal errors the larger λ wins: the fit is smoother and
    faster to solve. λ has the units of the kernel and can be used with more rows.
    """
    scale = _mean_diagonal(kernel, weight)
    if not (scale > 0 and (weight @ (targets**2).sum(axis=1)) > 0):
        return LeaveOneOutFit(max(scale, 1.0), -1, np.zeros_like(targets), targets, 1.0)
    fits: dict[int, LeaveOneOutFit] = {}

    def error(k: int) -> float:
        if not 0 <= k < len(RELATIVE_RIDGES):
            return np.inf
        if k not in fits:
            fits[k] = leave_one_out_at(kernel, targets, weight, k, score)
        return fits[k].error

    k = start
    while error(k - 1) <= _TIE_RATIO * error(k) and k > 0:
        k -= 1
    if k == start:
        while error(k + 1) * _TIE_RATIO < error(k):
            k += 1
    return fits[k]


def leave_one_out_at(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    ridge_index: int,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeaveOneOutFit:
    """Fit with the λ at ``ridge_index`` of ``RELATIVE_RIDGES``."""
    ridge = RELATIVE_RIDGES[ridge_index] * _mean_diagonal(kernel, weight)
    return leave_one_out(kernel, targets, weight, ridge, ridge_index, score)


def _scaled_system(kernel: np.ndarray, weight: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Return (R K R + λ)/scale and the diagonal of R/√scale, where scale is the mean diagonal of R K R.

    The scale changes neither coefficients nor errors, and prevents over- and underflow.
    """
    scale = max(_mean_diagonal(kernel, weight), 1e-300)
    relative_ridge = ridge / scale
    dtype = np.float32 if kernel.dtype == np.float32 and relative_ridge >= _MIN_FLOAT32_RIDGE else np.float64
    roots = np.sqrt(weight / scale)
    A = kernel.astype(dtype)
    A *= roots[:, None].astype(dtype)
    A *= roots.astype(dtype)
    A[np.diag_indices(len(A))] += dtype(relative_ridge)
    return A, roots


def _mean_diagonal(kernel: np.ndarray, weight: np.ndarray) -> float:
    """Return the mean diagonal of R K R."""
    return float(np.mean(kernel.diagonal() * weight))
