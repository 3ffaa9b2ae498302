"""Smooth functions of the angle between two rows by Chebyshev series: a few nanoseconds for each pair."""

import numpy as np

from fireset.kernels.compiling import inlined, vectorized
from fireset.kernels.extrema import larger

TERMS = 25  # a constant, so that the loop over them is unrolled


@inlined
def _scaled_angle(cosine, arcsine, one):
    """Return 2θ/π − 1 for θ = arccos ρ, from arccos |ρ| = 2 arcsin √((1 − |ρ|)/2); ``arcsine`` has 8 coefficients."""
    square = larger((one - abs(cosine)) / (one + one), one - one)
    series = arcsine[7]
    for k in range(6, -1, -1):
        series = series * square + arcsine[k]
    x = np.sqrt(square) * series - one
    return x if cosine >= one - one else -x


@inlined
def _chebyshev(x, series, one):
    """Evaluate the Chebyshev series at ``x`` between −1 and 1 by Clenshaw's recurrence."""
    later, last = one - one, one - one
    for k in range(TERMS - 1, 0, -1):
        later, last = series[k] + (x + x) * later - last, later
    return series[0] + x * later - last


@vectorized
def function_of_cosines(cosines, arcsine, series, lower, lo, hi):
    """Replace rows lo … hi−1 of ``cosines`` ρ by f(arccos ρ), where f(θ) is the Chebyshev ``series`` in 2θ/π − 1.

    ``arcsine`` are the coefficients of (4/π) arcsin(√s)/√s in s. With ``lower`` only the lower triangle is replaced.
    Cost O(TERMS) for each entry.
    """
    one = cosines.dtype.type(1)
    for i in range(lo, hi):
        row = cosines[i, : i + 1] if lower else cosines[i, :]
        for j in range(row.size):
            row[j] = _chebyshev(_scaled_angle(row[j], arcsine, one), series, one)


@vectorized
def slope_of_cosines(cosines, arcsine, series, least, lo, hi):
    """Replace rows lo … hi−1 of ``cosines`` ρ by dF/dρ = −f(θ)/sin θ, where f = dF/dθ is the ``series``.

    Entries with sin² θ < ``least`` become 0. Cost O(TERMS) for each entry.
    """
    one = cosines.dtype.type(1)
    for i in range(lo, hi):
        row = cosines[i]
        for j in range(row.size):
            squared_sine = one - row[j] * row[j]
            slope = -_chebyshev(_scaled_angle(row[j], arcsine, one), series, one) / np.sqrt(larger(squared_sine, least))
            row[j] = slope if squared_sine >= least else one - one
