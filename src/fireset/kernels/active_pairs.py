"""Sums over the pairs that a forward pass found, with other vectors in place of weights, samples and outputs.

Second derivatives need them. Fired pairs are laid out as in ``fireset.kernels.row_lists.Fired``.
"""

from fireset.kernels.compiling import vectorized


@vectorized
def add_products(weights, batch, active, block, values, lo, hi):
    """Add ⟨w_r, x_i⟩ of every fired pair of blocks lo … hi−1 to its place in ``values``. Cost O(d) for a pair."""
    X, rows = batch
    for q in range(lo, hi):
        for k in range(rows.shape[0]):
            x = X[rows[k]]
            for p in range(active.ends[q - lo, k], active.ends[q - lo, k + 1]):
                w = weights[q * block + active.ids[p]]
                total = values.dtype.type(0)
                for j in range(w.shape[0]):
                    total += w[j] * x[j]
                values[p] += total


@vectorized
def add_sums(outputs, active, block, values, sums, lo, hi):
    """Add Σ_r fired values_ri a_rc to ``sums`` (k, c), float64, for blocks lo … hi−1. Cost O(c) for a pair."""
    for q in range(lo, hi):
        for k in range(sums.shape[0]):
            for p in range(active.ends[q - lo, k], active.ends[q - lo, k + 1]):
                r = q * block + active.ids[p]
                for c in range(sums.shape[1]):
                    sums[k, c] += values[p] * outputs[r, c]
