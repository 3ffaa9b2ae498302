"""The last word on who fires.

Neuron r fires for sample i when ``deciding_dot(w_r, x_i) > b``: fused multiply-add in float64, left to right. (Fused by
name, not by chance: a compiler that may fuse a plain loop or not would leave the bits to the machine.) Any faster way
to compute ⟨w_r, x_i⟩ (BLAS, wide registers) differs from it by rounding only, by less than ``band``; whoever uses a
faster way asks again with ``deciding_dot`` when the fast value lies within the band around b.

In float32 the band would be wide enough to cost time, and a float32 value near b carries no more information than its
rounding error: there the fast value decides (``band < 0``), as the definition of exactness allows.
"""

import numpy as np
from numba import float64
from numba.extending import intrinsic

from fireset.kernels.compiling import strict, vectorized


@intrinsic
def fma(typing_context, a, b, c):  # noqa: ARG001 - numba's form of an intrinsic
    """a·b + c with one rounding."""

    def generate(context, builder, signature, arguments):  # noqa: ARG001
        return builder.fma(*arguments)

    return float64(float64, float64, float64), generate


@strict
def deciding_dot(w, x):
    """⟨w, x⟩ in float64, one fused multiply-add after the other, left to right: the same bits on every machine."""
    total = 0.0
    for j in range(w.shape[0]):
        total = fma(np.float64(w[j]), np.float64(x[j]), total)  # pyright: ignore[reportCallIssue]
    return total


@strict
def difference(a, b):
    """a − b in float64. In a vector kernel (w − s) − w would be simplified to −s, and what was rounded forgotten."""
    return np.float64(a) - np.float64(b)


@vectorized
def settle(H, W, X, thresholds, bands):
    """Replace every ``H[r, i] ≈ ⟨w_r, x_i⟩`` that lies within ``bands[r]`` of ``thresholds[r]`` by the deciding value.

    After this ``H[r, i] > thresholds[r]`` is the last word. Cost O(H.size).
    """
    for r in range(H.shape[0]):
        row = H[r]
        threshold = thresholds[r]
        band = bands[r]
        unsure = 0
        for i in range(row.shape[0]):
            unsure += abs(row[i] - threshold) <= band
        blind = band == np.inf  # sums may have overflown on the way, to infinity or NaN
        if unsure > 0 or blind:
            for i in range(row.shape[0]):
                if abs(row[i] - threshold) <= band or blind:
                    row[i] = deciding_dot(W[r], X[i])


@vectorized
def activate(H, W, X, threshold, bands):
    """Turn pre-activations ``H[r, i] ≈ ⟨w_r, x_i⟩`` into ``σ_b`` in place; positive exactly where the neuron fires.

    ``bands[r]`` is the half-width of the band in which ``deciding_dot`` is asked. Cost O(H.size).
    """
    zero = threshold - threshold
    for r in range(H.shape[0]):
        row = H[r]
        if bands[r] >= zero:
            settle(H[r : r + 1], W[r : r + 1], X, np.full(1, threshold), bands[r : r + 1])
        for i in range(row.shape[0]):
            excess = row[i] - threshold
            row[i] = zero if excess <= 0 else excess  # this way round a NaN stays one
