"""How far a computed inner product may lie from the true one.

A floating-point inner product of length d, summed in any order, with or without fused multiply-add, errs by at most
``d u ‖w‖ ‖x‖ / (1 − d u)`` with ``u = eps/2`` (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1).
"""

import numpy as np


def dot_slack(n_features: int, dtype, weight_norms, sample_norm):
    """Bound on |computed − deciding| for inner products of rows of these norms; float64, shape of ``weight_norms``.

    ``eps`` in place of ``u`` pays for both sides' rounding, and ``+ 8`` for the rounding of the norms themselves. The
    last term stands for products lost to underflow.
    """
    info = np.finfo(dtype)
    return (n_features + 8) * float(info.eps) * np.asarray(weight_norms, np.float64) * sample_norm + 1e-30


def deciding_band(n_features: int, dtype, weight_norms, sample_norm):
    """Half-width of the band around the threshold in which ``deciding_dot`` has the last word, in the given dtype.

    Negative in float32: there the computed value decides (see ``fireset.kernels.firing``).
    """
    slack = dot_slack(n_features, dtype, weight_norms, sample_norm)
    if np.dtype(dtype) == np.float32:
        slack = np.full_like(slack, -1.0)
    return slack.astype(dtype)


def row_norms(rows: np.ndarray) -> np.ndarray:
    """Euclidean norms of the rows, in float64, without a float64 copy of the whole matrix."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows, dtype=np.float64))
