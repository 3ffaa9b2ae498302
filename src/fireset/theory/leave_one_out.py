"""Leave-one-out in closed form: what kernel regression predicts for each row without that row, from one factorization.

With weights R² = diag(weight) of the rows, A = R K R + λ and z = A⁻¹ R t, the coefficients are α = R z, and the error
in row i, had it been left out, is z_i / (√weight_i [A⁻¹]_ii).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fireset._util.cholesky import cholesky, cholesky_solve, inverse_diagonal

# λ beside the mean diagonal of the kernel: from very smooth to interpolation.
RIDGES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 1e-4, 1e-5)
_NEARLY_AS_GOOD = 1.005
_SINGLE_PRECISION = 3e-3  # of the mean diagonal: below, float32 has too few digits


class LeftOut(NamedTuple):
    """Kernel regression on some rows, each predicted without itself."""

    ridge: float  # λ
    place: int  # of λ in RIDGES, or −1
    coefficients: np.ndarray  # α, (n, c)
    errors: np.ndarray  # target less prediction, (n, c)
    error: float  # their mean square, or score, beside that of the targets


def leave_one_out(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    ridge: float,
    place: int = -1,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeftOut:
    """With this λ; ``kernel`` (n, n), its lower triangle, is not changed; targets (n, c). Cost 2/3 n³.

    ``score(errors)`` is what to judge them by, where it is not their mean square.
    """
    # Divided by the mean diagonal, coefficients and errors are the same, and no entry over- or underflows.
    size = max(_size(kernel, weight), 1e-300)
    ridge_share = ridge / size
    dtype = np.float32 if kernel.dtype == np.float32 and ridge_share >= _SINGLE_PRECISION else np.float64
    roots = np.sqrt(weight / size)
    A = kernel.astype(dtype)
    A *= roots[:, None].astype(dtype)
    A *= roots.astype(dtype)
    A[np.diag_indices(len(A))] += dtype(ridge_share)
    if not cholesky(A):
        return LeftOut(ridge, place, np.zeros_like(targets), targets, np.inf)
    solved = cholesky_solve(A, roots[:, None] * targets).astype(np.float64)
    own = inverse_diagonal(A)
    errors = solved / np.maximum(own * roots, 1e-300)[:, None]
    judge = score or (lambda off: float(weight @ (off**2).sum(axis=1)))
    spread = judge(targets)
    mean = judge(errors) / spread if spread > 0 else 1.0
    return LeftOut(ridge, place, roots[:, None] * solved, errors, mean)


def best_ridge(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    start: int = 6,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeftOut:
    """The λ among ``RIDGES`` at which the error is least, downhill from the one at ``start``.

    The error has one valley in all but odd cases. Of two that are nearly as good the larger λ counts: it is the
    smoother fit, and solved sooner. λ is in the units of the kernel and carries over to more rows.
    """
    size = _size(kernel, weight)
    if not (size > 0 and (weight @ (targets**2).sum(axis=1)) > 0):
        return LeftOut(max(size, 1.0), -1, np.zeros_like(targets), targets, 1.0)
    tried: dict[int, LeftOut] = {}

    def at(k: int) -> float:
        if not 0 <= k < len(RIDGES):
            return np.inf
        if k not in tried:
            tried[k] = ridge_at(kernel, targets, weight, k, score)
        return tried[k].error

    k = start
    while at(k - 1) <= _NEARLY_AS_GOOD * at(k) and k > 0:
        k -= 1
    if k == start:
        while at(k + 1) * _NEARLY_AS_GOOD < at(k):
            k += 1
    return tried[k]


def ridge_at(
    kernel: np.ndarray,
    targets: np.ndarray,
    weight: np.ndarray,
    place: int,
    score: Callable[[np.ndarray], float] | None = None,
) -> LeftOut:
    """With the λ at this place of ``RIDGES``."""
    return leave_one_out(kernel, targets, weight, RIDGES[place] * _size(kernel, weight), place, score)


def _size(kernel: np.ndarray, weight: np.ndarray) -> float:
    """Mean diagonal of R K R."""
    return float(np.mean(kernel.diagonal() * weight))
