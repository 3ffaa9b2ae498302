"""Tangent kernels of infinite width as functions of the correlation: one Chebyshev series per threshold and layer.

``shifted_ntk`` has 12 digits and takes 100 ns per entry. The choice of settings and preconditioners need seven digits
and take a few nanoseconds.
"""

from functools import cache
from math import inf
from typing import NamedTuple

import numpy as np

from fireset._util.gaussian import density
from fireset._util.parallel import parallel_map
from fireset.theory.joint_firing import both_above

_TASK_ROWS = 64
_MIN_SQUARED_SINE = 1e-6  # below this rows count as equal: dk/dρ has a pole at ρ = 1


class _Series(NamedTuple):
    """Chebyshev coefficients of k(θ) and dk/dθ, θ from 0 to π."""

    value: np.ndarray
    slope: np.ndarray


class KernelFunction:
    """k(ρ) = H_W(ρ) + s² H_A(ρ), the tangent kernel of both layers for unit rows of correlation ρ, and its derivative.

    With standard normals Z₁ and Z₂ of correlation ρ, the first layer has H_W(ρ) = ρ · P(Z₁ > b and Z₂ > b), the entry
    of H^cts. The output layer has H_A(ρ) = E[σ_b(Z₁) σ_b(Z₂)].

    A Chebyshev series in the angle, in which k is smooth on [0, π]. The error of k is below 1e-6 k(1) for thresholds
    of at least 1 and below 1e-5 k(1) for others; that of k′ is about a hundred times larger.

    Parameters
    ----------
    threshold : float
        b.
    output_scale : float
        s, the scale of the output layer relative to the first. 0 (default) is H_W alone, ``inf`` is H_A alone.

    Attributes
    ----------
    at_one : float
        k(1), the value for equal rows.
    """

    def __init__(self, threshold: float, output_scale: float = 0.0):
        self._series = _series(float(threshold), float(output_scale))
        self.at_one = float(np.polynomial.chebyshev.chebval(-1.0, self._series.value))

    def values(self, cosines: np.ndarray, *, lower: bool = False) -> np.ndarray:
        """Replace ``cosines`` (n, k) by k of each entry and return the array; float32 or float64, C-contiguous.

        With ``lower`` only the lower triangle is replaced.
        """
        from fireset.kernels.cosines import function_of_cosines

        arguments = _arcsine().astype(cosines.dtype), self._series.value.astype(cosines.dtype)
        parallel_map(lambda span: function_of_cosines(cosines, *arguments, lower, *span), _spans(len(cosines)))
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
def _series(threshold: float, output_scale: float) -> _Series:
    from numpy.polynomial import chebyshev

    from fireset.kernels.cosines import TERMS

    nodes = chebyshev.chebpts1(16 * TERMS)
    angles = (nodes + 1) * (np.pi / 2)
    if output_scale == inf:
        kernel = _output_layer_kernel(threshold, angles)
    else:
        kernel = _first_layer_kernel(threshold, angles)
        if output_scale:
            kernel = kernel + output_scale**2 * _output_layer_kernel(threshold, angles)
    value = chebyshev.chebfit(nodes, kernel, TERMS - 1)
    slope = np.zeros(TERMS)
    slope[: TERMS - 1] = chebyshev.chebder(value) * (2 / np.pi)
    return _Series(value, slope)


def _first_layer_kernel(threshold: float, angles: np.ndarray) -> np.ndarray:
    """Return H_W of each angle θ = arccos ρ."""
    return np.cos(angles) * _both_active(threshold, angles)


def _output_layer_kernel(threshold: float, angles: np.ndarray) -> np.ndarray:
    """Return H_A = E[σ_b(Z₁) σ_b(Z₂)] of each angle θ = arccos ρ between unit rows.

    With P = P(Z₁ > b and Z₂ > b), integration by parts gives

        H_A = (ρ + b²) P − 2b φ(b) Φ(−b tan(θ/2)) + sin θ exp(−b²/(1 + ρ))/(2π).

    For b = 0 it is half the arc-cosine kernel of degree 1 (Cho and Saul 2009). The terms cancel: the relative error is
    about 1e-16 b⁴ near ρ = 1 and grows towards ρ = −1, where H_A itself is negligible.
    """
    from scipy.special import ndtr

    b, half = float(threshold), angles / 2
    both = (np.cos(angles) + b * b) * _both_active(b, angles)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        one = 2.0 * b * density(b) * ndtr(-b * np.tan(half)) if b else 0.0
        none = np.sin(angles) * np.exp(-b * b / (2.0 * np.cos(half) ** 2)) / (2.0 * np.pi)
    return np.maximum(both - one + none, 0.0)


def _both_active(threshold: float, angles: np.ndarray) -> np.ndarray:
    """Return P(Z₁ > b and Z₂ > b) for correlations cos θ."""
    cosines = np.cos(angles)
    gaps = 2 * np.where(cosines >= 0, np.sin(angles / 2), np.cos(angles / 2)) ** 2
    return both_above(threshold, cosines, gaps)


@cache
def _arcsine() -> np.ndarray:
    """Return coefficients of (4/π) arcsin(√s)/√s in s, for s from 0 to ½, to 1e-8."""
    from numpy.polynomial import Polynomial, chebyshev

    s = (chebyshev.chebpts1(200) + 1) / 4
    return Polynomial.fit(s, 4 / np.pi * np.arcsin(np.sqrt(s)) / np.sqrt(s), 7, domain=[0, 0.5], window=[0, 0.5]).coef
