"""The page of a comparison."""

from collections.abc import Callable
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.wording import significant
from fireset.commands.comparison import Comparison, Run
from fireset.commands.contenders import RECALL_ROWS
from fireset.commands.report_parts import active_section, fire_maps, part_of, shown_neurons
from fireset.commands.verdict import Row
from fireset.reporting import write_page
from fireset.reporting.figures import Figure, Section, Series, Table

Shown = Callable[[Any], str]


def _number(form: str, factor: float = 1.0) -> Shown:
    return lambda value: "" if value is None or not isfinite(value) else format(factor * value, form)


def _milliseconds(seconds: float | None) -> str:
    if seconds is None or not isfinite(seconds):
        return ""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


# Heading, field and form of every column, for the page and for the terminal.
COLUMNS: list[tuple[str, str, Shown]] = [
    ("engine", "name", str),
    ("kind", "kind", str),
    ("ms per iteration", "seconds_per_iteration", _milliseconds),
    ("speed-up", "speed_up", _number(".2f")),
    ("prepare, s", "preprocessing_seconds", _number(".3f")),
    ("compile, s", "compile_seconds", _number(".2f")),
    ("inner products", "inner_products", _number(",.0f")),
    ("fired pairs", "active_pairs", _number(",.0f")),
    ("recall", "recall", _number(".4g")),
    ("peak MB", "peak_megabytes", _number(",.0f")),
    ("final loss", "final_loss", _number(".8g")),
    ("differs from dense", "distance_to_dense", _number(".1e")),
]


def cells(row: Row | dict[str, Any]) -> list[str]:
    """A row of the table for people; a contender that failed has its reason in place of numbers."""
    values = row if isinstance(row, dict) else row.to_dict()
    return [form(values[name]) for _, name, form in COLUMNS]


def write_comparison(path: Path, found: Comparison, settings: dict[str, Any]) -> None:
    """Write the page; with whatever there is, if the comparison was interrupted."""
    sections = [_answer(found), _losses(found), *_recall(found), *_scaling(found), _fired(found), _method(found)]
    write_page(path, f"Does preprocessing help on {settings['file']}?", sections, settings=settings)


def _answer(found: Comparison) -> Section:
    paragraphs = [found.sentence()]
    if found.interrupted:
        paragraphs.append("The comparison was interrupted; this page shows what had been measured until then.")
    failed = [f"{row.name}: {row.reason}" for row in found.rows if row.reason]
    paragraphs += [f"{note[0].upper()}{note[1:]}." for note in found.notes]
    paragraphs += [f"Not measured, or not to the end: {'; '.join(failed)}."] if failed else []
    table = Table([heading for heading, _, _ in COLUMNS], [cells(row) for row in found.rows])
    return Section("The answer", paragraphs, [table])


def _method(found: Comparison) -> Section:
    X, network = found.problem.X, found.problem.network
    return Section(
        "How it was measured",
        [
            f"{len(X):,} samples with {network.n_features} coordinates, {network.width:,} neurons, outputs: "
            f"{network.n_outputs}, {network.dtype}. All engines start from the same network and run plain gradient "
            f"descent with learning rate {significant(found.problem.rate)}, in turns, in one process.",
            "Inner products and active pairs are per iteration, without compilation and preprocessing (prepare). Peak "
            "memory is the resident memory added by preparation and two iterations, including a copy of the weights. "
            "The final loss is that of the outputs as the engine computes them; an approximate engine omits the pairs "
            "that it misses. 'differs from dense' is the distance of the trained weights from those of the dense "
            "engine relative to their movement, ‖W − W_dense‖ / ‖W_dense − W(0)‖, the largest of all turns: 0 is "
            "equal, 1e-6 is rounding.",
        ],
    )


def _losses(found: Comparison) -> Section:
    ran = [run for run in found.runs if run.steps and run.row.preprocessing_seconds is not None]
    by_iteration, by_time = [], []
    for run in ran:
        losses = [loss for loss in run.losses() if isfinite(loss)]
        clock = np.concatenate([[0.0], np.cumsum([taken.seconds for taken in run.steps])])[: len(losses)]
        by_iteration.append(Series(run.row.name, list(range(len(losses))), losses))
        by_time.append(Series(run.row.name, (clock + (run.row.preprocessing_seconds or 0.0)).tolist(), losses))
    ends = "; ".join(f"{run.row.name} {run.row.final_loss:.6g}" for run in ran if run.row.final_loss is not None)
    return Section(
        "Loss",
        [
            "Exact engines compute the same steps, so that after the same number of iterations they have the same "
            "loss, and their curves lie on one another. Against time they differ: a faster engine gets there sooner."
        ],
        figures=[
            Figure(
                "Loss against time",
                "seconds, preprocessing included",
                "loss",
                by_time,
                f"Loss of each engine over time. Final losses: {ends}.",
                log_y=True,
            ),
            Figure(
                "Loss against iteration",
                "iteration",
                "loss",
                by_iteration,
                f"Loss after each iteration, regardless of its cost. Final losses: {ends}.",
                log_y=True,
            ),
        ]
        if ran
        else [],
    )


def _recall(found: Comparison) -> list[Section]:
    measured = [run for run in found.runs if any(taken.recall is not None for taken in run.steps)]
    if not measured:
        return []
    series = [_series(run, [taken.recall for taken in run.steps]) for run in measured]
    spans = "; ".join(f"{each.name} between {min(each.y):.3g} and {max(each.y):.3g}" for each in series)
    text = (
        "An approximate engine misses some of the pairs that fire: their neurons add nothing to the prediction and get "
        f"no gradient. Recall is the share that it finds, measured on at most {RECALL_ROWS} samples before each step, "
        "off the clock."
    )
    figure = Figure("Recall of the true fire sets", "iteration", "recall", series, f"Recall of {spans}; exact is 1.")
    return [Section("Recall", [text], figures=[figure])]


def _scaling(found: Comparison) -> list[Section]:
    if not found.scaling:
        return []
    series = []
    for curve in found.scaling:
        fit = [curve.expected(width) for width in curve.widths]
        series.append(Series(curve.name, curve.widths, curve.seconds, "points"))
        series.append(Series(f"{curve.name}: m^{curve.exponent:.2f}", curve.widths, fit, "dashed"))
    exponents = ", ".join(f"{curve.name} m^{curve.exponent:.2f}" for curve in found.scaling)
    figure = Figure(
        "Cost against width",
        "width m",
        "seconds per iteration",
        series,
        f"Seconds per iteration over the width, with fitted powers: {exponents}.",
        log_x=True,
        log_y=True,
    )
    text = "Short runs at widths that double, each from a network of its own with the paper's threshold for its width."
    gaps = [f"{curve.name} at {width:,}: {why}" for curve in found.scaling for width, why in curve.gaps.items()]
    paragraphs = [text, *([f"Not measured: {'; '.join(gaps)}."] if gaps else [])]
    return [Section("Cost by width", paragraphs, figures=[figure])]


def _fired(found: Comparison) -> Section:
    X, network = found.problem.X, found.problem.network
    pairs = len(X) * network.width
    fractions = [
        (run.row.name, [(taken.active_pairs or 0) / pairs for taken in run.steps])
        for run in found.runs
        if run.steps and run.steps[0].active_pairs is not None
    ]
    section = active_section(network, fractions)
    trained = found.trained()
    if trained is None or not np.isfinite(trained).all():
        return section
    neurons = shown_neurons(network.width)
    after = network.part(neurons)
    after.weights[:] = trained[neurons]
    maps = fire_maps(part_of(network, neurons), after, X)
    return Section(section.heading, section.paragraphs, figures=[*section.figures, *maps])


def _series(run: Run, values: list) -> Series:
    return Series(run.row.name, list(range(len(values))), values)
