"""The tables and the report page of a comparison."""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from fireset._util.text import duration, significant
from fireset.commands.compare.engine_contenders import MAX_RECALL_ROWS
from fireset.commands.compare.model_contenders import MODELS
from fireset.commands.compare.result import EngineComparison, ModelComparison
from fireset.commands.run_report import active_section, fire_maps, shown_neurons
from fireset.reporting import write_page
from fireset.reporting.figures import Figure, Section, Series, Table

Format = Callable[[Any], str]

_SCORE_LABELS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "r2": "R²",
    "rmse": "RMSE",
}


def _number(spec: str) -> Format:
    return lambda value: "" if value is None or not isfinite(value) else format(value, spec)


def _milliseconds(seconds: float | None) -> str:
    if seconds is None or not isfinite(seconds):
        return ""
    return f"{1000 * seconds:,.0f}" if seconds >= 0.1 else f"{1000 * seconds:.3g}"


# Heading, field and format of every column, for the page and for the terminal
ENGINE_COLUMNS: list[tuple[str, str, Format]] = [
    ("engine", "name", str),
    ("kind", "kind", str),
    ("ms per iteration", "seconds_per_iteration", _milliseconds),
    ("speed-up", "speed_up", _number(".2f")),
    ("prepare, s", "preprocessing_seconds", _number(".3f")),
    ("compile, s", "compile_seconds", _number(".2f")),
    ("inner products", "inner_products", _number(",.0f")),
    ("active pairs", "active_pairs", _number(",.0f")),
    ("recall", "recall", _number(".4g")),
    ("peak MB", "peak_megabytes", _number(",.0f")),
    ("final loss", "final_loss", _number(".8g")),
    ("differs from dense", "distance_to_dense", _number(".1e")),
]


def engine_table(results: Sequence[dict[str, Any]]) -> Table:
    """Return the measurements, from ``EngineResult.to_dict``; cells of engines that failed are empty."""
    rows = [[form(result[name]) for _, name, form in ENGINE_COLUMNS] for result in results]
    return Table([heading for heading, _, _ in ENGINE_COLUMNS], rows)


def model_table(models: Sequence[dict[str, Any]], scores: Sequence[str]) -> Table:
    """Return the scores with their standard deviations over the splits, and times, from ``ModelResult.to_dict``."""
    headings = ["model", *(_SCORE_LABELS[score] for score in scores), "fit", "predict", "rows"]
    rows = [
        [
            MODELS[model["name"]].label,
            *(_score_text(model[score], model[f"{score}_deviation"]) for score in scores),
            "" if model["fit_seconds"] is None else duration(model["fit_seconds"]),
            "" if model["predict_seconds"] is None else duration(model["predict_seconds"]),
            "" if model["rows"] is None else f"{model['rows']:,}",
        ]
        for model in models
    ]
    return Table(headings, rows)


def _score_text(value: float | None, deviation: float | None) -> str:
    if value is None:
        return ""
    digits = 1 if abs(value) >= 100 else 3
    return f"{value:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def write_comparison(path: Path, found: EngineComparison | ModelComparison, settings: dict[str, Any]) -> None:
    """Write the page of a comparison, also of one that was interrupted."""
    if isinstance(found, EngineComparison):
        title, sections = f"Does preprocessing help on {settings['file']}?", _engine_sections(found)
    else:
        title, sections = f"Which model for {settings['file']}?", _model_sections(found)
    write_page(path, title, sections, settings=settings)


def _answer(found: EngineComparison | ModelComparison, remarks: list[str], table: Table, figures=()) -> Section:
    paragraphs = [found.verdict]
    if found.interrupted:
        paragraphs.append("The comparison was interrupted; this page shows what had been measured until then.")
    return Section("The answer", [*paragraphs, *remarks], [table], figures)


def _sentences(notes: Sequence[str]) -> list[str]:
    return [f"{note[0].upper()}{note[1:]}." for note in notes]


# Models


def _model_sections(found: ModelComparison) -> list[Section]:
    models = [model.to_dict(found.scores) for model in found.results]
    remarks = [f"{model.label}: {model.note}." for model in found.results if model.note]
    method = Section(
        "How it was measured",
        [
            f"Each split trains on {found.train_rows:,} rows and holds out {found.test_rows:,}, the same for all "
            f"models; number of splits: {found.splits}. Scores are averages over the splits, ± their standard "
            "deviation, on the rows held out. All models have their default settings; columns are standardized where "
            "the model needs it. The compilation of fireset is not counted.",
            *_sentences(found.notes),
        ],
    )
    return [_answer(found, remarks, model_table(models, found.scores), _model_figures(found)), method]


def _model_figures(found: ModelComparison) -> list[Figure]:
    measured = [model for model in found.results if model.fits]
    if not measured:
        return []
    labels = [model.label for model in measured]
    figures = []
    score = _SCORE_LABELS[found.scores[0]]
    values = [value for model in measured if (value := model.mean(found.scores[0])) is not None and isfinite(value)]
    if len(values) == len(measured):
        listed = ", ".join(f"{label} {value:.3f}" for label, value in zip(labels, values, strict=True))
        bars = Series(score, labels, values, "bars")
        figures.append(Figure("Score", "", score, [bars], f"On rows held out: {listed}."))
    seconds = [model.fit_seconds for model in measured]
    listed = ", ".join(f"{label} {duration(value)}" for label, value in zip(labels, seconds, strict=True))
    bars = Series("seconds to fit", labels, seconds, "bars")
    figures.append(Figure("Time to fit", "", "seconds to fit", [bars], f"To fit: {listed}.", log_y=True))
    return figures


# Engines


def _engine_sections(found: EngineComparison) -> list[Section]:
    failed = [f"{result.name}: {result.reason}" for result in found.results if result.reason]
    remarks = _sentences(found.notes)
    remarks += [f"Not measured, or not to the end: {'; '.join(failed)}."] if failed else []
    table = engine_table([result.to_dict() for result in found.results])
    return [
        _answer(found, remarks, table),
        _loss_section(found),
        *_recall_sections(found),
        *_scaling_sections(found),
        _active_pairs_section(found),
        _engine_method(found),
    ]


def _engine_method(found: EngineComparison) -> Section:
    X, network = found.problem.X, found.problem.network
    return Section(
        "How it was measured",
        [
            f"{len(X):,} rows with {network.n_features} coordinates, {network.width:,} neurons, outputs: "
            f"{network.n_outputs}, {network.dtype}. All engines start from the same network and run plain gradient "
            f"descent with learning rate {significant(found.problem.learning_rate)}, in turns, in one process.",
            "Inner products and active pairs are per iteration, without compilation and preprocessing (prepare). Peak "
            "memory is the resident memory added by preparation and two iterations, including a copy of the weights. "
            "The final loss is that of the outputs as the engine computes them; an approximate engine omits the pairs "
            "that it misses. 'differs from dense' is the distance of the trained weights from those of the dense "
            "engine relative to their movement, ‖W − W_dense‖ / ‖W_dense − W(0)‖, the largest of all turns: 0 is "
            "equal, 1e-6 is rounding.",
        ],
    )


def _loss_section(found: EngineComparison) -> Section:
    ran = [result for result in found.results if result.steps and result.preprocessing_seconds is not None]
    by_iteration, by_time = [], []
    for result in ran:
        losses = [loss for loss in result.losses() if isfinite(loss)]
        seconds = np.concatenate([[0.0], np.cumsum([step.seconds for step in result.steps])])[: len(losses)]
        by_iteration.append(Series(result.name, list(range(len(losses))), losses))
        by_time.append(Series(result.name, (seconds + (result.preprocessing_seconds or 0.0)).tolist(), losses))
    ends = "; ".join(f"{result.name} {result.final_loss:.6g}" for result in ran if result.final_loss is not None)
    figures = [
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
    text = (
        "Exact engines compute the same steps: after the same number of iterations they have the same loss, and their "
        "curves lie on one another. Over time they differ: a faster engine reaches the same loss sooner."
    )
    return Section("Loss", [text], figures=figures if ran else [])


def _recall_sections(found: EngineComparison) -> list[Section]:
    measured = [each for each in found.results if any(step.recall is not None for step in each.steps)]
    if not measured:
        return []
    series = []
    for result in measured:
        recalls = [step.recall for step in result.steps if step.recall is not None]
        series.append(Series(result.name, list(range(len(recalls))), recalls))
    spans = "; ".join(f"{each.name} between {min(each.y):.3g} and {max(each.y):.3g}" for each in series)
    text = (
        "An approximate engine misses some of the active pairs: their neurons add nothing to the prediction and get "
        f"no gradient. Recall is the share that it finds, measured on at most {MAX_RECALL_ROWS} rows before each step, "
        "outside of the timing."
    )
    figure = Figure("Recall of the true fire sets", "iteration", "recall", series, f"Recall of {spans}; exact is 1.")
    return [Section("Recall", [text], figures=[figure])]


def _scaling_sections(found: EngineComparison) -> list[Section]:
    if not found.scaling:
        return []
    series = []
    for curve in found.scaling:
        fitted = [curve.fitted(width) for width in curve.widths]
        series.append(Series(curve.name, curve.widths, curve.seconds, "points"))
        series.append(Series(f"{curve.name}: m^{curve.exponent:.2f}", curve.widths, fitted, "dashed"))
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
    text = "Short runs at widths that double, each with its own network and the paper's threshold for its width."
    gaps = [f"{curve.name} at {width:,}: {why}" for curve in found.scaling for width, why in curve.gaps.items()]
    paragraphs = [text, *([f"Not measured: {'; '.join(gaps)}."] if gaps else [])]
    return [Section("Cost by width", paragraphs, figures=[figure])]


def _active_pairs_section(found: EngineComparison) -> Section:
    X, network = found.problem.X, found.problem.network
    pairs = len(X) * network.width
    fractions = [
        (result.name, [(step.active_pairs or 0) / pairs for step in result.steps])
        for result in found.results
        if result.steps and result.steps[0].active_pairs is not None
    ]
    section = active_section(network, fractions)
    trained = found.trained_weights()
    if trained is None or not np.isfinite(trained).all():
        return section
    neurons = shown_neurons(network.width)
    after = network.part(neurons)
    after.weights[:] = trained[neurons]
    maps = fire_maps(network.part(neurons), after, X)
    return Section(section.heading, section.paragraphs, figures=[*section.figures, *maps])
