"""Predictions for the rows held out, and the sections of a training report about them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fireset._util.text import counted, significant
from fireset.commands.scores import scores, wilson_interval
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.reporting.figures import CountMatrix, Figure, Section, Series, Table, short_names
from fireset.tables.encoded import EncodedTable
from fireset.tables.encoded_blocks import EncodedBlocks
from fireset.tables.problem import TableProblem
from fireset.training.losses import get_loss

MAX_MATRIX_CLASSES = 20  # a larger confusion matrix cannot be read
MIN_ROWS_FOR_CURVES = 20  # with fewer rows held out, a curve or a distribution shows only noise
_MAX_LISTED_ERRORS = 10
_MAX_ROC_CURVES, _ROC_POINTS = 5, 100
_CALIBRATION_BINS = 10
_MAX_SCATTER_POINTS = 2000
_MAX_HISTOGRAM_BARS = 40


@dataclass(frozen=True)
class HeldOut:
    """Predictions for n rows held out. ``y_true`` and ``y_pred`` (n,) are numbers or class codes.

    ``probabilities`` (n, classes) and ``class_names`` are None for regression. ``train_mean`` is the mean target of the
    training rows.
    """

    y_true: np.ndarray
    y_pred: np.ndarray
    probabilities: np.ndarray | None
    class_names: list[str] | None
    train_mean: float
    scores: dict[str, Any] = field(default_factory=dict)  # by the names of ``fireset.commands.scores``

    @classmethod
    def predict(
        cls,
        problem: TableProblem,
        estimator: ShiftedReLUClassifier | ShiftedReLURegressor,
        train_rows: np.ndarray,
        features: EncodedTable | EncodedBlocks,
        y_true: np.ndarray,
    ) -> "HeldOut | None":
        """Predict and score encoded hold-out rows; None if there are none. ``train_rows`` are row numbers."""
        if not len(features):
            return None
        y_train = problem.y[train_rows]
        train_mean = float(np.mean(y_train))
        if isinstance(estimator, ShiftedReLUClassifier):
            assert problem.classes is not None
            probabilities = estimator.predict_proba(features)
            labels, codes = np.array(problem.classes), probabilities.argmax(axis=1)
            found = scores(
                problem.task, labels[y_true], labels[codes], probabilities=probabilities, classes=problem.classes
            )
            return cls(y_true, codes, probabilities, list(map(str, problem.classes)), train_mean, found)
        y_pred, loss = estimator.predict(features), get_loss(estimator.loss)
        found = {**scores(problem.task, y_true, y_pred, loss), **loss.constant_metrics(y_true, y_train)}
        return cls(y_true, loss.point_predictions(y_pred), None, None, train_mean, found)


class Calibration(NamedTuple):
    """Number of rows in each bin of probabilities; mean probability and observed frequency of the non-empty bins."""

    rows: np.ndarray
    predicted: np.ndarray
    observed: np.ndarray

    @property
    def error(self) -> float:
        """Expected calibration error: the mean of |predicted − observed| over the rows."""
        return float(np.average(np.abs(self.predicted - self.observed), weights=self.rows[self.rows > 0]))


def calibration(probabilities: np.ndarray, occurred: np.ndarray) -> Calibration:
    """Return the calibration of ``probabilities`` (n,) of events that ``occurred`` or not, in ten bins."""
    from sklearn.calibration import calibration_curve

    probabilities = np.clip(probabilities, 0.0, 1.0)  # rounding may exceed 1, which scikit-learn refuses
    observed, predicted = calibration_curve(occurred, probabilities, n_bins=_CALIBRATION_BINS)
    edges = np.linspace(0.0, 1.0, _CALIBRATION_BINS + 1)[1:-1]  # the bins of scikit-learn
    rows = np.bincount(np.searchsorted(edges, probabilities), minlength=_CALIBRATION_BINS)
    return Calibration(rows, predicted, observed)


def held_out_sections(held: HeldOut | None, task: str) -> list[Section]:
    """Return the sections about the rows held out, or one that says why there are none."""
    if held is None:
        missing = (
            "the confusion matrix and the reliability of the probabilities"
            if task == "classification"
            else "predicted against actual values, the residuals and their distribution"
        )
        why = f"--holdout 0 held out no rows, so that {missing} are missing: scores on training rows would be too high."
        return [Section("Rows held out", [f"{why} Omit --holdout to hold out a fifth of the rows."])]
    if held.probabilities is None:
        return [_residual_section(held)]
    return [_confusion_section(held), *_roc_sections(held), _calibration_section(held)]


def _roc_sections(held: HeldOut) -> list[Section]:
    """Return ROC curves of the second of two classes, or of some classes against all others."""
    from sklearn.metrics import roc_auc_score, roc_curve

    assert held.probabilities is not None
    assert held.class_names is not None
    names = short_names(held.class_names)
    codes = [1] if len(names) == 2 else range(len(names))
    present = [code for code in codes if 0 < np.sum(held.y_true == code) < len(held.y_true)]
    if not present or len(held.y_true) < MIN_ROWS_FOR_CURVES:
        return []
    areas = {code: float(roc_auc_score(held.y_true == code, held.probabilities[:, code])) for code in present}
    worst = sorted(present, key=areas.__getitem__)[:_MAX_ROC_CURVES]
    series = [Series("chance", [0.0, 1.0], [0.0, 1.0], "dashed")]
    for code in sorted(worst):
        false, true, _ = roc_curve(held.y_true == code, held.probabilities[:, code])
        thin = np.unique(np.linspace(0, len(false) - 1, _ROC_POINTS).round().astype(int))
        series.append(Series(f"{names[code]}, AUC {areas[code]:.3f}", false[thin].tolist(), true[thin].tolist()))
    which = f"the class {names[1]}" if len(names) == 2 else "each class against all others"
    more = f" The {_MAX_ROC_CURVES} classes with the smallest areas are shown." if len(worst) < len(present) else ""
    figure = Figure(
        "ROC curve",
        "false positive rate",
        "true positive rate",
        series,
        f"For every threshold on the probability of {which}: the share of its rows above the threshold, against the "
        f"share of other rows above it.{more}",
    )
    text = (
        f"The area under the ROC curve (AUC) is {np.mean(list(areas.values())):.3f}"
        f"{'' if len(areas) == 1 else ' on average over the classes'}: the probability that a row of the class is "
        "ranked above another row. 1 is perfect, 0.5 is chance."
    )
    return [Section("Ranking", [text], figures=[figure])]


def _confusion_section(held: HeldOut) -> Section:
    from sklearn.metrics import confusion_matrix

    assert held.class_names is not None
    names = short_names(held.class_names)
    counts = confusion_matrix(held.y_true, held.y_pred, labels=range(len(names)))
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    total, mistakes = int(counts.sum()), int(wrong.sum())
    text = f"{counted(mistakes, 'mistake')} in {counted(total, 'row')} held out."
    shown = np.arange(len(names))
    if len(names) > MAX_MATRIX_CLASSES:
        confused = wrong.sum(axis=0) + wrong.sum(axis=1)
        shown = np.sort(np.argsort(-confused, kind="stable")[:MAX_MATRIX_CLASSES])
        text += f" Of {len(names)} classes the {MAX_MATRIX_CLASSES} that are confused most are shown."
    cells, columns = counts[np.ix_(shown, shown)], [names[k] for k in shown]
    if len(shown) < len(names):
        cells = np.column_stack([cells, counts[shown].sum(axis=1) - cells.sum(axis=1)])
        columns = [*columns, "all others"]
    matrix = CountMatrix(
        "Confusion matrix",
        "predicted",
        "actual",
        [names[k] for k in shown],
        columns,
        cells.tolist(),
        counts[shown].sum(axis=1).tolist(),
        "Each row is a true class: the number and the share of its rows that were predicted as each class. The "
        "diagonal (blue) is correct, all other cells (red) are mistakes.",
        [(short, full) for short, full in zip(names, held.class_names, strict=True) if short != full],
    )
    order = [k for k in np.argsort(-wrong, axis=None, kind="stable")[:_MAX_LISTED_ERRORS] if wrong.flat[k]]
    pairs = [[names[k // len(names)], names[k % len(names)], f"{wrong.flat[k]:,}"] for k in order]
    table = [Table(["actual", "predicted", "rows"], pairs)] if pairs and len(names) > 2 else []
    if table:
        text += " The most frequent ones:" if len(order) < np.count_nonzero(wrong) else " All of them:"
    return Section("Errors by class", [text], table, [matrix])


def _calibration_section(held: HeldOut) -> Section:
    from sklearn.metrics import log_loss

    assert held.probabilities is not None
    assert held.class_names is not None
    heading, rows = "Calibration of the probabilities", np.arange(len(held.y_true))
    if len(rows) < MIN_ROWS_FOR_CURVES:
        few = f"{counted(len(rows), 'row')} held out, too few for a calibration curve: it takes {MIN_ROWS_FOR_CURVES}."
        return Section(heading, [few])
    if len(held.class_names) == 2:
        event = f"the class {short_names(held.class_names)[1]}"
        found = calibration(held.probabilities[:, 1], held.y_true == 1)
    else:
        event = "the class predicted"
        found = calibration(held.probabilities[rows, held.y_pred], held.y_true == held.y_pred)
    loss = float(log_loss(held.y_true, held.probabilities, labels=range(len(held.class_names))))
    counts = found.rows[found.rows > 0]
    spans = [wilson_interval(share * count, count) for share, count in zip(found.observed, counts, strict=True)]
    curve = Figure(
        "Calibration curve",
        "probability predicted",
        "observed share",
        [
            Series("perfectly calibrated", [0.0, 1.0], [0.0, 1.0], "dashed"),
            Series(f"probability of {event}", found.predicted.tolist(), found.observed.tolist(), "points", spans),
        ],
        f"Rows in bins by the predicted probability of {event}: its mean against the observed share, with 95 % "
        "intervals. A point whose interval misses the dashed line is off by more than chance.",
    )
    bars = Figure(
        "Rows in each bin",
        "probability predicted",
        "rows",
        [
            Series(
                "rows", [(k + 0.5) / _CALIBRATION_BINS for k in range(_CALIBRATION_BINS)], found.rows.tolist(), "bars"
            )
        ],
        f"The number of rows, of {len(rows):,}, behind each point of the curve; a point of few rows is mostly chance.",
    )
    text = (
        f"On average, probability and outcome are {100 * found.error:.1f} percentage points apart (expected "
        f"calibration error, {_CALIBRATION_BINS} bins). The log loss is {significant(loss)}; 0 would be perfect, "
        f"and {significant(np.log(len(held.class_names)))} is that of equal probabilities for all classes."
    )
    return Section(heading, [text], figures=[curve, bars])


def _residual_section(held: HeldOut) -> Section:
    heading, y_true, y_pred = "Prediction errors", held.y_true, held.y_pred
    residuals = y_true - y_pred
    count = len(residuals)
    drawn = np.arange(count)
    note = ""
    if count > _MAX_SCATTER_POINTS:
        drawn = np.sort(np.random.default_rng(0).permutation(count)[:_MAX_SCATTER_POINTS])
        note = f" {_MAX_SCATTER_POINTS:,} of the {count:,} rows, drawn at random."
    ends = [float(min(y_true.min(), y_pred.min())), float(max(y_true.max(), y_pred.max()))]
    span = [float(y_pred.min()), float(y_pred.max())]
    figures = [
        Figure(
            "Predicted against actual",
            "actual",
            "predicted",
            [
                Series("perfect prediction", ends, ends, "dashed"),
                Series("rows held out", y_true[drawn].tolist(), y_pred[drawn].tolist(), "points"),
            ],
            f"Each point is a row; on the dashed line it would be predicted exactly.{note}",
        ),
        Figure(
            "Residual against predicted",
            "predicted",
            "residual",
            [
                Series("no error", span, [0.0, 0.0], "dashed"),
                Series("rows held out", y_pred[drawn].tolist(), residuals[drawn].tolist(), "points"),
            ],
            "Actual minus predicted. A slope or a bend is structure that the network has not learned; a funnel shows "
            f"that errors grow with the value.{note}",
        ),
    ]
    if count < MIN_ROWS_FOR_CURVES:
        few = f"{counted(count, 'row')} held out, too few to show how residuals are distributed."
        return Section(heading, [few], figures=figures)
    sizes = np.abs(residuals)
    figures.append(_residual_histogram(residuals))
    text = (
        f"Half of the predictions are within {significant(np.median(sizes))} of the true value, nine in ten within "
        f"{significant(np.quantile(sizes, 0.9))}, the worst is {significant(sizes.max())} off. The mean residual is "
        f"{significant(residuals.mean())}, with a standard error of "
        f"{significant(residuals.std(ddof=1) / np.sqrt(count))}."
    )
    return Section(heading, [text], figures=figures)


def _residual_histogram(residuals: np.ndarray) -> Figure:
    edges = np.histogram_bin_edges(residuals, "auto")
    if len(edges) - 1 > _MAX_HISTOGRAM_BARS:  # outliers make many bins
        edges = np.histogram_bin_edges(residuals, _MAX_HISTOGRAM_BARS)
    rows, _ = np.histogram(residuals, edges)
    return Figure(
        "Distribution of residuals",
        "residual",
        "rows",
        [Series("rows held out", ((edges[1:] + edges[:-1]) / 2).tolist(), rows.tolist(), "bars")],
        f"Rows by residual, in {len(rows)} bins. The standard deviation is {significant(residuals.std(ddof=1))}.",
    )
