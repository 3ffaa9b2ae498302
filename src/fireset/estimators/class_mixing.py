"""A linear map of class scores, for classes that least squares masks.

Least squares on one code for each class can leave a class that lies between two others without the largest score
anywhere (Hastie, Tibshirani and Friedman, "The Elements of Statistical Learning", section 4.2). Its score is then still
informative. Multinomial logistic regression on the scores (``tables/class_map.py``) finds the class. It replaces the
largest score where its cross-validated log loss is clearly lower than that of the calibrated scores: its c² parameters
would otherwise add noise.
"""

from dataclasses import dataclass

import numpy as np

from fireset.estimators.calibration import Calibration
from fireset.tables.class_map import fit_class_map

_MIN_ROWS_PER_CLASS = 10  # of the rarest class
_FOLDS = 5
_MIN_GAIN_ERRORS = 4.0  # standard errors of the mean gain in log loss; with 2, one of 23 tables lost 0.09 of accuracy
_MIN_PROBABILITY = 1e-12
_STEPS = 40  # as accurate as the minimum of the log loss


@dataclass(frozen=True)
class ClassMixing:
    """The map s ↦ s A + c of scores (n, classes)."""

    matrix: np.ndarray  # A, (classes, classes)
    intercept: np.ndarray  # c, (classes,)

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        return scores @ self.matrix + self.intercept

    @classmethod
    def learn(
        cls, scores: np.ndarray, codes: np.ndarray, weight: np.ndarray, calibration: Calibration
    ) -> "tuple[ClassMixing, float] | None":
        """Learn from out-of-sample scores (n, classes) and class codes; return the map and its gain in accuracy.

        Returns None if there are fewer than three classes, too few rows, or no clear gain over ``calibration``.
        """
        classes = scores.shape[1]
        counts = np.bincount(codes[weight > 0], minlength=classes)
        if classes < 3 or counts.min() < _MIN_ROWS_PER_CLASS:
            return None
        rows, share = np.arange(len(codes)), weight / weight.sum()
        after = Calibration(slope=1.0, power=0.0, doubt=calibration.doubt)
        losses = _log_losses(calibration(scores), codes)
        found = cls._fit(scores, codes, weight)
        if not share @ losses > share @ _log_losses(after(found(scores)), codes):  # optimistic, and still no gain
            return None
        crossed = np.empty_like(scores)
        fold = np.empty(len(codes), np.int64)
        fold[np.lexsort((np.random.default_rng(0).random(len(codes)), codes))] = rows % _FOLDS
        for k in range(_FOLDS):
            held = fold == k
            crossed[held] = cls._fit(scores[~held], codes[~held], weight[~held])(scores[held])
        gains = losses - _log_losses(after(crossed), codes)
        mean = float(share @ gains)
        error = float(np.sqrt(share @ (gains - mean) ** 2 / len(gains)))
        if not mean > _MIN_GAIN_ERRORS * error:
            return None
        right = (crossed.argmax(axis=1) == codes).astype(float) - (scores.argmax(axis=1) == codes)
        return found, float(share @ right)

    @classmethod
    def _fit(cls, scores: np.ndarray, codes: np.ndarray, weight: np.ndarray) -> "ClassMixing":
        found = fit_class_map(scores, codes, weight, steps=_STEPS)
        return cls(found[:-1], found[-1])


def _log_losses(probabilities: np.ndarray, codes: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(probabilities[np.arange(len(codes)), codes], _MIN_PROBABILITY))
