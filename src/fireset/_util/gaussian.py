"""The normal distribution of pre-activations at initialization: ⟨w_r, x⟩ ~ N(0, 1) for ‖x‖ = 1."""

from math import erfc, exp, pi, sqrt
from statistics import NormalDist


def upper_tail(threshold: float) -> float:
    """Return P(z > b), the expected share of active pairs at initialization."""
    return 0.5 * erfc(threshold / sqrt(2.0))


def threshold_for(share: float) -> float:
    """Return b with P(z > b) = ``share``; shares are clipped to [1e-300, 0.999]."""
    return -NormalDist().inv_cdf(min(max(share, 1e-300), 0.999))


def density(z: float) -> float:
    """Return the standard normal density φ(z)."""
    return exp(-0.5 * z * z) / sqrt(2.0 * pi)
