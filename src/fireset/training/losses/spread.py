"""Helpers of the robust losses: weighted quantiles, a robust standard deviation, and a smooth absolute value."""

import numpy as np

_NORMAL_INTERQUARTILE_RANGE = 1.349  # of a normal distribution with standard deviation 1
_WINSOR_LIMIT = 3.0  # in spreads

SMOOTHING = 0.01  # ε relative to the spread of the targets
CURVED_FRACTION = 0.1  # of the rows are typically within ε of a kink; the others have no curvature
# Reweighted iterations continue to improve when the predicted reduction is small: each changes the weights of the rows
# near a kink.
GAUSS_NEWTON_TOL = 3e-4


def quantiles(y: np.ndarray, sample_weight: np.ndarray, level: float) -> np.ndarray:
    """Return the weighted quantile of each column of y (n, c): the smallest value with a weight share ≥ ``level``."""
    order = np.argsort(y, axis=0, kind="stable")
    reached = np.cumsum(sample_weight[order], axis=0)
    first = np.argmax(reached >= level * reached[-1] * (1.0 - 1e-12), axis=0)
    return np.take_along_axis(y, np.take_along_axis(order, first[None], axis=0), axis=0)[0]


def spreads(y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    """Return a robust standard deviation of each column, (c,): the interquartile range divided by 1.349.

    It is the standard deviation where the quartiles are equal, and 1 for a constant column.
    """
    low, high = (quantiles(y, sample_weight, level) for level in (0.25, 0.75))
    found = (high - low) / _NORMAL_INTERQUARTILE_RANGE
    mean = np.average(y, axis=0, weights=sample_weight)
    deviation = np.sqrt(np.average((y - mean) ** 2, axis=0, weights=sample_weight))
    least = 1e-12 * np.abs(mean)
    return np.where(found > least, found, np.where(deviation > least, deviation, 1.0))


def wider_smoothing(epsilon: float, errors: np.ndarray, sample_weight: np.ndarray) -> float:
    """Return the larger of ε and half of the spread of the errors."""
    return max(epsilon, 0.5 * float(spreads(errors, sample_weight).min()))


def winsorized(y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    """Return y (n, c) in spreads from its median, clipped to ±3 and centred, for least-squares fits."""
    scaled = (y - quantiles(y, sample_weight, 0.5)) / spreads(y, sample_weight)
    return centred(np.clip(scaled, -_WINSOR_LIMIT, _WINSOR_LIMIT), sample_weight)


def centred(y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    return y - np.average(y, axis=0, weights=sample_weight)


def smoothed_abs(r: np.ndarray, epsilon: float) -> np.ndarray:
    """Return |r| for |r| ≥ ε and (r²/ε + ε)/2 below, at most ε/2 above |r|. The derivative is r/max(|r|, ε)."""
    size = np.abs(r)
    return np.where(size >= epsilon, size, 0.5 * (r * r / epsilon + epsilon))
