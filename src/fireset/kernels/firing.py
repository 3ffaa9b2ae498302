"""The definition of an active pair.

Neuron r is active for sample i if ``deciding_dot(w_r, x_i) > b``: fused multiply-add in float64, left to right. The
fused operation is an explicit intrinsic, so that the bits do not depend on the machine. Faster ways to compute
⟨w_r, x_i⟩ (BLAS, wide registers) differ from it by rounding only, by less than ``band``. If a fast value lies within
the band around b, ``deciding_dot`` decides.

In float32 the band would be so wide that it costs time, and a value near b is known up to its rounding error only. So
the fast value decides (``band < 0``), as the definition of exactness allows. If a float32 sum may overflow,
``deciding_dot`` decides for all pairs (``band`` is infinite). If ``deciding_dot`` itself overflows in float64, it is
computed again from numbers scaled by a power of two: the sum of finite numbers is never NaN, and ±∞ only if it exceeds
all float64 numbers.
"""

import numpy as np
from numba import float64, types
from numba.extending import intrinsic, overload

from fireset.kernels.compiling import STRICT_INTERNAL, internal, strict, strict_internal, vectorized

_SCALE, _UNSCALE = 2.0**-600, 2.0**600


@intrinsic
def fma(typing_context, a, b, c):  # noqa: ARG001 - numba's form of an intrinsic
    """Return a·b + c with one rounding."""

    def generate(context, builder, signature, arguments):  # noqa: ARG001
        return builder.fma(*arguments)

    return float64(float64, float64, float64), generate


@strict
def deciding_dot(w, x):
    """Return ⟨w, x⟩ in float64 by fused multiply-add, left to right: the same bits on every machine. Cost O(d)."""
    return fused_dot(w, x)


@strict_internal
def fused_dot(w, x):
    """``deciding_dot`` for kernels, which need no code for calls from Python."""
    total = 0.0
    for j in range(w.shape[0]):
        total = fma(np.float64(w[j]), np.float64(x[j]), total)  # pyright: ignore[reportCallIssue]
    if not abs(total) < np.inf:
        total = 0.0
        for j in range(w.shape[0]):
            total = add_scaled_product(w[j], x[j], total)
        total = unscaled(total)
    return total


@strict_internal
def add_scaled_product(a, b, total):
    """a·b/2¹²⁰⁰ + total, which does not overflow.

    Products that underflow are far below the rounding error of a sum that has reached 2¹⁰²³ on the way.
    """
    return fma(np.float64(a) * _SCALE, np.float64(b) * _SCALE, total)  # pyright: ignore[reportCallIssue]


@strict_internal
def unscaled(total):
    """A sum of ``add_scaled_product`` in its own size: ±∞ if that is beyond float64."""
    return total * _UNSCALE * _UNSCALE


@strict_internal
def _sparse_deciding_dot(w, indptr, indices, numbers, i):
    """Return the bits of ``deciding_dot`` for sparse row i, whose columns ascend: fma(w, 0, total) is total."""
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
    """Return ``deciding_dot`` of w and row i of a matrix or of sparse rows (``kernels/sparse_rows.py``)."""
    raise TypeError("decide is for compiled kernels")


@overload(decide, jit_options=STRICT_INTERNAL)
def _decide(w, rows, i):  # noqa: ARG001
    if isinstance(rows, types.Array):
        return lambda w, rows, i: fused_dot(w, rows[i])
    return lambda w, rows, i: _sparse_deciding_dot(w, rows.indptr, rows.indices, rows.numbers, i)


@strict
def difference(a, b):
    """Return a − b in float64. In a ``vectorized`` kernel LLVM would simplify (w − s) − w to −s."""
    return np.float64(a) - np.float64(b)


@strict_internal
def store_decided(values, place, value, threshold):
    """Set ``values[place] = value``, rounded so that it is above the threshold if ``value`` is."""
    values[place] = value
    if value > threshold and values[place] == threshold:
        values[place] = np.nextafter(values[place], values.dtype.type(np.inf))


@internal
def _refine_row(row, w, X, threshold, band):
    """Replace every ``row[i] ≈ ⟨w, x_i⟩`` within ``band`` of ``threshold`` by ``deciding_dot``."""
    undecided = 0
    for i in range(row.shape[0]):
        undecided += abs(row[i] - threshold) <= band
    may_overflow = band == np.inf  # a sum may be infinite or NaN although ``deciding_dot`` is finite
    if undecided > 0 or may_overflow:
        for i in range(row.shape[0]):
            if abs(row[i] - threshold) <= band or may_overflow:
                store_decided(row, i, decide(w, X, i), threshold)


@vectorized
def refine_near_threshold(H, W, X, thresholds, bands):
    """Replace every ``H[r, i] ≈ ⟨w_r, x_i⟩`` within ``bands[r]`` of ``thresholds[r]`` by ``deciding_dot``.

    Afterwards pair (r, i) is active if and only if ``H[r, i] > thresholds[r]``. H is (k, n), W (k, d); X is a matrix
    (n, d) or sparse rows. Cost O(H.size), and O(d) for each replaced value.
    """
    for r in range(H.shape[0]):
        _refine_row(H[r], W[r], X, thresholds[r], bands[r])


@vectorized
def activate(H, W, X, threshold, bands):
    """Replace pre-activations ``H[r, i] ≈ ⟨w_r, x_i⟩`` (k, n) by σ_b; positive if and only if the pair is active.

    ``bands[r]`` is the half-width of the band in which ``deciding_dot`` decides. Cost O(H.size).
    """
    zero = threshold - threshold
    for r in range(H.shape[0]):
        row = H[r]
        if bands[r] >= zero:
            _refine_row(row, W[r], X, threshold, bands[r])
        for i in range(row.shape[0]):
            excess = row[i] - threshold
            row[i] = zero if excess <= 0 else excess  # a NaN is not ≤ 0 and is kept, so that divergence is detected
