"""What the robust losses share: quantiles of weighted targets, their spread, and a size that is smooth at 0."""

import numpy as np

_NORMAL_RANGE = 1.349  # between the quartiles of a normal distribution of deviation 1
_WINSOR_SPREADS = 3.0  # spreads

SMOOTHING = 0.01  # ε beside the spread of the targets
# Rows within ε of a kink, at a time, as a rule: the others are not curved at all.
CURVED_SHARE = 0.1
# Reweighted rounds go on long after they promise little: each moves the weights of rows near a kink.
ROUND_TOLERANCE = 3e-4


def quantiles(y: np.ndarray, sample_weight: np.ndarray, level: float) -> np.ndarray:
    """(c,): in each column of y (n, c) the least value that at least a share ``level`` of the weight is not above."""
    order = np.argsort(y, axis=0, kind="stable")
    reached = np.cumsum(sample_weight[order], axis=0)
    first = np.argmax(reached >= level * reached[-1] * (1.0 - 1e-12), axis=0)
    return np.take_along_axis(y, np.take_along_axis(order, first[None], axis=0), axis=0)[0]


def spreads(y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    """(c,): a deviation that outliers do not change, the range between the quartiles divided by 1.349.

    Where half of the targets are the same it is the standard deviation, and 1 where all are.
    """
    low, high = (quantiles(y, sample_weight, level) for level in (0.25, 0.75))
    found = (high - low) / _NORMAL_RANGE
    mean = np.average(y, axis=0, weights=sample_weight)
    deviation = np.sqrt(np.average((y - mean) ** 2, axis=0, weights=sample_weight))
    least = 1e-12 * np.abs(mean)
    return np.where(found > least, found, np.where(deviation > least, deviation, 1.0))


def broad(epsilon: float, errors: np.ndarray, sample_weight: np.ndarray) -> float:
    """ε, or half of the spread of the errors where that is more."""
    return max(epsilon, 0.5 * float(spreads(errors, sample_weight).min()))


def winsorized(y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    """y (n, c) in spreads from its median, at most three: what is left of outliers when least squares looks at y."""
    scaled = (y - quantiles(y, sample_weight, 0.5)) / spreads(y, sample_weight)
    return centred(np.clip(scaled, -_WINSOR_SPREADS, _WINSOR_SPREADS), sample_weight)


def centred(y: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    return y - np.average(y, axis=0, weights=sample_weight)


def smoothed_size(r: np.ndarray, epsilon: float) -> np.ndarray:
    """|r| from ε on, and (r²/ε + ε)/2 below: larger than |r|, by ε/2 at most. Derivative r/max(|r|, ε)."""
    size = np.abs(r)
    return np.where(size >= epsilon, size, 0.5 * (r * r / epsilon + epsilon))
