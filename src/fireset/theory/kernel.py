"""The kernels of gradient descent: H^cts in closed form, H(t) and H(t)^⊥ from fire sets, and the top of H(t)."""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from fireset.errors import InputError
from fireset.parallel import lanes, run
from fireset.rounding import row_norms
from fireset.theory.probability import both_above

_BLOCK = 512  # rows of a tile of H^cts: its temporaries stay in the cache
_NEAR = 1e-3  # pairs with 1 − |ρ| below this are measured again, by their difference
_PAIRS_AT_ONCE = 1 << 22  # numbers gathered at once for that
_SMALL_TABLE = 1 << 25  # bytes


def shifted_ntk(
    X: np.ndarray, threshold: float, Z: np.ndarray | None = None, *, trained_bias: bool = False
) -> np.ndarray:
    """H^cts of the paper: ⟨x_i, x_j⟩ · P(⟨w, x_i⟩ > b and ⟨w, x_j⟩ > b), w ~ N(0, I); (n, n) or, with Z, (n, len(Z)).

    Rows are scaled to norm 1 first (float32 rows have it to 1e-7 only); a row of zeros has no direction and is refused.
    For nearly parallel rows the correlation is taken from ‖x_i ∓ x_j‖²: equal rows give equal rows of H^cts, to the
    last bit. Cost O(n²(d + 1)), about 100 ns an entry and core; memory 8 n² bytes and tiles.

    With ``trained_bias`` the factor is ⟨x_i, x_j⟩ + 1: the kernel of a network whose thresholds are trained, too (Yang,
    Jiang, Zhang, Wang and Liang, JMLR 2024), which this library does not do.
    """
    X = unit_rows(X, "X")
    others = X if Z is None else unit_rows(Z, "Z")
    if others.shape[1] != X.shape[1]:
        raise InputError(f"Z must have {X.shape[1]} columns as X has, got {others.shape[1]}")
    kernel = np.empty((len(X), len(others)))

    def fill(tile: tuple[int, int]) -> None:
        rows, columns = slice(tile[0], tile[0] + _BLOCK), slice(tile[1], tile[1] + _BLOCK)
        correlation, gap = correlations(X[rows], others[columns])
        kernel[rows, columns] = (correlation + trained_bias) * both_above(threshold, correlation, gap)
        if Z is None and tile[0] != tile[1]:
            kernel[columns, rows] = kernel[rows, columns].T

    starts = range(0, len(X), _BLOCK)
    ends = range(0, len(others), _BLOCK)
    run(fill, [(i, j) for i in starts for j in ends if Z is not None or i <= j], uses_blas=True)
    return kernel


def correlations(A: np.ndarray, B: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ρ = ⟨a, b⟩ and the gap 1 − |ρ| of all pairs of unit rows, the gap without cancellation; both (len(A), len(B))."""
    correlation = A @ B.T
    gap = 1.0 - np.abs(correlation)
    near = np.argwhere(gap < _NEAR)
    at_once = max(1, _PAIRS_AT_ONCE // A.shape[1])
    for lo in range(0, len(near), at_once):
        i, j = near[lo : lo + at_once].T
        side = np.sign(correlation[i, j])[:, None]
        # Half the square of a distance below 0.05: right to about 1e-13 of itself, whatever is left of it.
        gap[i, j] = 0.5 * np.sum((A[i] - side * B[j]) ** 2, axis=1)
        correlation[i, j] = side[:, 0] * (1.0 - gap[i, j])
    return correlation, gap


def unit_rows(X, name: str) -> np.ndarray:
    """Rows of norm 1 in float64, or an InputError that names the row that has none."""
    X = np.ascontiguousarray(X, np.float64)
    if X.ndim != 2 or X.shape[0] == 0 or X.shape[1] == 0:
        raise InputError(f"{name} must be a matrix with rows and columns, got shape {X.shape}")
    norms = row_norms(X)
    wrong = np.flatnonzero(~((norms > 0) & np.isfinite(norms)))
    if len(wrong):
        raise InputError(
            f"row {wrong[0]} of {name} has norm {norms[wrong[0]]:g} and so no direction; remove it, or append a "
            f"constant coordinate to all rows"
        )
    return X / norms[:, None]


def fire_set_kernel(X: np.ndarray, fire_sets: csr_array) -> np.ndarray:
    """H(W): (1/m) ⟨x_i, x_j⟩ · #{r : r fires for x_i and for x_j}; (n, n). H^dis at initialization, H(t) later.

    By a sparse product of the fire sets with themselves: cost Σ_r k̃_r² with k̃_r the samples that neuron r fires for,
    never n²·m; memory 12 n² bytes.
    """
    return _shared(X, fire_sets, fire_sets)


def dual_kernel(X: np.ndarray, fire_sets: csr_array, doubtful: csr_array) -> np.ndarray:
    """H(t)^⊥: as H(t), but the sum runs over r in S̄_i alone, the neurons that may flip for x_i; (n, n), not symmetric.

    ``doubtful`` is boolean, n × m: row i holds S̄_i.
    """
    return _shared(X, csr_array(fire_sets.multiply(doubtful)), fire_sets)


def _shared(X: np.ndarray, left: csr_array, right: csr_array) -> np.ndarray:
    from fireset.kernels.tangent import count_shared

    X = np.asarray(X, np.float64)
    n, m = right.shape  # pyright: ignore[reportGeneralTypeIssues]
    one, other = left.tocsc(), right.tocsc()
    # A table of counts for each lane, as long as they are small; whole numbers add up to the same in any order.
    parts = lanes(m) if 4 * n * n <= _SMALL_TABLE else [(0, m)]

    def count(lane: tuple[int, int]) -> np.ndarray:
        counts = np.zeros((n, n), np.int32)
        count_shared(one.indptr, one.indices, other.indptr, other.indices, counts, *lane)
        return counts

    tables = run(count, parts)
    counts = tables[0]
    for table in tables[1:]:
        counts += table
    kernel = X @ X.T
    kernel *= counts
    kernel /= m
    return kernel


def largest_eigenvalue(
    X: np.ndarray, signs: np.ndarray, fire_sets: csr_array, sample_weight: np.ndarray | None = None, **limits
) -> float:
    """λ_max of the fire-set kernel (1/m) J Jᵀ over all outputs, by power iteration from a fixed start.

    With one output and no weights this is H(t). With sample weights it is that of D^½ H D^½. A product costs two
    passes over the fired pairs, O(d · fired), and needs no n × n matrix. ``limits`` are those of ``power_iteration``.
    """
    return power_iteration(fire_set_product(X, signs, fire_sets), X, signs.shape[1], sample_weight, **limits)


def fire_set_product(X: np.ndarray, signs: np.ndarray, fire_sets: csr_array) -> Callable[[np.ndarray], np.ndarray]:
    """The map v ↦ (1/m) J Jᵀ v for v (n, c), in float64; J as the fire sets have it."""
    from fireset.kernels.tangent import tangent_product

    n, m = len(X), len(signs)
    columns = fire_sets.tocsc()

    def product(direction: np.ndarray) -> np.ndarray:
        direction = direction.astype(X.dtype)

        def lane_product(lane: tuple[int, int]) -> np.ndarray:
            share = np.zeros((n, signs.shape[1]))
            tangent_product(X, signs, columns.indptr, columns.indices, direction, share, *lane)
            return share

        return np.sum(run(lane_product, lanes(m)), axis=0) / m

    return product


def power_iteration(
    product: Callable[[np.ndarray], np.ndarray],
    X: np.ndarray,
    outputs: int,
    sample_weight: np.ndarray | None = None,
    *,
    tolerance: float = 1e-3,
    max_products: int = 60,
) -> float:
    """λ_max of D^½ H D^½, D the sample weights, from products with H; a lower bound.

    Ends when the estimate has stopped moving by more than ``tolerance``.
    """
    root = np.ones(len(X)) if sample_weight is None else np.sqrt(sample_weight)
    # A start that depends on the rows, not on their order or number: a row of weight 2 acts as two rows. The constant
    # is near the top vector where all inner products are positive, as on most real data; the rest meets the others.
    spread = np.random.default_rng(0).standard_normal((X.shape[1], outputs))
    vector = root[:, None] * (1.0 + X.astype(np.float64) @ spread)
    estimate = 0.0
    for _ in range(max_products):
        size = float(np.linalg.norm(vector))
        if size == 0.0:
            return 0.0
        vector /= size
        vector = product(vector * root[:, None]) * root[:, None]
        previous, estimate = estimate, float(np.linalg.norm(vector))
        if abs(estimate - previous) <= tolerance * estimate:
            break
    return estimate
