"""Choice of the ridge by rows that are held out of the normal equations.

Leave-one-out on the centres chooses the ridge of a fit to these few rows. A fit to many more rows, restricted to the
same features, may need a smaller one. Sums over all rows and the features of a few rows give the fit without these few,
for any ridge, at the cost of one factorization.
"""

import numpy as np

from fireset._util.cholesky import cholesky_solve, cholesky_with_jitter

_STEP = 10.0**0.5
_MAX_STEPS = 8  # in one direction
_LEAST_GAIN = 5e-4  # of the error, by which a smaller ridge must be better


def choose_held_out_ridge(
    matrix: np.ndarray, right: np.ndarray, Z: np.ndarray, residual: np.ndarray, weight: np.ndarray, first: float
) -> float:
    """Return the ridge, ``first`` times a power of √10, with the smallest squared error on held-out rows.

    A smaller ridge must be clearly better.

    Parameters
    ----------
    matrix : (M, M) array
        Σ w_i z_i z_iᵀ over all rows, with features z_i.
    right : (M, c) array
        Σ z_i e_i over all rows, with residuals e_i: weights times errors of the predictions.
    Z : (k, M) array
        Features of the rows to hold out.
    residual : (k, c) array
    weight : (k,) array
        Positive. Rows are drawn in proportion to it, so that all errors count alike.
    first : float
        Ridge to start from.

    Notes
    -----
    Cost M³/3 for each ridge, with the smallest error between two larger ones, and k M².
    """
    scaled = Z * np.sqrt(weight)[:, None]  # the product of an array with itself is computed by symmetry
    without, other = matrix - scaled.T @ scaled, right - Z.T @ residual
    errors = residual / weight[:, None]

    def squared_error(ridge: float) -> float:
        factor, _ = cholesky_with_jitter(lambda: without + ridge * np.eye(len(without)))
        return float(np.sum((errors - Z @ cholesky_solve(factor, other)) ** 2))

    best, least = first, squared_error(first)
    for step, gain in ((1.0 / _STEP, _LEAST_GAIN), (_STEP, 0.0)):
        for _ in range(_MAX_STEPS):
            found = squared_error(best * step)
            if not found < (1.0 - gain) * least:
                break
            best, least = best * step, found
        if best != first:
            break
    return best
