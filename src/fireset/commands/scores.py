"""Scores of predictions with confidence intervals, and scores of constant predictions."""

from math import sqrt
from typing import Any

import numpy as np

from fireset.training.losses import Loss, get_loss

_LOW_RECALL = 0.5  # classes with a smaller recall are listed
_RESAMPLES = 1000
_MAX_BLOCKS = 1000


def scores(
    task: str,
    y_true: np.ndarray,
    y_pred: np.ndarray,
    loss: str | Loss = "squared_error",
    *,
    probabilities: np.ndarray | None = None,
    classes: list | None = None,
) -> dict[str, Any]:
    """Return the scores of predictions by name.

    For classification those of ``class_scores``; for regression ``Loss.metrics``, with an interval of R².
    """
    if task == "classification":
        return class_scores(y_true, y_pred, probabilities, classes)
    found = get_loss(loss).metrics(y_true, y_pred)
    if "r2" in found and (interval := r2_interval(y_true, y_pred)) is not None:
        found = {"r2": found.pop("r2"), "r2_interval": list(interval), **found}
    return found


def class_scores(
    y_true: np.ndarray,
    y_pred: np.ndarray,
    probabilities: np.ndarray | None = None,
    classes: list | None = None,
) -> dict[str, Any]:
    """Return accuracy with its interval, the accuracy of the most frequent class, balanced accuracy and more.

    With ``classes``, precision, recall and F1 of the second of two classes (``positive_class``), or their averages over
    the classes; with ``probabilities`` (n, classes), log loss and AUC. Classes with a recall below one half are listed
    as ``low_recall_classes``. A true label of None denotes a class that is not among the training rows.
    """
    from sklearn.metrics import recall_score

    correct = y_true == y_pred
    found: dict[str, Any] = {"accuracy": float(np.mean(correct))}
    labels = [label for label in dict.fromkeys(y_true.tolist()) if label is not None]
    if not labels:
        return found
    true, predicted = _codes(y_true, labels), _codes(y_pred, labels)
    counts = np.bincount(true[true >= 0], minlength=len(labels))
    recalls: Any = recall_score(true, predicted, labels=range(len(labels)), average=None)  # pyright: ignore[reportArgumentType] - None is documented
    most = int(counts.argmax())
    found["accuracy_interval"] = list(wilson_interval(int(correct.sum()), len(correct)))
    found["majority_accuracy"] = float(counts[most] / len(correct))
    found["majority_class"] = str(labels[most])
    found["balanced_accuracy"] = float(np.mean(recalls))
    if classes is not None:
        found |= _precision_recall_f1(y_true, y_pred, classes)
        if probabilities is not None:
            found |= _probability_scores(y_true, probabilities, classes)
    low = {str(label): float(recall) for label, recall in zip(labels, recalls, strict=True) if recall < _LOW_RECALL}
    if low:
        found["low_recall_classes"] = dict(sorted(low.items(), key=lambda item: item[1]))
    return found


def _precision_recall_f1(y_true: np.ndarray, y_pred: np.ndarray, classes: list) -> dict[str, Any]:
    from sklearn.metrics import precision_recall_fscore_support

    true, predicted = _codes(y_true, classes), _codes(y_pred, classes)
    binary = len(classes) == 2
    if binary and not (true == 1).any() and not (predicted == 1).any():
        return {}  # 0/0: the second class is neither present nor predicted
    precision, recall, f1, _ = precision_recall_fscore_support(
        true,
        predicted,
        labels=[1] if binary else sorted(set(true[true >= 0].tolist())),
        average="macro",
        zero_division=0,  # pyright: ignore[reportArgumentType] - 0 is documented
    )
    found: dict[str, Any] = {"positive_class": str(classes[1])} if binary else {}
    return {**found, "precision": float(precision), "recall": float(recall), "f1": float(f1)}


def _probability_scores(y_true: np.ndarray, probabilities: np.ndarray, classes: list) -> dict[str, Any]:
    """Return log loss and AUC; with several classes the average AUC of each class against all others."""
    from sklearn.metrics import log_loss, roc_auc_score

    true = _codes(y_true, classes)
    if (true < 0).any():  # a class without a probability
        return {}
    found = {"log_loss": float(log_loss(true, probabilities, labels=range(len(classes))))}
    areas = [
        float(roc_auc_score(true == code, probabilities[:, code]))
        for code in ([1] if len(classes) == 2 else range(len(classes)))
        if 0 < np.sum(true == code) < len(true)
    ]
    return {**found, "auc": float(np.mean(areas))} if areas else found


def _codes(labels: np.ndarray, classes: list) -> np.ndarray:
    """Return the position of each label in ``classes``, -1 for other labels."""
    position = {label: code for code, label in enumerate(classes)}
    return np.array([position.get(label, -1) for label in labels.tolist()])


def wilson_interval(correct: float, rows: int) -> tuple[float, float]:
    """Return Wilson's 95 % confidence interval of the fraction ``correct / rows``."""
    z = 1.96
    middle = (correct + z * z / 2) / (rows + z * z)
    half = z / (rows + z * z) * sqrt(correct * (rows - correct) / rows + z * z / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def r2_interval(y_true: np.ndarray, y_pred: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of R² from 1,000 resamples of the rows; None if the targets are constant.

    Of more than 1,000 rows, random blocks of equal size are resampled instead of rows: each block is summed once.
    """
    n = len(y_true)
    rng = np.random.default_rng(0)
    block = rng.permutation(n) % min(n, _MAX_BLOCKS)
    centred = y_true - y_true.mean()
    errors = (y_true - y_pred) ** 2
    sums = np.array([np.bincount(block, values) for values in (np.ones(n), centred, centred**2, errors)])
    draws = rng.multinomial(sums.shape[1], np.full(sums.shape[1], 1 / sums.shape[1]), _RESAMPLES)
    rows, total, squares, error = (draws @ sums.T).T
    spread = squares - total**2 / rows
    found = 1 - error[spread > 0] / spread[spread > 0]
    if len(found) < _RESAMPLES // 2:
        return None
    low, high = np.quantile(found, [0.025, 0.975])
    return float(low), float(high)
