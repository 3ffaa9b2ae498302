"""Smooth functions of the angle between two rows, for many pairs: a Chebyshev series, a few nanoseconds a pair."""

import numpy as np

from fireset.kernels.compiling import inlined, vectorized

TERMS = 25  # a constant, so that the loop over them is unrolled


@inlined
def _place(cosine, arcsine, one):
    """2θ/π − 1 for θ = arccos ρ, as θ = 2 arcsin √((1 − |ρ|)/2), or what is left of π; ``arcsine`` has 8 terms."""
    square = max((one - abs(cosine)) / (one + one), one - one)
    series = arcsine[7]
    for k in range(6, -1, -1):
        series = series * square + arcsine[k]
    place = np.sqrt(square) * series - one
    return place if cosine >= one - one else -place


@inlined
def _sum_of(place, series, one):
    """The Chebyshev series at ``place``, between −1 and 1, by Clenshaw's recurrence."""
    later, last = one - one, one - one
    for k in range(TERMS - 1, 0, -1):
        later, last = series[k] + (place + place) * later - last, later
    return series[0] + place * later - last


@vectorized
def function_of_cosines(cosines, arcsine, series, lo, hi):
    """Rows lo … hi−1 of ``cosines`` ρ become f(θ), θ = arccos ρ, f the Chebyshev ``series`` in 2θ/π − 1.

    ``arcsine`` are the coefficients of (4/π) arcsin(√s)/√s in s.
    """
    one = cosines.dtype.type(1)
    for i in range(lo, hi):
        row = cosines[i]
        for j in range(row.size):
            row[j] = _sum_of(_place(row[j], arcsine, one), series, one)


@vectorized
def slope_of_cosines(cosines, arcsine, series, least, lo, hi):
    """Rows lo … hi−1 of ``cosines`` ρ become dF/dρ = −f(θ)/sin θ, f = dF/dθ the ``series``; 0 where sin² θ < least."""
    one = cosines.dtype.type(1)
    for i in range(lo, hi):
        row = cosines[i]
        for j in range(row.size):
            squared_sine = one - row[j] * row[j]
            slope = -_sum_of(_place(row[j], arcsine, one), series, one) / np.sqrt(max(squared_sine, least))
            row[j] = slope if squared_sine >= least else one - one
