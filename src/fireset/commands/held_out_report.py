"""Sections of a training page on the rows held out: what is confused with what, what probabilities are worth, how far
off numbers are."""

from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

import numpy as np

from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.reporting.figures import CountMatrix, Figure, Section, Series, Table, short_names
from fireset.tables.problem import TableProblem

MOST_CLASSES = 20  # of a matrix that can be read
_MOST_PAIRS = 10
_BINS = 10
FEWEST_FOR_SHAPES = 20  # rows held out, below which a curve or a distribution shows chance alone
_MOST_POINTS = 2000
_MOST_BARS = 40


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
        mean = float(np.mean(problem.y[kept]))
        rows = problem.features[held]
        if isinstance(estimator, ShiftedReLUClassifier):
            assert problem.classes is not None
            chances = estimator.predict_proba(rows)
            return cls(problem.y[held], chances.argmax(axis=1), chances, list(map(str, problem.classes)), mean)
        return cls(problem.y[held], estimator.predict(rows), None, None, mean)


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


def interval(right: float, rows: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share: ``right`` of ``rows``."""
    z = 1.96
    middle = (right + z * z / 2) / (rows + z * z)
    half = z / (rows + z * z) * sqrt(right * (rows - right) / rows + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def held_out_sections(held: HeldOut | None, task: str) -> list[Section]:
    """What there is to see of the rows held out, or why there is nothing."""
    if held is None:
        missing = (
            "the confusion matrix and the reliability of the probabilities"
            if task == "classification"
            else "predictions against answers, the residuals and their distribution"
        )
        why = f"--holdout 0 kept no rows back, so that {missing} are missing: rows that were trained on would flatter."
        return [Section("Rows held out", [f"{why} Leave --holdout out to keep back a fifth of the rows."])]
    if held.probabilities is None:
        return [_residuals(held)]
    return [_confusion_section(held), _reliability_section(held)]


def _confusion_section(held: HeldOut) -> Section:
    assert held.names is not None
    names = short_names(held.names)
    counts = confusion(held.answers, held.predictions, len(names))
    wrong = counts.copy()
    np.fill_diagonal(wrong, 0)
    total, mistakes = int(counts.sum()), int(wrong.sum())
    told = f"{_counted(mistakes, 'mistake')} in {_counted(total, 'row')} held out."
    shown = np.arange(len(names))
    if len(names) > MOST_CLASSES:
        confused = wrong.sum(axis=0) + wrong.sum(axis=1)
        shown = np.sort(np.argsort(-confused, kind="stable")[:MOST_CLASSES])
        told += f" Of {len(names)} classes the {MOST_CLASSES} that are confused most are shown."
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
    order = [k for k in np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS] if wrong.flat[k]]
    pairs = [[names[k // len(names)], names[k % len(names)], f"{wrong.flat[k]:,}"] for k in order]
    table = [Table(["actual", "predicted", "rows"], pairs)] if pairs and len(names) > 2 else []
    if table:
        told += " The most frequent ones:" if len(order) < np.count_nonzero(wrong) else " All of them:"
    return Section("What is confused with what", [told], table, [matrix])


def _reliability_section(held: HeldOut) -> Section:
    assert held.probabilities is not None
    assert held.names is not None
    heading, rows = "What its probabilities are worth", np.arange(len(held.answers))
    if len(rows) < FEWEST_FOR_SHAPES:
        few = f"{_counted(len(rows), 'row')} held out, too few for a calibration curve: it takes {FEWEST_FOR_SHAPES}."
        return Section(heading, [few])
    if len(held.names) == 2:
        event, chances, true = f"the class {short_names(held.names)[1]}", held.probabilities[:, 1], held.answers == 1
    else:
        event, chances = "the class predicted", held.probabilities[rows, held.predictions]
        true = held.answers == held.predictions
    found = reliability(chances, true)
    log_loss = -np.mean(np.log(np.maximum(held.probabilities[rows, held.answers], 1e-15)))
    spans = [
        interval(share * count, count) for share, count in zip(found.true, found.rows[found.rows > 0], strict=True)
    ]
    curve = Figure(
        "Calibration curve",
        "probability predicted",
        "share that came true",
        [
            Series("as it should be", [0.0, 1.0], [0.0, 1.0], "dashed"),
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
        f"In the mean, probability and outcome are {100 * found.error:.1f} percentage points apart (expected "
        f"calibration error, {_BINS} bins). The log loss is {log_loss:.4f}; 0 would be perfect, and "
        f"{np.log(len(held.names)):.4f} is that of a guess that gives all classes the same."
    )
    return Section(heading, [text], figures=[curve, bars])


def _residuals(held: HeldOut) -> Section:
    heading, answers, predictions = "How far off it is", held.answers, held.predictions
    residuals = answers - predictions
    count = len(residuals)
    drawn = np.arange(count)
    note = ""
    if count > _MOST_POINTS:
        drawn = np.sort(np.random.default_rng(0).permutation(count)[:_MOST_POINTS])
        note = f" {_MOST_POINTS:,} of the {count:,} rows, drawn at random."
    ends = [float(min(answers.min(), predictions.min())), float(max(answers.max(), predictions.max()))]
    span = [float(predictions.min()), float(predictions.max())]
    figures = [
        Figure(
            "Predicted against actual",
            "actual",
            "predicted",
            [
                Series("as it should be", ends, ends, "dashed"),
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
    if count < FEWEST_FOR_SHAPES:
        few = f"{_counted(count, 'row')} held out, too few to show how residuals are distributed."
        return Section(heading, [few], figures=figures)
    sizes = np.abs(residuals)
    figures.append(_distribution(residuals))
    text = (
        f"Half of the predictions are within {np.median(sizes):.4g} of the answer, nine in ten within "
        f"{np.quantile(sizes, 0.9):.4g}, the worst is {sizes.max():.4g} off. The mean residual is "
        f"{residuals.mean():.4g}, with a standard error of {residuals.std(ddof=1) / np.sqrt(count):.2g}."
    )
    return Section(heading, [text], figures=figures)


def _distribution(residuals: np.ndarray) -> Figure:
    edges = np.histogram_bin_edges(residuals, "auto")
    if len(edges) - 1 > _MOST_BARS:  # far outliers make bins many
        edges = np.histogram_bin_edges(residuals, _MOST_BARS)
    rows, _ = np.histogram(residuals, edges)
    return Figure(
        "Distribution of residuals",
        "residual",
        "rows",
        [Series("rows held out", ((edges[1:] + edges[:-1]) / 2).tolist(), rows.tolist(), "bars")],
        f"Rows by residual, in {len(rows)} bins. The standard deviation is {residuals.std(ddof=1):.4g}.",
    )


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
