"""The ridge λ by leave-one-out, in closed form on some rows of the kernel."""

from typing import NamedTuple

import numpy as np

from fireset._util.parallel import parallel_map

# λ beside the mean diagonal of the kernel: from very smooth to interpolation.
RIDGES = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5)
MOST_ROWS = 800
_NEARLY_AS_GOOD = 1.01
_SINGLE_PRECISION = 3e-3  # of the mean diagonal


class RidgeChoice(NamedTuple):
    """λ, and the mean squared leave-one-out error that it is expected to have, beside that of predicting 0."""

    ridge: float
    error: float


def choose_ridge(kernel: np.ndarray, targets: np.ndarray, weight: np.ndarray) -> RidgeChoice:
    """The λ of ``RIDGES`` whose leave-one-out error on these rows is least.

    With A = R H R + λ, R = diag(√weight), the error in row i is [A⁻¹ R t]_i / (√weight_i [A⁻¹]_ii). λ is in the units
    of H and carries over to more rows. ``kernel`` (n, n) needs its lower triangle only; targets (n, c). Of errors
    within 1 % of the least the largest λ counts: it is the smoother fit, and solved sooner. Cost n³ for each λ.
    """
    from scipy.linalg import get_lapack_funcs

    roots = np.sqrt(weight)
    A = np.tril(kernel.astype(np.float64)) * roots[:, None] * roots
    diagonal = A.diagonal().copy()
    size = float(diagonal.mean())
    right = roots[:, None] * targets
    spread = float((right**2).sum())
    if not (size > 0 and spread > 0):
        return RidgeChoice(max(size, 1.0), 1.0)

    def error(share: float) -> float:
        # In float32 where its digits are enough: half of the time.
        dtype = np.float32 if share >= _SINGLE_PRECISION else np.float64
        potrf, potri = get_lapack_funcs(("potrf", "potri"), dtype=dtype)
        shifted = A.astype(dtype)
        shifted[np.diag_indices(len(A))] = diagonal + share * size
        factor, failed = potrf(shifted.T, lower=0, overwrite_a=True)
        if failed:
            return np.inf
        inverse, failed = potri(factor, lower=0, overwrite_c=True)
        if failed:
            return np.inf
        inverse = inverse.astype(np.float64, copy=False)
        own = inverse.diagonal()
        solved = inverse @ right + np.tril(inverse.T, -1) @ right  # the upper triangle, and its mirror image
        return float(((solved / own[:, None]) ** 2).sum()) / spread

    errors = parallel_map(error, RIDGES, uses_blas=True)
    best = next(k for k, found in enumerate(errors) if found <= _NEARLY_AS_GOOD * min(errors))
    return RidgeChoice(RIDGES[best] * size, errors[best])
