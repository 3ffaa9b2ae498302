"""Scores of predictions, beside those of a constant prediction."""

from typing import Any

import numpy as np

from fireset.commands.intervals import r2_interval, wilson_interval
from fireset.training.losses import Loss, get_loss

_LOW_RECALL = 0.5  # recall below which a class counts as hardly found


def scores(
    task: str,
    answers: np.ndarray,
    predictions: np.ndarray,
    loss: str | Loss = "squared_error",
    *,
    probabilities: np.ndarray | None = None,
    classes: list | None = None,
) -> dict[str, Any]:
    """Scores of predictions: of classes as ``class_scores``, of numbers those that suit the loss.

    R² with its interval, which need answers that differ, RMSE and MAE; the mean deviance for Poisson's loss. For
    quantiles instead the mean pinball loss of all levels, and the share of answers below each.
    """
    if task == "classification":
        return class_scores(answers, predictions, probabilities, classes)
    found = get_loss(loss).metrics(answers, predictions)
    if "r2" in found and (interval := r2_interval(answers, predictions)) is not None:
        found = {"r2": found.pop("r2"), "r2_interval": list(interval), **found}
    return found


def constant_scores(answers: np.ndarray, trained_on: np.ndarray, loss: str | Loss) -> dict[str, Any]:
    """What always predicting the mean (or the quantiles) of the rows trained on scores."""
    return get_loss(loss).constant_metrics(answers, trained_on)


def class_scores(
    answers: np.ndarray,
    predictions: np.ndarray,
    probabilities: np.ndarray | None = None,
    classes: list | None = None,
) -> dict[str, Any]:
    """Accuracy with its interval, beside that of always predicting the most frequent class, and what hides behind it.

    Where classes are rare a high accuracy may hide that they are never found; those with a recall below one half are
    listed as ``low_recall_classes``, with their recall. Precision, recall and F1 are those of the second of two classes
    (``positive_class``), else means over the classes. A label of None is of a class that training did not have.
    """
    right = answers == predictions
    found: dict[str, Any] = {"accuracy": float(np.mean(right))}
    labels = [label for label in dict.fromkeys(answers.tolist()) if label is not None]
    if not labels:
        return found
    found["accuracy_interval"] = list(wilson_interval(int(right.sum()), len(right)))
    rows = {label: answers == label for label in labels}
    recalls = {label: float(np.mean(right[rows[label]])) for label in labels}
    most = max(labels, key=lambda label: int(rows[label].sum()))
    found["majority_accuracy"] = float(np.mean(rows[most]))
    found["majority_class"] = str(most)
    found["balanced_accuracy"] = float(np.mean(list(recalls.values())))
    if classes is not None:
        found |= _rates(answers, predictions, classes)
        if probabilities is not None:
            found |= _probability_scores(answers, probabilities, classes)
    missed = {str(label): recall for label, recall in recalls.items() if recall < _LOW_RECALL}
    if missed:
        found["low_recall_classes"] = dict(sorted(missed.items(), key=lambda item: item[1]))
    return found


def _rates(answers: np.ndarray, predictions: np.ndarray, classes: list) -> dict[str, Any]:
    from sklearn.metrics import precision_recall_fscore_support

    truth, said = _codes(answers, classes), _codes(predictions, classes)
    both = len(classes) == 2
    shown = [1] if both else sorted(set(truth[truth >= 0].tolist()))
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth,
        said,
        labels=shown,
        average="macro",
        zero_division=0,  # pyright: ignore[reportArgumentType] - 0 is documented
    )
    found: dict[str, Any] = {"positive_class": str(classes[1])} if both else {}
    return {**found, "precision": float(precision), "recall": float(recall), "f1": float(f1)}


def _probability_scores(answers: np.ndarray, probabilities: np.ndarray, classes: list) -> dict[str, Any]:
    """Log loss, and the area under the ROC curve; of several classes its mean over each against the rest."""
    from sklearn.metrics import log_loss, roc_auc_score

    truth = _codes(answers, classes)
    if (truth < 0).any():  # a class without a probability
        return {}
    found = {"log_loss": float(log_loss(truth, probabilities, labels=range(len(classes))))}
    areas = [
        float(roc_auc_score(truth == code, probabilities[:, code]))
        for code in ([1] if len(classes) == 2 else range(len(classes)))
        if 0 < np.sum(truth == code) < len(truth)
    ]
    return {**found, "auc": float(np.mean(areas))} if areas else found


def _codes(labels: np.ndarray, classes: list) -> np.ndarray:
    place = {label: code for code, label in enumerate(classes)}
    return np.array([place.get(label, -1) for label in labels.tolist()])
