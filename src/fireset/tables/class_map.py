"""Multinomial logistic regression of classes on their scores.

The logits are log p = s A + c up to normalization, for scores s (classes,) of least squares on one code for each class.

The Hessian of the log loss is at most ½ SᵀS for each class, where S are the scores with a constant column (Böhning,
"Multinomial logistic regression algorithm", 1992). Steps with this bound, accelerated by Nesterov's momentum, cost
n c² each and one inverse of a (c + 1, c + 1) matrix in total. They start at the softmax of the scores, and few of them
regularize: the c² parameters of many classes would otherwise fit noise.
"""

import numpy as np

_START_SLOPE = 3.0  # of the softmax of scores ±1
_MIN_EIGENVALUE = 1e-3  # of SᵀS relative to its mean: scores of one-hot codes have a constant sum


def fit_class_map(scores: np.ndarray, codes: np.ndarray, weight: np.ndarray, *, steps: int) -> np.ndarray:
    """Return A over c, (classes + 1, classes), for scores (n, classes), class codes (n,) and weights (n,)."""
    classes = scores.shape[1]
    extended = _extended(scores)
    gram = extended.T @ (weight[:, None] * extended)
    gram += _MIN_EIGENVALUE * np.trace(gram) / len(gram) * np.eye(len(gram))
    descend = 2.0 * np.linalg.inv(gram) @ (extended * weight[:, None]).T
    hot = codes[:, None] == np.arange(classes)
    position = np.vstack([_START_SLOPE * np.eye(classes), np.zeros(classes)])
    ahead, age = position, 1.0
    for _ in range(steps):
        p = np.exp(log_probabilities(extended @ ahead))
        before, position = position, ahead - descend @ (p - hot)
        older, age = age, (1.0 + np.sqrt(1.0 + 4.0 * age**2)) / 2.0
        ahead = position + (older - 1.0) / age * (position - before)
    return position


def apply_class_map(matrix: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the logits s A + c, (n, classes)."""
    return _extended(scores) @ matrix


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Return the logarithm of the softmax of each row."""
    logits = logits - logits.max(axis=1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def _extended(scores: np.ndarray) -> np.ndarray:
    return np.hstack([scores, np.ones((len(scores), 1))])
