"""The summary of a training run, for the terminal and as the first section of its report, and advice."""

import shlex
from collections.abc import Callable
from typing import Any

import numpy as np

from fireset._util.text import counted, duration, percent, significant
from fireset.commands.held_out import MIN_ROWS_FOR_CURVES, HeldOut
from fireset.commands.run_report import LearningCurve
from fireset.commands.scores import wilson_interval
from fireset.reporting.figures import Figure, Section, Series, Table, short_names
from fireset.tables.cells import cli_option, one_line
from fireset.tables.holdout import SplitHint
from fireset.training.solvers import solver_class

_MIN_USEFUL_GAIN = 0.01  # of accuracy or R² by a doubling of the rows
_LEAKAGE_IMPORTANCE, _LEAKAGE_SCORE = 0.9, 0.99  # above both, a single column may give the target away
_MAX_SHORTFALL = 0.02  # of the score below the forecast, beyond chance
_MAX_NAMED = 3  # columns or classes in a sentence
_MAX_LISTED_COLUMNS = 6
_MAX_LISTED_CLASSES = 5
_MIN_LISTED_IMPORTANCE = 0.005


# The terminal


def train_summary(facts: dict[str, Any]) -> dict[str, str]:
    """Return labels and texts in the order of reading; ``--verbose`` and ``--json`` show all facts."""
    shown = _score_lines(facts)
    if "task_reason" in facts:
        shown["task"] = facts["task_reason"]
    if "eval_rows" in facts:
        shown["on --eval"] = _eval_line(facts)
    if facts.get("importances"):
        most = [(name, share) for name, share in facts["importances"].items() if share >= _MIN_LISTED_IMPORTANCE]
        more = f", and {len(most) - _MAX_LISTED_COLUMNS} more" if len(most) > _MAX_LISTED_COLUMNS else ""
        listed = ", ".join(f"{name} {percent(share, 0)}" for name, share in most[:_MAX_LISTED_COLUMNS])
        shown["what matters"] = listed + more
    shown["trained"] = _training_line(facts)
    shown["settings"] = _settings_line(facts)
    for key in ("report", "history", "tensorboard", "checkpoint", "model"):
        if key in facts:
            shown[key] = str(facts[key])
    for number, advice in enumerate([*facts.get("hints", []), *facts.get("advice", [])]):
        shown["advice" if not number else " " * number] = advice
    return shown


def _score_lines(facts: dict[str, Any]) -> dict[str, str]:
    if "held_out_rows" not in facts:
        text = "not measured, because no rows were held out"
        return {"score": f"{text}; {_forecast(facts)}" if _forecast(facts) else text}
    on = f"on {counted(facts['held_out_rows'], 'row')} held out"
    scores = {key.removeprefix("held_out_"): value for key, value in facts.items() if key.startswith("held_out_")}
    if "accuracy" in scores:
        return _class_score_lines(scores, on)
    if "pinball" in scores:
        below = ", ".join(f"{name} {percent(share)}" for name, share in scores["coverage"].items())
        return {
            "pinball loss": f"{significant(scores['pinball'])}, {on}",
            "compared with": f"{significant(scores['constant_pinball'])} of predicting the same quantiles for all rows",
            "share below": below,
        }
    return _regression_score_lines(scores, on)


def _class_score_lines(scores: dict[str, Any], on: str) -> dict[str, str]:
    shown = {"accuracy": f"{percent(scores['accuracy'])}{_interval(scores, 'accuracy', percent)}, {on}"}
    if "majority_accuracy" in scores:
        shown["compared with"] = (
            f"{percent(scores['majority_accuracy'])} by always predicting {scores['majority_class']}, the most "
            "frequent class"
        )
    if "auc" in scores:
        shown["AUC"] = f"{scores['auc']:.3f}; 1 is perfect, 0.5 is chance"
    if "log_loss" in scores:
        shown["log loss"] = f"{significant(scores['log_loss'])} of the probabilities; 0 is perfect"
    if "precision" in scores:
        what = f"class {scores['positive_class']}" if "positive_class" in scores else "average over classes"
        shown[what] = (
            f"precision {percent(scores['precision'])}, recall {percent(scores['recall'])}, F1 {percent(scores['f1'])}"
        )
    if "low_recall_classes" in scores:
        missed = list(scores["low_recall_classes"].items())
        more = f", and {len(missed) - _MAX_LISTED_CLASSES} more" if len(missed) > _MAX_LISTED_CLASSES else ""
        named = ", ".join(f"{label} ({percent(recall, 0)})" for label, recall in missed[:_MAX_LISTED_CLASSES])
        shown["often missed"] = f"recall below one half: {named}{more}"
    return shown


def _regression_score_lines(scores: dict[str, Any], on: str) -> dict[str, str]:
    shown = {}
    if "r2" in scores:
        shown["R²"] = f"{_r2(scores['r2'])}{_interval(scores, 'r2', _r2)}, {on}; 1 is perfect"
    errors = f"RMSE {significant(scores['rmse'])}, MAE {significant(scores['mae'])}"
    shown["errors"] = errors if shown else f"{errors}, {on}"
    if "poisson_deviance" in scores:
        shown["Poisson deviance"] = significant(scores["poisson_deviance"])
    shown["compared with"] = (
        f"RMSE {significant(scores['constant_rmse'])} by always predicting the mean, "
        f"{significant(scores['constant_prediction'])}"
    )
    return shown


def _r2(value: float) -> str:
    """Return R² with three digits. On few rows it can be any negative number, whose size means nothing."""
    return "below -1" if value < -1 else f"{round(value, 3) + 0.0:.3f}"


def _interval(scores: dict[str, Any], name: str, form: Callable[[float], str]) -> str:
    found = scores.get(f"{name}_interval")
    return f" (95 % interval {form(found[0])} to {form(found[1])})" if found else ""


def _eval_line(facts: dict[str, Any]) -> str:
    forms = {"accuracy": percent, "r2": _r2}
    names = {"accuracy": "accuracy", "r2": "R²", "rmse": "RMSE", "mae": "MAE", "pinball": "pinball loss"}
    known = {key: facts[f"eval_{key}"] for key in names if f"eval_{key}" in facts}
    found = [f"{names[key]} {forms.get(key, significant)(value)}" for key, value in known.items()]
    return f"{', '.join(found) or 'no score'} on {counted(facts['eval_rows'], 'row')}"


def _training_line(facts: dict[str, Any]) -> str:
    done = counted(facts["iterations"], solver_class(facts.get("solver", "")).iteration_label)
    how = {
        "tol": f"converged after {done}",
        "max_iter": f"stopped after {done}, the most that --max-iter allows",
        "patience": f"stopped after {done}, when the validation rows no longer improved",
        "time_limit": f"stopped by --time after {done}, with the best network so far",
        "callback": f"stopped by a callback after {done}, with the best network so far",
        "interrupted": f"interrupted after {done}, with the best network so far",
        "terminated": f"ended by SIGTERM after {done}; --resume continues from the checkpoint",
        "diverged": f"the loss grew without bound after {done}; give a smaller --learning-rate, or auto",
    }.get(facts["stop_reason"], f"{facts['stop_reason']} after {done}")
    table = f"{counted(facts['rows'], 'row')} of {counted(facts['columns'], 'column')}"
    size = f"{counted(facts['width'], 'neuron')} on {table}"
    total = f"; {duration(facts['total_seconds'])} in all" if "total_seconds" in facts else ""
    memory = f", {facts['peak_memory_bytes'] / 1e9:.1f} GB of memory" if "peak_memory_bytes" in facts else ""
    return f"{size}; {how}{total}{memory}"


def _settings_line(facts: dict[str, Any]) -> str:
    metric = facts.get("metric", "none")
    rounds = counted(facts.get("metric_rounds", 0), "round")
    parts = ["all columns alike" if metric == "none" else f"{metric} metric learned from gradients ({rounds})"]
    pieces = facts.get("columns_with_pieces", 0)
    parts += [f"{counted(pieces, 'column')} cut into pieces"] if pieces else []
    parts += [_forecast(facts)] if _forecast(facts) else []
    return "; ".join([*parts, *facts.get("notes", [])])


def _forecast(facts: dict[str, Any]) -> str:
    """Return the score that cross-fitting expects, "" if unknown."""
    if "forecast_accuracy" in facts:
        return f"cross-fitting on the training rows expects an accuracy of {percent(facts['forecast_accuracy'])}"
    if "forecast_r2" in facts:
        return f"cross-fitting on the training rows expects R² {_r2(facts['forecast_r2'])}"
    return ""


# The report


def summary_section(facts: dict[str, Any], held: HeldOut | None, curve: LearningCurve | None) -> Section:
    """Return the first section of a report: score, columns, training, advice."""
    return Section(
        "Summary",
        [_score_text(facts, held), _importance_text(facts), _training_text(facts), "What to do next:"],
        [_score_table(held)] if held is not None else [],
        points=[*facts.get("hints", []), *next_steps(facts, held, curve)],
        figures=_forecast_figures(facts),
    )


def _training_text(facts: dict[str, Any]) -> str:
    kind = "the number" if facts["task"] == "regression" else "the class"
    solver = solver_class(facts["solver"])
    how = f"{counted(facts['iterations'], solver.iteration_label)} of {solver.label or facts['solver']}"
    return (
        f"A network of {facts['width']:,} neurons was trained on {counted(facts['rows'], 'row')} of {facts['file']} to "
        f"predict {kind} {facts['target']} from {counted(facts['columns'], 'column')}, by {how} in "
        f"{duration(facts['training_seconds'])}."
    )


def _score_text(facts: dict[str, Any], held: HeldOut | None) -> str:
    forecast = ""
    for score, name in (("accuracy", "an accuracy"), ("r2", "an R²")):
        if (value := facts.get(f"forecast_{score}")) is not None:
            shown = percent(value) if score == "accuracy" else f"{value:.3f}"
            forecast = f" The forecast before training was {name} of {shown}."
    if held is None:
        return "How good it is was not measured, because no rows were held out." + forecast
    rows = len(held.y_true)
    held_out = f"{counted(rows, 'row')} held out"
    if held.class_names is not None:
        correct = int(np.sum(held.y_true == held.y_pred))
        low, high = wilson_interval(correct, rows)
        majority = facts.get("held_out_majority_accuracy", 0.0)
        compared = "better than" if low > majority else "not clearly better than" if high > majority else "worse than"
        return (
            f"It is right for {correct:,} of {held_out}, {percent(correct / rows)} (between {percent(low)} and "
            f"{percent(high)} with 95 % confidence). That is {compared} always predicting the most frequent class, "
            f"which is right for {percent(majority)}.{forecast}"
        )
    error = _root_mean_square(held.y_true - held.y_pred)
    constant = _root_mean_square(held.y_true - held.train_mean)
    explained = f"; R² is {facts['held_out_r2']:.3f}" if "held_out_r2" in facts else ""
    compared = f"{percent(1 - error / constant, 0)} less than" if error < constant else "no less than"
    return (
        f"On {held_out} its error (RMSE) is {significant(error)}, {compared} the {significant(constant)} of always "
        f"predicting {significant(held.train_mean)}, the mean of the rows trained on{explained}.{forecast}"
    )


def _importance_text(facts: dict[str, Any]) -> str:
    most = list(facts["importances"].items())[:_MAX_NAMED]
    if not most:
        return "No column matters."
    return f"What matters most: {', '.join(f'{name} ({percent(share, 0)})' for name, share in most)}."


# Key, label, and the score of a constant prediction: a key, a number, or None if there is none
_TABLE_SCORES: tuple[tuple[str, str, str | float | None], ...] = (
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
_CLASS_RATES = ("precision", "recall", "f1")


def _score_table(held: HeldOut) -> Table:
    """Return the scores on the rows held out, their intervals and the scores of a constant prediction."""
    found = held.scores
    rows = []
    for key, label, baseline in _TABLE_SCORES:
        if key in found:
            form = percent if key in ("accuracy", "balanced_accuracy", *_CLASS_RATES) else significant
            span = found.get(f"{key}_interval")
            interval = "" if span is None else f"{form(span[0])} to {form(span[1])}"
            if key in _CLASS_RATES:
                of = f"class {found['positive_class']}" if "positive_class" in found else "average over classes"
                label = f"{label}, {of}"
            constant = found[baseline] if isinstance(baseline, str) and baseline in found else baseline
            rows.append([label, form(found[key]), interval, "" if not isinstance(constant, float) else form(constant)])
    return Table(["score", "value", "95 % interval", "constant prediction"], rows)


def _root_mean_square(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


def _forecast_figures(facts: dict[str, Any]) -> list[Figure]:
    """Return a figure of the forecast score and the score on the rows held out."""
    for score, name in (("accuracy", "accuracy"), ("r2", "R²")):
        found = {
            "forecast": facts.get(f"forecast_{score}"),
            "on rows held out": facts.get(f"held_out_{score}"),
            "most frequent class": facts.get(f"held_out_majority_{score}"),
        }
        shown = {label: value for label, value in found.items() if isinstance(value, float)}
        if len(shown) > 1:
            form = percent if score == "accuracy" else "{:.3f}".format
            listed = ", ".join(f"{label} {form(value)}" for label, value in shown.items())
            bars = Series(name, list(shown), list(shown.values()), "bars")
            return [Figure("Forecast and score", "", name, [bars], f"The {name}: {listed}.")]
    return []


# Advice


def split_advice(hint: SplitHint) -> str:
    """Say why the score of a random split may be too high, and name the option that avoids it."""
    why = {
        "groups": "rows of one of them may be trained on and held out, and the score too high",
        "time": "predicting later rows from earlier ones may be harder than the score says",
    }[hint.kind]
    option = cli_option("--holdout-by", hint.column)
    return f"The column {one_line(hint.column)} {hint.reason}: {why}. Check it with {option}."


def next_steps(facts: dict[str, Any], held: HeldOut | None, curve: LearningCurve | None) -> list[str]:
    """Return advice, the most urgent first; the last item is the command that predicts."""
    steps = [*_training_advice(facts), *_score_advice(facts, held)]
    if curve is not None and curve.rows[-1] == facts["rows"]:  # otherwise it covers only some of the rows
        before, now = curve.scores[-2:]
        change = f"from {curve.rows[-2]:,} to {curve.rows[-1]:,} rows the forecast went from {before:.3f} to {now:.3f}."
        if curve.last_gain > max(_MIN_USEFUL_GAIN, curve.standard_error):
            steps.append(f"Collect more rows, they are likely to help: {change}")
        elif curve.last_gain < _MIN_USEFUL_GAIN:
            steps.append(f"More rows of the same kind would hardly help: {change}")
    name, share = next(iter(facts["importances"].items()), ("", 0.0))
    score = facts.get("held_out_accuracy", facts.get("held_out_r2", 0.0))
    if share > _LEAKAGE_IMPORTANCE and score > _LEAKAGE_SCORE and len(facts["importances"]) > 1:
        steps.append(
            f"The column {name} determines nearly all of the prediction. If it is not known where predictions are "
            "needed, leave it out with --drop."
        )
    steps.append(f"Predict new rows: fireset predict {shlex.quote(facts['model'])} new.csv")
    return steps


def _training_advice(facts: dict[str, Any]) -> list[str]:
    """Return advice on a run that did not converge."""
    if facts["iterations"] == 0:
        return ["Training left the network unchanged. Check whether the columns predict the target."]
    advice = {
        "max_iter": "Training used all its iterations: if the loss still falls at the end, allow more with --max-iter.",
        "stalled": "No step decreased the loss, and it is not known to be at its minimum: try --solver gradient.",
        "interrupted": "Training was interrupted. Train to the end before you judge it.",
        "diverged": "The loss grew without bound: give a smaller --learning-rate, or auto.",
    }.get(facts["stop_reason"])
    return [advice] if advice else []


def _score_advice(facts: dict[str, Any], held: HeldOut | None) -> list[str]:
    """Return advice on a score that is missing, poor, or below its forecast, and on classes that are missed."""
    if held is None:
        return ["Measure it: train again without --holdout 0, which holds out a fifth of the rows for the score."]
    rows = len(held.y_true)
    if rows < MIN_ROWS_FOR_CURVES:
        few = f"A score of {counted(rows, 'held-out row')} is uncertain"
        return [f"{few}: collect more rows, or give a larger --holdout."]
    steps = []
    if held.class_names is None:
        poor = facts.get("held_out_r2", 1.0) <= 0
        squares = (held.y_true - held.y_pred) ** 2
        chance = 2 * squares.std() / (np.sqrt(rows) * max(held.y_true.var(), 1e-300))
        short = facts.get("forecast_r2", 0.0) - facts.get("held_out_r2", 1.0) > chance + _MAX_SHORTFALL
    else:
        low, high = wilson_interval(int(np.sum(held.y_true == held.y_pred)), rows)
        poor = low <= facts.get("held_out_majority_accuracy", 0.0)
        short = facts.get("forecast_accuracy", 0.0) - high > _MAX_SHORTFALL
    if poor:
        steps.append("The columns explain little of the target: look for others that explain more.")
    elif short:
        steps.append(
            "The score is below the forecast: look for rows that depend on each other, or score on more rows with a "
            "larger --holdout."
        )
    missed = list(facts.get("held_out_low_recall_classes", {}))
    # If most classes are missed, rare classes are not the problem.
    if missed and held.class_names is not None and len(missed) <= len(held.class_names) / 2:
        more = f" and {len(missed) - _MAX_NAMED} more" if len(missed) > _MAX_NAMED else ""
        remedy = "Collect more of their rows" if facts["settings"].get("class_weight") else "Train with --balance"
        steps.append(f"{remedy}: recall is below one half for {', '.join(short_names(missed[:_MAX_NAMED]))}{more}.")
    return steps
