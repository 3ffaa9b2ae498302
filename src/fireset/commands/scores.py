"""How good predictions are."""

from typing import Any

import numpy as np

_HARDLY = 0.5  # recall below which a class counts as hardly found


def scores(task: str, answers: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
    """What there is to say of predictions: for classes as ``class_scores``, for numbers RMSE and R².

    Without spread in the answers there is no R².
    """
    if task == "classification":
        return class_scores(answers, predictions)
    error = answers - predictions
    spread = float(np.sum((answers - answers.mean()) ** 2))
    found = {"rmse": float(np.sqrt(np.mean(error**2)))}
    if spread > 0:
        found["r2"] = 1.0 - float(np.sum(error**2)) / spread
    return found


def class_scores(answers: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
    """Accuracy, beside it what always saying the most frequent class would have, and the mean recall of the classes.

    Where classes are rare a high accuracy may hide that they are never found; those with a recall below one half are
    listed as ``hardly_found``, with their recall. A label of None is of a class that training did not have.
    """
    right = answers == predictions
    found: dict[str, Any] = {"accuracy": float(np.mean(right))}
    labels = [label for label in dict.fromkeys(answers.tolist()) if label is not None]
    if not labels:
        return found
    rows = {label: answers == label for label in labels}
    recalls = {label: float(np.mean(right[rows[label]])) for label in labels}
    found["balanced_accuracy"] = float(np.mean(list(recalls.values())))
    found["majority_accuracy"] = max(float(np.mean(rows[label])) for label in labels)
    missed = {str(label): recall for label, recall in recalls.items() if recall < _HARDLY}
    if missed:
        found["hardly_found"] = dict(sorted(missed.items(), key=lambda item: item[1]))
    return found
