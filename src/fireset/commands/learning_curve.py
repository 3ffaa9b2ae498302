"""What more rows are worth: the score that leave-one-out forecasts from growing parts of a table."""

from dataclasses import dataclass

import numpy as np

from fireset._util.parallel import one_blas_thread
from fireset.commands.intervals import wilson_interval
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import leave_one_out

_MIN_ROWS = 30  # of a part
_MAX_HALVINGS = 4


@dataclass(frozen=True)
class LearningCurve:
    """Forecast accuracy, or R², from ``rows`` rows, ascending; the last is the forecast of the whole.

    ``spans`` are 95 % intervals of accuracies, all of them on the same rows; None for R².
    """

    rows: list[int]
    scores: list[float]
    spans: list[tuple[float, float]] | None

    @property
    def chance(self) -> float:
        """By how much the last score may be off by chance, one standard error; 0 where that is not known."""
        return (self.spans[-1][1] - self.spans[-1][0]) / 4 if self.spans else 0.0

    @property
    def last_gain(self) -> float:
        """What the last doubling of the rows has brought."""
        return self.scores[-1] - self.scores[-2]


def learning_curve(
    estimator: ShiftedReLUClassifier | ShiftedReLURegressor, mapped: np.ndarray, y: np.ndarray
) -> LearningCurve | None:
    """Of rows on the sphere (n, d) and targets y (n,), numbers or codes of classes, that the estimator was fitted on.

    The rows by which settings were chosen, up to 1,000, are cut in halves, quarters and so on; the score of a size is
    the mean over all parts of that size, by kernel regression of the infinitely wide network. Bias, column scales and
    ridge are those of the whole: the ridge carries over from few rows to many. None where there were too few rows to
    choose settings by. Cost: a third of one leave-one-out on all of these rows.
    """
    settings = estimator.settings_
    if settings.forecast is None or settings.chosen_rows is None or settings.ridge is None:
        return None
    rows = settings.chosen_rows
    mapped = mapped[rows].astype(np.float32)
    classes = isinstance(estimator, ShiftedReLUClassifier)
    if classes:
        targets = 2.0 * (y[rows, None] == np.arange(len(estimator.classes_))) - 1.0
    else:
        targets = y[rows, None].astype(np.float64)
    sizes, scores = [len(rows)], [settings.forecast]
    kernel = KernelFunction(estimator.network_.threshold)
    ridge = settings.ridge * kernel.at_one
    with one_blas_thread():
        K = kernel.values(mapped @ mapped.T)
        for halvings in range(1, _MAX_HALVINGS + 1):
            parts = np.array_split(np.arange(len(rows)), 2**halvings)
            if len(parts[-1]) < _MIN_ROWS:
                break
            sizes.append(len(parts[-1]))
            scores.append(_score(K, targets, ridge, parts, classes))
    if len(sizes) < 3:
        return None
    spans = [wilson_interval(score * len(rows), len(rows)) for score in scores[::-1]] if classes else None
    return LearningCurve(sizes[::-1], scores[::-1], spans)


def _score(K: np.ndarray, targets: np.ndarray, ridge: float, parts: list[np.ndarray], classes: bool) -> float:
    """Over all parts: the share of rows whose class is found, or 1 less the squared errors beside the spread."""
    right, errors, spread = 0, 0.0, 0.0
    for part in parts:
        centre = targets[part].mean(axis=0)
        centred = targets[part] - centre
        left_out = leave_one_out(K[np.ix_(part, part)], centred, np.ones(len(part)), ridge).errors
        guesses = targets[part] - left_out
        right += int(np.sum(guesses.argmax(axis=1) == targets[part].argmax(axis=1)))
        errors, spread = errors + float(np.sum(left_out**2)), spread + float(np.sum(centred**2))
    rows = sum(map(len, parts))
    return right / rows if classes else 1.0 - errors / max(spread, 1e-300)
