"""How good predictions are."""

from typing import Any

import numpy as np

from fireset.training.losses import AbsoluteError, Huber, Loss, Poisson, Quantile, get_loss
from fireset.training.losses.quantile import pinball

_HARDLY = 0.5  # recall below which a class counts as hardly found


def scores(
    task: str, answers: np.ndarray, predictions: np.ndarray, loss: str | Loss = "squared_error"
) -> dict[str, Any]:
    """What there is to say of predictions: for classes as ``class_scores``, for numbers what suits the loss.

    RMSE and R², which needs answers that differ; before them MAE for the robust losses, and the mean deviance for
    Poisson's. For quantiles instead the mean pinball loss of all levels, and the share of answers below each.
    """
    if task == "classification":
        return class_scores(answers, predictions)
    loss = get_loss(loss)
    if isinstance(loss, Quantile):
        return _quantile_scores(answers, predictions.reshape(len(answers), -1), loss.levels)
    error = answers - predictions
    spread = float(np.sum((answers - answers.mean()) ** 2))
    found: dict[str, Any] = {}
    if isinstance(loss, AbsoluteError | Huber):
        found["mae"] = float(np.mean(np.abs(error)))
    if isinstance(loss, Poisson) and answers.min() >= 0:
        # The loss is half of the deviance, and of logarithms; predictions may be 0 by underflow.
        logs = np.log(np.maximum(predictions, np.finfo(np.float64).tiny))
        halves = loss.value(logs[:, None], answers[:, None], np.ones(len(answers)))
        found["poisson_deviance"] = 2.0 * halves / len(answers)
    found["rmse"] = float(np.sqrt(np.mean(error**2)))
    if spread > 0:
        found["r2"] = 1.0 - float(np.sum(error**2)) / spread
    return found


def _quantile_scores(answers: np.ndarray, predictions: np.ndarray, levels: tuple[float, ...]) -> dict[str, Any]:
    below = np.mean(answers[:, None] <= predictions, axis=0)
    return {
        "pinball": float(pinball(answers, predictions, levels).mean()),
        "coverage": {f"q{level:g}": float(share) for level, share in zip(levels, below, strict=True)},
    }


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
