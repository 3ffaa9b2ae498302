"""The normal distribution, as far as counting who fires needs it: at initialization ⟨w_r, x⟩ ~ N(0, 1) for ‖x‖ = 1."""

from math import erfc, exp, pi, sqrt
from statistics import NormalDist


def upper_tail(threshold: float) -> float:
    """P(z > b): the share of all pairs (neuron, sample) that fire at initialization."""
    return 0.5 * erfc(threshold / sqrt(2.0))


def threshold_for(share: float) -> float:
    """b with P(z > b) = ``share``, which is kept a little away from 0 and 1."""
    return -NormalDist().inv_cdf(min(max(share, 1e-300), 0.999))


def density(z: float) -> float:
    """φ(z)."""
    return exp(-0.5 * z * z) / sqrt(2.0 * pi)
