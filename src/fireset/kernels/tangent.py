"""Products with the fire-set kernel H (the paper's "Hessian matrix at time t"), without forming it.

X is a matrix (n, d), or sparse rows (``kernels/sparse_rows.py``), of which d stands for the stored entries of a row.
"""

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.sparse_rows import add_row, row_dot


@inlined
def _pull(X, output_weights, indptr, samples, pushes, r, t):
    """``t = Σ_i fired (Σ_c a_rc pushes_ic) x_i`` for neuron r, which fires for ``samples[indptr[r]:indptr[r+1]]``."""
    zero = output_weights.dtype.type(0)
    t[:] = zero
    for p in range(indptr[r], indptr[r + 1]):
        i = samples[p]
        push = zero
        for c in range(output_weights.shape[1]):
            push += output_weights[r, c] * pushes[i, c]
        add_row(push, X, i, t)


@vectorized
def tangent_product(X, output_weights, indptr, samples, direction, product, lo, hi):
    """Add the share of neurons lo … hi−1 in ``J Jᵀ direction`` to ``product`` (both (n, c); product in float64).

    Column r of the fire sets is ``samples[indptr[r]:indptr[r+1]]``. With ``t_r = Σ_i fired (Σ_c a_rc v_ic) x_i`` the
    product is ``Σ_r fired a_rc ⟨t_r, x_i⟩``; t_r never leaves the cache. The factor 1/m is left to the caller. Cost
    O(d · fired pairs).
    """
    outputs = output_weights.shape[1]
    t = np.empty(X.shape[1], output_weights.dtype)
    zero = output_weights.dtype.type(0)
    for r in range(lo, hi):
        _pull(X, output_weights, indptr, samples, direction, r, t)
        for p in range(indptr[r], indptr[r + 1]):
            i = samples[p]
            total = row_dot(t, X, i, zero)
            for c in range(outputs):
                product[i, c] += np.float64(output_weights[r, c] * total)


@vectorized
def row_gradients(X, output_weights, indptr, samples, residual, gradients, lo, hi):
    """``gradients[r] = Σ_i fired (Σ_c a_rc e_ic) x_i`` for neurons lo … hi−1, e the residual (n, c): √m ∂L/∂w_r.

    Column r of the fire sets is ``samples[indptr[r]:indptr[r+1]]``. Cost O(d · fired pairs).
    """
    for r in range(lo, hi):
        _pull(X, output_weights, indptr, samples, residual, r, gradients[r])


@vectorized
def jacobian_product(X, output_weights, indptr, samples, directions, product, lo, hi):
    """Add Σ_r a_rc ⟨directions_r, x_i⟩ over neurons lo … hi−1 that fire for i to ``product`` (n, c), in float64.

    Column r of the fire sets is ``samples[indptr[r]:indptr[r+1]]``. Cost O(d · fired pairs).
    """
    for r in range(lo, hi):
        for p in range(indptr[r], indptr[r + 1]):
            i = samples[p]
            total = row_dot(directions[r], X, i, output_weights.dtype.type(0))
            for c in range(output_weights.shape[1]):
                product[i, c] += np.float64(output_weights[r, c] * total)


@vectorized
def gradient_squares(X, output_weights, indptr, samples, residual, squares, lo, hi):
    """``squares[r] = ‖Σ_i fired (Σ_c a_rc e_ic) x_i‖²`` for neurons lo … hi−1, e the residual (n, c): m ‖∂L/∂w_r‖².

    Column r of the fire sets is ``samples[indptr[r]:indptr[r+1]]``. Cost O(d · fired pairs).
    """
    d = X.shape[1]
    t = np.empty(d, X.dtype)
    for r in range(lo, hi):
        _pull(X, output_weights, indptr, samples, residual, r, t)
        total = X.dtype.type(0)
        for j in range(d):
            total += t[j] * t[j]
        squares[r] = total


@vectorized
def count_shared(left_indptr, left_samples, right_indptr, right_samples, counts, lo, hi):
    """Add to ``counts[i, j]`` the neurons lo … hi−1 that have i on the left and j on the right.

    Cost: the sum over neurons of the product of both numbers.
    """
    for r in range(lo, hi):
        for p in range(left_indptr[r], left_indptr[r + 1]):
            row = counts[left_samples[p]]
            for q in range(right_indptr[r], right_indptr[r + 1]):
                row[right_samples[q]] += 1
