"""The definition of firing.

Neuron r fires for sample i when ``deciding_dot(w_r, x_i) > b``: fused multiply-add in float64, left to right. (Fused by
an explicit intrinsic: if the compiler chose whether to fuse a plain loop, the bits would depend on the machine.) Any
faster way to compute ⟨w_r, x_i⟩ (BLAS, wide registers) differs from it by rounding only, by less than ``band``; where a
fast value lies within the band around b, ``deciding_dot`` is computed and decides.

In float32 the band would be wide enough to cost time, and a float32 value near b carries no more information than its
rounding error: there the fast value decides (``band < 0``), as the definition of exactness allows. Where a float32 sum
may overflow, ``deciding_dot`` decides for all pairs (``band`` is infinite). The same holds for float64: where
``deciding_dot`` itself overflows on the way, it is computed again of numbers scaled by a power of two, so that the sum
of finite numbers is never NaN, and +∞ or −∞ only if it is beyond all float64 numbers.
"""

import numpy as np
from numba import float64, types
from numba.extending import intrinsic, overload

from fireset.kernels.compiling import strict, vectorized

_SCALE, _UNSCALE = 2.0**-600, 2.0**600


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
    if not abs(total) < np.inf:
        total = 0.0
        for j in range(w.shape[0]):
            total = add_scaled_product(w[j], x[j], total)
        total = unscaled(total)
    return total


@strict
def add_scaled_product(a, b, total):
    """a·b/2¹²⁰⁰ + total, which does not overflow.

    Products that underflow are far below the rounding error of a sum that has reached 2¹⁰²³ on the way.
    """
    return fma(np.float64(a) * _SCALE, np.float64(b) * _SCALE, total)  # pyright: ignore[reportCallIssue]


@strict
def unscaled(total):
    """A sum of ``add_scaled_product`` in its own size: ±∞ if that is beyond float64."""
    return total * _UNSCALE * _UNSCALE


@strict
def _sparse_deciding_dot(w, indptr, indices, numbers, i):
    """The same bits for a row of which only what is not 0 is stored, ascending by column: fma(w, 0, total) is total."""
    total = 0.0
    for q in range(indptr[i], indptr[i + 1]):
        total = fma(np.float64(w[indices[q]]), np.float64(numbers[q]), total)  # pyright: ignore[reportCallIssue]
    if not abs(total) < np.inf:
        total = 0.0
        for q in range(indptr[i], indptr[i + 1]):
            total = add_scaled_product(w[indices[q]], numbers[q], total)
        total = unscaled(total)
    return total


def decide(w, rows, i):  # noqa: ARG001 - compiled through the overload below
    """``deciding_dot`` of w and row i of a matrix, or of sparse rows (``kernels/sparse_rows.py``)."""
    raise TypeError("decide is for compiled kernels")


@overload(decide)
def _decide(w, rows, i):  # noqa: ARG001
    if isinstance(rows, types.Array):
        return lambda w, rows, i: deciding_dot(w, rows[i])
    return lambda w, rows, i: _sparse_deciding_dot(w, rows.indptr, rows.indices, rows.numbers, i)


@strict
def difference(a, b):
    """a − b in float64. In a ``vectorized`` kernel (w − s) − w would be simplified to −s, and its rounding be lost."""
    return np.float64(a) - np.float64(b)


@strict
def store_decided(values, place, value, threshold):
    """``values[place] = value``, rounded to the precision of the array, and above the threshold if ``value`` is."""
    values[place] = value
    if value > threshold and values[place] == threshold:
        values[place] = np.nextafter(values[place], values.dtype.type(np.inf))


@vectorized
def refine_near_threshold(H, W, X, thresholds, bands):
    """Replace every ``H[r, i] ≈ ⟨w_r, x_i⟩`` that lies within ``bands[r]`` of ``thresholds[r]`` by ``deciding_dot``.

    X is a matrix or sparse rows.
    After this ``H[r, i] > thresholds[r]`` decides whether the neuron fires. Cost O(H.size).
    """
    for r in range(H.shape[0]):
        row = H[r]
        threshold = thresholds[r]
        band = bands[r]
        unsure = 0
        for i in range(row.shape[0]):
            unsure += abs(row[i] - threshold) <= band
        may_overflow = band == np.inf  # a sum may be infinite or NaN though the deciding one is not
        if unsure > 0 or may_overflow:
            for i in range(row.shape[0]):
                if abs(row[i] - threshold) <= band or may_overflow:
                    store_decided(row, i, decide(W[r], X, i), threshold)


@vectorized
def activate(H, W, X, threshold, bands):
    """Turn pre-activations ``H[r, i] ≈ ⟨w_r, x_i⟩`` into ``σ_b`` in place; positive exactly where the neuron fires.

    ``bands[r]`` is the half-width of the band in which ``deciding_dot`` decides. Cost O(H.size).
    """
    zero = threshold - threshold
    for r in range(H.shape[0]):
        row = H[r]
        if bands[r] >= zero:
            refine_near_threshold(H[r : r + 1], W[r : r + 1], X, np.full(1, threshold), bands[r : r + 1])
        for i in range(row.shape[0]):
            excess = row[i] - threshold
            row[i] = zero if excess <= 0 else excess  # a NaN is not ≤ 0 and is passed on, so that divergence is seen
