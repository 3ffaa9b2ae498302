"""Probabilities from the scores of squared error, by a map that leaves the order of the classes alone.

Least squares on codes ±1 estimates 2p − 1, so that (1 + s)/2 is a probability already, but for scores beyond ±1 and for
what the ridge has shrunk. The map is p_k = softmax over k of α s_k + β log max((1 + s_k)/2, ε), with two classes
s_1 = −s_0. It grows with s_k: the class of the largest score has the largest probability. α, β and ε are those with the
least log loss on leave-one-out predictions, which no row has had a part in making of itself.

Where all of n rows are predicted right, the least log loss is at α = ∞, and probabilities would be 0 and 1. That n rows
were right says no more than that about one in n + 1 may be wrong: a share δ = 1/(n + 1) of the probability goes to all
classes alike.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_FLOORS = (0.03, 0.01, 0.003, 0.001)
_MIN_SLOPE = 0.01  # of α, so that the order is kept below the floor, too
_MIN_ROWS = 40
_LARGEST = 50.0


@dataclass(frozen=True)
class Calibration:
    """α, β, ε and δ of the map; the defaults are for scores of which nothing is known."""

    slope: float = 2.0
    power: float = 0.5
    floor: float = 0.01
    doubt: float = 0.0

    @classmethod
    def learn(cls, scores: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> "Calibration":
        """From scores (n, c), c = 1 for two classes, of rows that had no part in making their own."""
        from scipy.optimize import minimize

        if len(scores) < _MIN_ROWS:
            return cls()
        scores = _one_for_each_class(scores)
        rows = np.arange(len(codes))
        found: list[tuple[float, Calibration]] = []
        for floor in _FLOORS:
            logs = np.log(np.maximum((1 + scores) / 2, floor))

            def loss(x: np.ndarray, logs: np.ndarray = logs) -> tuple[float, np.ndarray]:
                p = _softmax(x[0] * scores + x[1] * logs)
                value = -weight @ np.log(np.maximum(p[rows, codes], 1e-300))
                p[rows, codes] -= 1.0
                p *= weight[:, None]
                return value / weight.sum(), np.array([(p * scores).sum(), (p * logs).sum()]) / weight.sum()

            limits = [(_MIN_SLOPE, _LARGEST), (0.0, _LARGEST)]
            best = minimize(loss, np.array([2.0, 0.5]), jac=True, method="L-BFGS-B", bounds=limits)
            found.append((float(best.fun), cls(float(best.x[0]), float(best.x[1]), floor, 1.0 / (len(codes) + 1))))
        return min(found, key=lambda one: one[0])[1]

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Probabilities (n, classes) for scores (n, c)."""
        scores = _one_for_each_class(scores)
        p = _softmax(self.slope * scores + self.power * np.log(np.maximum((1 + scores) / 2, self.floor)))
        return (1.0 - self.doubt) * p + self.doubt / scores.shape[1]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def _one_for_each_class(scores: np.ndarray) -> np.ndarray:
    return np.hstack([-scores, scores]) if scores.shape[1] == 1 else scores


def _softmax(x: np.ndarray) -> np.ndarray:
    p = np.exp(x - x.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p
