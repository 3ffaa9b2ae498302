"""How far a computed inner product may lie from the true one.

A floating-point inner product of length d, summed in any order, with or without fused multiply-add, errs by at most
``d u ‖w‖ ‖x‖ / (1 − d u)`` with ``u = eps/2`` (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

from typing import Any

import numpy as np

_SMALL = 1e-140  # squares of smaller numbers lose digits to underflow


def dot_slack(n_features: int, dtype, weight_norms, sample_norm):
    """Bound on |computed − deciding| for inner products of rows of these norms; float64, shape of ``weight_norms``.

    ``eps`` in place of ``u`` pays for both sides' rounding, and ``+ 8`` for the rounding of the norms themselves. The
    last term stands for products lost to underflow.
    """
    with np.errstate(over="ignore"):
        largest = np.asarray(weight_norms, np.float64) * sample_norm
        slack = _slack(n_features, dtype, largest)
    return np.where(largest < _largest_safe(dtype), slack, np.inf)  # a sum that may overflow says nothing


def one_dot_slack(n_features: int, dtype, weight_norm: float, sample_norm: float) -> float:
    """``dot_slack`` of one row, in a microsecond."""
    largest = weight_norm * sample_norm
    return _slack(n_features, dtype, largest) if largest < _largest_safe(dtype) else np.inf


def _slack(n_features: int, dtype, largest):
    return (n_features + 8) * float(np.finfo(dtype).eps) * largest + 1e-30


def _largest_safe(dtype) -> float:
    return float(np.finfo(dtype).max) / 4


def deciding_band(n_features: int, dtype, weight_norms, sample_norm):
    """Half-width of the band around the threshold in which ``deciding_dot`` has the last word, in the given dtype.

    In float32 it is negative, so that the computed value decides (see ``fireset.kernels.firing``); where a sum may
    overflow it is infinite, so that ``deciding_dot`` decides for all.
    """
    if np.dtype(dtype) == np.float32:
        with np.errstate(over="ignore"):
            largest = np.asarray(weight_norms, np.float64) * sample_norm
        return np.where(largest < _largest_safe(dtype), np.float32(-1.0), np.float32(np.inf))
    return dot_slack(n_features, dtype, weight_norms, sample_norm).astype(dtype)


def row_norms(rows: Any) -> np.ndarray:
    """Euclidean norms of the rows of a matrix, in float64, without a float64 copy of it; sparse rows know their own.

    Rows whose squares overflow or vanish are scaled first: bounds on rounding are made of norms, and must not vanish.
    """
    if not isinstance(rows, np.ndarray):
        return rows.norms()
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        extreme = np.flatnonzero((norms < _SMALL) | (norms == np.inf))
        if len(extreme) and rows.shape[1]:
            some = rows[extreme].astype(np.float64)
            largest = np.abs(some).max(axis=1)
            scaled = some / np.where((largest > 0) & (largest < np.inf), largest, 1.0)[:, None]
            norms[extreme] = largest * np.sqrt((scaled**2).sum(axis=1))
    return norms
