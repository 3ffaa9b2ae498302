"""Sections of a training page on the run itself: columns, learning, who fires, work, all figures."""

from typing import Any

from fireset._util.text import counted, duration, percent, significant
from fireset.commands.learning_curve import LearningCurve
from fireset.reporting.figures import Figure, HeatMap, Section, Series, Table
from fireset.training.result import TrainingResult
from fireset.training.solvers import solver_class

_SHOWN_COLUMNS = 20
_FEW = 3  # records of a history, which make no curve


def columns_section(importances: dict[str, float]) -> Section:
    """The columns that the fit depends on most."""
    most = dict(list(importances.items())[:_SHOWN_COLUMNS])
    left = len(importances) - len(most)
    text = "How much predictions change with each column, from the gradients of the fit; all columns add up to 100 %."
    if left:
        text += f" The other {left:,} come after these."
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
    """The loss by iteration, where there are enough of them, and the forecast score by rows."""
    history = result.history
    count = len(history) - 1
    told = f"The loss goes from {history[0].loss:.4g} to {history[-1].loss:.4g} in "
    if count < _FEW:
        solver = solver_class(result.solver)
        rounds = f"{count} {solver.iteration_label}{'' if count == 1 else 's'}"
        solved = "" if solver.runs_to_max_iter else f" {solver.label} solves for all weights at once."
        paragraphs, figures = [f"{told}{rounds}, too few for a curve.{solved}"], []
    else:
        paragraphs, figures = [], _loss_figures(result, f"{told}{count:,} iterations.")
    if curve is not None:
        alt = (
            f"The {score} that leave-one-out forecasts of {curve.rows[0]:,} rows is {curve.scores[0]:.3f}, of "
            f"{curve.rows[-1]:,} rows {curve.scores[-1]:.3f}. Columns are scaled as for all rows, so that "
            "forecasts for few rows are too high."
        )
        line = Series("forecast", curve.rows, curve.scores, spans=curve.spans)
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


def firing_section(active: Section, maps: tuple[HeatMap, HeatMap], result: TrainingResult) -> Section:
    """Who fires, in words where there are too few iterations for a curve."""
    if len(result.history) <= _FEW:
        return Section(active.heading, [*active.paragraphs, *(figure.alt for figure in active.figures)], figures=maps)
    return Section(active.heading, active.paragraphs, figures=[*active.figures, *maps])


def work_section(result: TrainingResult, pairs: int) -> Section:
    """Inner products computed and neurons whose candidates were searched again."""
    history = result.history
    looked = history.column("inner_products") / pairs
    refreshed = history.column("refreshes")
    iterations = list(range(len(history)))
    products = f"On average {percent(looked.mean(), 2)} of all pairs are computed; a dense program computes all."
    searched = (
        f"On average {counted(round(refreshed.mean()), 'neuron')} have their candidates searched again in an iteration."
    )
    if len(history) <= _FEW:
        return Section("Work", [f"The engine is {result.engine}. {products} {searched}"])
    return Section(
        "Work",
        [
            f"Inner products that the engine {result.engine} computed in each iteration, beside those of a dense "
            "program, which computes all of them; and neurons whose candidates were searched again."
        ],
        figures=[
            Figure(
                "Inner products computed",
                "iteration",
                "share of all pairs",
                [
                    Series(result.engine, iterations, looked.tolist()),
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
                searched,
            ),
        ],
    )


def facts_section(facts: dict[str, Any]) -> Section:
    """Everything that the command shows of a run, as a table."""
    left_out = ("importances", "settings", "target", "model", "advice", "hints")
    rows = [[key.replace("_", " "), _fact(key, value)] for key, value in facts.items() if key not in left_out]
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
