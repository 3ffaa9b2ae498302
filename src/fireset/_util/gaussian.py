"""The normal distribution, as far as counting who fires needs it: at initialization ⟨w_r, x⟩ ~ N(0, 1) for ‖x‖ = 1."""

from math import erfc, exp, pi, sqrt


def upper_tail(threshold: float) -> float:
    """P(z > b): the share of all pairs (neuron, sample) that fire at initialization."""
    return 0.5 * erfc(threshold / sqrt(2.0))


def density(z: float) -> float:
    """φ(z)."""
    return exp(-0.5 * z * z) / sqrt(2.0 * pi)
