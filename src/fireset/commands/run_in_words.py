"""The first section of a training page: what was trained on what, how good it is, and what to do next."""

import shlex
from typing import Any

import numpy as np

from fireset._util.text import counted, duration, percent, significant
from fireset.commands.held_out_report import MIN_FOR_SHAPES, HeldOut
from fireset.commands.intervals import wilson_interval
from fireset.commands.learning_curve import LearningCurve
from fireset.reporting.figures import Figure, Section, Series, Table, short_names
from fireset.tables.cells import cli_option, one_line
from fireset.tables.holdout import SplitHint
from fireset.training.solvers import solver_class

_WORTH_IT = 0.01  # of accuracy or R²: what a doubling of the rows must bring
_LEAKAGE_SHARE = 0.9  # share of one column that is suspicious beside a score of
_TOO_GOOD = 0.99
_SHORTFALL = 0.02  # of the outcome behind the forecast, beyond chance
_NAMED = 3


def run_in_words(facts: dict[str, Any], held: HeldOut | None, curve: LearningCurve | None) -> Section:
    """Of the facts that the command shows, the rows held out and the learning curve."""
    return Section(
        "Summary",
        [_how_good(facts, held), _what_matters(facts), _what(facts), "What to do next:"],
        [_score_table(held)] if held is not None else [],
        points=[*facts.get("hints", []), *next_steps(facts, held, curve)],
        figures=_forecast_and_score(facts),
    )


def _what(facts: dict[str, Any]) -> str:
    kind = "the number" if facts["task"] == "regression" else "the class"
    solver = solver_class(facts["solver"])
    how = f"{counted(facts['iterations'], solver.iteration_label)} of {solver.label or facts['solver']}"
    return (
        f"A network of {facts['width']:,} neurons was trained on {counted(facts['rows'], 'row')} of {facts['file']} to "
        f"predict {kind} {facts['target']} from {counted(facts['columns'], 'column')}, by {how} in "
        f"{duration(facts['training_seconds'])}."
    )


def _how_good(facts: dict[str, Any], held: HeldOut | None) -> str:
    forecast = ""
    for score, name in (("accuracy", "an accuracy"), ("r2", "an R²")):
        if (value := facts.get(f"forecast_{score}")) is not None:
            shown = percent(value) if score == "accuracy" else f"{value:.3f}"
            forecast = f" Before training, leave-one-out had forecast {name} of {shown}."
    if held is None:
        return "How good it is was not measured, because no rows were held out." + forecast
    rows = len(held.answers)
    kept_back = f"{counted(rows, 'row')} held out"
    if held.names is not None:
        right = int(np.sum(held.answers == held.predictions))
        low, high = wilson_interval(right, rows)
        often = facts.get("held_out_majority_accuracy", 0.0)
        beside = "better than" if low > often else "not clearly better than" if high > often else "worse than"
        return (
            f"It is right for {right:,} of {kept_back}, {percent(right / rows)} (between {percent(low)} and "
            f"{percent(high)} with 95 % confidence). That is {beside} always predicting the most frequent class, which "
            f"is right for {percent(often)}.{forecast}"
        )
    error = _root_mean_square(held.answers - held.predictions)
    plain = _root_mean_square(held.answers - held.mean)
    explained = f"; R² is {facts['held_out_r2']:.3f}" if "held_out_r2" in facts else ""
    beside = f"{percent(1 - error / plain, 0)} less than" if error < plain else "no less than"
    return (
        f"On {kept_back} its error (RMSE) is {significant(error)}, {beside} the {significant(plain)} of always "
        f"predicting {significant(held.mean)}, the mean of the rows trained on{explained}.{forecast}"
    )


def _what_matters(facts: dict[str, Any]) -> str:
    most = list(facts["importances"].items())[:_NAMED]
    if not most:
        return "No column matters."
    return f"What matters most: {', '.join(f'{name} ({percent(share, 0)})' for name, share in most)}."


def _score_table(held: HeldOut) -> Table:
    """The scores on the rows held out, with their intervals and what a constant prediction scores."""
    found = held.scores
    rows = []
    for key, label, baseline in _SCORES:
        if key in found:
            form = percent if key in ("accuracy", "balanced_accuracy", "precision", "recall", "f1") else significant
            span = found.get(f"{key}_interval")
            shown = "" if span is None else f"{form(span[0])} to {form(span[1])}"
            if key in ("precision", "recall", "f1"):
                of = f"class {found['positive_class']}" if "positive_class" in found else "average over classes"
                label = f"{label}, {of}"
            constant = found[baseline] if isinstance(baseline, str) and baseline in found else baseline
            rows.append([label, form(found[key]), shown, "" if not isinstance(constant, float) else form(constant)])
    return Table(["score", "value", "95 % interval", "constant prediction"], rows)


_SCORES: tuple[tuple[str, str, str | float | None], ...] = (
    ("accuracy", "accuracy", "majority_accuracy"),
    ("auc", "AUC", 0.5),
    ("log_loss", "log loss", None),
    ("balanced_accuracy", "balanced accuracy", None),
    ("precision", "precision", None),
    ("recall", "recall", None),
    ("f1", "F1", None),
    ("r2", "R²", 0.0),
    ("rmse", "RMSE", "constant_rmse"),
    ("mae", "MAE", None),
    ("poisson_deviance", "Poisson deviance", None),
    ("pinball", "pinball loss", "constant_pinball"),
)


def _root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def split_advice(hint: SplitHint) -> str:
    """Why a random split may flatter, and the option that avoids it."""
    why = {
        "groups": "rows of one of them may be trained on and held out, and the score too high",
        "time": "predicting later rows from earlier ones may be harder than the score says",
    }[hint.kind]
    option = cli_option("--holdout-by", hint.column)
    return f"The column {one_line(hint.column)} {hint.reason}: {why}. Check it with {option}."


def next_steps(facts: dict[str, Any], held: HeldOut | None, curve: LearningCurve | None) -> list[str]:
    """What to do about the result, the most urgent first; the last is the command that predicts."""
    steps = [*_of_training(facts), *_of_score(facts, held)]
    if curve is not None and curve.rows[-1] == facts["rows"]:  # else it ends far below the rows that there are
        was, now = curve.scores[-2:]
        gain = now - was
        told = f"from {curve.rows[-2]:,} to {curve.rows[-1]:,} rows the forecast went from {was:.3f} to {now:.3f}."
        if gain > max(_WORTH_IT, curve.chance):
            steps.append(f"Collect more rows, they are likely to help: {told}")
        elif gain < _WORTH_IT:
            steps.append(f"More rows of the same kind would hardly help: {told}")
    name, share = next(iter(facts["importances"].items()), ("", 0.0))
    score = facts.get("held_out_accuracy", facts.get("held_out_r2", 0.0))
    if share > _LEAKAGE_SHARE and score > _TOO_GOOD and len(facts["importances"]) > 1:
        steps.append(
            f"The column {name} determines nearly all of the prediction. If it is not known where predictions are "
            "needed, leave it out with --drop."
        )
    steps.append(f"Predict new rows: fireset predict {shlex.quote(facts['model'])} new.csv")
    return steps


def _of_training(facts: dict[str, Any]) -> list[str]:
    """Where training itself has fallen short."""
    why = {
        "max_iter": "Training used all its iterations: if the loss still falls at the end, allow more with --max-iter.",
        "stalled": "No step decreased the loss, and it is not known to be at its minimum: try --solver gradient.",
        "interrupted": "Training was interrupted. Train to the end before you judge it.",
        "diverged": "The loss grew without bound: give a smaller --learning-rate, or auto.",
    }
    step = why.get(facts["stop_reason"])
    if facts["iterations"] == 0:
        step = "Training left the network unchanged. Check whether the columns predict the target."
    return [step] if step else []


def _of_score(facts: dict[str, Any], held: HeldOut | None) -> list[str]:
    """What the rows held out say."""
    if held is None:
        return ["Measure it: train again without --holdout 0, which holds out a fifth of the rows for the score."]
    rows = len(held.answers)
    if rows < MIN_FOR_SHAPES:
        few = f"{counted(rows, 'held-out row')} cannot tell how good it is"
        return [f"{few}: collect more rows, or give a larger --holdout."]
    steps = []
    if held.names is None:
        poor = facts.get("held_out_r2", 1.0) <= 0
        squares = (held.answers - held.predictions) ** 2
        chance = 2 * squares.std() / (np.sqrt(rows) * max(held.answers.var(), 1e-300))
        short = facts.get("forecast_r2", 0.0) - facts.get("held_out_r2", 1.0) > chance + _SHORTFALL
    else:
        right = int(np.sum(held.answers == held.predictions))
        low, high = wilson_interval(right, rows)
        poor = low <= facts.get("held_out_majority_accuracy", 0.0)
        short = facts.get("forecast_accuracy", 0.0) - high > _SHORTFALL
    if poor:
        steps.append("The columns explain little of the target: look for others that explain more.")
    elif short:
        steps.append(
            "The score is below the forecast: look for rows that depend on each other, or score on more rows with a "
            "larger --holdout."
        )
    missed = list(facts.get("held_out_low_recall_classes", {}))
    if missed and held.names is not None and len(missed) <= len(held.names) / 2:  # else it is not that they are rare
        more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
        remedy = "Collect more of their rows" if facts["settings"].get("class_weight") else "Train with --balance"
        steps.append(f"{remedy}: recall is below one half for {', '.join(short_names(missed[:_NAMED]))}{more}.")
    return steps


def _forecast_and_score(facts: dict[str, Any]) -> list[Figure]:
    """The score that leave-one-out had promised beside that on rows held out."""
    for score, name in (("accuracy", "accuracy"), ("r2", "R²")):
        found = {
            "forecast": facts.get(f"forecast_{score}"),
            "on rows held out": facts.get(f"held_out_{score}"),
            "most frequent class": facts.get(f"held_out_majority_{score}"),
        }
        shown = {label: value for label, value in found.items() if isinstance(value, float)}
        if len(shown) > 1:
            form = percent if score == "accuracy" else "{:.3f}".format
            said = ", ".join(f"{label} {form(value)}" for label, value in shown.items())
            bars = Series(name, list(shown), list(shown.values()), "bars")
            return [Figure("Forecast and score", "", name, [bars], f"The {name}: {said}.")]
    return []
