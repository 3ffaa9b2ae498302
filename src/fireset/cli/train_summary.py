"""The summary of a training run for people: how good, compared with what, what matters, what was done, what next."""

from typing import Any

from fireset._util.text import counted, duration, percent, significant

_SHOWN_COLUMNS = 6
_SHOWN_CLASSES = 5


def train_summary(facts: dict[str, Any]) -> dict[str, str]:
    """Labels and texts, in the order of reading; ``--verbose`` and ``--json`` have the rest."""
    shown: dict[str, str] = {}
    shown |= _score(facts)
    if "task_reason" in facts:
        shown["task"] = facts["task_reason"]
    if "eval_rows" in facts:
        shown["on --eval"] = _other_table(facts)
    if facts.get("importances"):
        most = [(name, share) for name, share in facts["importances"].items() if share >= 0.005]
        more = f", and {len(most) - _SHOWN_COLUMNS} more" if len(most) > _SHOWN_COLUMNS else ""
        shown["what matters"] = ", ".join(f"{name} {percent(share, 0)}" for name, share in most[:_SHOWN_COLUMNS]) + more
    shown["trained"] = _trained(facts)
    shown["settings"] = _chosen(facts)
    for key in ("report", "history", "tensorboard", "checkpoint", "model"):
        if key in facts:
            shown[key] = str(facts[key])
    for number, advice in enumerate([*facts.get("hints", []), *facts.get("advice", [])]):
        shown["advice" if not number else " " * number] = advice
    return shown


def _score(facts: dict[str, Any]) -> dict[str, str]:
    if "held_out_rows" not in facts:
        told = "not measured, because no rows were held out"
        return {"score": f"{told}; {_forecast(facts)}" if _forecast(facts) else told}
    on = f"on {counted(facts['held_out_rows'], 'row')} held out"
    scores = {key.removeprefix("held_out_"): value for key, value in facts.items() if key.startswith("held_out_")}
    if "accuracy" in scores:
        return _class_score(scores, on)
    if "pinball" in scores:
        below = ", ".join(f"{name} {percent(share)}" for name, share in scores["coverage"].items())
        return {
            "pinball loss": f"{significant(scores['pinball'])}, {on}",
            "compared with": f"{significant(scores['constant_pinball'])} of predicting the same quantiles for all rows",
            "share below": below,
        }
    return _number_score(scores, on)


def _class_score(scores: dict[str, Any], on: str) -> dict[str, str]:
    shown = {"accuracy": f"{percent(scores['accuracy'])}{_interval(scores, 'accuracy', percent)}, {on}"}
    if "majority_accuracy" in scores:
        shown["compared with"] = (
            f"{percent(scores['majority_accuracy'])} of always predicting {scores['majority_class']}, the most "
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
        more = f", and {len(missed) - _SHOWN_CLASSES} more" if len(missed) > _SHOWN_CLASSES else ""
        named = ", ".join(f"{label} ({percent(recall, 0)})" for label, recall in missed[:_SHOWN_CLASSES])
        shown["often missed"] = f"recall below one half: {named}{more}"
    return shown


def _number_score(scores: dict[str, Any], on: str) -> dict[str, str]:
    shown = {}
    if "r2" in scores:
        shown["R²"] = f"{_r2(scores['r2'])}{_interval(scores, 'r2', _r2)}, {on}; 1 is perfect"
    typical = f"RMSE {significant(scores['rmse'])}, MAE {significant(scores['mae'])}"
    shown["errors"] = typical if shown else f"{typical}, {on}"
    if "poisson_deviance" in scores:
        shown["Poisson deviance"] = significant(scores["poisson_deviance"])
    shown["compared with"] = (
        f"RMSE {significant(scores['constant_rmse'])} of always predicting the mean, "
        f"{significant(scores['constant_prediction'])}"
    )
    return shown


def _r2(value: float) -> str:
    """Three digits; of few rows it may be anything below -1, which says no more than that."""
    return "below -1" if value < -1 else f"{round(value, 3) + 0.0:.3f}"


def _interval(scores: dict[str, Any], name: str, form: Any) -> str:
    found = scores.get(f"{name}_interval")
    return f" (95 % interval {form(found[0])} to {form(found[1])})" if found else ""


def _other_table(facts: dict[str, Any]) -> str:
    forms = {"accuracy": percent, "r2": _r2}
    names = {"accuracy": "accuracy", "r2": "R²", "rmse": "RMSE", "mae": "MAE", "pinball": "pinball loss"}
    known = {key: facts[f"eval_{key}"] for key in names if f"eval_{key}" in facts}
    found = [f"{names[key]} {forms.get(key, significant)(value)}" for key, value in known.items()]
    return f"{', '.join(found) or 'no score'} on {counted(facts['eval_rows'], 'row')}"


def _trained(facts: dict[str, Any]) -> str:
    from fireset.training.solvers import solver_class

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
    return f"{size}; {how}{total}"


def _chosen(facts: dict[str, Any]) -> str:
    rounds = facts.get("column_scale_rounds", 0)
    parts = [
        f"columns weighted by what they contribute ({counted(rounds, 'round')})" if rounds else "all columns alike"
    ]
    parts += [_forecast(facts)] if _forecast(facts) else []
    return "; ".join([*parts, *facts.get("notes", [])])


def _forecast(facts: dict[str, Any]) -> str:
    """The score that leave-one-out expects."""
    if "forecast_accuracy" in facts:
        return f"leave-one-out on the training rows expects an accuracy of {percent(facts['forecast_accuracy'])}"
    if "forecast_r2" in facts:
        return f"leave-one-out on the training rows expects R² {_r2(facts['forecast_r2'])}"
    return ""
