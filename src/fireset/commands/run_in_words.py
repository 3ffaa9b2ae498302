"""The first section of a training page: what was trained on what, how good it is, and what to do next."""

import shlex
from typing import Any

import numpy as np

from fireset.commands.held_out_report import FEWEST_FOR_SHAPES, HeldOut, interval
from fireset.commands.learning_curve import LearningCurve
from fireset.reporting.figures import Figure, Section, Series, short_names

_WORTH_IT = 0.01  # of accuracy or R²: what a doubling of the rows must bring
_TELLS_ALL = 0.9  # share of one column that is suspicious beside a score of
_TOO_GOOD = 0.99
_SHORTFALL = 0.02  # of the outcome behind the forecast, beyond chance
_NAMED = 3


def run_in_words(facts: dict[str, Any], held: HeldOut | None, curve: LearningCurve | None) -> Section:
    """Of the facts that the command shows, the rows held out and the learning curve."""
    return Section(
        "In short",
        [_what(facts), _how_good(facts, held), "What to do next:"],
        points=_next_steps(facts, held, curve),
        figures=_promised_and_kept(facts),
    )


def _what(facts: dict[str, Any]) -> str:
    kind = "the number" if facts["task"] == "regression" else "the class"
    rounds = facts["iterations"]
    step = "round" if facts["solver"] == "gauss-newton" else "iteration"
    how = f"{rounds:,} {step}{'' if rounds == 1 else 's'} of {_SOLVERS.get(facts['solver'], facts['solver'])}"
    return (
        f"A network of {facts['width']:,} neurons was trained on {facts['rows']:,} rows of {facts['file']} to predict "
        f"{kind} {facts['target']} from {facts['columns']:,} columns, by {how} in {facts['training_seconds']:.2f} s."
    )


_SOLVERS = {"gauss-newton": "Gauss–Newton", "gradient": "gradient descent"}


def _how_good(facts: dict[str, Any], held: HeldOut | None) -> str:
    forecast = ""
    for score, name in (("accuracy", "an accuracy"), ("r2", "an R²")):
        if (value := facts.get(f"forecast_{score}")) is not None:
            forecast = f" Before training, leave-one-out had forecast {name} of {value:.3f}."
    if held is None:
        return "How good it is was not measured, because no rows were held out." + forecast
    rows = len(held.answers)
    kept_back = f"{rows:,} row{'' if rows == 1 else 's'} held out"
    if held.names is not None:
        right = int(np.sum(held.answers == held.predictions))
        low, high = interval(right, rows)
        often = facts.get("held_out_majority_accuracy", 0.0)
        beside = "better than" if low > often else "not clearly better than" if high > often else "worse than"
        return (
            f"It is right for {right:,} of {kept_back}, {right / rows:.1%} (between {low:.1%} and {high:.1%} with 95 % "
            f"confidence). That is {beside} always saying the most frequent class, which is right for {often:.1%}."
            f"{forecast}"
        )
    error = _root_mean_square(held.answers - held.predictions)
    plain = _root_mean_square(held.answers - held.mean)
    explained = f"; R² is {facts['held_out_r2']:.3f}" if "held_out_r2" in facts else ""
    beside = f"{1 - error / plain:.0%} less than" if error < plain else "no less than"
    return (
        f"On {kept_back} its error (RMSE) is {error:.4g}, {beside} the {plain:.4g} of always saying {held.mean:.4g}, "
        f"the mean of the rows trained on{explained}.{forecast}"
    )


def _root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _next_steps(facts: dict[str, Any], held: HeldOut | None, curve: LearningCurve | None) -> list[str]:
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
    if share > _TELLS_ALL and score > _TOO_GOOD and len(facts["importances"]) > 1:
        steps.append(
            f"The column {name} tells nearly all. If it is not known where predictions are needed, leave it out with "
            "--drop."
        )
    steps.append(f"Predict new rows: fireset predict {shlex.quote(facts['model'])} new.csv")
    return steps


def _of_training(facts: dict[str, Any]) -> list[str]:
    """Where training itself has fallen short."""
    why = {
        "max_iter": "Training used all its iterations: if the loss still falls at the end, allow more with --max-iter.",
        "interrupted": "Training was interrupted. Train to the end before you judge it.",
        "diverged": "The loss grew without bound: give a smaller --learning-rate, or auto.",
    }
    step = why.get(facts["stop_reason"])
    if facts["iterations"] == 0:
        step = "Training has left the network as it was drawn: give it more neurons with --width, or --solver gradient."
    return [step] if step else []


def _of_score(facts: dict[str, Any], held: HeldOut | None) -> list[str]:
    """What the rows held out say."""
    if held is None:
        return ["Measure it: train again without --holdout 0, and a fifth of the rows is kept back for the score."]
    rows = len(held.answers)
    if rows < FEWEST_FOR_SHAPES:
        return [f"Hold out more rows: {rows} cannot tell how good it is; give a larger --holdout."]
    steps = []
    if held.names is None:
        poor = facts.get("held_out_r2", 1.0) <= 0
        squares = (held.answers - held.predictions) ** 2
        chance = 2 * squares.std() / (np.sqrt(rows) * max(held.answers.var(), 1e-300))
        short = facts.get("forecast_r2", 0.0) - facts.get("held_out_r2", 1.0) > chance + _SHORTFALL
    else:
        right = int(np.sum(held.answers == held.predictions))
        low, high = interval(right, rows)
        poor = low <= facts.get("held_out_majority_accuracy", 0.0)
        short = facts.get("forecast_accuracy", 0.0) - high > _SHORTFALL
    if poor:
        steps.append("Look at the columns: as they are they say little about the target. Others may say more.")
    elif short:
        steps.append(
            "The outcome is behind the forecast: look for rows that depend on each other, or score on more rows with a "
            "larger --holdout."
        )
    missed = list(facts.get("held_out_hardly_found", {}))
    if missed and held.names is not None and len(missed) < len(held.names) / 2:  # else it is not that they are rare
        more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
        remedy = "Collect more of their rows" if facts["settings"].get("class_weight") else "Train with --balance"
        steps.append(f"{remedy}: found less than half the time are {', '.join(short_names(missed[:_NAMED]))}{more}.")
    return steps


def _promised_and_kept(facts: dict[str, Any]) -> list[Figure]:
    """The score that leave-one-out had promised beside that on rows held out."""
    for score, name in (("accuracy", "accuracy"), ("r2", "R²")):
        found = {
            "forecast": facts.get(f"forecast_{score}"),
            "on rows held out": facts.get(f"held_out_{score}"),
            "most frequent class": facts.get(f"held_out_majority_{score}"),
        }
        shown = {label: value for label, value in found.items() if isinstance(value, float)}
        if len(shown) > 1:
            said = ", ".join(f"{label} {value:.3f}" for label, value in shown.items())
            bars = Series(name, list(shown), list(shown.values()), "bars")
            return [Figure("Forecast and outcome", "", name, [bars], f"The {name}: {said}.")]
    return []
