"""Adam on the weights of a wide layer, fused with the gradients over active pairs.

One pass reads and writes weights and moments once. Neurons are processed in blocks: the gradients of a block are summed
over its active pairs in a buffer that stays in the cache, and are never written to memory.

Only *moving* neurons are accessed: those with an active pair in this step, or in any step before. The moments of all
others are 0, and Adam leaves their weights as they are.
"""

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.row_lists import add_block

_MIN_FLOAT32 = float(np.finfo(np.float32).tiny)
_MIN_FLOAT64 = float(np.finfo(np.float64).tiny)


@inlined
def _step_row(w, mean, square, gradient, rule):
    """Take one step of Adam with a neuron: w, its moments and its gradient have d entries or more. Cost O(d)."""
    one_minus_beta1, beta2, one_minus_beta2, rate, root_factor, eps = rule
    smallest = _MIN_FLOAT32 if w.itemsize == 4 else _MIN_FLOAT64
    zero = rate - rate
    for j in range(w.shape[0]):
        g = gradient[j]
        m = mean[j] + one_minus_beta1 * (g - mean[j])
        v = beta2 * square[j] + one_minus_beta2 * (g * g)
        # Subnormal numbers, in which a decaying moment would end, are slow. They move no weight: eps is normal.
        mean[j] = zero if abs(m) < smallest else m
        square[j] = zero if v < smallest else v
        w[j] -= rate * m / (np.sqrt(v) * root_factor + eps)


@vectorized
def adam_blocks(W, means, squares, moving, batch, outputs, residual, active, block, rule, lo, hi):
    """Take one step of Adam with the neurons of blocks lo … hi−1, on the active pairs of ``row_lists.forward_rows``.

    The gradient of neuron r is Σ_i active (Σ_c a_rc residual_ic) x_i. ``W``, ``means`` and ``squares`` are (m, d);
    ``moving`` (m,), uint8, marks the neurons whose moments are not 0, and is updated. ``rule`` is (1 − β₁, β₂, 1 − β₂,
    lr/(1 − β₁ᵗ), 1/√(1 − β₂ᵗ), ε). Cost O(d · (active pairs + moving neurons)).
    """
    coefficients = np.empty(block, W.dtype)
    gradients = np.empty((block, batch.samples.shape[1]), W.dtype)
    for q in range(lo, hi):
        first, stop = q * block, min((q + 1) * block, W.shape[0])
        for p in range(active.ends[q - lo, 0], active.ends[q - lo, batch.rows.shape[0]]):
            moving[first + active.ids[p]] = 1
        gradients[: stop - first] = 0
        add_block(batch, outputs[first:], residual, active, q - lo, coefficients, gradients)
        for r in range(first, stop):
            if moving[r] != 0:
                _step_row(W[r], means[r], squares[r], gradients[r - first], rule)


@vectorized
def adam_rows(W, means, squares, moving, gradients, rule, lo, hi):
    """Take one step of Adam with neurons lo … hi−1 and their ``gradients`` (m, at least d). Cost O(d) for each neuron.

    Neurons without gradient that are not marked in ``moving`` keep their weights.
    """
    for r in range(lo, hi):
        if moving[r] == 0:
            for j in range(W.shape[1]):
                if gradients[r, j] != 0:  # true for a NaN
                    moving[r] = 1
        if moving[r] != 0:
            _step_row(W[r], means[r], squares[r], gradients[r], rule)
