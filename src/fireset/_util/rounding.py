"""Bounds on the rounding error of inner products.

The error of a floating-point inner product of length d, in any order, with or without fused multiply-add, is at most
``d u ‖w‖ ‖x‖ / (1 − d u)`` with ``u = eps/2`` (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

from functools import cache
from typing import Any

import numpy as np

_MIN_SAFE_NORM = 1e-140  # squares of smaller numbers lose digits to underflow


def dot_slack(n_features: int, dtype, weight_norms, sample_norm):
    """Return a bound on |computed − ``deciding_dot``| for rows of these norms; float64, shape of ``weight_norms``.

    ``(d + 8) · eps · ‖w‖ ‖x‖ + 1e-30``: ``eps`` = 2u covers the rounding of both values, ``+ 8`` the rounding of the
    norms, and the last term products lost to underflow. Infinite if the sum may overflow.
    """
    with np.errstate(over="ignore"):
        largest = np.asarray(weight_norms, np.float64) * sample_norm
        slack = _slack(n_features, dtype, largest)
    return np.where(largest < _largest_safe(dtype), slack, np.inf)


def one_dot_slack(n_features: int, dtype, weight_norm: float, sample_norm: float) -> float:
    """Return ``dot_slack`` of one row. Takes a microsecond."""
    largest = weight_norm * sample_norm
    return _slack(n_features, dtype, largest) if largest < _largest_safe(dtype) else np.inf


def _slack(n_features: int, dtype, largest):
    return (n_features + 8) * epsilon(dtype) * largest + 1e-30


@cache  # ``np.finfo`` takes half a microsecond
def epsilon(dtype) -> float:
    """Return the distance from 1 to the next number of this type."""
    return float(np.finfo(dtype).eps)


@cache
def _largest_safe(dtype) -> float:
    return float(np.finfo(dtype).max) / 4


def deciding_band(n_features: int, dtype, weight_norms, sample_norm):
    """Return the half-width of the band around the threshold in which ``deciding_dot`` decides, in the given dtype.

    In float32 it is negative, so that the computed value decides (``fireset.kernels.firing``). If a sum may overflow it
    is infinite, so that ``deciding_dot`` decides for all pairs.
    """
    if np.dtype(dtype) == np.float32:
        with np.errstate(over="ignore"):
            largest = np.asarray(weight_norms, np.float64) * sample_norm
        return np.where(largest < _largest_safe(dtype), np.float32(-1.0), np.float32(np.inf))
    return dot_slack(n_features, dtype, weight_norms, sample_norm).astype(dtype)


def row_norms(rows: Any) -> np.ndarray:
    """Return the Euclidean norms of the rows of a matrix or of sparse rows, in float64, without a float64 copy.

    Rows whose squares overflow or underflow are scaled first, because bounds on rounding errors need these norms.
    """
    if not isinstance(rows, np.ndarray):
        return rows.norms()
    with np.errstate(over="ignore", invalid="ignore"):
        norms = np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
        extreme = np.flatnonzero((norms < _MIN_SAFE_NORM) | (norms == np.inf))
        if len(extreme) and rows.shape[1]:
            some = rows[extreme].astype(np.float64)
            largest = np.abs(some).max(axis=1)
            scaled = some / np.where((largest > 0) & (largest < np.inf), largest, 1.0)[:, None]
            norms[extreme] = largest * np.sqrt((scaled**2).sum(axis=1))
    return norms
