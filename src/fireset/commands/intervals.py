"""95 % confidence intervals of scores."""

from math import sqrt

import numpy as np

_RESAMPLES = 1000
_MAX_BLOCKS = 1000


def wilson_interval(right: float, rows: int) -> tuple[float, float]:
    """Wilson's interval of a share: ``right`` of ``rows``."""
    z = 1.96
    middle = (right + z * z / 2) / (rows + z * z)
    half = z / (rows + z * z) * sqrt(right * (rows - right) / rows + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def r2_interval(answers: np.ndarray, predictions: np.ndarray) -> tuple[float, float] | None:
    """Bootstrap interval of R², by 1,000 resamples of the rows (n,); None if the answers do not differ.

    Of more than 1,000 rows, random blocks of equal size are drawn instead of rows; each is summed up once.
    """
    n = len(answers)
    rng = np.random.default_rng(0)
    block = rng.permutation(n) % min(n, _MAX_BLOCKS)
    centred = answers - answers.mean()
    errors = (answers - predictions) ** 2
    sums = np.array([np.bincount(block, values) for values in (np.ones(n), centred, centred**2, errors)])
    draws = rng.multinomial(sums.shape[1], np.full(sums.shape[1], 1 / sums.shape[1]), _RESAMPLES)
    rows, total, squares, error = (draws @ sums.T).T
    spread = squares - total**2 / rows
    found = 1 - error[spread > 0] / spread[spread > 0]
    if len(found) < _RESAMPLES // 2:
        return None
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
