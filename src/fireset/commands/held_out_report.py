"""Sections of a training page on the rows held out: what is confused with what, what probabilities are worth, how far
off numbers are."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fireset._util.wording import counted, significant
from fireset.commands.intervals import wilson_interval
from fireset.commands.scores import constant_scores, scores
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.reporting.figures import CountMatrix, Figure, Section, Series, Table, short_names
from fireset.tables.problem import TableProblem
from fireset.training.losses import get_loss

MAX_CLASSES = 20  # of a matrix that can be read
_MAX_PAIRS = 10
_MAX_CURVES, _CURVE_POINTS = 5, 100  # of the ROC figure
_BINS = 10
MIN_FOR_SHAPES = 20  # rows held out, below which a curve or a distribution shows chance alone
_MAX_POINTS = 2000
_MAX_BARS = 40


@dataclass(frozen=True)
class HeldOut:
    """Rows held out, n of them: true ``answers`` and ``predictions``, numbers or codes of classes.

    ``probabilities`` (n, classes) and ``names`` of the classes are None for numbers. ``mean`` is that of the rows
    trained on.
    """

    answers: np.ndarray
    predictions: np.ndarray
    probabilities: np.ndarray | None
    names: list[str] | None
    mean: float
    scores: dict[str, Any] = field(default_factory=dict)  # as ``fireset.commands.scores`` names them

    @classmethod
    def of(
        cls,
        problem: TableProblem,
        estimator: ShiftedReLUClassifier | ShiftedReLURegressor,
        kept: np.ndarray,
        held: np.ndarray,
    ) -> "HeldOut | None":
        """What the trained network says of the rows ``held``; None if there are none."""
        if not len(held):
            return None
        mean, answers = float(np.mean(problem.y[kept])), problem.y[held]
        rows = problem.features[held]
        if isinstance(estimator, ShiftedReLUClassifier):
            assert problem.classes is not None
            chances = estimator.predict_proba(rows)
            labels, guesses = np.array(problem.classes), chances.argmax(axis=1)
            found = scores(
                problem.task, labels[answers], labels[guesses], probabilities=chances, classes=problem.classes
            )
            return cls(answers, guesses, chances, list(map(str, problem.classes)), mean, found)
        predictions = estimator.predict(rows)
        found = scores(problem.task, answers, predictions, estimator.loss)
        found |= constant_scores(answers, problem.y[kept], estimator.loss)
        return cls(answers, get_loss(estimator.loss).point_predictions(predictions), None, None, mean, found)


class Reliability(NamedTuple):
    """Rows in each bin of probabilities; and of those that are not empty the mean probability, and how often true."""

    rows: np.ndarray
    said: np.ndarray
    true: np.ndarray

    @property
    def error(self) -> float:
        """Mean distance between the two, over the rows (expected calibration error)."""
        return float(np.average(np.abs(self.said - self.true), weights=self.rows[self.rows > 0]))


def confusion(answers: np.ndarray, predictions: np.ndarray, classes: int) -> np.ndarray:
    """Rows with the class i that were given the class j, (classes, classes)."""
    return np.bincount(answers * classes + predictions, minlength=classes**2).reshape(classes, classes)


def reliability(chances: np.ndarray, true: np.ndarray) -> Reliability:
    """Of events that were given ``chances`` and came ``true`` or not, (n,); ten bins of equal width."""
    place = np.minimum((chances * _BINS).astype(int), _BINS - 1)
    rows = np.bincount(place, minlength=_BINS)
    bins = np.flatnonzero(rows)
    said, happened = (np.bincount(place, values, minlength=_BINS)[bins] / rows[bins] for values in (chances, true))
    return Reliability(rows, said, happened)


def held_out_sections(held: HeldOut | None, task: str) -> list[Section]:
    """What there is to see of the rows held out, or why there is nothing."""
    if held is None:
        missing = (
            "the confusion matrix and the reliability of the probabilities"
            if task == "classification"
            else "predictions against answers, the residuals and their distribution"
        )
        why = f"--holdout 0 held out no rows, so that {missing} are missing: scores on training rows would be too high."
        return [Section("Rows held out", [f"{why} Omit --holdout to hold out a fifth of the rows."])]
    if held.probabilities is None:
        return [_residuals(held)]
    return [_confusion_section(held), *_ranking_section(held), _reliability_section(held)]


def _ranking_section(held: HeldOut) -> list[Section]:
    """ROC curves: of the second of two classes, or of each of a few classes against the rest."""
    from sklearn.metrics import roc_auc_score, roc_curve

    assert held.probabilities is not None
    assert held.names is not None
    names = short_names(held.names)
    codes = [1] if len(names) == 2 else range(len(names))
    both = [code for code in codes if 0 < np.sum(held.answers == code) < len(held.answers)]
    if not both or len(held.answers) < MIN_FOR_SHAPES:
        return []
    areas = {code: float(roc_auc_score(held.answers == code, held.probabilities[:, code])) for code in both}
    worst = sorted(both, key=areas.__getitem__)[:_MAX_CURVES]
    series = [Series("chance", [0.0, 1.0], [0.0, 1.0], "dashed")]
    for code in sorted(worst):
        false, true, _ = roc_curve(held.answers == code, held.probabilities[:, code])
        thin = np.unique(np.linspace(0, len(false) - 1, _CURVE_POINTS).round().astype(int))
        series.append(Series(f"{names[code]}, AUC {areas[code]:.3f}", false[thin].tolist(), true[thin].tolist()))
    which = f"the class {names[1]}" if len(names) == 2 else "each class against all others"
    more = f" The {_MAX_CURVES} classes with the smallest areas are shown." if len(worst) < len(both) else ""
    figure = Figure(
        "ROC curve",
        "false positive rate",
        "true positive rate",
        series,
        f"For every threshold on the probability of {which}: the share of its rows that are found, against the share "
        f"of other rows that are taken for it.{more}",
    )
    text = (
        f"The area under the ROC curve (AUC) is {np.mean(list(areas.values())):.3f}"
        f"{'' if len(areas) == 1 else ' on average over the classes'}: the probability that a row of the class is "
        "ranked above another row. 1 is perfect, 0.5 is chance."
    )
    return [Section("Ranking", [text], figures=[figure])]


def _confusion_section(held: HeldOut) -> Section:
    assert held.names is not None
    names = short_names(held.names)
    counts = confusion(held.answers, held.predictions, len(names))
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    total, mistakes = int(counts.sum()), int(wrong.sum())
    told = f"{counted(mistakes, 'mistake')} in {counted(total, 'row')} held out."
    shown = np.arange(len(names))
    if len(names) > MAX_CLASSES:
        confused = wrong.sum(axis=0) + wrong.sum(axis=1)
        shown = np.sort(np.argsort(-confused, kind="stable")[:MAX_CLASSES])
        told += f" Of {len(names)} classes the {MAX_CLASSES} that are confused most are shown."
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
        "Each row is a class, with how many of its rows were given which class, and the share of them. Those on the "
        "diagonal (blue) are right, all others (red) mistakes.",
        [(short, full) for short, full in zip(names, held.names, strict=True) if short != full],
    )
    order = [k for k in np.argsort(-wrong, axis=None, kind="stable")[:_MAX_PAIRS] if wrong.flat[k]]
    pairs = [[names[k // len(names)], names[k % len(names)], f"{wrong.flat[k]:,}"] for k in order]
    table = [Table(["actual", "predicted", "rows"], pairs)] if pairs and len(names) > 2 else []
    if table:
        told += " The most frequent ones:" if len(order) < np.count_nonzero(wrong) else " All of them:"
    return Section("Errors by class", [told], table, [matrix])


def _reliability_section(held: HeldOut) -> Section:
    assert held.probabilities is not None
    assert held.names is not None
    heading, rows = "Calibration of the probabilities", np.arange(len(held.answers))
    if len(rows) < MIN_FOR_SHAPES:
        few = f"{counted(len(rows), 'row')} held out, too few for a calibration curve: it takes {MIN_FOR_SHAPES}."
        return Section(heading, [few])
    if len(held.names) == 2:
        event, chances, true = f"the class {short_names(held.names)[1]}", held.probabilities[:, 1], held.answers == 1
    else:
        event, chances = "the class predicted", held.probabilities[rows, held.predictions]
        true = held.answers == held.predictions
    found = reliability(chances, true)
    log_loss = -float(np.mean(np.log(np.maximum(held.probabilities[rows, held.answers], 1e-15))))
    counts = found.rows[found.rows > 0]
    spans = [wilson_interval(share * count, count) for share, count in zip(found.true, counts, strict=True)]
    curve = Figure(
        "Calibration curve",
        "probability predicted",
        "share that came true",
        [
            Series("perfectly calibrated", [0.0, 1.0], [0.0, 1.0], "dashed"),
            Series(f"probability of {event}", found.said.tolist(), found.true.tolist(), "points", spans),
        ],
        f"Rows in bins by the probability that was given to {event}: its mean beside how often that was right, with "
        "95 % intervals. A point whose interval misses the dashed line is off by more than chance.",
    )
    bars = Figure(
        "Rows in each bin",
        "probability predicted",
        "rows",
        [Series("rows", [(k + 0.5) / _BINS for k in range(_BINS)], found.rows.tolist(), "bars")],
        f"How many of the {len(rows):,} rows each point of the curve stands for; of few rows, it is mostly chance.",
    )
    text = (
        f"On average, probability and outcome are {100 * found.error:.1f} percentage points apart (expected "
        f"calibration error, {_BINS} bins). The log loss is {significant(log_loss)}; 0 would be perfect, "
        f"and {significant(np.log(len(held.names)))} is that of equal probabilities for all classes."
    )
    return Section(heading, [text], figures=[curve, bars])


def _residuals(held: HeldOut) -> Section:
    heading, answers, predictions = "Prediction errors", held.answers, held.predictions
    residuals = answers - predictions
    count = len(residuals)
    drawn = np.arange(count)
    note = ""
    if count > _MAX_POINTS:
        drawn = np.sort(np.random.default_rng(0).permutation(count)[:_MAX_POINTS])
        note = f" {_MAX_POINTS:,} of the {count:,} rows, drawn at random."
    ends = [float(min(answers.min(), predictions.min())), float(max(answers.max(), predictions.max()))]
    span = [float(predictions.min()), float(predictions.max())]
    figures = [
        Figure(
            "Predicted against actual",
            "actual",
            "predicted",
            [
                Series("perfect prediction", ends, ends, "dashed"),
                Series("rows held out", answers[drawn].tolist(), predictions[drawn].tolist(), "points"),
            ],
            f"Each point is a row; on the dashed line it would be predicted exactly.{note}",
        ),
        Figure(
            "Residual against predicted",
            "predicted",
            "residual",
            [
                Series("no error", span, [0.0, 0.0], "dashed"),
                Series("rows held out", predictions[drawn].tolist(), residuals[drawn].tolist(), "points"),
            ],
            "Actual less predicted. A slope or a bend would be something the network has not learned; a funnel, that "
            f"errors grow with the value.{note}",
        ),
    ]
    if count < MIN_FOR_SHAPES:
        few = f"{counted(count, 'row')} held out, too few to show how residuals are distributed."
        return Section(heading, [few], figures=figures)
    sizes = np.abs(residuals)
    figures.append(_distribution(residuals))
    text = (
        f"Half of the predictions are within {significant(np.median(sizes))} of the answer, nine in ten within "
        f"{significant(np.quantile(sizes, 0.9))}, the worst is {significant(sizes.max())} off. The mean residual is "
        f"{significant(residuals.mean())}, with a standard error of "
        f"{significant(residuals.std(ddof=1) / np.sqrt(count))}."
    )
    return Section(heading, [text], figures=figures)


def _distribution(residuals: np.ndarray) -> Figure:
    edges = np.histogram_bin_edges(residuals, "auto")
    if len(edges) - 1 > _MAX_BARS:  # far outliers make bins many
        edges = np.histogram_bin_edges(residuals, _MAX_BARS)
    rows, _ = np.histogram(residuals, edges)
    return Figure(
        "Distribution of residuals",
        "residual",
        "rows",
        [Series("rows held out", ((edges[1:] + edges[:-1]) / 2).tolist(), rows.tolist(), "bars")],
        f"Rows by residual, in {len(rows)} bins. The standard deviation is {significant(residuals.std(ddof=1))}.",
    )
