"""Split of a gradient step: pairs near the threshold, flipped pairs, and the terms B₁ … B₄ of the change of ‖err‖²."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from fireset._util.parallel import parallel_map, ranges
from fireset.fire_sets import fire_sets_of_pairs

_MAX_GATHERED_NUMBERS = 1 << 22  # of a temporary array


def pairs_near_threshold(weights: np.ndarray, X: np.ndarray, threshold: float, radius: float) -> csr_array:
    """Return S̄_i = {r : |⟨w_r, x_i⟩ − b| < R} for all i as a boolean sparse array of shape (n, m).

    A neuron that moves by less than R from these weights cannot flip for any other sample of norm 1 (the paper's Claim
    "bound on noflip probability", part 1). Cost n·m·d, one dense pass; memory one tile per core.
    """
    X = X.astype(np.float64, copy=False)
    at_once = max(1, _MAX_GATHERED_NUMBERS // len(X))

    def span_pairs(span: tuple[int, int]) -> list[tuple[np.ndarray, np.ndarray]]:
        found = []
        for lo in range(span[0], span[1], at_once):
            block = weights[lo : min(lo + at_once, span[1])].astype(np.float64, copy=False)
            neurons, samples = np.nonzero(np.abs(block @ X.T - threshold) < radius)
            found.append((samples, neurons + lo))
        return found

    pairs = [pair for found in parallel_map(span_pairs, ranges(len(weights)), uses_blas=True) for pair in found]
    samples, neurons = (np.concatenate([pair[k] for pair in pairs]) for k in (0, 1))
    return fire_sets_of_pairs(samples, neurons, (len(X), len(weights)))


def flipped_pairs(before: csr_array, after: csr_array) -> csr_array:
    """Return the pairs that are active in exactly one of two fire sets."""
    return csr_array(before != after)


def pair_values(weights: np.ndarray, X: np.ndarray, samples: np.ndarray, neurons: np.ndarray) -> np.ndarray:
    """Return ⟨w_r, x_i⟩ of the given pairs in float64; cost O(d) per pair."""
    values = np.empty(len(samples))
    at_once = max(1, _MAX_GATHERED_NUMBERS // X.shape[1])
    for lo in range(0, len(samples), at_once):
        part = slice(lo, lo + at_once)
        values[part] = np.einsum("kj,kj->k", weights[neurons[part]].astype(np.float64), X[samples[part]])
    return values


def gradient_norms(X: np.ndarray, output_weights: np.ndarray, fire_sets: csr_array, residual: np.ndarray) -> np.ndarray:
    """Return ‖∂L/∂w_r‖ for every neuron from the residual ∂L/∂u (n, c); cost O(d) per active pair."""
    from fireset.kernels.fire_sets import gradient_squares

    m = len(output_weights)
    columns = fire_sets.tocsc()
    squares = np.empty(m)
    residual, output_weights = np.ascontiguousarray(residual, np.float64), output_weights.astype(np.float64, copy=False)
    parallel_map(
        lambda span: gradient_squares(X, output_weights, columns.indptr, columns.indices, residual, squares, *span),
        ranges(m),
    )
    return np.sqrt(squares / m)


@dataclass(frozen=True)
class StepSplit:
    """‖err(t+1)‖² = ‖err(t)‖² + B₁ + B₂ + B₃ + B₄ (Claim "split into four terms"), for err = y − u.

    B₁ = −2η errᵀ H(t) err, B₂ = 2η errᵀ H(t)^⊥ err, B₃ = −2 errᵀ v₂, B₄ = ‖u(t+1) − u(t)‖², where v₂ is the change of
    the predictions that neurons in S̄_i cause. The signs are as printed in the paper, and correct.
    """

    terms: tuple[float, float, float, float]
    gap: float  # ‖err(t+1)‖² − ‖err(t)‖² − ΣB, over ‖err(t)‖²


def split_step(
    X: np.ndarray,
    output_weights: np.ndarray,
    threshold: float,
    rate: float,
    fire_sets: csr_array,
    near_threshold: csr_array,
    squared_gradient: float,
    weights: tuple[np.ndarray, np.ndarray],
    errors: tuple[np.ndarray, np.ndarray],
) -> StepSplit:
    """Compute B₁ … B₄ of one plain step of one output from weights and errors before and after it.

    ``fire_sets`` are those before the step. ``near_threshold`` contains S̄_i and every pair that flipped in the step.
    ``squared_gradient`` is ‖∂L/∂W‖² = errᵀ H(t) err. Exact up to rounding. Cost O(d) per pair near the threshold, and
    per active pair of a neuron with such a pair.
    """
    err, err_after = errors
    m = len(output_weights)
    pairs = near_threshold.tocoo()
    samples, neurons = pairs.coords
    excess = [np.maximum(pair_values(w, X, samples, neurons) - threshold, 0.0) for w in weights]
    change = output_weights[neurons, 0] * (excess[1] - excess[0]) / np.sqrt(m)
    flipping = float(np.sum(err[samples] * change))

    both = csr_array(fire_sets.multiply(near_threshold)).tocoo()
    samples, neurons = both.coords
    distinct, positions = np.unique(neurons, return_inverse=True)
    sums = fire_sets[:, distinct].T.astype(np.float64) @ (err[:, None] * X)  # Σ err_i x_i over the active samples i
    dual = float(np.sum(err[samples] * np.einsum("kj,kj->k", X[samples], sums[positions]))) / m

    moved = float(np.sum((err - err_after) ** 2))
    terms = (-2.0 * rate * squared_gradient, 2.0 * rate * dual, -2.0 * flipping, moved)
    before, after = float(err @ err), float(err_after @ err_after)
    return StepSplit(terms, (after - before - sum(terms)) / max(before, 1e-300))
