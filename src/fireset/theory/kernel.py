"""The kernels of gradient descent: H^cts in closed form, and the top of H(t) from fire sets."""

from collections.abc import Callable

import numpy as np
from scipy.sparse import csr_array

from fireset.parallel import lanes, run


def shifted_ntk(X: np.ndarray, threshold: float) -> np.ndarray:
    """H^cts of the paper for unit rows: ⟨x_i, x_j⟩ · P(⟨w, x_i⟩ > b and ⟨w, x_j⟩ > b), w ~ N(0, I); shape (n, n).

    For standard normals of correlation ρ, P = Φ(−b) − 2 T(b, √((1 − ρ)/(1 + ρ))) with Owen's T. Cost O(n²(d + 1)).
    """
    from scipy.special import ndtr, owens_t

    X = np.asarray(X, np.float64)
    X = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-300)  # float32 rows have norm 1 to 1e-7 only
    correlation = X @ X.T
    # Within rounding of ±1 rows are equal or opposite; √(1 − ρ) would make 1e-8 of the rounding and λ_min with it.
    rounding = (X.shape[1] + 8) * float(np.finfo(np.float64).eps)
    correlation[correlation > 1.0 - rounding] = 1.0
    correlation[correlation < rounding - 1.0] = -1.0
    with np.errstate(divide="ignore"):
        slope = np.sqrt((1.0 - correlation) / (1.0 + correlation))  # ∞ for antipodes, which is Owen's limit too
    return correlation * (ndtr(-threshold) - 2.0 * owens_t(threshold, slope))


def smallest_eigenvalue(kernel: np.ndarray) -> float:
    """λ = λ_min of a symmetric matrix."""
    from scipy.linalg import eigvalsh

    return float(eigvalsh(kernel, subset_by_index=(0, 0))[0])


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
