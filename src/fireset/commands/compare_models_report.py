"""The table and the page of a comparison of models."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fireset._util.wording import duration
from fireset.commands.compare_models import ModelComparison
from fireset.commands.model_contenders import MODELS
from fireset.reporting import write_page
from fireset.reporting.figures import Figure, Section, Series, Table

_HEADINGS = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "log_loss": "log loss",
    "r2": "R²",
    "rmse": "RMSE",
}


def headings(scores: Sequence[str]) -> list[str]:
    return ["model", *(_HEADINGS[score] for score in scores), "fit", "predict", "rows"]


def cells(model: dict[str, Any], scores: Sequence[str]) -> list[str]:
    """A row of the table for people, each score with its deviation over the splits."""
    return [
        MODELS[model["name"]].label,
        *(_score(model[score], model[f"{score}_deviation"]) for score in scores),
        "" if model["fit_seconds"] is None else duration(model["fit_seconds"]),
        "" if model["predict_seconds"] is None else duration(model["predict_seconds"]),
        "" if model["rows"] is None else f"{model['rows']:,}",
    ]


def _score(value: float | None, deviation: float | None) -> str:
    if value is None:
        return ""
    if abs(value) >= 100:
        return f"{value:.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")
    return f"{value:.3f}" + ("" if deviation is None else f" ± {deviation:.3f}")


def write_model_comparison(path: Path, found: ModelComparison, settings: dict[str, Any]) -> None:
    """Write the page; with whatever there is, if the comparison was interrupted."""
    models = [model.to_dict(found.scores) for model in found.models]
    paragraphs = [found.sentence()]
    if found.interrupted:
        paragraphs.append("The comparison was interrupted; this page shows what had been measured until then.")
    paragraphs += [f"{MODELS[model['name']].label}: {model['note']}." for model in models if model["note"]]
    table = Table(headings(found.scores), [cells(model, found.scores) for model in models])
    method = Section(
        "How it was measured",
        [
            f"Each split trains on {found.train_rows:,} rows and holds out {found.test_rows:,}, the same for all "
            f"models; number of splits: {found.splits}. Scores are averages over the splits, ± their standard "
            "deviation, on the rows held out. All models have their default settings; columns are standardized where "
            "the model needs it. The compilation of fireset is not counted.",
            *(f"{note[0].upper()}{note[1:]}." for note in found.notes),
        ],
    )
    answer = Section("The answer", paragraphs, [table], _figures(found, models))
    write_page(path, f"Which model for {settings['file']}?", [answer, method], settings=settings)


def _figures(found: ModelComparison, models: list[dict[str, Any]]) -> list[Figure]:
    measured = [model for model in models if model["fit_seconds"] is not None]
    if not measured:
        return []
    score = found.scores[0]
    labels = [MODELS[model["name"]].label for model in measured]
    figures = []
    values = [model[score] for model in measured]
    if None not in values:
        said = ", ".join(f"{label} {value:.3f}" for label, value in zip(labels, values, strict=True))
        bars = Series(_HEADINGS[score], labels, values, "bars")
        figures.append(Figure("Score", "", _HEADINGS[score], [bars], f"On rows held out: {said}."))
    seconds = [model["fit_seconds"] for model in measured]
    said = ", ".join(f"{label} {duration(value)}" for label, value in zip(labels, seconds, strict=True))
    bars = Series("seconds to fit", labels, seconds, "bars")
    figures.append(Figure("Time to fit", "", "seconds to fit", [bars], f"To fit: {said}.", log_y=True))
    return figures
