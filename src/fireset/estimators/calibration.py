"""Calibrated probabilities from the scores of squared error.

Least squares on codes ±1 estimates 2p − 1: (1 + s)/2 is a probability, except for scores beyond ±1 and for shrinkage by
the ridge. The calibration is p_k = softmax over k of α s_k + β log max((1 + s_k)/2, ε), with s_1 = −s_0 for two
classes. It increases with s_k, so that the class of the largest score has the largest probability. α, β and ε minimize
the log loss of leave-one-out predictions.

If all n rows are predicted correctly, the minimum is at α = ∞, with probabilities 0 and 1. The smallest error rate that
n correct rows support is about 1/(n + 1). Therefore a share δ = 1/(n + 1) of the probability is distributed equally
over all classes.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_FLOORS = (0.03, 0.01, 0.003, 0.001)
_MIN_SLOPE = 0.01  # α > 0 keeps the order of scores below the floor
_MIN_ROWS = 40
_MAX_COEFFICIENT = 50.0


@dataclass(frozen=True)
class Calibration:
    """Parameters α, β, ε and δ of the calibration; the defaults are used if there are too few rows to learn them."""

    slope: float = 2.0
    power: float = 0.5
    floor: float = 0.01
    doubt: float = 0.0

    @classmethod
    def learn(cls, scores: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> "Calibration":
        """Learn from out-of-sample scores (n, c), with c = 1 for two classes, and class codes (n,)."""
        from scipy.optimize import minimize
        from scipy.special import softmax

        if len(scores) < _MIN_ROWS:
            return cls()
        scores = _one_for_each_class(scores)
        rows = np.arange(len(codes))
        found: list[tuple[float, Calibration]] = []
        for floor in _FLOORS:
            logs = np.log(np.maximum((1 + scores) / 2, floor))

            def loss(x: np.ndarray, logs: np.ndarray = logs) -> tuple[float, np.ndarray]:
                p = softmax(x[0] * scores + x[1] * logs, axis=1)
                value = -weight @ np.log(np.maximum(p[rows, codes], 1e-300))
                p[rows, codes] -= 1.0
                p *= weight[:, None]
                return value / weight.sum(), np.array([(p * scores).sum(), (p * logs).sum()]) / weight.sum()

            limits = [(_MIN_SLOPE, _MAX_COEFFICIENT), (0.0, _MAX_COEFFICIENT)]
            best = minimize(loss, np.array([2.0, 0.5]), jac=True, method="L-BFGS-B", bounds=limits)
            found.append((float(best.fun), cls(float(best.x[0]), float(best.x[1]), floor, 1.0 / (len(codes) + 1))))
        return min(found, key=lambda one: one[0])[1]

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Return probabilities (n, classes) for scores (n, c)."""
        from scipy.special import softmax

        scores = _one_for_each_class(scores)
        p = softmax(self.slope * scores + self.power * np.log(np.maximum((1 + scores) / 2, self.floor)), axis=1)
        return (1.0 - self.doubt) * p + self.doubt / scores.shape[1]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _one_for_each_class(scores: np.ndarray) -> np.ndarray:
    return np.hstack([-scores, scores]) if scores.shape[1] == 1 else scores
