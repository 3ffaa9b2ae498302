"""Tangent kernels: H^cts in closed form, H(t) and H(t)^⊥ from fire sets."""

import numpy as np
from scipy.sparse import csr_array

from fireset._util.errors import InputError
from fireset._util.parallel import parallel_map, ranges
from fireset._util.rounding import row_norms
from fireset.theory.joint_firing import both_above

_TILE_ROWS = 512  # of H^cts; temporaries of a tile fit in the cache
_NEARLY_PARALLEL_GAP = 1e-3  # below this 1 − |ρ| is computed from the difference of the rows
_MAX_GATHERED_NUMBERS = 1 << 22  # of a temporary array
_MAX_COUNTS_BYTES = 1 << 25  # for the counts of one range of neurons


def shifted_ntk(
    X: np.ndarray, threshold: float, Z: np.ndarray | None = None, *, trained_bias: bool = False
) -> np.ndarray:
    """H^cts of the paper: ⟨x_i, x_j⟩ · P(⟨w, x_i⟩ > b and ⟨w, x_j⟩ > b), w ~ N(0, I); (n, n) or, with Z, (n, len(Z)).

    Rows are scaled to norm 1 first (float32 rows have norm 1 to 1e-7 only); a row of zeros raises InputError. For
    nearly parallel rows the correlation is computed from ‖x_i ∓ x_j‖², so that equal rows give bitwise equal rows of
    H^cts. Cost O(n²(d + 1)), about 100 ns per entry and core; memory 8 n² bytes and tiles.

    With ``trained_bias`` the factor is ⟨x_i, x_j⟩ + 1: the kernel of a network with trained thresholds (Yang, Jiang,
    Zhang, Wang and Liang, JMLR 2024). This library does not train them.
    """
    X = unit_rows(X, "X")
    others = X if Z is None else unit_rows(Z, "Z")
    if others.shape[1] != X.shape[1]:
        raise InputError(f"Z must have {X.shape[1]} columns as X has, got {others.shape[1]}")
    kernel = np.empty((len(X), len(others)))

    def fill(tile: tuple[int, int]) -> None:
        rows, columns = slice(tile[0], tile[0] + _TILE_ROWS), slice(tile[1], tile[1] + _TILE_ROWS)
        correlation, gap = correlations(X[rows], others[columns])
        kernel[rows, columns] = (correlation + trained_bias) * both_above(threshold, correlation, gap)
        if Z is None and tile[0] != tile[1]:
            kernel[columns, rows] = kernel[rows, columns].T

    starts = range(0, len(X), _TILE_ROWS)
    ends = range(0, len(others), _TILE_ROWS)
    parallel_map(fill, [(i, j) for i in starts for j in ends if Z is not None or i <= j], uses_blas=True)
    return kernel


def correlations(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ρ = ⟨a, b⟩ and 1 − |ρ|, without cancellation, for all pairs of unit rows; both (len(A), len(B))."""
    correlation = A @ B.T
    gap = 1.0 - np.abs(correlation)
    near = np.argwhere(gap < _NEARLY_PARALLEL_GAP)
    at_once = max(1, _MAX_GATHERED_NUMBERS // A.shape[1])
    for lo in range(0, len(near), at_once):
        i, j = near[lo : lo + at_once].T
        side = np.sign(correlation[i, j])[:, None]
        # Half the squared distance of the rows: relative error about 1e-13 even if it is tiny.
        gap[i, j] = 0.5 * np.sum((A[i] - side * B[j]) ** 2, axis=1)
        correlation[i, j] = side[:, 0] * (1.0 - gap[i, j])
    return correlation, gap


def unit_rows(X, name: str) -> np.ndarray:
    """Scale rows to norm 1 in float64; raise InputError for a row of norm 0 or ∞."""
    X = np.ascontiguousarray(X, np.float64)
    if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError(f"{name} must be a matrix with rows and columns, got shape {X.shape}")
    norms = row_norms(X)
    wrong = np.flatnonzero(~((norms > 0) & np.isfinite(norms)))
    if len(wrong):
        raise InputError(
            f"row {wrong[0]} of {name} has norm {norms[wrong[0]]:g} and no direction; remove it, or append a "
            f"constant coordinate to all rows"
        )
    return X / norms[:, None]


def fire_set_kernel(X: np.ndarray, fire_sets: csr_array) -> np.ndarray:
    """Return H(W)_ij = (1/m) ⟨x_i, x_j⟩ · #{r : r active for x_i and x_j}; (n, n). H^dis at the start, H(t) later.

    Sparse product of the fire sets with themselves: cost Σ_r k̃_r², k̃_r the number of active samples of neuron r;
    memory 12 n² bytes.
    """
    return _shared_fire_kernel(X, fire_sets, fire_sets)


def dual_kernel(X: np.ndarray, fire_sets: csr_array, near_threshold: csr_array) -> np.ndarray:
    """Return H(t)^⊥: as H(t), but with the sum over r in S̄_i only; (n, n), not symmetric.

    ``near_threshold`` is a boolean sparse array (n, m); row i is S̄_i, the neurons near the threshold.
    """
    return _shared_fire_kernel(X, csr_array(fire_sets.multiply(near_threshold)), fire_sets)


def _shared_fire_kernel(X: np.ndarray, left: csr_array, right: csr_array) -> np.ndarray:
    """(1/m) ⟨x_i, x_j⟩ · #{r : r in row i of ``left`` and in row j of ``right``}."""
    from fireset.kernels.fire_sets import count_shared

    X = np.asarray(X, np.float64)
    n, m = right.shape  # pyright: ignore[reportGeneralTypeIssues]
    left_csc, right_csc = left.tocsc(), right.tocsc()
    # Each range of neurons has its own counts if they are small. Sums of integers do not depend on the order.
    parts = ranges(m) if 4 * n * n <= _MAX_COUNTS_BYTES else [(0, m)]

    def count(span: tuple[int, int]) -> np.ndarray:
        counts = np.zeros((n, n), np.int32)
        count_shared(left_csc.indptr, left_csc.indices, right_csc.indptr, right_csc.indices, counts, *span)
        return counts

    tables = parallel_map(count, parts)
    counts = tables[0]
    for table in tables[1:]:
        counts += table
    kernel = X @ X.T
    kernel *= counts
    kernel /= m
    return kernel
