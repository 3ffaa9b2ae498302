"""Sections of a training report about the run: columns, learning, active pairs, work, all figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np

from fireset._util.gaussian import upper_tail
from fireset._util.parallel import one_blas_thread
from fireset._util.text import counted, duration, percent, significant
from fireset.commands.scores import wilson_interval
from fireset.estimators import ShiftedReLUClassifier, ShiftedReLURegressor
from fireset.network import ShiftedReLUNetwork
from fireset.reporting.figures import Figure, HeatMap, Section, Series, Table
from fireset.theory.kernel_function import KernelFunction
from fireset.theory.leave_one_out import leave_one_out
from fireset.training.result import TrainingResult
from fireset.training.solvers import solver_class

_MAX_COLUMNS = 20
_MIN_RECORDS = 3  # of a history, for a curve
_MAP_ROWS, _MAP_NEURONS = 60, 120  # of the heat maps
_MIN_PART_ROWS = 30
_MAX_HALVINGS = 4


@dataclass(frozen=True)
class LearningCurve:
    """Accuracy or R² that leave-one-out forecasts for ``rows`` rows, ascending; the last is the forecast for all.

    ``intervals`` are 95 % intervals of accuracies; None for R².
    """

    rows: list[int]
    scores: list[float]
    intervals: list[tuple[float, float]] | None

    @property
    def standard_error(self) -> float:
        """Standard error of the last score; 0 if unknown."""
        return (self.intervals[-1][1] - self.intervals[-1][0]) / 4 if self.intervals else 0.0

    @property
    def last_gain(self) -> float:
        """Gain of the last doubling of the rows."""
        return self.scores[-1] - self.scores[-2]


def learning_curve(
    estimator: ShiftedReLUClassifier | ShiftedReLURegressor, mapped: np.ndarray, y: np.ndarray
) -> LearningCurve | None:
    """Forecast the score for halves, quarters, … of the rows that the settings were chosen on (at most 1,000).

    The score of a size is the mean over all parts of that size, by kernel regression of the infinitely wide network.
    Bias, metric and ridge are those chosen for all rows, on which leave-one-out is therefore optimistic. The difference
    to the cross-fitted forecast for all rows is taken off each score. Costs four thirds of one leave-one-out.

    Parameters
    ----------
    mapped : array (n, d)
        Rows on the sphere that the estimator was fitted on.
    y : array (n,)
        Their targets: numbers, or class codes.

    Returns
    -------
    LearningCurve, or None if there are too few rows.
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
    sizes, scores = [], []
    kernel = KernelFunction(estimator.network_.threshold, settings.output_layer_scale)
    ridge = settings.ridge * kernel.at_one
    with one_blas_thread():
        K = kernel.values(mapped @ mapped.T)
        for halvings in range(_MAX_HALVINGS + 1):
            parts = np.array_split(np.arange(len(rows)), 2**halvings)
            if len(parts[-1]) < _MIN_PART_ROWS:
                break
            sizes.append(len(parts[-1]))
            scores.append(_leave_one_out_score(K, targets, ridge, parts, classes))
    if len(sizes) < 3:
        return None
    optimism = scores[0] - settings.forecast
    scores = [min(max(score - optimism, 0.0), 1.0) if classes else score - optimism for score in scores]
    intervals = [wilson_interval(score * len(rows), len(rows)) for score in scores[::-1]] if classes else None
    return LearningCurve(sizes[::-1], scores[::-1], intervals)


def _leave_one_out_score(
    K: np.ndarray, targets: np.ndarray, ridge: float, parts: list[np.ndarray], classes: bool
) -> float:
    """Return accuracy or R² of leave-one-out within each part, over all parts."""
    correct, errors, spread = 0, 0.0, 0.0
    for part in parts:
        centred = targets[part] - targets[part].mean(axis=0)
        part_errors = leave_one_out(K[np.ix_(part, part)], centred, np.ones(len(part)), ridge).errors
        predictions = targets[part] - part_errors
        correct += int(np.sum(predictions.argmax(axis=1) == targets[part].argmax(axis=1)))
        errors, spread = errors + float(np.sum(part_errors**2)), spread + float(np.sum(centred**2))
    return correct / sum(map(len, parts)) if classes else 1.0 - errors / max(spread, 1e-300)


def columns_section(importances: dict[str, float]) -> Section:
    """Return the columns with the largest importances, which are in descending order."""
    most = dict(list(importances.items())[:_MAX_COLUMNS])
    others = len(importances) - len(most)
    text = "How much predictions change with each column, from the gradients of the fit; all columns add up to 100 %."
    if others:
        text += f" The other {others:,} come after these."
    figures = []
    if most:
        name, share = next(iter(most.items()))
        bars = Series("importance", list(most), [100 * value for value in most.values()], "bars")
        figures = [
            Figure(
                "Columns by importance", "column", "share in %", [bars], f"{name} matters most, with {percent(share)}."
            )
        ]
    return Section("Columns", [text], figures=figures)


def learning_section(result: TrainingResult, curve: LearningCurve | None, score: str) -> Section:
    """Return the loss by iteration, if there are enough iterations, and the learning curve."""
    history = result.history
    count = len(history) - 1
    change = f"The loss goes from {history[0].loss:.4g} to {history[-1].loss:.4g} in "
    if count < _MIN_RECORDS:
        solver = solver_class(result.solver)
        solved = "" if solver.runs_to_max_iter else f" {solver.label} solves for all weights at once."
        paragraphs, figures = [f"{change}{counted(count, solver.iteration_label)}, too few for a curve.{solved}"], []
    else:
        paragraphs, figures = [], _loss_figures(result, f"{change}{count:,} iterations.")
    if curve is not None:
        alt = (
            f"The {score} that leave-one-out forecasts of {curve.rows[0]:,} rows is {curve.scores[0]:.3f}, of "
            f"{curve.rows[-1]:,} rows {curve.scores[-1]:.3f}. Columns are scaled as for all rows, so that "
            "forecasts for few rows are too high."
        )
        line = Series("forecast", curve.rows, curve.scores, spans=curve.intervals)
        figures.append(Figure("Learning curve", "rows", f"forecast {score}", [line], alt, log_x=True))
    return Section("Learning", paragraphs, figures=figures)


def _loss_figures(result: TrainingResult, alt: str) -> list[Figure]:
    history = result.history
    losses = {"training": history.column("loss").tolist()}
    if history[0].validation_loss is not None:
        losses["validation"] = history.column("validation_loss").tolist()
    return [
        Figure(
            f"Loss against {what}", label, "loss", [Series(name, x, y) for name, y in losses.items()], alt, log_y=True
        )
        for what, label, x in (
            ("iteration", "iteration", list(range(len(history)))),
            ("time", "seconds since training began", history.column("seconds").tolist()),
        )
    ]


def active_section(network: ShiftedReLUNetwork, fractions: Sequence[tuple[str, Sequence[float]]]) -> Section:
    """Return the active fraction by iteration of each run, with P(z > b) and the paper's bound at initialization."""
    b = network.threshold
    most = max((len(values) for _, values in fractions), default=1)
    ends = [0, max(1, most - 1)]
    chance, bound = upper_tail(b), min(1.0, 2 * exp(-b * b / 2)) if b > 0 else 1.0
    series = [Series(name, list(range(len(values))), list(values)) for name, values in fractions]
    series += [
        Series("chance at initialization, P(z > b)", ends, [chance, chance], "dashed"),
        Series("bound of the sparsity lemma, 2 exp(−b²/2)", ends, [bound, bound], "dashed"),
    ]
    if fractions:
        first, last = fractions[0][1][0], fractions[0][1][-1]
        seen = f"{percent(first, 2)} of all pairs are active in the first iteration and {percent(last, 2)} in the last"
    else:
        seen = "Active pairs were not counted"
    return Section(
        "Active neurons",
        [
            f"A neuron is active for a row if their inner product is above the threshold b = {b:.4g}. The paper's "
            f"sparsity lemma bounds the share of active neurons of a row at initialization: at most "
            f"2 exp(−b²/2) = {percent(bound, 2)}, with high probability; {percent(chance, 2)} are expected."
        ],
        figures=[
            Figure(
                "Active fraction",
                "iteration",
                "share of all pairs",
                series,
                f"{seen}; {percent(chance, 2)} are expected at initialization, and the bound is {percent(bound, 2)}.",
            )
        ],
    )


def shown_neurons(width: int) -> np.ndarray:
    """Return the neurons that the heat maps show: a random sample, ascending."""
    return np.sort(np.random.default_rng(0).permutation(width)[:_MAP_NEURONS])


def fire_maps(before: ShiftedReLUNetwork, after: ShiftedReLUNetwork, X: np.ndarray) -> tuple[HeatMap, HeatMap]:
    """Return heat maps of the active pairs before and after training, for all neurons and a sample of the rows."""
    rows = np.sort(np.random.default_rng(1).permutation(len(X))[:_MAP_ROWS])
    first, last = (network.fire_sets(X[rows]).toarray() for network in (before, after))
    size = f"{len(rows)} rows and {before.width} neurons, drawn at random"
    changed = percent(np.mean(first != last), 2)
    return (
        _fire_map("before training", first, f"{size}: {percent(first.mean(), 2)} of these pairs are active."),
        _fire_map(
            "after training",
            last,
            f"{size}, the same: {percent(last.mean(), 2)} of these pairs are active; {changed} have changed.",
        ),
    )


def _fire_map(when: str, active: np.ndarray, alt: str) -> HeatMap:
    return HeatMap(f"Active pairs {when}", "neuron", "row", active.astype(int).tolist(), alt)


def active_pairs_section(active: Section, maps: tuple[HeatMap, HeatMap], result: TrainingResult) -> Section:
    """Add the heat maps to ``active_section``; with few iterations, replace the curve by its description."""
    if len(result.history) <= _MIN_RECORDS:
        return Section(active.heading, [*active.paragraphs, *(figure.alt for figure in active.figures)], figures=maps)
    return Section(active.heading, active.paragraphs, figures=[*active.figures, *maps])


def work_section(result: TrainingResult, pairs: int) -> Section:
    """Return the inner products computed and the neurons refreshed in each iteration."""
    history = result.history
    computed = history.column("inner_products") / pairs
    refreshed = history.column("refreshes")
    iterations = list(range(len(history)))
    products = f"On average {percent(computed.mean(), 2)} of all pairs are computed; a dense program computes all."
    refreshes = (
        f"On average {counted(round(refreshed.mean()), 'neuron')} have their candidates searched again in an iteration."
    )
    if len(history) <= _MIN_RECORDS:
        return Section("Work", [f"The engine is {result.engine}. {products} {refreshes}"])
    return Section(
        "Work",
        [
            f"Inner products that the engine {result.engine} computed in each iteration, compared with a dense "
            "program, which computes all of them; and neurons whose candidates were searched again."
        ],
        figures=[
            Figure(
                "Inner products computed",
                "iteration",
                "share of all pairs",
                [
                    Series(result.engine, iterations, computed.tolist()),
                    Series("dense", [0, len(history) - 1], [1.0, 1.0], "dashed"),
                ],
                products,
                log_y=True,
            ),
            Figure(
                "Neurons refreshed",
                "iteration",
                "neurons",
                [Series(result.engine, iterations, refreshed.tolist())],
                refreshes,
            ),
        ],
    )


def facts_section(facts: dict[str, Any]) -> Section:
    """Return a table of all facts of the summary."""
    omitted = ("importances", "settings", "target", "model", "advice", "hints")
    rows = [[key.replace("_", " "), _fact(key, value)] for key, value in facts.items() if key not in omitted]
    return Section("All figures of the run", tables=[Table(["what", "value"], rows)])


def _fact(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {percent(share, 0)}" for name, share in value.items())
    if isinstance(value, list):
        return ", ".join(significant(one) if isinstance(one, float) else str(one) for one in value) or "none"
    if isinstance(value, float):
        if key.endswith(("fraction", "accuracy", "recall")):
            return percent(value)
        return duration(value) if key.endswith("seconds") else significant(value)
    return f"{value:,}" if isinstance(value, int) else str(value)
