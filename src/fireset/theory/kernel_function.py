"""H^cts as a function of the correlation: one Chebyshev series per threshold, a few nanoseconds per entry.

``shifted_ntk`` has 12 digits and takes 100 ns per entry. The choice of settings needs seven digits.
"""

from functools import cache
from typing import NamedTuple

import numpy as np

from fireset._util.parallel import parallel_map
from fireset.theory.joint_firing import both_above

_TASK_ROWS = 64
_MIN_SQUARED_SINE = 1e-6  # below this rows count as equal: dk/dρ has a pole at ρ = 1


class _Series(NamedTuple):
    """Chebyshev coefficients of k(θ) and dk/dθ, θ from 0 to π."""

    value: np.ndarray
    slope: np.ndarray


class KernelFunction:
    """k(ρ) = ρ · P(Z₁ > b and Z₂ > b), the entry of H^cts for unit rows of correlation ρ, and its derivative.

    A Chebyshev series in the angle, in which k is smooth on [0, π]. The error of k is below 1e-6 k(1) for thresholds
    of at least 1 and below 1e-5 k(1) for others; that of k′ is about a hundred times larger.

    Parameters
    ----------
    threshold : float
        b.
    """

    def __init__(self, threshold: float):
        self._series = _series(float(threshold))
        self.at_one = float(np.polynomial.chebyshev.chebval(-1.0, self._series.value))

    def values(self, cosines: np.ndarray) -> np.ndarray:
        """Replace ``cosines`` (n, k) by k of each entry and return the array; float32 or float64, C-contiguous."""
        from fireset.kernels.cosines import function_of_cosines

        arguments = _arcsine().astype(cosines.dtype), self._series.value.astype(cosines.dtype)
        parallel_map(lambda span: function_of_cosines(cosines, *arguments, *span), _spans(len(cosines)))
        return cosines

    def slopes(self, cosines: np.ndarray) -> np.ndarray:
        """Replace ``cosines`` by dk/dρ of each entry and return the array; 0 for equal rows."""
        from fireset.kernels.cosines import slope_of_cosines

        arguments = _arcsine().astype(cosines.dtype), self._series.slope.astype(cosines.dtype)
        least = cosines.dtype.type(_MIN_SQUARED_SINE)
        parallel_map(lambda span: slope_of_cosines(cosines, *arguments, least, *span), _spans(len(cosines)))
        return cosines


def _spans(rows: int) -> list[tuple[int, int]]:
    return [(lo, min(lo + _TASK_ROWS, rows)) for lo in range(0, rows, _TASK_ROWS)]


@cache
def _series(threshold: float) -> _Series:
    from numpy.polynomial import chebyshev

    from fireset.kernels.cosines import TERMS

    nodes = chebyshev.chebpts1(16 * TERMS)
    angles = (nodes + 1) * (np.pi / 2)
    cosines = np.cos(angles)
    gaps = 2 * np.where(cosines >= 0, np.sin(angles / 2), np.cos(angles / 2)) ** 2
    value = chebyshev.chebfit(nodes, cosines * both_above(threshold, cosines, gaps), TERMS - 1)
    slope = np.zeros(TERMS)
    slope[: TERMS - 1] = chebyshev.chebder(value) * (2 / np.pi)
    return _Series(value, slope)


@cache
def _arcsine() -> np.ndarray:
    """Return coefficients of (4/π) arcsin(√s)/√s in s, for s from 0 to ½, to 1e-8."""
    from numpy.polynomial import Polynomial, chebyshev

    s = (chebyshev.chebpts1(200) + 1) / 4
    return Polynomial.fit(s, 4 / np.pi * np.arcsin(np.sqrt(s)) / np.sqrt(s), 7, domain=[0, 0.5], window=[0, 0.5]).coef
